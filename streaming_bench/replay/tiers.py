"""The bill of a log's requests under `prefer: cost`: the gateway's choice between the tiers that the log has.

Each replica of the log is a way to ask, with a price. The log has waits and refusals of every way, from a trial with a
few requests or from a gateway that prefers a low bill: all attempts count, and a cancelled one is a lower bound. The
times that a request would have taken on another way, and its refusals, are taken from neighbours (donors.py).

The intervals hold for as many further requests: blocks of neighbours are the units, and a block has at least as many
attempts of each way as a request has donors, so that a way with few attempts makes the interval wide.

Units: seconds, tokens; money in the currency of the prices; bills as multiples of the bill on the usual tier.
"""

import asyncio
import math
import random
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final, NamedTuple

import numpy as np
from msgspec.structs import replace
from numpy.typing import NDArray

from gateway.proof.intervals import student_t
from streaming_bench.errors import BenchError
from streaming_bench.progress import Progress, quiet
from streaming_bench.replay.donors import NEIGHBOURS, REPLICAS_MAX, LogColumns, Values, columns_of, draw
from streaming_bench.replay.logged import LoggedAttempt, LoggedRequest
from streaming_bench.report.stats import Estimate
from streaming_bench.simulation.policies import PolicySettings
from streaming_bench.simulation.runner import ArrivalPlan, SimulatedRun, run
from streaming_bench.simulation.tier_replicas import BilledAnswer
from streaming_bench.simulation.world import World
from ttft_gateway.apis.base import Call, Sink, Stream, Usage
from ttft_gateway.hedging.contract import RequestFacts
from ttft_gateway.hedging.outcomes import Denial
from ttft_gateway.hedging.parameters import DEFAULTS, Prefer
from ttft_gateway.limits.prices import Prices, TierPrices

ATTEMPTS_MIN: Final = 150  # of each way: three blocks, which make a wide interval
REQUESTS_MIN: Final = 1_000

_DRAWS: Final = 2
_BLOCKS_MAX: Final = 40
_FURTHER: Final = math.sqrt(2.0)  # noise of replayed and further requests together
_NO_WAIT_S: Final = 1e-6  # a bound that any wait is above
_BEYOND: Final = 3  # names of replicas without a price that a message has


@dataclass(frozen=True, slots=True)
class TierPlan:
    """Settings of a replay.

    Attributes:
        factors: price of each tier as a multiple of the usual one's, by the name of the replica or the part after `/`.
        targets_s: TTFT targets to try.
        prompt_price, answer_price: prices of a million tokens on the usual tier.
        seed: seed of all random numbers.
    """

    factors: Mapping[str, float]
    targets_s: Sequence[float]
    prompt_price: float
    answer_price: float
    seed: int = 1


@dataclass(frozen=True, slots=True)
class Way:
    """One way to ask, as the log has it.

    Attributes:
        name: name of the replica.
        factor: its price as a multiple of the usual one.
        attempts: number of attempts in the log.
        refused: share of them that were refused.
        given_up: share of the other attempts that were given up before a first token.
    """

    name: str
    factor: float
    attempts: int
    refused: float
    given_up: float


class TierFigures(NamedTuple):
    """Figures of the requests under one target.

    Attributes:
        bill: bill as a multiple of the bill on the usual tier.
        over: share of the requests above the target.
        p50_s, p99_s: quantiles of the TTFT.
        cheap: share of the primaries at a tier that is cheaper than the usual one.
        hedges: backups per request.
    """

    bill: Estimate
    over: Estimate
    p50_s: float
    p99_s: float
    cheap: float
    hedges: float


@dataclass(frozen=True, slots=True)
class TargetRow:
    """Results of one target.

    Attributes:
        independent: figures if a backup's wait is independent of its primary's.
        correlated: figures if both are slow for the same reason.
        usual_over: share of the requests above the target if all go to the usual tier.
    """

    target_s: float
    independent: TierFigures
    correlated: TierFigures
    usual_over: float


