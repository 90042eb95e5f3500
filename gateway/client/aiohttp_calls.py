"""One request of aiohttp as the policy reads it, and as it is sent to a target in each attempt."""

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from typing import Any, Final

from aiohttp import BytesPayload, ClientRequest, ClientResponse, ClientSession, ClientTimeout
from multidict import CIMultiDict
from yarl import URL

from gateway.client.asked import HEDGE_HEADER, Asked, ask
from gateway.client.attempt import ClientAttempt
from gateway.client.hedger import ClientRace
from gateway.client.messages import Raw, address_at, body_to, headers_to, home_of, is_plain, origin_of, public
from gateway.client.racing import Entrant, Racing
from gateway.client.targets import Target

_JSON: Final = "application/json"
_SWITCH: Final = HEDGE_HEADER.decode()
_FRAMING: Final = frozenset({b"connection", b"content-encoding", b"expect", b"transfer-encoding"})  # of one connection
_LEFT_S_MIN: Final = 0.001  # aiohttp takes 0 for no limit
_BYTES: Final = (bytes, bytearray, memoryview)

Handler = Callable[[ClientRequest], Awaitable[ClientResponse]]


@dataclass(slots=True)
class Call:
    """One request.

    Attributes:
        url: its whole address, with the query of its parameters.
        given: its address as the session gets it.
        options: arguments of `ClientSession.request`.
        headers: its headers, with those of the session.
        body: whole body; None if it can be sent only once.
        is_json: True if the body is that of the argument `json`.
    """

    method: str
    url: URL
    given: Any
    options: dict[str, Any]
    headers: Raw
    body: bytes | None
    is_json: bool


class SessionCalls(Racing):
    """The policy and the options of one session.

    Args:
        session: the session that sends.
        options: arguments of its constructor.
    """

    def use(self, session: ClientSession, options: Mapping[str, Any]) -> None:
        """Set the session that sends, and the arguments of its constructor."""
        self._session = session
        base = options.get("base_url")
        self._base = None if base is None else URL(base)
        self._dumps = options.get("json_serialize_bytes")
        self._middlewares = tuple(options.get("middlewares") or ())

    def read(self, method: str, given: Any, options: dict[str, Any]) -> Call | None:
        """Read a request; None if aiohttp rejects it."""
        session = self._session
        try:
            url = URL(given)
            if self._base is not None and not url.absolute:
                url = self._base.join(url)
            if options.get("params"):
                url = url.extend_query(options["params"])
            own = CIMultiDict(options.get("headers") or ())
            found = {**session.headers, **own} if session.headers else own
            headers = [(name.encode(), str(value).encode()) for name, value in found.items()]
            is_json = options.get("json") is not None
            body = self._json(options) if is_json else _body(options.get("data"))
        except (AttributeError, TypeError, ValueError):
            return None
        is_http = url.scheme in ("http", "https") and url.host
        return Call(method.upper(), url, given, options, headers, body, is_json) if is_http else None

    def enter(self, request: Call) -> "Entered | Call":
        """Return the race of a request, or the request that is passed on without one."""
        hedger, url = self.hedger, request.url
        origin = f"{url.scheme}://{url.raw_host}:{'' if url.is_default_port() else url.port}"
        path = url.raw_path_qs.encode()
        asked = ask(request.method, origin, path, request.headers, request.body, hedger.rand())
        home = home_of(url, hedger.targets) if hedger.targets else None
        if (home is None and hedger.targets) or (not hedger.targets and asked.facts.hedge_off is not None):
            if asked.has_switch:
                request.options = self._guarded(request.options, None, None)
            return request
        return Entered(self, request, asked, home, hedger.race(asked))

    def request_to(self, entered: "Entered", attempt: ClientAttempt) -> tuple[str, Any, dict[str, Any]]:
        """Return method, address and arguments of an attempt."""
        call, asked, home, target = entered.request, entered.asked, entered.home, attempt.target
        options = {**call.options, "raise_for_status": False}
        body = None if target is None else body_to(asked, target)
        if body is None and call.is_json and attempt.number:
            body = call.body  # aiohttp closes the payload of the primary
        if body is not None:
            options["data"] = BytesPayload(body, content_type=_JSON)
        if attempt.number:
            options.pop("upload_tracker", None)  # it follows one request
            options["timeout"] = self._left(options, asyncio.get_running_loop().time() - entered.start_s)
        address = call.given
        if not is_plain(home, target) or asked.has_switch:
            options = self._guarded(options, home, None if is_plain(home, target) else target)
        if home is None or target is None or is_plain(home, target):
            return call.method, address, options
        if target is not home:
            address = URL(address_at(call.url.raw_path_qs.encode(), home, target)[1], encoded=True)
            options.pop("params", None)
        if target.origin != home.origin:
            for name in ("auth", "cookies"):
                options.pop(name, None)
        return call.method, address, options

    def _json(self, options: dict[str, Any]) -> bytes:
        """Replace a value for JSON by its bytes and return these."""
        if options.get("data") is not None:
            raise ValueError
        value = options["json"]
        body: bytes = self._session.json_serialize(value).encode() if self._dumps is None else self._dumps(value)
        del options["json"]
        options["data"] = BytesPayload(body, content_type=_JSON)
        return body

    def _left(self, options: Mapping[str, Any], passed_s: float) -> ClientTimeout:
        """Return the timeouts of a backup: in total, the time that is left."""
        given = options.get("timeout", self)
        if isinstance(given, int | float) or given is None:
            given = ClientTimeout(total=given)
        limits = given if isinstance(given, ClientTimeout) else self._session.timeout
        total = limits.total and max(_LEFT_S_MIN, limits.total - passed_s)
        return ClientTimeout(total, limits.connect, limits.sock_read, limits.sock_connect, limits.ceil_threshold)

    def _guarded(self, options: dict[str, Any], home: Target | None, target: Target | None) -> dict[str, Any]:
        """Return the arguments with a last middleware that sets the headers of each request before it is sent."""
        given = options.get("middlewares")
        before = self._middlewares if given is None else tuple(given)

        async def guard(request: ClientRequest, handler: Handler) -> ClientResponse:
            request.headers.popall(_SWITCH, None)
            if home is not None and target is not None:
                _set_headers(request, home, target)
            return await handler(request)

        return {**options, "middlewares": (*before, guard)}


