"""The bench's thinking models: queues are hedged until the sign of work, and an echoed sign decides nothing."""

import numpy as np
import pytest

from streaming_bench.simulation.comparison import ComparisonPlan, SeedSamples
from streaming_bench.simulation.scenario import load

_POLICIES = ("adaptive", "off")


def _runs(workload: str) -> dict[str, tuple[float, ...]]:
    """Return by policy: p99 in seconds, hedges, hedges that won, attempts that were started after a sign."""
    samples = SeedSamples(load(workload, 2_000), ComparisonPlan(_POLICIES, (1,)), 1)
    columns = {policy: samples.run(policy).columns for policy in _POLICIES}
    return {
        policy: (
            float(np.quantile(column["ttft_s"], 0.99)),
            *(float(column[name].sum()) for name in ("hedges", "won", "while_working")),
        )
        for policy, column in columns.items()
    }


def test_the_queue_in_front_of_a_thought_is_hedged() -> None:
    """3% of requests queue for 5 s before 60 s of reasoning: p99 of the first sign is halved, none reasons twice."""
    runs = _runs("T1")
    (p99_s, hedges, won, while_working), (off_s, *_) = runs["adaptive"], runs["off"]
    assert p99_s <= 0.5 * off_s
    assert 0 < won <= hedges
    assert while_working == 0


def test_an_echoed_sign_decides_nothing() -> None:
    """The same with signs that come with the headers: hedged is only the first minute, when one may win."""
    runs = _runs("T1/echo")
    (p99_s, hedges, won, _), (off_s, *_) = runs["adaptive"], runs["off"]
    assert p99_s == pytest.approx(off_s, rel=0.01)
    assert won <= 1  # sent after cold_start_delay, before the first answer
    assert hedges <= 0.02 * 2_000
