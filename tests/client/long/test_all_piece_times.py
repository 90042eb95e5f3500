"""Answers with any ending reach their readers when the plain client would return them, by every transport."""

import pytest

import client_fixtures
from client_replicas import Replicas
from http_endings import TRANSPORTS
from turned_server import ANSWERS, received_in_turns

site = client_fixtures.shared_site
_WAYS = [(name, read) for name, each in ANSWERS.items() for read in each.reads]


@pytest.mark.parametrize(("name", "read"), _WAYS)
@pytest.mark.parametrize("transport", TRANSPORTS)
def test_no_piece_waits_for_a_later_one(site: Replicas, transport: str, name: str, read: str) -> None:
    """Each piece is returned before the server sends more, and bytes and errors equal the plain client's."""
    plain, alone, raced = (received_in_turns(site, name, transport, how, read) for how in ("plain", "alone", "raced"))
    assert plain.body.startswith(b"".join(ANSWERS[name].pieces))
    assert alone == raced == plain
