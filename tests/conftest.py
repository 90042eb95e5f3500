"""What holds for every test: no blocking call on the event loop, hypothesis without deadlines, Ctrl-C that is heard.

In CI the examples of hypothesis are derived from the test alone, so that a run can be repeated, and are 40 for each
property; elsewhere, as in the nightly run, they are 100 and differ from run to run, which finds more.
"""

import contextlib
import gc
import os
import signal
from importlib.abc import Loader
from importlib.util import spec_from_loader
from pathlib import Path
from types import ModuleType

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
settings.register_profile("ci", settings.get_profile("local"), derandomize=True, max_examples=40)
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
    parser.addoption(  # 25 s of CPU beside 3 s
        "--every-read", action="store_true", help="read each ending of tests/client/test_differential.py in all ways"
    )


def pytest_configure(config: pytest.Config) -> None:
    """Make the start of a whole run cheap; each worker of pytest-xdist collects all tests."""
    gc.disable()  # until all is collected: imports leave no garbage, and looking for it takes a tenth of the time
    worker: dict[str, int | str] | None = getattr(config, "workerinput", None)
    if worker is not None and config.args_source is pytest.Config.ArgsSource.TESTPATHS:
        _rewrite_part(config, int(str(worker["workerid"]).removeprefix("gw")), int(worker["workercount"]))


def pytest_collection_finish() -> None:
    """Let the garbage collector leave out what was collected."""
    gc.freeze()
    gc.enable()


def _rewrite_part(config: pytest.Config, worker: int, workers: int) -> None:
    """Store a part of the test modules with rewritten assertions, which takes half of a collection without bytecode.

    Without this, each worker would rewrite all of them at the same time.
    """
    hook = config.pluginmanager.rewrite_hook
    if not isinstance(hook, Loader):  # assertions are not rewritten
        return
    for path in sorted(Path(__file__).parent.rglob("test_*.py"))[worker::workers]:
        module = ModuleType(path.stem)
        module.__spec__ = spec_from_loader(path.stem, hook, origin=str(path))
        vars(module)["__builtins__"] = {}  # so that it ends at its first import
        with contextlib.suppress(Exception):  # the collection reports what else is wrong with a module
            hook.exec_module(module)


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Keep only the tests that write snapshots where these are to be written."""
    if config.getoption(UPDATE):
        items[:] = [item for item in items if "sentences" in getattr(item, "fixturenames", ())]


@pytest.fixture
def sentences(request: pytest.FixtureRequest) -> Sentences:
    """Compare sentences with tests/snapshots, or write them there."""
    return Sentences(FOLDER, update=request.config.getoption(UPDATE))
