"""The gateway's two event loops: their clock, their timers, and connections to a name with several addresses."""

import asyncio
import math
import socket
from collections.abc import Callable
from importlib import import_module
from importlib.util import find_spec
from typing import Any

import pytest

from gateway.cli.event_loop import AsyncioLoop
from running import run_on
from scripted_http import OK, answering, serving

_Loop = Callable[[], asyncio.AbstractEventLoop]


def _loops() -> dict[str, _Loop]:
    if find_spec("uvloop") is None:
        return {"asyncio": AsyncioLoop}
    return {"asyncio": AsyncioLoop, "uvloop": import_module("gateway.cli.uv_loop").UvLoop}


pytestmark = pytest.mark.parametrize("loop", _loops().values(), ids=_loops())


def test_the_clock_is_finer_than_a_millisecond(loop: _Loop) -> None:
    """Some of twenty times are no whole milliseconds."""

    async def main() -> None:
        times_s = [asyncio.get_running_loop().time() for _ in range(20)]
        assert any(abs(each - round(each, 3)) > 1e-6 for each in times_s)

    run_on(loop, main())


def test_no_timer_runs_early(loop: _Loop) -> None:
    """Delays of parts of a millisecond, by both methods: each callback runs once, at its time or later."""
    early: list[float] = []

    async def main() -> None:
        running, done = asyncio.get_running_loop(), asyncio.Semaphore(0)

        def run(due_s: float) -> None:
            done.release()
            if running.time() < due_s - 1e-6:  # asyncio's clock has a resolution
                early.append(due_s)

        for tenth_ms in range(-5, 100):
            due_s = running.time() + tenth_ms / 10_000
            running.call_at(due_s, run, due_s)
            running.call_later(tenth_ms / 10_000, run, due_s)
        for _ in range(210):
            await done.acquire()

    run_on(loop, main())
    assert not early


def test_an_infinite_delay_can_be_cancelled(loop: _Loop) -> None:
    """Neither a sleep nor a timeout without an end fails."""

    async def main() -> None:
        async with asyncio.timeout(math.inf), asyncio.TaskGroup() as tasks:
            sleeping = tasks.create_task(asyncio.sleep(math.inf))
            await asyncio.sleep(0)
            sleeping.cancel()

    run_on(loop, main())


@pytest.mark.parametrize("addresses", [["127.0.0.2", "127.0.0.1"], ["127.0.0.1", "127.0.0.2"], ["127.0.0.2"]])
def test_addresses_are_tried_in_turn(loop: _Loop, addresses: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    """If the first address of a name refuses, the next one is connected; if none accepts, the error is its refusal."""
    found = [(socket.AF_INET, socket.SOCK_STREAM, socket.IPPROTO_TCP, "", (each, 0)) for each in addresses]

    def look_up(*_: Any, **_options: Any) -> list[Any]:
        return found

    async def main() -> None:
        async with serving(answering(OK)) as server:
            monkeypatch.setattr(socket, "getaddrinfo", look_up)
            connecting = asyncio.get_running_loop().create_connection(asyncio.Protocol, "two.example", server.port)
            if "127.0.0.1" in addresses:
                transport, _ = await connecting
                assert transport.get_extra_info("peername") == ("127.0.0.1", server.port)
                transport.close()
                await server.gone.wait()
            else:
                with pytest.raises(ConnectionRefusedError):
                    await connecting

    run_on(loop, main())


def test_a_call_without_a_delay_is_in_the_next_turn(loop: _Loop) -> None:
    """Work in slices goes on at once; a timer of a millisecond would let a busy machine run others meanwhile."""

    async def main() -> list[int]:
        called: list[int] = []
        for number in range(20):
            asyncio.get_running_loop().call_later(0.0, called.append, number)
            await asyncio.sleep(0)
            await asyncio.sleep(0)
            assert len(called) == number + 1
        return called

    assert run_on(loop, main()) == list(range(20))
