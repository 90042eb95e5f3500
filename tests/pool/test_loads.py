"""The times for which a pool's state is remembered: by the traffic, whatever it was before."""

from hypothesis import given
from hypothesis import strategies as st

from defaults import default_hedging
from scripted import Scripted
from ttft_gateway.pool.learning import Learning
from ttft_gateway.pool.loads import Loads
from ttft_gateway.routing.replicas import Replica


@given(st.integers(1, 30), st.lists(st.tuples(st.sampled_from([0.0, 0.005, 0.05, 0.2, 3.0, 60.0]), st.integers(1, 4))))
def test_times_follow_the_mean_gap(replicas: int, requests: list[tuple[float, int]]) -> None:
    """After each request the three times follow from its mean gap, for any traffic and number of gateways."""
    names = [f"r{number}" for number in range(replicas)]
    learning = Learning(names, default_hedging())
    loads = Loads([Replica(name, Scripted()) for name in names], learning)
    now_s, mean_s = 100.0, 0.0
    loads.on_request(now_s)
    for gap_s, processes in requests:
        loads.processes = processes
        before_s, now_s = now_s, now_s + gap_s
        loads.on_request(now_s)
        if now_s > before_s:
            mean_s += 0.02 * (now_s - before_s - mean_s)
            share_s = replicas * (mean_s / processes)
            assert loads.unseen_s == max(5.0, 12.0 * share_s)
            assert loads.probe_every_s == max(5.0, 50.0 * (mean_s / processes))
            assert learning.predictor.memory_s == max(30.0, 75.0 * share_s)