@dataclass(frozen=True, slots=True)
class TierReplay:
    """Results of a replay.

    Attributes:
        ways: the ways of the log, the cheapest one first.
        left_out: ways with too few attempts to be known, which are not used.
        rows: one row for each target.
        usual_p50_s, usual_p99_s: quantiles of the TTFT if all requests go to the usual tier.
        usual_cost: mean bill of a request on the usual tier.
    """

    ways: Sequence[Way]
    left_out: Sequence[Way]
    rows: Sequence[TargetRow]
    usual_p50_s: float
    usual_p99_s: float
    usual_cost: float


def replay_tiers(requests: Sequence[LoggedRequest], plan: TierPlan, progress: Progress = quiet) -> TierReplay:
    """Replay requests under each target.

    Args:
        requests: requests with all their attempts, by arrival.

    Raises:
        BenchError: The log lacks a tier, a price, tokens or attempts; the message has the action.
    """
    _check_tokens(requests)
    every = _ways(requests, plan.factors)
    ways = [way for way in every if way.attempts >= ATTEMPTS_MIN]
    _check(requests, ways)
    usual = next(number for number, way in enumerate(ways) if way.factor == 1.0)
    log = _TierLog(requests, [way.name for way in ways], ways[usual].name, plan)
    blocks = min(_BLOCKS_MAX, *(way.attempts // NEIGHBOURS for way in ways))
    worlds = [log.drawn(plan.seed + number, correlated=False) for number in range(_DRAWS)]
    worlds.append(log.drawn(plan.seed, correlated=True))
    usual_s = np.concatenate([world.times_s[:, usual] for world in worlds[:_DRAWS]])
    prices = [TierPrices(way.name, log.prices, {way.name: log.prices.times(way.factor)}) for way in ways]
    rows = []
    for number, target_s in enumerate(plan.targets_s):
        runs = []
        for step, world in enumerate(worlds):
            done = (number * len(worlds) + step) / (len(worlds) * len(plan.targets_s))
            progress(f"target {target_s:g} s", done)
            runs.append(log.run(world, prices, target_s, plan.seed + step))
        free, bound = (_figures(each, target_s, blocks) for each in (runs[:_DRAWS], runs[_DRAWS:]))
        rows.append(TargetRow(target_s, free, bound, float((usual_s > target_s).mean())))
    progress("done", 1.0)
    p50_s, p99_s = (float(value) for value in np.quantile(usual_s, (0.5, 0.99)))
    cost = log.prices.cost(float(log.prompts.mean()), 0.0, float(log.answers.mean()))
    left_out = [way for way in every if way not in ways]
    return TierReplay(sorted(ways, key=lambda way: way.factor), left_out, rows, p50_s, p99_s, cost)


def _attempts(request: LoggedRequest) -> list[LoggedAttempt]:
    first = LoggedAttempt(
        request.arrived_s, request.replica, request.ttft_s, request.cancelled and not request.refused, request.refused
    )
    return [first, *request.later]


def _ways(requests: Sequence[LoggedRequest], factors: Mapping[str, float]) -> list[Way]:
    """Return the ways in the order of their names.

    Raises:
        BenchError: A replica has no price.
    """
    every = [attempt for request in requests for attempt in _attempts(request)]
    counts = Counter(each.replica for each in every)
    refused = Counter(each.replica for each in every if each.refused)
    given_up = Counter(each.replica for each in every if each.cancelled and not each.refused)
    priced = {name: _factor(name, factors) for name in sorted(counts)}
    unknown = [repr(name) for name, factor in priced.items() if factor is None]
    if unknown:
        shown = ", ".join(unknown[:_BEYOND]) + (", ..." if len(unknown) > _BEYOND else "")
        raise BenchError(f"the log has replicas without a price: {shown}; add them to --tiers, such as {unknown[0]}=1")
    found = []
    for name, factor in priced.items():
        assert factor is not None
        waits = counts[name] - refused[name]
        share = given_up[name] / waits if waits else 0.0
        found.append(Way(name, factor, counts[name], refused[name] / counts[name], share))
    return found


def _factor(name: str, factors: Mapping[str, float]) -> float | None:
    """Return the price of a replica by its name or the part of it after `/`; None if it has none."""
    return factors.get(name, factors.get(name.rpartition("/")[2]))


def _check_tokens(requests: Sequence[LoggedRequest]) -> None:
    """Reject a log without tokens.

    Raises:
        BenchError: No request has tokens of its prompt, or none of its answer.
    """
    if not any(request.answer_tokens for request in requests) or not any(request.tokens for request in requests):
        raise BenchError("the log has no tokens of prompts and answers, which are billed; log the usage of answers")


def _check(requests: Sequence[LoggedRequest], ways: Sequence[Way]) -> None:
    """Reject a log that is too short, or lacks the usual tier or a cheaper one.

    Args:
        ways: the ways with enough attempts.

    Raises:
        BenchError: The log cannot be replayed.
    """
    for wanted, is_found in (("1, the usual tier", 1.0 in {way.factor for way in ways}), (
        "below 1", any(way.factor < 1.0 for way in ways)
    )):  # fmt: skip
        if not is_found:
            raise BenchError(
                f"the log has no replica with a price of {wanted}, and {ATTEMPTS_MIN} attempts; send some requests to "
                "such a tier, and log them"
            )
    if len(requests) < REQUESTS_MIN or len(ways) > REPLICAS_MAX:
        raise BenchError(
            f"{len(requests):,} requests at {len(ways)} replicas cannot be replayed; log at least {REQUESTS_MIN:,} "
            f"requests at no more than {REPLICAS_MAX} replicas"
        )


class _Drawn(NamedTuple):
    """Times and refusals of all requests at all ways: one row for each request, and one column for each way."""

    times_s: Values
    refused: NDArray[np.bool_]


class _TierLog:
    """The requests of a log, with all attempts as donors.

    Attributes:
        prices: prices of the usual tier.
        prompts, answers: tokens of each request.
    """

    def __init__(self, requests: Sequence[LoggedRequest], names: Sequence[str], usual: str, plan: TierPlan) -> None:
        self._requests = requests
        self.prices = Prices(plan.prompt_price, plan.prompt_price, plan.answer_price)
        self.prompts, self.answers = (
            _filled(np.array(column, dtype=float))
            for column in zip(*((each.tokens, each.answer_tokens) for each in requests), strict=True)
        )
        rows, self._refusals = [], []
        for number, request in enumerate(requests):
            known = request.replica in names
            rows.append(
                (request if known else request._replace(replica=usual, ttft_s=_NO_WAIT_S, cancelled=True), number)
            )
            for each in request.later:
                if each.replica in names and not each.refused:
                    asked = request._replace(replica=each.replica, arrived_s=each.arrived_s)
                    rows.append((asked._replace(ttft_s=each.wait_s, cancelled=each.cancelled), -1))
        rows.sort(key=lambda row: row[0].arrived_s)
        self._donors: LogColumns = columns_of([row for row, _ in rows], len(names))
        self._first = np.array([at for at, (_, number) in enumerate(rows) if number >= 0])
        for name in names:
            at = [each for request in requests for each in _attempts(request) if each.replica == name]
            at.sort()
            self._refusals.append((np.array([each.arrived_s for each in at]), np.array([each.refused for each in at])))
        start_s = requests[0].arrived_s
        self._arrived_s = [request.arrived_s - start_s for request in requests]

    def drawn(self, seed: int, *, correlated: bool) -> _Drawn:
        """Draw the times and refusals of all requests at all ways."""
        times_s, _ = draw(self._donors, seed, correlated=correlated)
        rng = np.random.default_rng((seed, 1))
        moments_s = np.array([request.arrived_s for request in self._requests])
        columns = []
        for at_s, flags in self._refusals:
            width = min(NEIGHBOURS, len(at_s))
            first = np.clip(np.searchsorted(at_s, moments_s) - width // 2, 0, len(at_s) - width)
            columns.append(flags[first + rng.integers(width, size=len(moments_s))])
        return _Drawn(times_s[self._first], np.stack(columns, axis=1))

    def run(self, drawn: _Drawn, prices: Sequence[TierPrices], target_s: float, seed: int) -> SimulatedRun:
        """Run the requests through the gateway's policy."""
        rng = random.Random(f"{seed}/replay")
        facts = [
            RequestFacts(prompt_tokens=tokens, coin=rng.random(), hedge_off=None if each.hedgeable else Denial.KEY)
            for tokens, each in zip(self.prompts.tolist(), self._requests, strict=True)
        ]
        usages = [Usage(int(a), int(b)) for a, b in zip(self.prompts, self.answers, strict=True)]
        rest_s = [request.rest_s for request in self._requests]
        columns = list(zip(drawn.times_s.T.tolist(), drawn.refused.T.tolist(), strict=True))

        def world(loop: asyncio.AbstractEventLoop) -> World:
            replicas = [_LoggedWay(loop, times_s, refused, rest_s, usages) for times_s, refused in columns]
            return World(replicas, facts, [None] * len(replicas), ways=prices)

        hedging = replace(DEFAULTS, prefer=Prefer.COST, ttft_target_s=target_s)
        settings = PolicySettings(hedging, library_rps=1.0)
        arrivals = ArrivalPlan(self._arrived_s, 0)
        return run(DEFAULTS.policy.value, settings, arrivals, world, seed, lambda _requests: None)


def _filled(tokens: Values) -> Values:
    """Return counts of tokens with the mean of the known ones in place of unknown ones."""
    return np.where(tokens > 0, tokens, np.ceil(tokens[tokens > 0].mean()))


class _LoggedWay:
    """A way with a given TTFT or refusal for each request; an `Endpoint`."""

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        ttft_s: Sequence[float],
        refused: Sequence[bool],
        rest_s: Sequence[float],
        usages: Sequence[Usage],
    ) -> None:
        self._loop = loop
        self._ttft_s = ttft_s
        self._refused = refused
        self._rest_s = rest_s
        self._usages = usages

    def open(self, call: Call, sink: Sink) -> Stream:
        request = int(call.body)
        answer = BilledAnswer(sink)
        if self._refused[request]:
            answer.is_refused(self._loop)
        else:
            first_s = self._loop.time() + self._ttft_s[request]
            answer.starts_and_ends(self._loop, first_s, self._rest_s[request], self._usages[request])
        return answer


def _figures(runs: Sequence[SimulatedRun], target_s: float, blocks: int) -> TierFigures:
    """Reduce the runs of one case; the values are means over them."""
    columns = [run.columns for run in runs]
    parts = [_blocks(each, target_s, blocks) for each in columns]
    ttft_s = np.concatenate([each["ttft_s"] for each in columns])
    p50_s, p99_s = np.quantile(ttft_s, (0.5, 0.99), method="inverted_cdf")
    return TierFigures(
        _ratio([(part[:, 0], part[:, 1]) for part in parts]),
        _ratio([(part[:, 2], part[:, 3]) for part in parts]),
        float(p50_s),
        float(p99_s),
        *(float(np.mean([each[name].mean() for each in columns])) for name in ("cheap", "hedges")),
    )


def _blocks(columns: Mapping[str, Values], target_s: float, blocks: int) -> Values:
    """Return bill, usual bill, requests above the target, and requests of each block of neighbours."""
    order = np.argsort(columns["arrived_s"], kind="stable")
    block_of = np.arange(len(order)) * blocks // len(order)
    over = 1.0 * (columns["ttft_s"] > target_s)
    sums = (columns["cost"], columns["usual_cost"], over, np.ones(len(order)))
    return np.stack([np.bincount(block_of, weights=each[order], minlength=blocks) for each in sums], axis=1)


def _ratio(parts: Sequence[tuple[Values, Values]]) -> Estimate:
    """Return a ratio of sums over blocks, with its interval for as many further requests.

    The variance is the linearised one of a ratio of two means over blocks; a value is the mean of the draws, and their
    differences are part of the interval.

    Args:
        parts: numerators and denominators by block, of each draw.
    """
    values = [float(above.sum() / below.sum()) for above, below in parts]
    blocks = len(parts[0][0])
    within = np.mean([
        blocks / (blocks - 1) * float(((above - value * below) ** 2).sum()) / float(below.sum()) ** 2
        for value, (above, below) in zip(values, parts, strict=True)
    ])  # fmt: skip
    between = float(np.var(values, ddof=1)) if len(values) > 1 else 0.0
    value = float(np.mean(values))
    half = _FURTHER * student_t(blocks - 1) * math.sqrt(float(within) + between)
    return Estimate(value, max(0.0, value - half), value + half)
