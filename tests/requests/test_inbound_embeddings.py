"""The parsed form of embeddings requests."""

import pytest

from inbound_bodies import read
from ttft_gateway.apis.base import Api


@pytest.mark.parametrize("given", ['"hi"', '["a","b"]', "[1,2,3]", "[[1],[2,3]]"])
def test_embeddings_are_timed_and_hedged_as_a_whole(given: str) -> None:
    """They come in one piece, and its time measures the replica, several inputs included."""
    inbound = read(f'{{"model":"m","input":{given}}}', Api.EMBEDDINGS)
    assert (inbound.call.streaming, inbound.call.assemble, inbound.call.timed) == (False, False, True)
    assert (inbound.hedge_off, inbound.prompt) == (None, given.encode())
