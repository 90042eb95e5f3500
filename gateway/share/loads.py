"""Exchanges the loads and the budgets of a pool that several gateways send to. Pure.

Every gateway reports a row of integers for each replica, and gets the sums of the rows of the others. What it gets is
added to the fields that routing reads, so that a request costs the same as without other gateways. Loads that are too
old are removed: many gateways that send to the same formerly idle replica are worse than gateways that ignore each
other.

A replica's failures count together, but one gateway's failures never suffice: its network may be broken. One probe is
enough for all gateways, so it is leased.

Contents, steps and tallies are counts since a start. The difference of two sums is what has happened in between only
if they are sums of the same gateways. When the number of gateways changes, and after a pause of this one, no difference
is used: what a gateway has counted before it joins or returns is not new.

The budgets of the pool go out and come in with the loads (credit_rows.py). The credits that all gateways have not spent
are there for each: a gateway with few requests would never earn a whole hedge. Between two exchanges several gateways
may spend the same credits; the debt is repaid before any other hedge, so that the share of hedges holds.

Units: seconds of the loop's clock; tokens.
"""

import math
from collections.abc import Mapping, Sequence
from math import ceil
from operator import sub
from typing import Final

from gateway.share.credit_rows import CREDITS, CreditRow
from gateway.share.messages import SILENT_S, Answer, Ask, BucketAnswer, BucketAsk, GaugeAnswer, GaugeAsk, keep_silent
from gateway.share.rows import (
    CONTENTS,
    FAILURES,
    IN_FLIGHT,
    LATE,
    LEVEL,
    LEVEL_UNIT,
    LOAD,
    OF_ONE_MAX,
    OVERDUE,
    OVERDUE_MS,
    OVERDUE_MS_MAX,
    PENDING,
    PENDING_MAX,
    STEP_SAMPLES,
    STEPS,
    TALLY,
    Row,
    checked,
)
from ttft_gateway.estimation.slowness import Tally
from ttft_gateway.limits.budget import RetryBudget
from ttft_gateway.pool.learned import Drop
from ttft_gateway.pool.loads import Loads, ReplicaLoad
from ttft_gateway.pool.pool import Pool
from ttft_gateway.routing.replicas import FAILURES_TO_OPEN, OPEN_S, BreakerState, Replica

_FORM: Final = "load3"  # of the rows; another meaning of a place is another form
_NOTHING: Final = (0,) * (OVERDUE + 1)
_OVERDUE_S_MIN: Final = 0.1  # an attempt that is overdue for less may have been answered since the report
_ANSWERING_S: Final = 0.12  # after a first content elsewhere, a replica is no failing one; more than a period
_SETTLE_S: Final = 0.5  # time after a first content in which the failures in reports may be from before it
_UNKNOWN_S: Final = 0.5  # age from which the loads of the others are removed, and each gateway sends probes
_QUIET_S: Final = 0.3  # between two exchanges while nothing changes; before the loads of the others are too old
_IDLE_S: Final = 60.0  # without a request, nothing is exchanged
_LEVEL_MOVE: Final = round(0.02 * LEVEL_UNIT)  # smaller changes of a level are not reported: it follows its mean slowly
_LEVEL_S: Final = 1.0  # between two rows of a replica of which only the level has changed


