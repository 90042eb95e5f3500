"""Races of HTTP requests: the attempts of a request over any HTTP library, and the end of an answer. No I/O of its own.

An adapter for a library sends a request and closes a response (`HttpAdapter`); everything else is here and in the
library's own class, which reads its requests (`Racing`), and replaces the body of the response that is returned.
"""

from abc import ABC, abstractmethod
from collections.abc import AsyncIterator, Callable, Iterable
from typing import TYPE_CHECKING, Any, Final, Generic, Protocol, TypeVar

import msgspec

from ttft_gateway.apis.base import Headers
from ttft_gateway.client.asked import Asked
from ttft_gateway.client.budget import Budget
from ttft_gateway.client.config import First, HedgeConfig, check_first
from ttft_gateway.client.first import HELD_MAX, Detector, Verdict, detector, failure_by, failure_of, is_error
from ttft_gateway.client.hedger import ClientAttempt, ClientRace, Failure, Hedger, log_failure, safely
from ttft_gateway.client.messages import Url, home_of
from ttft_gateway.client.race import Overtaken
from ttft_gateway.client.stats import Stats
from ttft_gateway.client.targets import Target, targets_of
from ttft_gateway.hedging.outcomes import Outcome

if TYPE_CHECKING:
    from concurrent.futures import Future

_Q = TypeVar("_Q")  # request, as the library's class reads it
_S = TypeVar("_S")  # request, as it is sent
_S_contra = TypeVar("_S_contra", contravariant=True)
_R = TypeVar("_R")  # response
_NO_ANSWER: Final = Failure(Outcome.FAILED)  # an empty stream, or one that begins with an error
_WAIT, _FIRST, _ERROR = Verdict.WAIT, Verdict.FIRST, Verdict.ERROR
_ENDS: Final = (b"[DONE]", b'"message_stop"', b'"response.completed"', b'"response.incomplete"')


class Opened(msgspec.Struct, Generic[_R]):
    """A response of which the headers were received.

    Attributes:
        response: the response of the client library.
        body: its body, which the race may close.
        status: its status.
        headers: its headers, names in any case.
        rest: the pieces of its body that no one has read, in any coding that the library leaves.
        chunks: pieces that the race has read.
        error: error that ended the body in the race, which its reader gets after the pieces; None for none.
    """

    response: _R
    body: Any
    status: int
    headers: Headers
    rest: AsyncIterator[bytes]
    chunks: list[bytes] = msgspec.field(default_factory=list)
    error: Exception | None = None


class HttpAdapter(Protocol[_S_contra, _R]):
    """Sends the attempts of races by an HTTP library; the coroutines of one that blocks never wait."""

    async def send(self, request: _S_contra) -> Opened[_R]:
        """Send a request; return its response after its headers."""

    async def close(self, opened: Opened[_R]) -> None:
        """Close a response before its end, and its connection."""

    async def wait(self, fetching: "Future[None]", limit_s: float) -> None:
        """Wait for the fetch of a token, at most for a time."""


class Racing(ABC, Generic[_Q, _S, _R]):
    """The policy and the options of one transport or session.

    Attributes:
        hedger: the policy.
        stats: its counts.
        first: event that ends a race.
        adapter: sends.
        errors: exceptions that end one attempt; any other one, such as a time limit's from a signal, ends the request.
        unsent: makes the library's error for a connection that cannot be made.
    """

    adapter: HttpAdapter[_S, _R]
    errors: type[Exception] = Exception
    unsent: Callable[[str], Exception]

    def __init__(
        self,
        config: HedgeConfig | None,
        replicas: Iterable[Target | str],
        stats: Stats | None,
        first: First,
        budget: Budget | None,
    ) -> None:
        check_first(first)
        self.hedger = Hedger(config or HedgeConfig(), targets_of(replicas), stats, budget=budget)
        self.stats = self.hedger.stats
        self.first = first

    @abstractmethod
    def request_to(self, entrant: "Entrant[_Q, _S, _R]", attempt: ClientAttempt) -> _S:
        """Return the request that an attempt sends."""

    def race(self, request: _Q, url: Url, asked: Asked, limit_s: float) -> "Entrant[_Q, _S, _R] | None":
        """Return the race of a request; None: it is sent without a race.

        Args:
            limit_s: time for the whole race by the client's timeouts.
        """
        hedger, home = self.hedger, None
        if hedger.targets:
            home = home_of(url, hedger.targets)
            if home is None:
                return None
        elif asked.facts.hedge_off is not None:
            return None
        race = hedger.race(asked)
        return Entrant(self, request, asked, home, race, race.begin(limit_s))


