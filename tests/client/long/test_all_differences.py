"""Every ending of an HTTP response, by every transport, read in every way: what the plain client returns."""

from collections.abc import Iterator
from itertools import product

import pytest

from client_replicas import Replicas, replicas
from http_endings import ENDINGS, METHODS, READS, TRANSPORTS, differences


@pytest.fixture(scope="module")
def site() -> Iterator[Replicas]:
    """Replicas that are stopped at the end."""
    with replicas() as running:
        yield running


@pytest.mark.parametrize("transport", TRANSPORTS)
@pytest.mark.parametrize("ending", ENDINGS)
def test_a_caller_gets_what_the_plain_client_returns(site: Replicas, transport: str, ending: str) -> None:
    """Status, headers, bytes, redirects and errors are equal, raced or not."""
    assert differences(site, transport, ending, product(METHODS, READS)) == []
