"""Rows of other gateways that were forged: those out of range are dropped, and the effect of others is bounded."""

import math
from typing import Final, cast

import pytest

from gateway.share.credit_rows import CREDITS
from gateway.share.loads import LoadExchange
from gateway.share.messages import GaugeAnswer, SliceAnswer
from gateway.share.pools import SampleExchange, UsageExchange
from gateway.share.rows import (
    CONTENTS,
    FAILURES,
    IN_FLIGHT,
    LEVEL,
    LOAD,
    PENDING,
    STEP_SAMPLES,
    STEPS,
    TALLY,
    Row,
    checked,
)
from pooled import pool, send
from ttft_gateway.apis.base import Resource
from ttft_gateway.estimation.predictor import LEVEL_MAX
from ttft_gateway.hedging.contract import RequestFacts
from ttft_gateway.hedging.outcomes import Outcome
from ttft_gateway.limits.bucket import Limit
from ttft_gateway.limits.budget import RetryBudget
from ttft_gateway.limits.ledger import Ledger
from ttft_gateway.pool.learned import learned_pool, sound_pool
from ttft_gateway.pool.pool import Pool
from ttft_gateway.routing.replicas import COOL_DOWN_S_MAX

FACTS: Final = RequestFacts(prompt_tokens=1_000.0)
SOUND: Final = (1, 1_000, 9, 3, 500, 100, 9, 0, 0, 0, 0, 0, 0, 0)


class Gateway:
    """The exchange of a pool, with answers that the test writes.

    Attributes:
        dropped: names of what was dropped.
    """

    def __init__(self) -> None:
        self.pool: Pool = pool(None, None)
        self.dropped: list[str] = []
        self.loads = LoadExchange(self.pool, RetryBudget(), self._drop)
        self.learning = SampleExchange(self.pool, self.loads, self._drop)

    def _drop(self, name: str, _reason: str) -> None:
        self.dropped.append(name)

    def put(self, now_s: float, processes: int = 2, **rows: Row) -> None:
        """Exchange loads."""
        asks = self.loads.asks(now_s, 0.1)
        self.loads.answered([GaugeAnswer(processes, {name: list(row) for name, row in rows.items()})], now_s)
        assert asks

    def learn(self, now_s: float, **sums: int) -> None:
        """Exchange samples."""
        if self.learning.asks(now_s, 0.1):
            self.learning.answered([SliceAnswer(int(now_s), {int(now_s): sums})], now_s)

    def answer(self, count: int, now_s: float) -> None:
        """Answer requests of both replicas after 0.2 s."""
        for number in range(count):
            attempt = send(self.pool, number % 2, now_s - 0.2)
            self.pool.on_content(attempt, now_s)
            attempt.content_s = attempt.first_token_s = now_s
            self.pool.on_end(attempt, Outcome.FINISHED, now_s, None)

    def predicted_s(self, index: int, now_s: float) -> float:
        """Return the predicted TTFT of a replica."""
        found = self.pool.picker.predict(FACTS, self.pool.replicas[index], now_s)
        assert found is not None
        return found

    def is_sound(self, now_s: float) -> bool:
        """Return True if a later start can use the learned state."""
        state = list(learned_pool(self.pool, now_s))[-1]
        assert state is not None
        return sound_pool("pool", state, self._drop) == state


def changed(**places: float) -> Row:
    """Return the sound row with other values at some places."""
    names = {"in_flight": IN_FLIGHT, "pending": PENDING, "failures": FAILURES, "level": LEVEL, "steps": STEPS}
    names |= {"contents": CONTENTS, "samples": STEP_SAMPLES, "quick": TALLY.start, "excess": TALLY.stop - 1}
    row = list[float](SOUND)
    for name, value in places.items():
        row[names[name]] = value
    return cast("Row", row)  # numbers that a hub cannot send


@pytest.mark.parametrize(
    "row",
    [
        (),
        SOUND[:-1],
        changed(in_flight=-1),
        changed(in_flight=100_001),
        changed(pending=-1),
        changed(pending=10**12),
        changed(failures=3),
        changed(level=20_001),
        changed(level=-20_001),
        changed(level=9 * 10**18),
        changed(level=math.nan),
        changed(level=math.inf),
        changed(contents=-1),
        changed(contents=10**13),
        changed(steps=10**15),
        changed(samples=-1),
        changed(quick=-1),
        changed(quick=10**13),
        changed(excess=-1),
    ],
)
def test_a_row_out_of_range_is_dropped_whole(row: Row) -> None:
    """It is named, no place of it is used, and the row of another replica is."""
    gateway = Gateway()
    gateway.answer(40, 1.0)
    gateway.put(1.0, a=row, b=SOUND)
    first, second = gateway.pool.replicas
    assert (first.in_flight, second.in_flight) == (first.own_in_flight, second.own_in_flight + 1)
    assert gateway.dropped == ["the loads of a in pool"]
    assert gateway.pool.learning.predictor.level("a") == pytest.approx(0.0, abs=0.01)
    assert gateway.is_sound(1.0)


def test_a_sum_is_divided_by_the_gateways_that_it_is_of() -> None:
    """Ten gateways may have ten times the load of one."""
    row = [10 * value for value in changed(in_flight=50_000)]
    for processes, used in ((11, 500_000), (2, 0)):
        gateway = Gateway()
        gateway.put(1.0, processes, a=row)
        assert gateway.pool.replicas[0].in_flight == used


