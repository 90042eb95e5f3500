"""A switchback over a simulated workload: its estimate against runs without hedging and with it."""

from streaming_bench.simulation.scenario import load
from switched_runs import switched_run, truth


def test_the_interval_contains_the_total_effect_on_w2() -> None:
    """Fewer misses with hedging, by as many as in the two whole runs; about half of the requests are in each state."""
    run = switched_run(load("W2", 4000), 1, 0.1, 12)
    saved, true = run.estimate.misses.saved, truth(run)["misses"]
    assert saved is not None
    assert 0 < saved.low <= true <= saved.high
    assert saved.high - saved.low < 2 * true
    assert run.off.hedges == 0
    assert 0 < run.estimate.hedges < run.on.hedges
    assert run.estimate.pairs == 6
    assert 0.8 < run.estimate.requests_off / run.estimate.requests_on < 1.25
