"""Every ending of an HTTP response, by every transport, read in every way: what the plain client returns."""

from itertools import product

import pytest

import client_fixtures
from client_replicas import Replicas
from http_endings import METHODS, READS, TRANSPORTS, differences
from response_endings import ENDINGS

site = client_fixtures.shared_site


@pytest.mark.parametrize("transport", TRANSPORTS)
@pytest.mark.parametrize("ending", ENDINGS)
def test_a_caller_gets_what_the_plain_client_returns(site: Replicas, transport: str, ending: str) -> None:
    """Status, headers, bytes, redirects and errors are equal, raced or not."""
    assert differences(site, transport, ending, product(METHODS, READS)) == []
