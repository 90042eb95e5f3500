"""A slow replica is named although hedges win: races, pool and verdict together, in virtual time."""

import pytest

from slow_replicas import Slowness, seen_of


@pytest.mark.parametrize(
    "case",
    [
        Slowness(3.0, 0.2),
        Slowness(15.0, 1.0, "vllm"),
        Slowness(15.0, 1.0, always=True),
        Slowness(4.0, 1.0, decode=True),
    ],
)
def test_a_slow_replica_is_named(case: Slowness) -> None:
    """After 30 of its own requests metrics, page and alert have it, and stay; no other replica is called slow."""
    seen = seen_of(case, 1)
    assert seen.own <= 30
    assert (seen.kept, seen.others) == (1.0, set())


def test_usual_replicas_are_not_named() -> None:
    """Without a slow replica there is no alert."""
    seen = seen_of(Slowness(1.0, 1.0), 1)
    assert (seen.kept, seen.others) == (0.0, set())