class LoadExchange:
    """The exchange of one pool's loads and budgets (a `gateway.share.sync.Exchange`).

    Args:
        retries: the budget of its model's retries; None in a fallback, which uses the same budget.
        drop: receives each row that is out of range, and is not used.
    """

    def __init__(self, pool: Pool, retries: RetryBudget | None, drop: Drop = keep_silent) -> None:
        self.pool = pool
        self._drop = drop
        hedges = pool.budget
        self._credits = CreditRow([hedges.requests, hedges.cost, *([] if retries is None else [retries])])
        self._asked: list[str] = []  # replicas of which probes were asked for
        self._asked_s, self._period_s = -math.inf, 0.0
        self._put_s = math.inf  # time of the loads of the others; infinite without any
        self._used_s = -math.inf
        self._is_same = False  # True if the last reported loads were the same as before
        self._is_quiet = False  # True if the loads of the others were the same, too, at the last answer
        self._received: Mapping[str, Row] = {}  # sums over the others in the last answer, and their version
        self._version = 0
        self._put_rows: Mapping[str, Row] | None = None  # last sums that were put; None if none are
        self._summed, self._summed_s = 0, -math.inf  # number of gateways at the last answer, and its time
        self._still: Sequence[int] | None = None  # counts of a pool in which nothing has changed and nothing waits
        self._levels_s = -math.inf  # time of the last levels
        self._own: dict[str, Row] = {}  # last reported rows
        self._reported: dict[str, Row] = {}  # and the credits
        self._others: dict[str, Row] = {}  # last rows of the others
        self._bases: dict[str, Row] = {}  # counts at the time when this gateway began to report

    @property
    def are_known(self) -> bool:
        """True if the loads of the others are known."""
        return self._put_s < math.inf

    def is_used(self, now_s: float) -> bool:
        """Return True if the pool had a request before the last batch, at most a minute ago, or is new."""
        if self._used_s == -math.inf:
            self._used_s = now_s
        return now_s < self._used_s + _IDLE_S

    def asks(self, now_s: float, period_s: float) -> Sequence[Ask]:
        """Return the loads of this gateway, and the probes that it needs."""
        if now_s >= self._put_s + _UNKNOWN_S:
            self.drop(now_s)
        if self._still != self._counts():
            self._still = None
            self._used_s = max(self._used_s, *(load.used_s for load in self.pool.loads.of.values()))
        if not self.is_used(now_s):
            self._bases.clear()
            self._own.clear()
            self._credits.begin()
            self._still, self._version = None, 0
            return ()
        before, rows = self._own, self.own(now_s)
        self._asked = self._due_probes(now_s, 2.0 * period_s) if self._still is None else []
        is_same = (before is self._own or before == self._own) and not self._asked
        if self._is_quiet and is_same and now_s + period_s / 2 < self._asked_s + _QUIET_S:
            return ()
        self._asked_s, self._period_s, self._is_same, self._is_quiet = now_s, period_s, is_same, False
        key = f"{_FORM} {self.pool.name}"
        return (
            GaugeAsk(key, rows, self._version, (CREDITS,) if self._credits.may_wait else ()),
            *(BucketAsk(f"{key} {name}", 1.0, OPEN_S, want=1.0, least=1.0) for name in self._asked),
        )

    def answered(self, answers: Sequence[Answer], now_s: float) -> None:
        """Put the loads of the others, and send the probes that were granted."""
        gauge, *probes = answers
        is_fresh = now_s <= self._asked_s + _UNKNOWN_S - self._period_s  # they are used until the next answer
        if isinstance(gauge, GaugeAnswer):
            self._version = gauge.version
            self._received = gauge.sums(self._received)
            if is_fresh and self._still is not None and self._is_put(gauge.processes):
                self._put_s, self._summed_s, self._is_quiet = now_s, now_s, self._is_same
            elif is_fresh:
                self.put(self._received, gauge.processes, now_s)
        for name, probe in zip(self._asked, probes, strict=True):
            if isinstance(probe, BucketAnswer) and probe.granted:
                self._grant_probe(name, now_s)

    def _counts(self) -> list[int]:
        """Return numbers that change with each request, and each answer."""
        return [count for replica, load in self.pool.loads.of.items() for count in (load.sent, replica.in_flight)]

    def own(self, now_s: float) -> Mapping[str, Row]:
        """Return the row of each replica, and the credits; the same object if nothing has changed."""
        if self._still is None:
            is_due = now_s >= self._levels_s + _LEVEL_S
            self._levels_s = now_s if is_due else self._levels_s
            before, self._own = self._own, self._rows(now_s, is_due=is_due)
            if before != self._own:
                self._reported = {}
        if self._credits.report(now_s):
            self._reported = {}
        if not self._reported:
            self._reported = self._own | {CREDITS: self._credits.row}
        return self._reported

    def _rows(self, now_s: float, *, is_due: bool) -> dict[str, Row]:
        """Return the row of each replica, and note if none can change before the next request."""
        predictor = self.pool.learning.predictor
        if predictor.steps is None:
            predictor.steps = {}
        predictor.fold_new(now_s)
        rows, is_still = {}, True
        for replica, load in self.pool.loads.of.items():
            row = self._own.get(replica.name)
            if row is None or not _is_same(row, replica, load):
                row = rows[replica.name] = self._row(replica, load, now_s, is_due=is_due)
                is_still = is_still and _is_same(row, replica, load)
            rows[replica.name] = row
            is_still = is_still and replica.breaker.state is BreakerState.CLOSED
        if is_still and not any(any(row[FAILURES : OVERDUE + 1]) for row in self._others.values()):
            self._still = self._counts()
        return rows

    def _row(self, replica: Replica, load: ReplicaLoad, now_s: float, *, is_due: bool) -> Row:
        """Return the row of a replica; the last one if only the level has changed, unless that is due."""
        predictor, name = self.pool.learning.predictor, replica.name
        steps = (predictor.steps or {}).get(name, (0.0, 0))
        *tally, excess = predictor.tally(name)
        counts = (load.contents, steps[1], round(LEVEL_UNIT * steps[0]), *tally, ceil(LEVEL_UNIT * excess))
        base = self._bases.setdefault(name, counts)
        if counts[1] < base[1]:  # another predictor
            base = self._bases[name] = (base[0], *[0] * (len(base) - 1))
        since = [count - before for count, before in zip(counts, base, strict=True)]
        load.others.reported = load.sent
        old, level = self._own.get(name), round(LEVEL_UNIT * predictor.level(name))
        if old is not None and abs(level - old[LEVEL]) < _LEVEL_MOVE:
            level = old[LEVEL]
        row = (
            replica.own_in_flight,
            min(PENDING_MAX, max(0, round(load.pending - load.others.pending))),
            *since[:3],
            level,
            *since[3:],
            *_trouble(replica, load, now_s),
        )
        is_moved = old is None or is_due or (*row[:LEVEL], *row[LEVEL + 1 :]) != (*old[:LEVEL], *old[LEVEL + 1 :])
        return row if is_moved or old is None else old

    def put(self, rows: Mapping[str, Row], processes: int, now_s: float) -> None:
        """Replace the loads of the other gateways.

        Args:
            rows: sums over the other gateways.
            processes: number of gateways, this one included.
        """
        loads, processes = self.pool.loads, max(1, processes)
        others, old, is_same = max(1, processes - 1), self._put_rows or {}, loads.processes == processes
        are_comparable = processes == self._summed and now_s < self._summed_s + SILENT_S
        if not is_same:
            self._credits.divide()
        loads.processes = processes
        self._put_s, self._put_rows = now_s, rows
        self._summed, self._summed_s = processes, now_s
        if not is_same or rows.get(CREDITS) != old.get(CREDITS):
            self._put_credits(rows.get(CREDITS, ()), processes, now_s)
        changed: dict[str, Row] = {}
        for replica, load in loads.of.items():
            row, last = rows.get(replica.name, _NOTHING), self._others.get(replica.name)
            if not (row is last and is_same):
                row = self._row_of(rows, replica.name, others)
            if row == last and not any(row[FAILURES : OVERDUE + 1]):
                continue
            self._others[replica.name] = changed[replica.name] = row
            if not are_comparable:
                _begin_counts(load, row)
            _put_load(replica, load, row)
            _put_health(loads, replica, load, row, now_s)
        self._is_quiet = self._is_same and not changed
        self._still = None if changed else self._still
        if changed and processes > 1:
            self._put_levels(changed, processes - 1, now_s)

    def _is_put(self, processes: int) -> bool:
        """Return True if what was received is what was put."""
        return self._received is self._put_rows and processes == self.pool.loads.processes

    def _row_of(self, rows: Mapping[str, Row], name: str, others: int) -> Row:
        """Return the row of a replica; a row without loads if there is none, or if it is out of range."""
        if name not in rows:
            return _NOTHING
        try:
            return checked(rows[name], LOAD, others)
        except ValueError as error:
            self._drop(f"the loads of {name} in {self.pool.name}", str(error))
            return _NOTHING

    def _put_credits(self, row: Row, processes: int, now_s: float) -> None:
        fault = self._credits.put(row, processes, now_s)
        if fault:
            self._drop(f"the budgets of {self.pool.name}", fault)

    def drop(self, now_s: float) -> None:
        """Remove the loads of the other gateways."""
        self._put_s, self._put_rows, self._still = math.inf, None, None
        self._others.clear()
        self.pool.loads.processes = 1
        self._credits.drop(now_s)
        for replica, load in self.pool.loads.of.items():
            _put_load(replica, load, _NOTHING)
            load.stalls.put_others(0, math.inf)

    def _due_probes(self, now_s: float, soon_s: float) -> list[str]:
        """Return the replicas that need a probe soon, and leave the probe to the gateway that gets the lease."""
        due = []
        for replica, load in self.pool.loads.of.items():
            breaker, stalls = replica.breaker, load.stalls
            is_due = breaker.state is BreakerState.OPEN and breaker.open_until_s <= now_s + soon_s
            if now_s < load.others.probe_until_s or not (is_due or stalls.is_suspect(now_s)):
                continue
            due.append(replica.name)
            if self.are_known:
                stalls.barred_until_s = now_s + _UNKNOWN_S
                if is_due:
                    breaker.open_until_s = max(breaker.open_until_s, now_s + _UNKNOWN_S)
        return due

    def _grant_probe(self, name: str, now_s: float) -> None:
        """Let the next request to a replica be its probe."""
        for replica, load in self.pool.loads.of.items():
            if replica.name == name:
                load.others.probe_until_s = now_s + OPEN_S
                load.stalls.grant_probe()
                if replica.breaker.open_until_s <= now_s + _UNKNOWN_S:
                    replica.breaker.open_until_s = min(replica.breaker.open_until_s, now_s)

    def _put_levels(self, rows: Mapping[str, Row], others_count: int, now_s: float) -> None:
        """Move the levels by the steps of the others, and a little towards their means, so that all levels agree.

        Attempts of the others since the last answer test the replicas, too.
        """
        steps, tallies = {}, {}
        for replica, load in self.pool.loads.of.items():
            row, others = rows.get(replica.name), load.others
            if row is None:
                continue
            if (samples := row[STEP_SAMPLES] - others.step_samples) > 0:
                steps[replica.name] = ((row[STEPS] - others.steps) / LEVEL_UNIT, samples)
            others.steps, others.step_samples = row[STEPS], row[STEP_SAMPLES]
            tally, before = row[TALLY], others.tally or row[TALLY]
            others.tally = tally
            quick, late, given_up, excess = map(sub, tally, before)
            if quick + late + given_up > 0 and min(quick, late, given_up, excess) >= 0:  # fewer: a gateway has gone
                tallies[replica.name] = Tally(quick, late, given_up, excess / LEVEL_UNIT)
        means = {name: row[LEVEL] / LEVEL_UNIT / others_count for name, row in rows.items()}
        predictor = self.pool.learning.predictor
        predictor.add_steps(steps, means)
        if tallies:
            predictor.put_tallies(tallies, now_s)


