"""Counts what hedging saves for each model: since the start of the counting, in each of the last 24 hours, by block.

Owns the groups of the requests (`gateway.proof.tally`); the estimate is made when it is read. A model is counted
while a share of its hedges is measured. Requests that failed by their own fault are left out. A request without a first
token counts as the TTFT limit, also if its client disconnected before the first token.

A block is a part of an experiment; a request counts in the block in which it arrived. No block is counted before the
first one begins. A request that ends after its block still counts there, while the block is one of the last eight.

Units: seconds of the events' clock.
"""

import math
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from typing import Final, NamedTuple

from gateway.config.settings import HedgeSettings, ModelSettings, Settings
from gateway.events import AttemptReport, Event, Listener, RequestEnded, Role
from gateway.observe.instruments import MODEL
from gateway.observe.process import ProcessValue
from gateway.process_events import HedgingMeasured
from gateway.proof.blocks import Block
from gateway.proof.report import Figure, ProofReport, report
from gateway.proof.tally import HOUR_S, Group, GroupTimes, ShadowTimes, Tally
from ttft_gateway.apis.base import Api
from ttft_gateway.hedging.charges import Disposition
from ttft_gateway.hedging.measure import Instrument, Shadow
from ttft_gateway.hedging.outcomes import Outcome
from ttft_gateway.limits.prices import money

HOURS: Final = 24
BLOCKS_MAX: Final = 8
COUNTED_S_MAX: Final = 3 * 3600.0  # since the last block began: an experiment that was given up costs nothing
_OK: Final = 200
_METRICS: Final[tuple[tuple[str, str, Callable[[GroupTimes], float]], ...]] = (
    ("ttft_gateway_proof_requests", "Requests by what is known of them without hedging", lambda times: times.count),
    ("ttft_gateway_proof_misses", "Requests above the TTFT of the SLO", lambda times: times.misses),
    ("ttft_gateway_proof_ttft_seconds", "Sum of their TTFTs", lambda times: times.sum_s),
)
_TIMED: Final = (Api.CHAT, Api.COMPLETIONS, Api.RESPONSES, Api.MESSAGES)


class Goal(NamedTuple):
    """SLO and limit of a model.

    Attributes:
        slo_s: TTFT above which a request is a miss.
        limit_s: TTFT timeout, at which TTFTs are restricted.
        is_shadow: True if the model's policy is `shadow`.
        is_measured: False if only its bill is of interest, because it prefers a low one.
    """

    slo_s: float
    limit_s: float
    is_shadow: bool = False
    is_measured: bool = True

    def tally(self) -> Tally:
        """Return counts of no request."""
        return Tally(self.slo_s, self.limit_s, shadow=ShadowTimes() if self.is_shadow else None)


class Counted:
    """The counts of one model.

    Attributes:
        goal: SLO and limit.
        last_s: time of the last request.
        line_s: time of the next line in the log.
    """

    def __init__(self, goal: Goal, now_s: float) -> None:
        self.goal = goal
        self.last_s = self._since_s = self._hour_s = now_s
        self.line_s = now_s + HOUR_S
        self._hour = goal.tally()
        self._before = goal.tally()  # the requests before this hour
        self._hours: deque[tuple[float, Tally]] = deque(maxlen=HOURS - 1)  # the hours before this one

    def add(self, event: RequestEnded) -> None:
        """Add a request."""
        self.last_s = event.at_s
        if event.at_s >= self._hour_s + HOUR_S:
            self._before.merge(self._hour)
            self._hours.append((self._hour_s, self._hour))
            self._hour, self._hour_s = self.goal.tally(), event.at_s
        count_request(event, self._hour)

    def tally(self, hours: int | None) -> Tally:
        """Return the counts of the last hours, at most 24, or all; None for all."""
        total, start_s = self.goal.tally(), self._since_s
        if hours is None:
            total.merge(self._before)
        else:
            start_s = self._hour_s
            for began_s, tally in self._hours:
                if began_s > self.last_s - hours * HOUR_S:
                    total.merge(tally)
                    start_s = min(start_s, began_s)
        total.merge(self._hour)
        total.span_s = self.last_s - start_s
        return total


