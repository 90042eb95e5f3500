"""The generation of simulated answers: shared speed, spells, and what a policy is shown of it."""

import asyncio
from collections.abc import Sequence
from typing import Any

import pytest

from running import run_virtual
from streaming_bench.simulation.comparison import ComparisonPlan, SeedSamples, compare
from streaming_bench.simulation.decoding import Decoder
from streaming_bench.simulation.scenario import load
from streaming_bench.simulation.speed_timeline import Slowdown, SpeedTimeline
from ttft_gateway.hedging.parameters import Prefer
from ttft_gateway.routing.strategies import Routing

Answer = tuple[float, int, float]
"""Start, tokens, slowness."""


def ends_s(
    answers: Sequence[Answer], *, slowdowns: Sequence[Slowdown] = (), cancelled: int | None = None
) -> list[float]:
    """The ends of answers on a decoder with 10 ms a token and 10 ms for each other answer."""
    ends: dict[int, float] = {}
    sent = [0] * len(answers)

    async def run() -> None:
        loop = asyncio.get_running_loop()
        decoder = Decoder(loop, SpeedTimeline(slowdowns), 0.01, 0.01)

        def begin(number: int, tokens: int, slowness: float) -> None:
            def send(count: int) -> None:
                sent[number] += count

            def end() -> None:
                ends[number] = loop.time()

            generation = decoder.start(tokens, slowness, send, end)
            if number == cancelled:
                loop.call_later(0.5, decoder.cancel, generation)

        for number, (start_s, tokens, slowness) in enumerate(answers):
            loop.call_at(start_s, begin, number, tokens, slowness)
        await asyncio.sleep(60.0)

    run_virtual(run())
    for number, (_, tokens, _) in enumerate(answers):
        assert number == cancelled or 0 <= tokens - sent[number] <= 0.2 / 0.01  # sent five times a second
    return [ends[number] for number in sorted(ends)]


@pytest.mark.parametrize(
    ("answers", "expected_s"),
    [
        ([(0.0, 100, 1.0)], [1.0]),
        ([(0.0, 100, 2.0)], [2.0]),
        ([(0.0, 100, 1.0), (0.0, 100, 1.0)], [2.0, 2.0]),  # twice the time for each
        ([(0.0, 100, 1.0), (0.5, 25, 1.0)], [1.25, 1.0]),  # for half a second together
        ([(0.0, 50, 1.0), (5.0, 50, 1.0)], [0.5, 5.5]),
    ],
)
def test_answers_share_the_speed_of_their_replica(answers: Sequence[Answer], expected_s: Sequence[float]) -> None:
    """Each other answer adds to the time of a token while it is generated."""
    assert ends_s(answers) == pytest.approx(expected_s)


def test_a_spell_slows_answers_under_way() -> None:
    """An answer that is half generated when its replica becomes four times slower takes 2.5 times as long."""
    assert ends_s([(0.0, 100, 1.0)], slowdowns=[Slowdown(0.5, 100.0, 0.25)]) == pytest.approx([2.5])


def test_a_cancelled_answer_slows_no_other() -> None:
    """After the end of one answer the other one has the replica for itself."""
    assert ends_s([(0.0, 100, 1.0), (0.0, 100, 1.0)], cancelled=0) == pytest.approx([0.5 + 0.75])


def total_ms(workload: str, prefer: Prefer, requests: int, routing: Routing = Routing.PREDICTED) -> tuple[float, float]:
    """The mean times to the first token and to the end of an answer on one seed."""
    plan = ComparisonPlan(("adaptive",), (1,), routing=routing, prefer=prefer)
    rows: Any = compare(load(workload, requests), plan)["rows"]
    return rows[0]["mean"], rows[0]["total"]


def test_the_default_ends_answers_earlier_where_a_quick_replica_is_slow_to_generate() -> None:
    """On U18 the whole answer takes less than half the time of a choice by first tokens."""
    (_, first_ms), (_, balanced_ms) = (total_ms("U18", each, 500) for each in (Prefer.FIRST_TOKEN, Prefer.BALANCED))
    assert balanced_ms < 0.5 * first_ms


def test_load_made_gaps_make_no_herd() -> None:
    """On equal engines with gaps that their load makes, the default is level with the least busy replica."""
    _, balanced_ms = total_ms("U23", Prefer.BALANCED, 600)
    _, least_ms = total_ms("U23", Prefer.FIRST_TOKEN, 600, Routing.LEAST_IN_FLIGHT)
    assert balanced_ms < 1.05 * least_ms


def test_answers_of_their_own_time_change_nothing() -> None:
    """On U25, where the time of an answer is its own, the default chooses as by first tokens."""
    scenario, found = load("U25", 400), []
    for prefer in (Prefer.FIRST_TOKEN, Prefer.BALANCED):
        samples = SeedSamples(scenario, ComparisonPlan(("adaptive",), (1,), prefer=prefer), 1)
        found.append(samples.run("adaptive").records)
    assert found[0] == found[1]