def _is_same(row: Row, replica: Replica, load: ReplicaLoad) -> bool:
    """Return True if a replica has not been used since the row, which had no attempt under way and no trouble."""
    is_quiet = not (row[IN_FLIGHT] or row[PENDING] or any(row[FAILURES : OVERDUE + 1]))
    return is_quiet and replica.in_flight == replica.others_in_flight and load.sent == load.others.reported


def _trouble(replica: Replica, load: ReplicaLoad, now_s: float) -> Row:
    """Return the last places of a row, from the failures on."""
    others, stalls = load.others, load.stalls
    breaker = replica.breaker
    # Rejections count at their gateway only: elsewhere the breaker would be open for callers that may try.
    failures = 0 if breaker.rejecting else max(breaker.failures, breaker.broken)
    others.forgiven = min(others.forgiven, failures)
    overdue_s = stalls.own_overdue_s(now_s)
    is_overdue = overdue_s >= _OVERDUE_S_MIN
    return (
        min(OF_ONE_MAX, failures - others.forgiven),
        min(OF_ONE_MAX, stalls.own_late(now_s)),
        min(OVERDUE_MS_MAX, round(1000 * overdue_s)) if is_overdue else 0,
        int(is_overdue),
    )


def _begin_counts(load: ReplicaLoad, row: Row) -> None:
    """Take the counts of a row for known."""
    others = load.others
    others.contents, others.tally = row[CONTENTS], row[TALLY]
    others.steps, others.step_samples = row[STEPS], row[STEP_SAMPLES]


