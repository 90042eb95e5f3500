"""What was counted of replicas that have left is dropped without holding the event loop."""

import asyncio
from itertools import pairwise

from gateway.api.plain_routes import contract
from gateway.config.settings import Settings
from gateway.server.app import Gateway
from running import run_virtual

_MODELS = 300


def settings(models: int) -> Settings:
    """Return settings with a number of models of one replica."""
    row = {"name": "a", "kind": "vllm", "base_url": "http://127.0.0.1:1/v1"}
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