def test_forged_levels_in_range_pass() -> None:
    """The worst levels and steps for 1.5 s are forgotten within minutes, and never leave the range."""
    gateway = Gateway()
    gateway.answer(40, 1.0)
    usual_s, now_s = gateway.predicted_s(0, 1.0), 1.0
    for number in range(15):
        now_s += 0.1
        forged = changed(level=20 * 10**3, steps=3 * 10**8 * number, samples=10**6 * number)
        gateway.put(now_s, a=forged, b=SOUND)
        gateway.pool.learning.predictor.fold(now_s)
    assert not gateway.dropped
    assert usual_s < gateway.predicted_s(0, now_s) <= usual_s * math.exp(LEVEL_MAX)
    assert gateway.is_sound(now_s)
    gateway.put(now_s + 0.1)
    now_s += 180.0
    assert gateway.predicted_s(0, now_s) < 1.2 * usual_s


def test_forged_tallies_in_range_have_a_bounded_effect() -> None:
    """However many slow attempts a gateway reports, the replica is slow for as long as the evidence of 32 lasts."""
    gateway = Gateway()
    gateway.answer(40, 1.0)
    predictor = gateway.pool.learning.predictor
    gateway.put(1.0, a=SOUND, b=SOUND)
    gateway.put(1.1, a=[*SOUND[:8], 10**12, 10**15, 0, 0, 0, 0], b=SOUND)
    assert predictor.is_slow("a")
    assert gateway.is_sound(1.1)
    gateway.put(1.2, a=SOUND, b=SOUND)
    for number in range(10):
        gateway.answer(2, 1.4 + 0.2 * number)
    predictor.fold(4.0)
    assert not predictor.is_slow("a")


def test_an_own_row_is_in_range() -> None:
    """Whatever a gateway has measured, the others use its row."""
    gateway = Gateway()
    gateway.answer(40, 1.0)
    predictor = gateway.pool.learning.predictor
    predictor.fold(1.0)
    predictor._levels |= {"a": 45.0, "b": -45.0}
    rows = gateway.loads.own(1.0)
    assert [rows[name][LEVEL] for name in "ab"] == [20_000, -20_000]
    for name in "ab":
        assert checked(rows[name], LOAD, 1) == rows[name]
    assert gateway.is_sound(1.0)


@pytest.mark.parametrize(
    "sums",
    [
        {"e99999999": 1},
        {"e9" * 3: 1},
        {"e": 1},
        {"e5": 2**24 + 1},
        {"y5000": 30},
        {"f11": 1},
        {"f0": 2**63 - 1, "f1": 1},
        {"f0": 1, "f1": 2**60, "f7": 2**60},
        {"f0": 30, "f1": 1, "f7": 2**62},  # TTFTs of days
    ],
)
def test_samples_out_of_range_are_dropped(sums: dict[str, int]) -> None:
    """They are named, and change neither fit nor windows; the next samples are used."""
    gateway = Gateway()
    gateway.answer(40, 1.0)
    gateway.put(1.0, a=SOUND, b=SOUND)
    gateway.learn(1.0)
    learning = gateway.pool.learning
    before = learning.predictor.coefficients, learning.ratios.count(1.0)
    gateway.learn(3.0, **sums)
    assert gateway.dropped == ["the samples of pool"]
    assert (learning.predictor.coefficients, learning.ratios.count(3.0)) == before
    gateway.learn(5.0, e400=7)
    assert learning.ratios.count(5.0) == before[1] + 7
    assert gateway.is_sound(5.0)


def test_samples_of_a_later_version_are_ignored() -> None:
    """A name with another letter is none of the samples."""
    gateway = Gateway()
    gateway.put(1.0, a=SOUND, b=SOUND)
    gateway.learn(1.0)
    gateway.learn(3.0, z5=-1)
    assert not gateway.dropped


def test_forged_budgets_are_not_spent() -> None:
    """Credits out of range count as none of the others."""
    gateway = Gateway()
    gateway.answer(40, 1.0)
    gateway.loads.put({}, 2, 1.0)
    own = gateway.pool.budget.requests.own_credit
    for row in ([10**18, 0, 0, 0, 0, 0], [0, -1, 0, 0, 0, 0]):
        gateway.dropped.clear()
        gateway.loads.put({CREDITS: row}, 2, 1.0)
        assert gateway.pool.budget.requests.credit == pytest.approx(own)
        assert gateway.dropped == ["the budgets of pool"]


class Quota:
    """The exchange of a quota of 600 requests a minute."""

    def __init__(self) -> None:
        self.ledger = Ledger([Limit(Resource.REQUESTS, 600.0)])
        self.dropped: list[str] = []
        self._shared = UsageExchange("q", self.ledger, lambda name, _: self.dropped.append(name))

    def put(self, now_s: float, *row: int) -> None:
        """Exchange usage."""
        self._shared.asks(now_s, 0.1)
        self._shared.answered([GaugeAnswer(2, {"": list(row)})], now_s)


def test_forged_usage_of_a_quota_is_bounded() -> None:
    """Others cannot have used more than the limit permits, nor cool down for longer than this gateway would."""
    quota = Quota()
    quota.put(1.0, 0, 0, 0, 0, 0)
    quota.put(1.1, 10**12, 0, 0, 0, 0)
    assert quota.ledger.state(1.1)[0].left == pytest.approx(-1.0, abs=1.1)
    quota.put(1.2, 10**12, 0, 0, 10**9, 1)
    assert quota.dropped == ["the usage of q"]
    assert quota.ledger.cooling_s(1.2) == 0.0
    quota.put(1.3, 0, 0, 0, int(1000 * COOL_DOWN_S_MAX), 1)
    assert quota.ledger.cooling_s(1.3) == pytest.approx(COOL_DOWN_S_MAX)
