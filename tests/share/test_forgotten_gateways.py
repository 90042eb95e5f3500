"""A gateway that the engine has forgotten, and an engine that has lost all: nothing old counts as new after the return.

Rows have counts since a start. After a return, the others must not take them for what has happened meanwhile.
"""

from collections.abc import Callable

import pytest

from gateway.share.hub import ShareHub
from pooled import answer, fail, send
from together import Mirrors, Together
from ttft_gateway.limits.bucket import Spend
from ttft_gateway.routing.replicas import BreakerState

_GATEWAYS = 3
_AWAY_S = 20  # more than the engine keeps the rows of a silent gateway
_BACK_S = 60.0 + _AWAY_S


def _answered(together: Together, gateway: int, index: int, now_s: float, ttft_s: float) -> None:
    pool = together.pools[gateway]
    answer(pool, send(pool, index, now_s), now_s + ttft_s)


def _with_history() -> Together:
    """Gateways of which the first has found a replica slow for some time, and usual again."""
    together = Together(_GATEWAYS)
    for second in range(60):
        for index in range(3):
            _answered(together, 0, index, float(second), 0.4 if index == 0 and 20 <= second < 30 else 0.05)
        for gateway in (1, 2):
            _answered(together, gateway, second % 3, float(second), 0.05)
        together.exchange(second + 0.1)
        together.exchange(second + 0.5)
    together.settle(59.8)
    return together


def _without(together: Together, away: list[int]) -> None:
    """Cut some gateways off, while all have usual answers."""
    for second in range(60, 60 + _AWAY_S):
        for gateway in range(_GATEWAYS):
            _answered(together, gateway, second % 3, float(second), 0.05)
        for tenth in (1, 5):
            now_s = second + tenth / 10
            together.exchange(now_s, [each for each in range(_GATEWAYS) if each not in away])
            for part in [part for each in away for part in together.parts(each)]:
                part.asks(now_s, 0.1)  # without an answer


def _one_cut_off(together: Together) -> None:
    _without(together, [0])


def _others_cut_off(together: Together) -> None:
    _without(together, [1, 2])


def _engine_lost(together: Together) -> None:
    _without(together, [])
    together.hub = ShareHub()


_CASES = pytest.mark.parametrize("go", [_one_cut_off, _others_cut_off, _engine_lost], ids=lambda go: go.__name__[1:])


@_CASES
def test_history_is_not_learned_again(go: Callable[[Together], None]) -> None:
    """After the return, levels and evidence of slow replicas are as before, and no first content has just come."""
    together = _with_history()
    go(together)
    watched = together.pools[1:]
    before = [dict(pool.learning.predictor.levels) for pool in watched]
    together.settle(_BACK_S, rounds=5)
    for pool, levels in zip(watched, before, strict=True):
        assert pool.loads.processes == _GATEWAYS
        assert pool.learning.predictor.levels == pytest.approx(levels, rel=0.02)
        assert not any(pool.learning.predictor.is_slow(name) for name in "abc")
        assert all(load.others.answered_s < _BACK_S for load in pool.loads.of.values())


@_CASES
def test_attempts_after_a_return_are_learned(go: Callable[[Together], None]) -> None:
    """Slow attempts of the gateway that has returned count at all."""
    together = _with_history()
    go(together)
    together.settle(_BACK_S)
    for number in range(8):
        _answered(together, 0, 0, _BACK_S + 0.5 + number, 0.4)
        together.settle(_BACK_S + 1.0 + number)
    assert all(pool.learning.predictor.is_slow("a") for pool in together.pools)


def test_a_return_closes_no_breaker() -> None:
    """First contents of a gateway from before its time alone are no answers of a replica that fails now."""
    together = _with_history()
    _one_cut_off(together)
    for gateway in (1, 2, 1, 2):
        fail(together.pools[gateway], 0, _BACK_S)
    together.exchange(_BACK_S + 0.1, [1, 2])
    together.exchange(_BACK_S + 0.2, [1, 2])
    together.settle(_BACK_S + 0.3)
    assert [pool.replicas[0].breaker.state for pool in together.pools[1:]] == [BreakerState.OPEN] * 2


@_CASES
def test_earnings_are_not_earned_again(go: Callable[[Together], None]) -> None:
    """What the others have earned in the last seconds, which bounds all credits, is little after a quiet time."""
    together = Together(_GATEWAYS)
    for tenth in range(300, 600):
        together.pools[0].budget.requests.earn(tenth / 10)
        if tenth % 5 == 0:
            together.exchange(tenth / 10)
    go(together)
    for step in range(30):
        together.exchange(_BACK_S + step / 10)
        assert all(pool.budget.requests.cap < 5.8 for pool in together.pools)


@pytest.mark.parametrize("kind", ["cut off", "unused", "engine lost"])
def test_usage_is_not_used_again(kind: str) -> None:
    """Of a gateway that was cut off, or has sent nothing for a minute, only new requests are missing in the mirrors."""
    mirrors = Mirrors(_GATEWAYS)
    for second in range(120):
        mirrors.exchange(float(second))
        for _ in range(5):
            mirrors.ledgers[0].reserve(Spend(1, 1), float(second))
    first = mirrors.quotas[0]
    for second in range(120, 200):
        for ledger in mirrors.ledgers[kind == "unused" :]:
            ledger.reserve(Spend(1, 1), float(second))
        if kind == "cut off":
            first.asks(float(second), 0.1)  # without an answer
        mirrors.exchange(float(second), [1, 2] if kind == "cut off" else [0, 1, 2])
    if kind == "engine lost":
        mirrors.hub = ShareHub()
        mirrors.exchange(200.0)
    before = mirrors.left(200.0)
    for _ in range(50):
        mirrors.ledgers[0].reserve(Spend(1, 1), 200.0)
    for _ in range(3):
        mirrors.exchange(200.0)
    used = [old - new for old, new in zip(before, mirrors.left(200.0), strict=True)]
    assert used[1:] == [50.0] * 2
