"""The explanation of one race, for its caller: attempts, why backups were sent or denied, and what they saved.

A report is a view: it costs nothing until an attribute is read. The log record and the hook of a race are made here, at
the first event or at the failure of all attempts. Times are seconds.
"""

import logging
import math
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Final

import msgspec

from ttft_gateway.hedging.outcomes import Outcome

if TYPE_CHECKING:
    from ttft_gateway.client.hedger import ClientRace

EXTENSION: Final = "ttft"
"""Name of a race's report among the extensions of a response of httpx."""
ATTRIBUTE: Final = "ttft_race"
"""Attribute with a race's report, of other responses and calls."""
_log: Final = logging.getLogger("ttft_gateway")


class AttemptReport(msgspec.Struct, frozen=True):
    """One attempt.

    Attributes:
        number: 0 is the primary.
        target: name of its target.
        sent_s: time from the start of the request until it was sent.
        first_s: time from the start of the request until its first event; None before the event.
        status: status of its response; None before the response.
        result: "won", "lost", "running", or a class of failures (`hedging.outcomes.Outcome`).
        why: reason of a backup; empty for the primary.
    """

    number: int
    target: str
    sent_s: float
    first_s: float | None
    status: int | None
    result: str
    why: str


class DenialReport(msgspec.Struct, frozen=True):
    """A late request that got no backup at that time.

    Attributes:
        reason: reason from a closed set (docs/hedging.md#denials).
        after_s: time from the start of the request.
        why: the reason with numbers.
    """

    reason: str
    after_s: float
    why: str


class RaceReport:
    """The race of one request, as far as it has come."""

    __slots__ = ("_race",)

    def __init__(self, race: "ClientRace") -> None:
        self._race = race

    @property
    def population(self) -> str:
        """Model with its API, or endpoint: the times of its requests are compared."""
        return self._race.population

    @property
    def target(self) -> str | None:
        """Name of the target that answered; None before, and if all attempts have failed."""
        winner = self._race.winner
        return None if winner is None else winner.label

    @property
    def is_hedged(self) -> bool:
        """True if a backup was sent."""
        return len(self._race.attempts) > 1

    @property
    def delay_s(self) -> float | None:
        """Time after which the request counted as late; None if it could not get a backup."""
        delay_s = self._race.delay_s
        return None if delay_s == math.inf else delay_s

    @property
    def first_s(self) -> float | None:
        """Time until the first event; None before, and if all attempts have failed."""
        winner = self._race.winner
        return None if winner is None or winner.content_s is None else winner.content_s - self._start_s

    @property
    def saved_s(self) -> float:
        """Time that a backup saved, as estimated from the learned distribution."""
        return self._race.saved_s

    @property
    def attempts(self) -> tuple[AttemptReport, ...]:
        """The attempts, the primary first."""
        race, start_s = self._race, self._start_s
        found = []
        for each in race.attempts:
            if each is race.winner:
                result = "won"
            elif each.outcome is None:
                result = "running"
            else:
                result = "lost" if each.outcome is Outcome.LOST else each.outcome.value
            first_s = None if each.content_s is None else each.content_s - start_s
            sent_s = each.start_s - start_s
            found.append(AttemptReport(each.number, each.label, sent_s, first_s, each.status, result, each.why))
        return tuple(found)

    @property
    def denials(self) -> tuple[DenialReport, ...]:
        """The first denial for each reason."""
        start_s = self._start_s
        return tuple(DenialReport(reason.value, at_s - start_s, why) for reason, at_s, why in self._race.denials)

    @property
    def _start_s(self) -> float:
        return self._race.attempts[0].start_s

    def as_dict(self) -> dict[str, Any]:
        """Return everything as plain values, for a log in JSON."""
        return {
            "population": self.population,
            "target": self.target,
            "delay_s": self.delay_s,
            "first_s": self.first_s,
            "saved_s": self.saved_s,
            "attempts": [msgspec.structs.asdict(each) for each in self.attempts],
            "denials": [msgspec.structs.asdict(each) for each in self.denials],
        }

    def __str__(self) -> str:
        """Return a line of text."""
        parts = [self.population]
        if self.first_s is None:
            parts.append("no answer")
        else:
            parts.append(f"first event after {_ms(self.first_s)} from {self.target}")
        parts += [
            f"backup {each.number} to {each.target} after {_ms(each.sent_s)} ({each.why}): {each.result}"
            for each in self.attempts[1:]
        ]
        parts += [f"no backup after {_ms(each.after_s)}: {each.reason} ({each.why})" for each in self.denials]
        if self.saved_s:
            parts.append(f"saved {_ms(self.saved_s)}")
        return "; ".join(parts)

    def __repr__(self) -> str:
        return f"<RaceReport {self}>"


def report_of(response: object) -> RaceReport | None:
    """Return the report of a response's race; None if it was sent without a race.

    Args:
        response: response of httpx or aiohttp, call of gRPC (of `grpc.aio` after its first message), or an object of an
            SDK that has a response of httpx in `response` or `http_response`.
    """
    inner = (getattr(response, name, None) for name in ("response", "http_response"))
    for each in (response, _intercepted(response), *inner):
        extensions = getattr(each, "extensions", None)
        found = extensions.get(EXTENSION) if isinstance(extensions, Mapping) else getattr(each, ATTRIBUTE, None)
        if isinstance(found, RaceReport):
            return found
    return None


def _intercepted(call: object) -> object:
    """Return the call that the interceptors of `grpc.aio` have returned, which the caller's call hides; else None."""
    task: Any = getattr(call, "_interceptors_task", None)
    if task is None or not task.done() or task.cancelled() or task.exception() is not None:
        return None
    return task.result()


def announce(race: "ClientRace") -> None:
    """Log a race that is decided at the level debug, and call the hook of its counts."""
    on_race = race.hedger.stats.on_race
    if on_race is None and not _log.isEnabledFor(logging.DEBUG):
        return
    report = RaceReport(race)
    try:
        _log.debug("%s", report, extra={EXTENSION: report})
        if on_race is not None:
            on_race(report)
    except Exception:
        _log.exception("the hook on_race failed; the request goes on")


def _ms(seconds: float) -> str:
    return f"{1000 * seconds:.0f} ms"
