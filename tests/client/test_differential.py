"""Whatever a server answers, a caller gets through each transport for HTTP exactly what the plain client returns.

Each ending is read in one way by one method; with `--every-read`, as scripts/nightly runs it, in all ways by both.
"""

from itertools import product

import pytest

import client_fixtures
from client_replicas import Replicas
from http_endings import METHODS, READS, TRANSPORTS, differences
from response_endings import ENDINGS

site = client_fixtures.shared_site


@pytest.mark.parametrize("transport", TRANSPORTS)
@pytest.mark.parametrize("number", range(len(ENDINGS)), ids=list(ENDINGS))
def test_a_caller_gets_what_the_plain_client_returns(
    site: Replicas, transport: str, number: int, request: pytest.FixtureRequest
) -> None:
    """Status, headers, bytes, redirects and errors are equal, raced or not."""
    ways = [("POST" if number % 4 else "GET", READS[(number + list(TRANSPORTS).index(transport)) % len(READS)])]
    if request.config.getoption("--every-read"):
        ways = list(product(METHODS, READS))
    assert differences(site, transport, list(ENDINGS)[number], ways) == []
