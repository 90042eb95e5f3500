"""The synchronous transport without a base class of a library; httpx's and httpx2's differ in nothing else."""

import threading
from collections.abc import Iterable, Iterator
from itertools import chain
from typing import Any, Final

from gateway.client.attempt import ClientAttempt
from gateway.client.config import HedgeConfig
from gateway.client.first import First
from gateway.client.hedger import ClientRace, log_failure
from gateway.client.racing import Entrant, Opened, Racing, outcome_of
from gateway.client.sockets import raced
from gateway.client.stats import Stats
from gateway.client.sync_race import SyncRace
from gateway.client.targets import Target
from gateway.hedging.outcomes import Outcome

_JOIN_S: Final = 1.0  # for all threads that close a connection


class RacedBody:
    """The body of a winner: the pieces that were read in its race, then the others."""

    _last = b""

    def __init__(self, opened: Opened, race: ClientRace) -> None:
        self._body = opened.body
        self._held = opened.chunks
        self._rest = opened.rest
        self._attempt: ClientAttempt | None = opened.attempt
        self._race = race
        self._pieces = len(opened.chunks)

    def __iter__(self) -> Iterator[bytes]:
        try:
            pieces, self._held = chain(self._held, self._rest), []
            for self._pieces, self._last in enumerate(pieces, 1):
                yield self._last
        except Exception:
            self._end(Outcome.CUT)
            raise
        self._end(Outcome.FINISHED)

    def close(self) -> None:
        """Close the response."""
        if self._attempt is not None:
            self._end(outcome_of(self._last))
        self._body.close()

    def _end(self, outcome: Outcome) -> None:
        attempt, self._attempt = self._attempt, None
        if attempt is not None:
            try:
                self._race.on_end(attempt, outcome=outcome, events=self._pieces)
            except Exception:
                log_failure()


class SyncTransport(Racing):
    """Hedges requests of a synchronous client.

    Args:
        inner: transport that sends.
        library: "httpcore" or "httpcore2", which `inner` uses.
        body: class of response bodies.
    """

    def __init__(
        self,
        inner: Any,
        library: str,
        body: type[RacedBody],
        config: HedgeConfig | None,
        replicas: Iterable[Target | str],
        stats: Stats | None,
        first: First,
    ) -> None:
        super().__init__(config, replicas, stats, first)
        raced(getattr(inner, "_pool", None), library)
        self._inner = inner
        self._body = body
        self._threads: set[threading.Thread] = set()

    def handle_request(self, request: Any) -> Any:
        """Send a request, and a backup if it is late; return the response with the first event."""
        try:
            entered = self.enter(request)
        except Exception:
            log_failure()
            entered = None
        if not isinstance(entered, Entrant):
            return self._inner.handle_request(request if entered is None else entered)
        opened = SyncRace(self._inner, self.hedger, entered, self.first, self._threads).run()
        opened.response.stream = self._body(opened, entered.race)
        return opened.response

    def close(self) -> None:
        """Close all connections."""
        self._inner.close()
        for thread in list(self._threads):
            thread.join(_JOIN_S)
