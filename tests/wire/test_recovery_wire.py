"""Streams that break on real sockets: one whole answer for the client, its SDK included, or an error."""

import pytest

from cut_scenarios import cuts, differing
from running import run_real


@pytest.mark.parametrize(("kind", "way"), [("compatible", "replay recovered"), ("simulated", "continue recovered")])
def test_broken_streams_become_whole(kind: str, way: str) -> None:
    """However streams break, their clients read what they would have read of whole ones."""
    result = run_real(cuts(12, kind=kind, stall_s=5.0))  # more than a busy machine makes of nothing
    assert result.unequal == []
    assert result.equal == 12
    assert result.by_sdk
    assert result.recovered[way]
    assert sum(result.recovered.values()) >= 12


def test_replicas_that_differ_give_an_error() -> None:
    """Where the other replica says something else the client gets the beginning of one answer, and the error."""
    result = run_real(differing(5))
    assert result.unequal == []
    assert result.honest == 5
    assert result.recovered == {"replay diverged": 5}
