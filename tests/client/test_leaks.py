"""Races with errors and cancellations leave nothing: the short form of tests/acceptance/client_races.py."""

import pytest

import client_races


@pytest.mark.parametrize("transport", client_races.TRANSPORTS)
def test_races_leave_nothing(transport: str) -> None:
    """After races of every kind, no connection, file, thread, task or attempt in the policy is left."""
    assert client_races.run(transport, 150) == []
