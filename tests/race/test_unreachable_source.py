"""A source that cannot be reached is not asked again while another one can answer, and a backup there is replaced."""

from collections.abc import Callable

import pytest

from scripted import Scripted, Step, answer, run_race, status
from ttft_gateway.apis.errors import ConnectError, ConnectionCut
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


@pytest.mark.parametrize(
    ("backup", "asked", "first_token_s"),
    [
        (REFUSED, "abc", 0.13),  # refused 0.01 s after the delay of 0.1 s, and replaced at once
        (status(0.01, 429), "ab", 2.0),  # one late request loads no further replica if the first has no room
        ([(0.001, "headers"), (0.01, ConnectionCut("cut"))], "ab", 2.0),  # it was received, and may be billed
    ],
    ids=["refused", "429", "cut"],
)
def test_a_backup_without_a_response_is_replaced(backup: list[Step], asked: str, first_token_s: float) -> None:
    """The primary stays in the race, and another replica gets the backup."""
    replicas = [Scripted(answer(2.0)), Scripted(backup), *(Scripted(QUICK) for _ in range(2))]
    outcome = run_race(*replicas)
    assert [name for name, each in zip("abcd", replicas, strict=True) if each.streams] == list(asked)
    assert outcome.report.ttft_s == pytest.approx(first_token_s)


def test_backups_without_a_response_are_bounded() -> None:
    """No more attempts are sent than three in a burst, and the primary is still waited for."""
    replicas = [Scripted(answer(2.0)), *(Scripted(REFUSED) for _ in range(6))]
    outcome = run_race(*replicas)
    assert sum(len(each.streams) for each in replicas) == 3
    assert outcome.report.ttft_s == pytest.approx(2.0)
