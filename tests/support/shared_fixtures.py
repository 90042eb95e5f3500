"""The engines that tests of the share compare, as fixtures: assigned to names of the test module."""

from collections.abc import Iterator

import pytest

from redis_server import redis_server
from share_engines import ServerEngine
from share_processes import Engines
from switching_hub import SwitchingHub


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerEngine]:
    """The functions in a real server."""
    with redis_server(tmp_path_factory.mktemp("redis")) as process:
        engine = ServerEngine(process.socket)
        yield engine
        engine.close()


@pytest.fixture(scope="module", params=["hub", "server"])
def engines(request: pytest.FixtureRequest) -> Engines:
    """Return a function that makes an empty engine."""
    if request.param == "hub":
        return SwitchingHub
    engine: ServerEngine = request.getfixturevalue("server")

    def emptied() -> ServerEngine:
        engine.lose()
        return engine

    return emptied
