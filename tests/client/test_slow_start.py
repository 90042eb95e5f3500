"""A server that is slow at its start: its first answers do not spoil the plan of later requests."""

import math
import random
import statistics
from typing import NamedTuple

import pytest

from ttft_gateway import HedgeConfig, Stats
from ttft_gateway.client.asked import ask
from ttft_gateway.client.hedger import ClientAttempt, Hedger
from ttft_gateway.client.rules import Rules
from ttft_gateway.hedging.outcomes import Outcome

_RULES = Rules(HedgeConfig())
_USUAL_S = 0.0075
_TAIL = 0.05  # of the requests take ten times as long


class _Sent(NamedTuple):
    """A request: its planned delay, whether its primary is a straggler, and whether it has got a backup."""

    delay_s: float
    is_straggler: bool
    is_hedged: bool


def _end(running: tuple[float, ClientAttempt]) -> float:
    return running[0]


def _run(seed: int, requests: int, slow: int, factor: float) -> list[_Sent]:
    """Send requests one at a time; each of the first `slow` attempts takes `factor` times as long."""
    rng, now_s, sent, attempts = random.Random(seed), 0.0, list[_Sent](), 0
    hedger = Hedger(HedgeConfig(warmup_delay=0.010), (), Stats(), lambda: now_s, rng.random)

    def time_s(*, is_straggler: bool) -> float:
        nonlocal attempts
        attempts += 1
        usual_s = _USUAL_S * math.exp(0.3 * rng.gauss(0.0, 1.0))
        return usual_s * (10.0 if is_straggler else 1.0) * (factor if attempts <= slow else 1.0)

    for _ in range(requests):
        race = hedger.race(ask("GET", "https://h:443", b"/", (), b"", rng.random(), _RULES))
        is_straggler, primary = rng.random() < _TAIL, race.begin()
        running: list[tuple[float, ClientAttempt]] = [(now_s + time_s(is_straggler=is_straggler), primary)]
        while race.due_s < min(running, key=_end)[0]:
            now_s = race.due_s
            backup = race.late()
            if backup is not None:
                running.append((now_s + time_s(is_straggler=False), backup))
        now_s, winner = min(running, key=_end)
        race.on_first(winner)
        race.on_end(winner, outcome=Outcome.FINISHED)
        race.close()
        sent.append(_Sent(race.delay_s, is_straggler, len(race.attempts) > 1))
    return sent


@pytest.mark.parametrize(("slow", "factor", "settled"), [(5, 6.0, 60), (20, 6.0, 150), (60, 3.0, 250)])
def test_slow_first_answers_spoil_no_later_plan(slow: int, factor: float, settled: int) -> None:
    """Once the slow answers are over, no delay is in the body of the times, and stragglers get a backup."""
    later = [each for seed in range(5) for each in _run(seed, settled + 200, slow, factor)[settled:]]
    stragglers = [each.is_hedged for each in later if each.is_straggler]
    assert min(each.delay_s for each in later) >= 1.1 * _USUAL_S
    assert statistics.mean(stragglers) >= 0.85
