"""Objects of earlier settings are dropped, and counts of replicas that have left, without holding the event loop."""

import asyncio
import gc
from itertools import pairwise

from msgspec.structs import replace

from gateway.api.plain_routes import contract
from gateway.config.settings import Settings
from gateway.observe.instruments import MODEL
from gateway.observe.metrics import Metrics
from gateway.server.app import Gateway
from gateway.server.model_parts import ModelParts
from gateway.server.topology import Topology
from providers.upstream import HttpEndpoint
from running import run_virtual
from sample_events import REQUEST
from ttft_gateway.pool.pool import Pool

_MODELS = 300


def settings(models: int, port: int = 1) -> Settings:
    """Return settings with a number of models of one replica."""
    row = {"name": "a", "kind": "vllm", "base_url": f"http://127.0.0.1:{port}/v1"}
    return Settings.model_validate({"models": [{"name": f"m{n}", "replicas": [row]} for n in range(models)]})


def test_many_replicas_leave() -> None:
    """Five minutes after a reload has removed many models, each turn of the loop drops what one replica has counted."""
    contract()  # read the file while no loop is running
    first, later = settings(_MODELS), settings(1)

    async def main() -> None:
        async with asyncio.TaskGroup() as tasks:
            gateway = Gateway(first, tasks)
            attempts = gateway.view.metrics.instruments.attempts
            for number in range(_MODELS):
                attempts.at(f"m{number}", "a", "primary", "won").value += 1
            gateway.reloads.commit(gateway.reloads.prepare(later))
            await asyncio.sleep(301.0)
            gateway.keep_warm()
            left = [attempts.count]
            while left[-1] > 1 and len(left) <= _MODELS:
                await asyncio.sleep(0)
                left.append(attempts.count)
            assert left[-1] == 1
            assert max(before - after for before, after in pairwise(left)) == 1
            gateway.close()

    run_virtual(main())


def test_removed_models_leave_no_series() -> None:
    """Reloads that replace a model again and again leave the series of the last one."""
    contract()

    def renamed(name: str) -> Settings:
        row = {"name": "a", "kind": "vllm", "base_url": "http://127.0.0.1:1/v1"}
        return Settings.model_validate({"models": [{"name": name, "replicas": [row]}]})

    async def main() -> None:
        async with asyncio.TaskGroup() as tasks:
            gateway = Gateway(renamed("m0"), tasks)
            metrics = gateway.view.metrics
            gateway.keep_warm()
            for number in range(1, 4):
                metrics.on_events([replace(REQUEST, model=f"m{number - 1}")])
                gateway.reloads.commit(gateway.reloads.prepare(renamed(f"m{number}")))
            gateway.keep_warm()
            assert _models(metrics) == {"m0", "m1", "m2"}
            await asyncio.sleep(301.0)
            metrics.on_events([replace(REQUEST, model="m3")])
            gateway.keep_warm()
            for _ in range(10):
                await asyncio.sleep(0)
            assert _models(metrics) == {"m3"}
            gateway.close()

    def _models(metrics: Metrics) -> set[str]:
        families = [each for each in metrics.instruments.families() if MODEL in each.labels]
        return {values[each.labels.index(MODEL)] for each in families for values, _ in each.items()}

    run_virtual(main())


def test_nothing_holds_earlier_settings() -> None:
    """After reloads that change each replica, only the last objects are in memory, without a search for garbage."""
    contract()

    def count() -> list[int]:
        kinds = [type(each) for each in gc.get_objects()]
        return [kinds.count(kind) for kind in (Topology, ModelParts, Pool, HttpEndpoint)]

    async def main() -> None:
        async with asyncio.TaskGroup() as tasks:
            gateway = Gateway(settings(20), tasks)
            before = count()
            for port in range(2, 6):
                gateway.reloads.commit(gateway.reloads.prepare(settings(20, port)))
            for _ in range(10):
                await asyncio.sleep(0)
            assert count() == before
            gateway.close()

    gc.collect()
    gc.disable()
    try:
        run_virtual(main())
    finally:
        gc.enable()


def test_a_reader_lets_go_of_replaced_models_one_by_one() -> None:
    """A reload may replace all models while a verdict reads their pools, which must not be freed in one turn."""
    contract()

    def count() -> int:
        return sum(type(each) is Pool for each in gc.get_objects())

    async def main() -> None:
        async with asyncio.TaskGroup() as tasks:
            gateway = Gateway(settings(20), tasks)
            before, reading = count(), gateway.view._pools()
            next(reading)
            gateway.reloads.commit(gateway.reloads.prepare(settings(20, 2)))
            for _ in range(10):
                await asyncio.sleep(0)
            left = [count(), *(count() for _ in reading), count()]
            assert left[0] - left[-1] >= before - 1
            assert max(one - other for one, other in pairwise(left)) == 1
            gateway.close()

    gc.collect()
    gc.disable()
    try:
        run_virtual(main())
    finally:
        gc.enable()