class Entrant(Generic[_Q, _S, _R]):
    """One request that takes part in a race: its `race.RacedAttempts`."""

    __slots__ = ("asked", "home", "primary", "race", "racing", "request")

    def __init__(
        self,
        racing: Racing[_Q, _S, _R],
        request: _Q,
        asked: Asked,
        home: Target | None,
        race: ClientRace,
        primary: ClientAttempt,
    ) -> None:
        self.racing = racing
        self.request = request
        self.asked = asked
        self.home = home
        self.race = race
        self.primary = primary

    async def open(self, attempt: ClientAttempt) -> Opened[_R]:
        """Send an attempt and read it up to its first event, to its end, or to its error."""
        racing = self.racing
        race, asked = self.race, self.asked
        target = attempt.target
        if target is None or target.token is None:
            opened = await racing.adapter.send(racing.request_to(self, attempt))
        else:
            opened = await target.token.send(self, attempt)
        status, headers = opened.status, opened.headers
        try:
            try:
                race.on_headers(attempt, status, headers)
            except Exception:
                log_failure()
            if status >= 400 and is_error(asked, status):
                safely(race.on_failed, attempt, failure_of(status, headers))
                return opened
            finder = detector(asked, racing.first, headers)
            if finder is not None and not await _has_first(opened, finder, racing.errors):
                error = opened.error
                safely(race.on_failed, attempt, _NO_ANSWER if error is None else failure_by(error))
            elif not race.on_first(attempt):
                raise Overtaken
        except BaseException:
            await racing.adapter.close(opened)
            raise
        return opened

    def failure(self, error: Exception) -> Failure:
        """Classify an error of `open`."""
        return failure_by(error)

    async def close(self, opened: Opened[_R]) -> None:
        """Close a response that is not returned."""
        await self.racing.adapter.close(opened)


async def _has_first(opened: Opened[_R], finder: Detector, errors: type[Exception]) -> bool:
    """Read a body up to its first event, to its end, or to its error; return True if it has an event."""
    held, verdict = 0, _ERROR
    try:
        async for chunk in opened.rest:
            opened.chunks.append(chunk)
            held += len(chunk)
            verdict = finder(chunk) if held <= HELD_MAX else _FIRST
            if verdict is not _WAIT:
                break
    except errors as error:
        opened.error = error
        return False
    return verdict is _FIRST


class Ending:
    """The end of the answer that is returned, which is reported once; without a race or a winner, nothing is reported.

    Attributes:
        pieces: number of pieces that were read.
        last: the last one.
    """

    last = b""

    def __init__(self, race: ClientRace | None, pieces: int) -> None:
        self._race = race
        self._attempt = None if race is None else race.winner
        self.pieces = pieces

    def report(self, outcome: Outcome) -> None:
        attempt, self._attempt = self._attempt, None
        if self._race is not None and attempt is not None:
            try:
                self._race.on_end(attempt, outcome=outcome, events=self.pieces)
            except Exception:
                log_failure()

    def report_close(self) -> None:
        """Report an answer that is closed; SDKs close a stream after its closing event, before the end of its body."""
        self.report(Outcome.FINISHED if any(end in self.last for end in _ENDS) else Outcome.CLIENT_GONE)

    @property
    def is_reported(self) -> bool:
        """True if the end was reported."""
        return self._attempt is None
