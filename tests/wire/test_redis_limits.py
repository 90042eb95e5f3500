"""Gateways that share a limit over a real Redis server; scripts/acceptance measures them for longer, and the times."""

from pathlib import Path

from redis_scenarios import shared
from running import run_real

LIMIT = 600


def test_a_server_that_loses_its_data_costs_neither_the_limit_nor_a_request(tmp_path: Path) -> None:
    """Over by 1 % at most, and no rejection for another reason than the limit."""
    seen = run_real(shared(tmp_path, "killed", LIMIT, part_s=0.8))
    assert seen.over <= 0.01 * LIMIT
    assert seen.errors == 0
