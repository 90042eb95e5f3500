"""The test whether TTFT grows with the attempts in flight: it finds slots, and is not misled by slow replicas."""

import math
import random

import pytest

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


def test_what_several_have_seen_counts_together() -> None:
    """Four gateways with 20 to 40 attempts each know it as soon as one that has seen all of them; so does a restart."""
    each = [Crowding() for _ in range(4)]
    for number, crowding in enumerate(each):
        crowding.take_new()
        fed(crowding, 0.5, 40, number)
        assert not crowding.matters
    new = [list(crowding.take_new()) for crowding in each]
    for crowding in each:
        for sums, other in zip(new, each, strict=True):
            if other is not crowding:
                crowding.put(sums)
        assert crowding.matters
        assert not any(crowding.take_new())  # what came from others is not sent again
    restarted = Crowding()
    restarted.put(each[0].sums)
    assert restarted.matters


def test_sums_of_something_else_are_refused() -> None:
    """No crowd has such a variance: the evidence stays as it was."""
    crowding = Crowding()
    for sums in ([1.0, 0.0, 0.0, 65.0, 0.0, 0.0], [1.0, 0.0, 0.0, 0.0, 0.0, 5.0], [0.0, 1.0, 1.0, 1.0, 1.0, 1.0]):
        with pytest.raises(ValueError, match="not sums of crowds"):
            crowding.put(sums)
    assert not any(crowding.sums)


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
