"""How long the event loop is blocked when replicas come and go, in CPU time of its thread. Units: seconds."""

import asyncio
import socket
from time import thread_time
from typing import Any, NamedTuple

from gateway.cli.event_loop import AsyncioLoop
from gateway.config.settings import Settings
from gateway.server.app import Gateway
from running import run_on


class Blocked(NamedTuple):
    """The longest times.

    Attributes:
        look_up_s: turning the answer of a source into replicas.
        change_s: putting one changed model in force.
        changes: number of changes.
    """

    look_up_s: float
    change_s: float
    changes: int


def blocked(models: int, replicas: int, changes: int) -> Blocked:
    """Add one replica to one of many models, and remove one, again and again."""
    return run_on(AsyncioLoop, _blocked(models, replicas, changes))


async def _blocked(models: int, replicas: int, changes: int) -> Blocked:
    loop, look_ups_s, changes_s, asked = asyncio.get_running_loop(), list[float](), list[float](), 0
    intervals = ["100ms", *["1h"] * (models - 1)]
    sources = [{"dns": f"n{at}.svc", "port": 8000, "kind": "vllm", "every": each} for at, each in enumerate(intervals)]
    rows = [{"name": f"m{number}", "discover": source} for number, source in enumerate(sources)]

    async def addresses(host: str, port: int, **_options: int) -> list[Any]:
        nonlocal asked
        asked += host == "n0.svc"
        count = replicas + (asked % 2 if host == "n0.svc" else 0)
        return [(socket.AF_INET, 1, 6, "", (f"10.0.{index // 250}.{index % 250 + 1}", port)) for index in range(count)]

    vars(loop)["getaddrinfo"] = addresses
    settings = Settings.model_validate({"admin_listen": "off", "models": rows})
    async with asyncio.TaskGroup() as tasks:
        gateway = Gateway(settings, tasks)
        gateway.hub.listeners.clear()  # the log would be in the table
        await gateway.reloads.discover()
        discovery = gateway.reloads.discovery
        apply, ask = discovery._apply, discovery._ask

        async def timed_apply(new: Settings, model: str) -> None:
            begin_s = thread_time()
            await apply(new, model)
            changes_s.append(thread_time() - begin_s)

        async def timed_ask(followed: Any) -> None:
            begin_s = thread_time()
            await ask(followed)  # the answer is there immediately
            look_ups_s.append(thread_time() - begin_s)

        vars(discovery).update(_apply=timed_apply, _ask=timed_ask)
        while len(changes_s) < changes:
            await asyncio.sleep(0.05)
        gateway.close()
    return Blocked(max(look_ups_s), max(changes_s), len(changes_s))