def _put_load(replica: Replica, load: ReplicaLoad, row: Row) -> None:
    others = load.others
    replica.in_flight += row[IN_FLIGHT] - replica.others_in_flight
    replica.others_in_flight = row[IN_FLIGHT]
    load.pending = max(0.0, load.pending + (row[PENDING] - others.pending))
    others.pending = float(row[PENDING])


def _put_health(loads: Loads, replica: Replica, load: ReplicaLoad, row: Row, now_s: float) -> None:
    """Count the attempts and failures of the others as if this gateway had sent them."""
    others, breaker = load.others, replica.breaker
    if row[IN_FLIGHT] or row[CONTENTS] > others.contents:
        load.used_s = max(load.used_s, now_s)
    if row[CONTENTS] > others.contents:
        others.answered_s, others.forgiven = now_s, max(breaker.failures, breaker.broken)
        load.stalls.answered_elsewhere(now_s)
        load.rejections.on_content_elsewhere(now_s)
        if others.opened and breaker.state is BreakerState.OPEN:
            breaker.on_success(now_s, now_s)
            loads.on_recovered(now_s)
        others.opened = False
    others.contents = row[CONTENTS]
    is_settled = now_s >= max(others.answered_s, load.rejections.content_s) + _SETTLE_S
    due_s = now_s - row[OVERDUE_MS] / row[OVERDUE] / 1000 if row[OVERDUE] else math.inf
    load.stalls.put_others(row[LATE] if is_settled else 0, due_s)
    is_answering = now_s < max(others.answered_s + _ANSWERING_S, breaker.closed_s + _SETTLE_S)
    if breaker.state is not BreakerState.CLOSED or is_answering:
        return
    failures = max(breaker.failures, breaker.broken) - others.forgiven
    if min(OF_ONE_MAX, max(0, failures)) + row[FAILURES] >= FAILURES_TO_OPEN:
        breaker.open_with_others(now_s)
        others.opened = True