class ProofCounts:
    """Counts the requests of every measured model.

    Args:
        emit: receives a `HedgingMeasured` for each measured model, once an hour.
    """

    def __init__(self, emit: Listener) -> None:
        self._emit = emit
        self._goals: Mapping[str, Goal] = {}
        self._models: dict[str, Counted] = {}

    @property
    def goals(self) -> Mapping[str, Goal]:
        """Goal of each measured model, by name; the counts of a model restart at 0 if its goal changes."""
        return self._goals

    @goals.setter
    def goals(self, goals: Mapping[str, Goal]) -> None:
        self._goals = goals
        self._models = {name: each for name, each in self._models.items() if goals.get(name) == each.goal}

    def on_event(self, event: Event) -> None:
        """Count a request (a `gateway.events.Listener`)."""
        if type(event) is RequestEnded:
            counted = self._models.get(event.model)
            if counted is None:
                if event.model not in self._goals:
                    return
                counted = self._models[event.model] = Counted(self._goals[event.model], event.at_s)
            counted.add(event)
            if event.at_s >= counted.line_s:
                counted.line_s = event.at_s + HOUR_S
                if counted.goal.is_measured and not counted.goal.is_shadow:
                    self._emit(_line(event.at_s, report(event.model, counted.tally(None))))

    def tallies(self, hours: int | None = None) -> dict[str, Tally]:
        """Return the counts of each model, on the last hours, or since the first request."""
        return {name: counted.tally(hours) for name, counted in self._models.items()}

    def values(self) -> Iterator[ProcessValue]:
        """Return the counts of each model and group, for a scrape."""
        return proof_values(self.tallies())


class BlockCounts:
    """Counts the requests of every model in the current block and the last ones.

    Attributes:
        goals: SLO and limit of each model, by name.
    """

    def __init__(self) -> None:
        self.goals: Mapping[str, Goal] = {}
        self._blocks: deque[tuple[float, Block]] = deque(maxlen=BLOCKS_MAX)

    def begin(self, name: str, now_s: float) -> None:
        """Begin a block, unless it has begun."""
        if all(block.name != name for _, block in self._blocks):
            self._blocks.append((now_s, Block(name)))

    def blocks(self) -> list[Block]:
        """Return the last blocks."""
        return [block for _, block in self._blocks]

    def clear(self) -> None:
        """Forget every block."""
        self._blocks.clear()

    def on_event(self, event: Event) -> None:
        """Count a request (a `gateway.events.Listener`)."""
        if type(event) is not RequestEnded or event.model not in self.goals:
            return
        arrived_s = event.at_s - _length_s(event)
        for start_s, block in reversed(self._blocks):
            if start_s <= arrived_s:
                tally = block.models.get(event.model)
                if tally is None:
                    tally = block.models[event.model] = self.goals[event.model].tally()
                count_request(event, tally)
                return


def proof_values(tallies: Mapping[str, Tally]) -> Iterator[ProcessValue]:
    """Yield the counts of each model and group, for a scrape."""
    for metric, text, read in _METRICS:
        for name, tally in tallies.items():
            for group, times in list(tally.groups.items()):
                yield ProcessValue(metric, text, "counter", read(times), {MODEL: name, "group": group.value})


def every_goal(settings: Settings) -> dict[str, Goal]:
    """Return the SLO and the limit of each model."""
    return {model.name: _goal(settings, model) for model in settings.models}


def _goal(settings: Settings, model: ModelSettings) -> Goal:
    limit_s, slo_s = settings.timeouts_of(model).ttft_failover_s, settings.hedge_of(model).measure.slo_s
    return Goal(min(slo_s, math.nextafter(limit_s, 0.0)), limit_s)


def goals(settings: Settings) -> dict[str, Goal]:
    """Return the SLO and the limit of each model with measured hedging, the policy `shadow`, or `prefer: cost`."""
    usual, found = settings.hedge, dict[str, Goal]()
    for model in settings.models:
        hedge = settings.hedge_of(model) if model.hedge.model_fields_set else usual
        if _is_measured(hedge) or hedge.prefer == "cost":
            goal = _goal(settings, model)
            found[model.name] = goal._replace(is_shadow=hedge.policy == "shadow", is_measured=_is_measured(hedge))
    return found


def _is_measured(hedge: HedgeSettings) -> bool:
    return bool(hedge.measure.losers or hedge.measure.holdout) or hedge.policy == "shadow"


