"""The transports of httpx and httpx2: how both read their requests, and the classes for each. No I/O.

Both libraries have the same interface, so a class is made of one source with the base classes of its library, when its
name is first used: a process loads only the library that it uses, and asyncio only for `httpx_async.py`.
"""

import importlib
import math
import sys
from abc import abstractmethod
from collections.abc import Iterable
from types import ModuleType
from typing import Any, Final, Generic, Protocol, TypeVar

from ttft_gateway.client.asked import ask
from ttft_gateway.client.budget import Budget
from ttft_gateway.client.config import First, HedgeConfig
from ttft_gateway.client.hedger import ClientAttempt, ClientRace
from ttft_gateway.client.messages import HttpxHeaders, HttpxRequest, addressed
from ttft_gateway.client.racing import Ending, Entrant, Opened, Racing
from ttft_gateway.client.stats import Stats
from ttft_gateway.client.targets import Target

_T = TypeVar("_T")
Inner = Any
"""A transport that sends, of httpx, of httpx2, or with their interface."""
_ADDRESSES_MAX: Final = 64  # URLs that are remembered


class WrongUseError(TypeError):
    """A transport in a client that it is not for."""


class Response(Protocol):
    """A response of httpx or httpx2; `stream` is its body."""

    status_code: int
    stream: Any
    extensions: dict[str, Any]

    @property
    def headers(self) -> HttpxHeaders: ...


_Entrant = Entrant[HttpxRequest, HttpxRequest, Response]


class HttpxTransport(Racing[HttpxRequest, HttpxRequest, Response], Generic[_T]):
    """Hedges the requests of a client of httpx or httpx2.

    Args:
        config: settings; None: the defaults.
        replicas: addresses, or targets with keys and model names. Requests below the base URL of one of them go to any
            of them; all others are sent without a race. Empty: a request and its backups go to its own address.
        stats: counts; None: own ones, at `stats`.
        first: event that ends a race.
        budget: limit on backups, shared with other transports; None: its own, of the settings.
        transport: transport that sends; None: an `HTTPTransport` or `AsyncHTTPTransport` of the library.

    Raises:
        TypeError: a synchronous transport that sends is no `HTTPTransport` with HTTP/1.1.
    """

    _library: ModuleType  # httpx or httpx2
    _body: type["HttpxBody"]  # class of response bodies
    _inner: Inner

    def __init__(
        self,
        config: HedgeConfig | None = None,
        *,
        replicas: Iterable[Target | str] = (),
        stats: Stats | None = None,
        first: First = "content",
        budget: Budget | None = None,
        transport: _T | None = None,
    ) -> None:
        super().__init__(config, replicas, stats, first, budget)
        self._check(transport)
        self._addresses: dict[object, tuple[str, bytes]] = {}  # origins and paths of recent URLs, by httpx's parts
        self.unsent = self._library.ConnectError
        self._use(transport)
        from ttft_gateway.client.reuse import reuse  # only a client needs it

        reuse(getattr(self._inner, "_pool", None))
        self.hedger.sender = self._inner

    _sends: str  # name of the method of transports that send

    def _check(self, transport: object) -> None:
        """Reject a transport that cannot send for this one."""
        name, own = type(self).__name__, self._library.__name__
        if isinstance(transport, HttpxTransport):
            raise TypeError("transport hedges already; remove one of the two")
        other = "httpx" if own == "httpx2" else "httpx2"
        module: Any = sys.modules.get(other)
        if module is not None and isinstance(transport, module.BaseTransport | module.AsyncBaseTransport):
            others = name.removesuffix("2") + ("2" if other == "httpx2" else "")
            raise TypeError(f"transport is one of {other}, and {name} is for {own}; use {others}")
        if transport is not None and not hasattr(transport, self._sends):
            raise TypeError(f"transport is {type(transport).__name__} without {self._sends}; use a transport of {own}")

    @abstractmethod
    def _use(self, transport: _T | None) -> None:
        """Set the transport that sends."""

    def enter(self, request: HttpxRequest) -> _Entrant | None:
        """Return the race of a request; None: it is sent without a race."""
        url: Any = request.url
        try:
            origin, path = self._addresses[url._uri_reference]
        except (AttributeError, KeyError):
            origin, path = self._address_of(request)
        body: bytes | None
        try:
            body = request.content
        except Exception:
            body = self._streamed(request)
        hedger = self.hedger
        asked = ask(request.method, origin, path, request.headers.raw, body, hedger.rand(), hedger.rules)
        return self.race(request, url, asked, _limit_s(request))

    def _streamed(self, request: HttpxRequest) -> bytes | None:
        """Return the body of a request that httpx made of a stream, as it does after a redirect.

        Returns:
            None for a stream that can be sent once.
        """
        stream: Any = getattr(request, "stream", None)
        return b"".join(stream) if isinstance(stream, self._library.ByteStream) else None

    def request_to(self, entrant: _Entrant, attempt: ClientAttempt) -> HttpxRequest:
        """Return the request that an attempt sends."""
        if attempt.target is None and not entrant.asked.has_switch:
            return entrant.request
        return addressed(entrant.request, entrant.asked, entrant.home, attempt.target)

    def _address_of(self, request: HttpxRequest) -> tuple[str, bytes]:
        """Return origin and path of a request's URL, and remember them."""
        url = request.url
        if not isinstance(request, self._library.Request):
            other = type(request).__module__.partition(".")[0]
            raise WrongUseError(f"{type(self).__name__} is for {self._library.__name__}; it is in a client of {other}")
        address = f"{url.scheme}://{url.raw_host.decode('ascii')}:{url.port or ''}", url.raw_path
        reference = getattr(url, "_uri_reference", None)
        if reference is not None:
            if len(self._addresses) >= _ADDRESSES_MAX:
                self._addresses.clear()
            self._addresses[reference] = address
        return address


class HttpxBody(Ending):
    """The body of a response that is returned: the pieces that were read in its race, then the pieces after them."""

    def __init__(self, race: ClientRace | None, opened: Opened[Response]) -> None:
        super().__init__(race, len(opened.chunks))
        self._opened = opened


def _limit_s(request: HttpxRequest) -> float:
    """Return the time after which httpx's own timeouts end a request without an event."""
    timeouts = request.extensions.get("timeout")
    read_s = None if timeouts is None else timeouts.get("read")
    return math.inf if read_s is None else read_s


def transport_class(name: str, transport: type[HttpxTransport[Any]], body: type[HttpxBody], kind: str) -> type:
    """Make the class of a transport; a name that ends with 2 is httpx2's.

    Args:
        body: class of response bodies.
        kind: beginning of the names of the library's own classes for bodies.

    Raises:
        AttributeError: there is no such name.
    """
    if name.removesuffix("2") != f"{kind.removeprefix('Sync')}HedgingTransport":
        raise AttributeError(f"module {transport.__module__!r} has no attribute {name!r}")
    library = importlib.import_module("httpx2" if name.endswith("2") else "httpx")
    bodies = type(body.__name__, (body, getattr(library, f"{kind}ByteStream")), {})
    members = {
        "__module__": transport.__module__,
        "__doc__": HttpxTransport.__doc__,
        "_library": library,
        "_body": bodies,
    }
    return type(name, (transport, getattr(library, f"{kind.removeprefix('Sync')}BaseTransport")), members)
