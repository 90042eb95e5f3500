"""The replicas of tests of the client library, as fixtures: assigned to names of the test module."""

from collections.abc import Iterator

import pytest

from client_replicas import Replicas, replicas


@pytest.fixture
def site() -> Iterator[Replicas]:
    """Replicas of one test, which are stopped at the end."""
    with replicas() as running:
        yield running


@pytest.fixture(scope="module")
def shared_site() -> Iterator[Replicas]:
    """Replicas of the tests of a module, which are stopped at the end."""
    with replicas() as running:
        yield running