def count_request(event: RequestEnded, tally: Tally) -> None:
    """Add one request to the counts, if its TTFT depends on hedging."""
    attempts = event.attempts
    if event.usual_cost is not None:
        tally.add_bill(money(sum(each.charge.cost or 0.0 for each in attempts)), event.usual_cost)
    is_plain = event.measured is None and event.shadow is None
    if len(attempts) == 1 and is_plain and event.status == _OK and event.api in _TIMED:  # most requests
        ttft_s = event.ttft_s if event.work_s is None else event.work_s
        tally.add(Group.SAME, tally.limit_s if ttft_s is None else ttft_s)
        return
    if event.api not in _TIMED or not attempts or (400 <= event.status < 499 and event.status != 429):
        return
    if any(attempt.outcome is Outcome.DRAINED for attempt in attempts):
        return
    first_s = event.ttft_s if event.work_s is None else event.work_s
    ttft_s = tally.limit_s if first_s is None else first_s
    for attempt in attempts if len(attempts) > 1 else ():
        tally.hedges += attempt.role is Role.BACKUP
        if (charge := attempt.charge).disposition is Disposition.LOSER:
            tally.add_cost(charge.prompt_tokens + charge.completion_tokens, charge.cost)
    measured = event.measured
    if event.shadow is not None and tally.shadow is not None:
        tally.add(Group.SAME, ttft_s)
        _count_shadow(event, event.shadow, first_s, tally, tally.shadow)
    elif measured is None:
        was_beaten = len(attempts) > 1 and attempts[0].outcome is Outcome.LOST
        tally.add(Group.UNMEASURED if was_beaten else Group.SAME, ttft_s)
    elif measured.instrument is Instrument.HOLDOUT:
        tally.add(Group.WITHHELD if measured.drawn else Group.GRANTED, ttft_s)
    elif (beaten := attempts[measured.attempt]).outcome is not Outcome.LOST:
        tally.add(Group.SAME, ttft_s)
    else:
        tally.add(Group.BEATEN, ttft_s)
        if measured.observed:
            started_s = event.queued_s + event.gateway_s + beaten.start_s
            tally.add_read(ttft_s, max(ttft_s, started_s + _shown_after_s(beaten)))


def _count_shadow(event: RequestEnded, shadow: Shadow, first_s: float | None, tally: Tally, times: ShadowTimes) -> None:
    """Add a request for which a hedge would have been sent; `first_s`: time of its first token, None if it has none."""
    late, hedge_s = event.attempts[shadow.attempt], event.shadow_s or 0.0
    ttft_s = min(tally.limit_s, math.inf if first_s is None else first_s)
    independent_s = correlated_s = ttft_s
    if shadow.drawn_s is not None:
        independent_s = min(ttft_s, hedge_s + shadow.drawn_s)
    token_s = late.content_s if late.work_s is None else late.work_s
    if token_s is not None and late.predicted_s and shadow.expected_s is not None:
        correlated_s = min(ttft_s, hedge_s + shadow.expected_s * token_s / late.predicted_s)
    times.late.add(ttft_s, tally.slo_s)
    times.independent.add(independent_s, tally.slo_s)
    times.correlated.add(correlated_s, tally.slo_s)
    times.reasons[shadow.reason.value] = times.reasons.get(shadow.reason.value, 0) + 1
    times.unpredicted += shadow.drawn_s is None
    times.waited_s += max(0.0, ttft_s - hedge_s)
    times.tokens += shadow.tokens
    if shadow.cost is not None:
        times.cost = (times.cost or 0.0) + shadow.cost


def _line(now_s: float, found: ProofReport) -> HedgingMeasured:
    """Return the line of the log for a report."""
    return HedgingMeasured(
        now_s,
        found.model,
        found.hours,
        found.requests,
        found.hedges,
        found.losers_read + found.withheld,
        _saved(found.misses),
        _saved(found.p95_ms),
        _saved(found.p99_ms),
        _saved(found.mean_ms),
        found.tokens,
        found.cost,
        found.missing,
    )


def _saved(figure: Figure) -> tuple[float, float, float] | None:
    return None if figure.saved is None else (figure.saved.value, figure.saved.low, figure.saved.high)


def _shown_after_s(attempt: AttemptReport) -> float:
    """Return the time after which an attempt showed its first token, failed or was given up."""
    if attempt.work_s is not None:
        return attempt.work_s
    return attempt.end_s if attempt.content_s is None else attempt.content_s


def _length_s(event: RequestEnded) -> float:
    """Return the time from a request's arrival to its record, which follows the end of an attempt that is read on."""
    if event.measured is None or not event.attempts:
        return event.total_s
    last_s = max(attempt.start_s + attempt.end_s for attempt in event.attempts)
    return max(event.total_s, event.queued_s + event.gateway_s + last_s)
