"""The counts of hedging clients: thread-safe, shared by any number of transports.

A forked child starts with counts of 0, so that the sum over processes is right. Times are seconds.
"""

import os
import threading
import weakref
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Final

import msgspec

if TYPE_CHECKING:
    from ttft_gateway.client.report import RaceReport

_TARGETS_MAX: Final = 256  # names; further ones are counted together
_OTHER: Final = "other"
_TIMES_MAX: Final = 500  # of first events that are remembered of each target


class TargetSnapshot(msgspec.Struct, frozen=True):
    """The counts of one target.

    Attributes:
        requests: attempts sent there, backups included.
        hedges: backups sent there.
        wins: backups that brought the first event.
        lost: attempts that were closed because another one brought the first event.
        errors: attempts that failed, those with status 429 included.
        rate_limited: attempts with status 429.
        first_p50_s, first_p95_s: shortest of the last 500 times to the first event that 50 % and 95 % of them do not
            exceed; None before the first event.
    """

    requests: int = 0
    hedges: int = 0
    wins: int = 0
    lost: int = 0
    errors: int = 0
    rate_limited: int = 0
    first_p50_s: float | None = None
    first_p95_s: float | None = None


class StatsSnapshot(msgspec.Struct, frozen=True):
    """The counts of all transports that share a `Stats` object.

    Attributes:
        requests: requests that may be hedged.
        hedges: backups sent.
        hedged_requests: requests with at least one backup.
        hedge_wins: requests with the first event from a backup.
        primary_wins: requests with a backup and the first event from the primary.
        budget_exhausted: late requests without a backup because the budget had no credit.
        denied: late requests without a backup, by reason (docs/hedging.md#denials).
        saved_s: time that winning backups saved, as estimated from the learned distribution.
        targets: counts by target.
    """

    requests: int = 0
    hedges: int = 0
    hedged_requests: int = 0
    hedge_wins: int = 0
    primary_wins: int = 0
    budget_exhausted: int = 0
    denied: Mapping[str, int] = msgspec.field(default_factory=dict)
    saved_s: float = 0.0
    targets: Mapping[str, TargetSnapshot] = msgspec.field(default_factory=dict)

    @property
    def hedge_rate(self) -> float:
        """Backups per request."""
        return self.hedges / self.requests if self.requests else 0.0


class _Counts:
    """The counts of one target, as they grow."""

    __slots__ = ("errors", "first_s", "hedges", "lost", "rate_limited", "requests", "wins")

    def __init__(self) -> None:
        self.requests = self.hedges = self.wins = self.lost = self.errors = self.rate_limited = 0
        self.first_s = deque[float](maxlen=_TIMES_MAX)


class Stats:
    """Counts requests and backups; every method may be called from any thread.

    Args:
        on_race: called with the report of each race when it is decided, in the thread or task that decides it; it must
            not wait. An exception is logged.

    Attributes:
        on_race: the argument.
    """

    def __init__(self, on_race: Callable[["RaceReport"], None] | None = None) -> None:
        if on_race is not None and not callable(on_race):
            raise TypeError(f"on_race is {type(on_race).__name__}; use a function of a RaceReport")
        self.on_race = on_race
        self.clear()
        _ALL.add(self)

    def __repr__(self) -> str:
        return f"<Stats: {self._requests} requests, {self._hedges} backups, {self._hedge_wins} won>"

    def snapshot(self) -> StatsSnapshot:
        """Return the counts at this moment."""
        with self._lock:
            return StatsSnapshot(
                self._requests,
                self._hedges,
                self._hedged,
                self._hedge_wins,
                self._primary_wins,
                self._denied.get("budget", 0),
                dict(self._denied),
                self._saved_s,
                {name: self._target_snapshot(counts) for name, counts in self._targets.items()},
            )

    def hedge_rate(self) -> float:
        """Return the number of backups per request."""
        return self.snapshot().hedge_rate

    # of the clients

    def sent(self, target: str, number: int) -> None:
        """Count an attempt: number 0 of its request, or a backup."""
        with self._lock:
            counts = self._targets.get(target) or self._of(target)
            counts.requests += 1
            if number == 0:
                self._requests += 1
            else:
                counts.hedges += 1
                self._hedges += 1
                self._hedged += number == 1

    def first(self, target: str, waited_s: float) -> None:
        """Count a first event."""
        with self._lock:
            counts = self._targets.get(target) or self._of(target)
            counts.first_s.append(waited_s)

    def won(self, target: str, *, backup: bool, saved_s: float) -> None:
        """Count the first event of a request with a backup."""
        with self._lock:
            if backup:
                self._of(target).wins += 1
                self._hedge_wins += 1
                self._saved_s += saved_s
            else:
                self._primary_wins += 1

    def lost(self, target: str) -> None:
        """Count an attempt that was closed because another one won."""
        with self._lock:
            self._of(target).lost += 1

    def failed(self, target: str, *, rate_limited: bool) -> None:
        """Count an attempt that failed."""
        with self._lock:
            counts = self._of(target)
            counts.errors += 1
            counts.rate_limited += rate_limited

    def deny(self, reason: str) -> None:
        """Count a late request without a backup."""
        with self._lock:
            self._denied[reason] = self._denied.get(reason, 0) + 1

    # inside

    def clear(self) -> None:
        """Start from 0."""
        self._lock = threading.Lock()
        self._requests = self._hedges = self._hedged = self._hedge_wins = self._primary_wins = 0
        self._saved_s = 0.0
        self._denied: dict[str, int] = {}
        self._targets: dict[str, _Counts] = {}

    def _of(self, target: str) -> _Counts:
        counts = self._targets.get(target)
        if counts is None:
            target = target if len(self._targets) < _TARGETS_MAX else _OTHER
            counts = self._targets.setdefault(target, _Counts())
        return counts

    def _target_snapshot(self, counts: _Counts) -> TargetSnapshot:
        times_s = sorted(counts.first_s)
        p50_s, p95_s = (_nearest_rank(times_s, percent) for percent in (50, 95))
        return TargetSnapshot(
            counts.requests,
            counts.hedges,
            counts.wins,
            counts.lost,
            counts.errors,
            counts.rate_limited,
            p50_s,
            p95_s,
        )


def _nearest_rank(ascending: Sequence[float], percent: int) -> float | None:
    """Return the smallest value that a percentage of all does not exceed; None without values."""
    return ascending[(percent * len(ascending) + 99) // 100 - 1] if ascending else None


_ALL: "weakref.WeakSet[Stats]" = weakref.WeakSet()


def _after_fork() -> None:
    for stats in _ALL:
        stats.clear()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork)
