"""A raced answer reaches its reader when the plain client would return it: no piece waits for a later one.

Two answers are read in one way here; long/test_all_piece_times.py reads more of them.
"""

import pytest

import client_fixtures
from client_replicas import Replicas
from http_endings import TRANSPORTS
from turned_server import ANSWERS, CONFIGS, received_in_turns

site = client_fixtures.shared_site


@pytest.mark.parametrize("how", CONFIGS)
@pytest.mark.parametrize("name", ["content", "headers"])
@pytest.mark.parametrize("transport", TRANSPORTS)
def test_no_piece_of_an_http_answer_waits_for_a_later_one(site: Replicas, transport: str, name: str, how: str) -> None:
    """The headers of a GET, and each piece from the first content on, are returned before the server sends more."""
    received = received_in_turns(site, name, transport, how)
    assert (received.status, received.error, received.body) == (200, "", b"".join(ANSWERS[name].pieces))
