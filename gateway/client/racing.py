"""The parts of a race that synchronous and asynchronous transports of httpx share. No I/O."""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, Final

from gateway.client.asked import Asked, ask
from gateway.client.attempt import ClientAttempt
from gateway.client.config import HedgeConfig
from gateway.client.first import First
from gateway.client.hedger import ClientRace, Hedger
from gateway.client.messages import addressed, home_of
from gateway.client.stats import Stats
from gateway.client.targets import Target
from gateway.hedging.outcomes import Outcome

_ADDRESSES_MAX: Final = 64  # URLs that are remembered
_ENDS: Final = (b"[DONE]", b'"message_stop"', b'"response.completed"', b'"response.incomplete"')


class Overtaken(BaseException):
    """Another attempt has won: the connection is to be closed.

    No `Exception`, so that no client library takes it for an error of the network.
    """


@dataclass(slots=True)
class Opened:
    """A response that was read up to its first event, or to its end.

    Attributes:
        attempt: the attempt.
        response: the response of the client library.
        body: its stream.
        chunks: pieces of the body that were read, raw.
        rest: iterator over the others.
    """

    attempt: ClientAttempt
    response: Any
    body: Any
    chunks: list[bytes]
    rest: Any


class Entrant:
    """One request that takes part in a race.

    Attributes:
        race: its race.
        primary: its first attempt, counted as sent.
    """

    __slots__ = ("asked", "home", "primary", "race", "request")

    def __init__(self, request: Any, asked: Asked, home: Target | None, race: ClientRace) -> None:
        self.request = request
        self.asked = asked
        self.home = home
        self.race = race
        self.primary = race.begin()

    def request_to(self, attempt: ClientAttempt) -> Any:
        """Return the request as it is sent in an attempt."""
        if attempt.target is None and not self.asked.has_switch:
            return self.request
        return addressed(self.request, self.asked, self.home, attempt.target)


class Racing:
    """The policy and the options of one transport."""

    def __init__(
        self,
        config: HedgeConfig | None,
        replicas: Iterable[Target | str],
        stats: Stats | None,
        first: First,
    ) -> None:
        if not callable(first) and first not in ("content", "headers"):
            raise ValueError(f"first is {first!r}; use 'content', 'headers' or a function")
        targets = [Target(each) if isinstance(each, str) else each for each in replicas]
        self.hedger = Hedger(config or HedgeConfig(), targets, stats)
        self.first = first
        self._addresses: dict[Any, tuple[str, bytes]] = {}  # origins and paths of recent URLs, by httpx's parts

    def enter(self, request: Any) -> Entrant | Any:
        """Return the race of a request, or the request that is passed on without one."""
        hedger = self.hedger
        url = request.url
        try:
            origin, path = self._addresses[url._uri_reference]
        except (AttributeError, KeyError):
            origin, path = self._address_of(url)
        try:
            body = request.content
        except Exception:  # a stream, which can be sent once
            body = None
        asked = ask(request.method, origin, path, request.headers.raw, body, hedger.rand())
        home = None
        if hedger.targets:
            home = home_of(url, hedger.targets)
        if (home is None and hedger.targets) or (not hedger.targets and asked.facts.hedge_off is not None):
            return addressed(request, asked, None, None)
        return Entrant(request, asked, home, hedger.race(asked))

    def _address_of(self, url: Any) -> tuple[str, bytes]:
        """Return origin and path of a URL, and remember them."""
        address = f"{url.scheme}://{url.raw_host.decode('ascii')}:{url.port or ''}", url.raw_path
        reference = getattr(url, "_uri_reference", None)
        if reference is not None:
            if len(self._addresses) >= _ADDRESSES_MAX:
                self._addresses.clear()
            self._addresses[reference] = address
        return address


def outcome_of(last: bytes) -> Outcome:
    """Return the outcome of a winner whose answer was closed before the end of its body.

    SDKs close a stream after its closing event.

    Args:
        last: the last piece that was read.
    """
    return Outcome.FINISHED if any(end in last for end in _ENDS) else Outcome.CLIENT_GONE