class Entered(Entrant):
    """One request that takes part in a race.

    Attributes:
        start_s: time of the loop at its start.
    """

    __slots__ = ("_calls", "start_s")

    def __init__(self, calls: SessionCalls, request: Call, asked: Asked, home: Target | None, race: ClientRace) -> None:
        super().__init__(request, asked, home, race)
        self._calls = calls
        self.start_s = asyncio.get_running_loop().time()

    def request_to(self, attempt: ClientAttempt) -> tuple[str, Any, dict[str, Any]]:
        """Return method, address and arguments of an attempt."""
        return self._calls.request_to(self, attempt)


def _body(data: Any) -> bytes | None:
    """Return the whole body; None if it can be sent only once."""
    if isinstance(data, str):
        return data.encode()
    return b"" if data is None else bytes(data) if isinstance(data, _BYTES) else None


def _set_headers(request: ClientRequest, home: Target, target: Target) -> None:
    """Set the headers of a target: after all those of the session, its cookies, and other middlewares.

    After a redirect to another host, that host gets no key and no header of its own.
    """
    raw = [(name.encode(), value.encode()) for name, value in request.headers.items()]
    framing = [each for each in raw if each[0].lower() in _FRAMING]
    raw = [each for each in raw if each[0].lower() not in _FRAMING]
    raw = headers_to(raw, home, target) if origin_of(request.url) == target.origin else public(raw)
    if target.origin != home.origin:
        host = request.url.host_port_subcomponent or ""
        raw = [(b"Host", host.encode()), *(each for each in raw if each[0].lower() != b"host")]
    request.headers.clear()
    request.headers.extend([(name.decode(), value.decode()) for name, value in (*raw, *framing)])
