"""The share of answers that break: weighted, faded, and free below what is usual."""

import pytest

from ttft_gateway.pool.loads import BreakShare


def shares(*broken: bool, every_s: float = 1.0) -> BreakShare:
    """Return the share after these answers."""
    found = BreakShare()
    for number, each in enumerate(broken):
        found.add(number * every_s, broken=each)
    return found


def test_one_break_costs_nothing() -> None:
    """A single cut among good answers is tolerated."""
    assert shares(*[False] * 20, True).cost_s(20.0) == 0.0


def test_breaks_cost_their_share_of_a_stall() -> None:
    """Three of three: 1 - 0.9^3 of the answers, less what is tolerated, times 20 s."""
    assert shares(True, True, True, every_s=0.03).cost_s(0.06) == pytest.approx((1 - 0.9**3 - 0.12) * 20, rel=0.01)


def test_a_restart_is_one_break() -> None:
    """Streams that are cut at the same moment have one cause."""
    assert shares(*[False] * 20, *[True] * 50, every_s=0.001).cost_s(0.1) == 0.0


def test_a_share_fades() -> None:
    """Half of it is left after three minutes without an answer, and then complete answers count."""
    found = shares(*[True] * 50, every_s=0.03)
    assert found.cost_s(180.0 + 1.47) == pytest.approx((0.5 * (1 - 0.9**50) - 0.12) * 20, rel=0.01)
    for _ in range(30):
        found.add(181.47, broken=False)
    assert found.cost_s(181.47) == 0.0
