"""A source that cannot be reached is not asked again by its other tiers, while another source can answer."""

from collections.abc import Callable

import pytest

from scripted import Scripted, Step, answer, run_race, status
from ttft_gateway.apis.errors import ConnectError
from ttft_gateway.pool.pool import Pool

QUICK = answer(0.02)
REFUSED: list[Step] = [(0.01, ConnectError("connection refused"))]


def tiers_of(*sources: str) -> Callable[[list[Pool]], None]:
    """Gives the replicas of the first pool these sources."""

    def prepare(pools: list[Pool]) -> None:
        for replica, source in zip(pools[0].replicas, sources, strict=True):
            replica.source = source

    return prepare


@pytest.mark.parametrize(
    ("first", "sources", "asked"),
    [
        (REFUSED, "xxxy", "ad"),  # the host is down: its other tiers are passed over
        (REFUSED, "xyxy", "ab"),
        (status(0.01, 503), "xxxy", "ab"),  # a tier was refused: the next one may answer
        (REFUSED, "xxxx", "ab"),  # there is no other source
    ],
    ids=["down", "next", "refused_tier", "one_source"],
)
def test_a_failover_leaves_an_unreachable_source(first: list[Step], sources: str, asked: str) -> None:
    """Without a response, not even a status, the next attempt goes to another source."""
    replicas = [Scripted(first), *(Scripted(QUICK) for _ in range(3))]
    outcome = run_race(*replicas, prepare=tiers_of(*sources))
    assert [name for name, each in zip("abcd", replicas, strict=True) if each.streams] == list(asked)
    assert b"a" in outcome.client.got
