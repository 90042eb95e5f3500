"""The test for slow replicas: finds them from cancelled attempts, has no false alarms, and notices their recovery."""

import math

import numpy as np
import pytest

from ttft_gateway.estimation.predictor import Predictor
from ttft_gateway.estimation.slowness import Slowness, Wait

SLOW, QUICK = (math.log(3.0), True), (0.0, True)


def judged(*waits: Wait, usual_share: float = 0.0) -> Slowness:
    """Attempts of one replica, one by one; the other replicas are at level 1."""
    slowness = Slowness()
    for wait in waits:
        slowness.count([wait], 0.0)
        slowness.judge([wait], 0.0, usual_share)
    return slowness


@pytest.mark.parametrize(
    ("waits", "is_slow"),
    [
        ([SLOW] * 6, False),
        ([SLOW] * 7, True),
        ([(math.log(2.0), False)] * 7, True),  # cancelled after twice the usual time
        ([(math.log(1.2), False)] * 100, False),  # cancelled too soon to show anything
        ([SLOW, QUICK] * 5, False),
        ([SLOW] * 5 + [QUICK] + [SLOW] * 3, True),
        ([SLOW] * 7 + [QUICK] * 3, True),
        ([SLOW] * 7 + [QUICK] * 4, False),
    ],
)
def test_attempts_are_evidence(waits: list[Wait], is_slow: bool) -> None:
    """Seven slow attempts in a row are enough, however they ended, and four quick ones end it."""
    assert judged(*waits).is_slow is is_slow


@pytest.mark.parametrize(("usual_share", "attempts"), [(0.0, 7), (0.2, 15), (0.3, 25), (0.4, None)])
def test_slow_attempts_at_the_other_replicas_excuse_it(usual_share: float, attempts: int | None) -> None:
    """The more attempts are slow at the other replicas, the more evidence is needed; with many, nothing is shown."""
    found = [n for n in range(1, 60) if judged(*[SLOW] * n, usual_share=usual_share).is_slow]
    assert next(iter(found), None) == attempts


@pytest.mark.parametrize(
    ("waits", "level"),
    [
        ([(1.0, True), (0.5, True), (2.0, True)], 1.0),
        ([(0.5, False), (2.0, True), (1.0, True)], 1.0),
        ([(0.5, False), (0.9, False), (0.7, False)], 0.9),
        ([(9.0, True)] * 10 + [(0.1, True)] * 8, 0.1),
    ],
)
def test_the_level_is_the_median_of_recent_attempts(waits: list[Wait], level: float) -> None:
    """Cancelled attempts count as longer than their wait; where they hide the median, the largest wait is its bound."""
    assert judged(*waits).level() == level


def fed(predictor: Predictor, factors: dict[str, float], begin: int, count: int, seed: int) -> None:
    """Add attempts of replicas in turn, ten a second; a hedge after 1.2 times the usual TTFT cancels slow ones."""
    rng = np.random.default_rng(seed)
    for n in range(begin, begin + count):
        replica = list(factors)[n % len(factors)]
        ttft_s = 0.2 * factors[replica] * math.exp(0.25 * rng.normal())
        cancelled_s = 0.24 + 0.2 * math.exp(0.25 * rng.normal())
        if ttft_s > cancelled_s:
            predictor.add_late(replica, cancelled_s, 500.0, 0.0, n / 10)
        else:
            predictor.add(replica, ttft_s, 500.0, 0.0, n / 10)
        predictor.fold(n / 10)


@pytest.mark.parametrize("factor", [3.0, 15.0])
@pytest.mark.parametrize("others", ["b", "bc", "bcdef"])
def test_a_slow_replica_is_found_although_hedges_win(others: str, factor: float) -> None:
    """After 30 of its attempts it is slow, with its level shown; no other replica is; it recovers after as many."""
    predictor, healthy = Predictor(), dict.fromkeys(f"a{others}", 1.0)
    fed(predictor, healthy, 0, 400, 1)
    assert not any(map(predictor.is_slow, healthy))
    fed(predictor, healthy | {"a": factor}, 400, 30 * len(healthy), 2)
    assert [replica for replica in healthy if predictor.is_slow(replica)] == ["a"]
    assert predictor.levels["a"] > 1.9
    fed(predictor, healthy, 1_000, 10 * len(healthy), 3)
    assert not any(map(predictor.is_slow, healthy))
    assert predictor.levels["a"] < 1.76


@pytest.mark.parametrize("replicas", ["ab", "abc", "abcdef"])
def test_slowness_of_all_replicas_is_not_theirs(replicas: str) -> None:
    """If all replicas become three times slower at once, none of them is called slow for long."""
    predictor = Predictor()
    fed(predictor, dict.fromkeys(replicas, 1.0), 0, 400, 1)
    slow = 0
    for n in range(400, 1_000):
        fed(predictor, dict.fromkeys(replicas, 3.0), n, 1, n)
        slow += any(map(predictor.is_slow, replicas))
    assert slow <= 60


def test_one_replica_is_compared_with_nothing() -> None:
    """The only replica of a pool is never slow."""
    predictor = Predictor()
    fed(predictor, {"a": 1.0}, 0, 100, 1)
    fed(predictor, {"a": 9.0}, 100, 100, 2)
    assert not predictor.is_slow("a")


def test_a_removed_replica_is_forgotten() -> None:
    """A replica that is removed while it is slow starts anew under its name."""
    predictor = Predictor()
    fed(predictor, {"a": 1.0, "b": 1.0}, 0, 200, 1)
    fed(predictor, {"a": 5.0, "b": 1.0}, 200, 100, 2)
    assert predictor.is_slow("a")
    predictor.forget("a")
    assert not predictor.is_slow("a")
    assert "a" not in predictor.levels
