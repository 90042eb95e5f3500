"""What holds for every test: no blocking call on the event loop, hypothesis without deadlines, Ctrl-C that is heard.

In CI the examples of hypothesis are derived from the test alone, so that a run can be repeated; elsewhere they differ
from run to run, which finds more.
"""

import os
import signal

import pytest
from hypothesis import HealthCheck, settings

from blocking import forbid_blocking_calls
from sentences import FOLDER, UPDATE, Sentences

forbid_blocking_calls()
if (
    signal.getsignal(signal.SIGINT) is signal.SIG_IGN
):  # as in jobs that a script starts with &; our processes inherit it
    signal.signal(signal.SIGINT, signal.default_int_handler)
# A loaded machine must not fail a property for being slow; pytest-timeout catches what hangs.
settings.register_profile("local", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.register_profile("ci", settings.get_profile("local"), derandomize=True)
settings.register_profile("quick", settings.get_profile("local"), max_examples=20)  # scripts/test --quick
settings.load_profile("ci" if os.environ.get("CI") else "local")


def pytest_addoption(parser: pytest.Parser) -> None:
    """Add the project's own options."""
    parser.addoption(UPDATE, action="store_true", help="update tests/snapshots and run nothing else")
    parser.addoption(
        "--schemathesis-examples",
        type=int,
        default=5,  # 10 s beside 50 s for 50; the coverage phase makes a thousand requests in either case
        help="test cases that schemathesis generates for each operation",
    )


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Keep only the tests that write snapshots where these are to be written."""
    if config.getoption(UPDATE):
        items[:] = [item for item in items if "sentences" in getattr(item, "fixturenames", ())]


@pytest.fixture
def sentences(request: pytest.FixtureRequest) -> Sentences:
    """Compare sentences with tests/snapshots, or write them there."""
    return Sentences(FOLDER, update=request.config.getoption(UPDATE))
