"""The test whether TTFT grows with the attempts in flight: it finds slots, and is not misled by slow replicas."""

import math
import random

from ttft_gateway.estimation.crowding import Crowding


def fed(crowding: Crowding, slope: float, samples: int, seed: int) -> None:
    """Attempts of replicas with 1 to 39 in flight; TTFT grows with the crowd by this exponent."""
    rng = random.Random(seed)
    for _ in range(samples):
        crowd = math.log(rng.randrange(1, 40) / 20)
        crowding.add(crowd, math.exp(slope * crowd) * rng.lognormvariate(0.0, 0.4), 1.0)


def test_slots_are_found_and_their_end_is_noticed() -> None:
    """The number in flight matters after 100 attempts where it does, and no longer some time after it has ceased to."""
    crowding = Crowding()
    fed(crowding, 0.5, 100, 1)
    assert crowding.matters
    fed(crowding, 0.0, 2_000, 2)
    assert not crowding.matters


def test_no_slots_are_found_where_there_are_none() -> None:
    """Noise shows no slots, whether a replica is always slow or never."""
    for seed in range(20):
        crowding = Crowding()
        fed(crowding, 0.0, 1_000, seed)
        assert not crowding.matters


def test_a_slow_replica_shows_no_slots() -> None:
    """A replica that is slow in spells has more in flight late in each of them: its prediction has grown before."""
    crowding, rng = Crowding(), random.Random(1)
    for _ in range(20):
        in_flight = predicted_s = 1.0
        for sample in range(60):
            ttft_s = 5.0 if sample < 30 else 1.0
            crowding.add(math.log(in_flight), ttft_s * rng.lognormvariate(0.0, 0.3), predicted_s)
            predicted_s += 0.1 * (ttft_s - predicted_s)
            in_flight += 0.05 * (4.0 * ttft_s - in_flight)
        assert not crowding.matters


def test_equal_crowds_show_nothing() -> None:
    """Without differences there is no slope."""
    crowding = Crowding()
    for _ in range(100):
        crowding.add(0.0, 1.0, 1.0)
    assert not crowding.matters
