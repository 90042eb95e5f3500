"""The event feed of the admin address: what it sends, its bounds, and its end."""

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any

import msgspec
from sse_starlette.sse import AppStatus

from admin_site import AdminUnderTest, Exchange
from gateway.events import BreakerChanged
from running import run_virtual
from sample_events import REQUEST


async def follow(site: AdminUnderTest, tasks: asyncio.TaskGroup) -> Exchange:
    """Subscribe; returns when the answer has begun."""
    exchange = Exchange()
    exchange.send_body(b"")
    tasks.create_task(exchange.run(site.admin.app, "GET", "/admin/events", {}))
    await exchange.begun.wait()
    return exchange


def run_feed(scenario: Callable[[AdminUnderTest, asyncio.TaskGroup], Coroutine[object, object, None]]) -> None:
    """Run a scenario with feeds, which must have ended when it returns; then end sse-starlette's own task."""

    async def run() -> None:
        async with asyncio.TaskGroup() as tasks:
            await scenario(AdminUnderTest(), tasks)
        AppStatus.should_exit = True
        await asyncio.sleep(0.5)
        AppStatus.should_exit = False

    run_virtual(run())


def events(piece: bytes) -> list[tuple[str, Any]]:
    """Names and data of the server-sent events in some bytes."""
    found = []
    for event in piece.decode().split("\r\n\r\n")[:-1]:
        name, data = event.split("\r\n")
        found.append((name.removeprefix("event: "), msgspec.json.decode(data.removeprefix("data: "))))
    return found


def test_feed_sends_events() -> None:
    """A subscriber gets every event since it came, in order; events of one moment come in one piece."""

    async def scenario(site: AdminUnderTest, tasks: asyncio.TaskGroup) -> None:
        site.admin.on_event(BreakerChanged(0.0, "llama", "a", "half_open"))
        exchange = await follow(site, tasks)
        assert exchange.headers["content-type"].startswith("text/event-stream")
        site.admin.on_event(BreakerChanged(1.0, "llama", "a", "open"))
        site.admin.on_event(REQUEST)
        (name, data), (name_2, data_2) = events(await exchange.pieces.get())
        assert (name, data) == ("breaker_changed", {"at_s": 1.0, "model": "llama", "replica": "a", "state": "open"})
        assert (name_2, data_2["attempts"][0]["outcome"]) == ("request_ended", "finished")
        await site.switch("llama", on=False)
        assert events(await exchange.pieces.get()) == [
            ("hedging_switched", {"at_s": 0.0, "model": "llama", "on": False})
        ]
        site.admin.close()

    run_feed(scenario)


def test_slow_subscriber_loses_the_oldest() -> None:
    """A slow subscriber receives the number of dropped events, and the newest events."""

    async def scenario(site: AdminUnderTest, tasks: asyncio.TaskGroup) -> None:
        exchange = await follow(site, tasks)
        for number in range(1500):
            site.admin.on_event(BreakerChanged(float(number), "llama", "a", "open"))
        (name, lost), *rest = events(await exchange.pieces.get())
        assert (name, lost) == ("events_dropped", {"events": 500})
        assert [data["at_s"] for _, data in rest] == list(range(500, 1500))
        site.admin.close()

    run_feed(scenario)


def test_subscribers_are_bounded() -> None:
    """The seventeenth subscriber is rejected until another one has disconnected."""

    async def scenario(site: AdminUnderTest, tasks: asyncio.TaskGroup) -> None:
        exchanges = [await follow(site, tasks) for _ in range(17)]
        assert [exchange.status for exchange in exchanges] == [200] * 16 + [429]
        assert msgspec.json.decode(await exchanges[16].pieces.get())["error"]["code"] == "too_many_subscribers"
        exchanges[3].leave()
        await asyncio.sleep(0.1)
        assert (await follow(site, tasks)).status == 200
        site.admin.close()

    run_feed(scenario)


def test_feed_ends_with_the_gateway() -> None:
    """Closing ends every feed immediately and completely, with all that is queued; later ones end as they begin."""

    async def scenario(site: AdminUnderTest, tasks: asyncio.TaskGroup) -> None:
        exchange = await follow(site, tasks)
        site.admin.on_event(REQUEST)
        site.admin.close()
        assert await exchange.pieces.get() == b""
        assert exchange.complete
        assert await (await follow(site, tasks)).pieces.get() == b""
        assert asyncio.get_running_loop().time() == 0.0

    run_feed(scenario)


def test_stuck_subscriber_is_let_go() -> None:
    """A subscriber that takes nothing for five seconds loses its place; its answer does not end as if complete."""

    async def scenario(site: AdminUnderTest, tasks: asyncio.TaskGroup) -> None:
        exchanges = [await follow(site, tasks) for _ in range(16)]
        exchanges[0].reading.clear()
        site.admin.on_event(REQUEST)
        await asyncio.sleep(4.9)
        assert (await follow(site, tasks)).status == 429
        await asyncio.sleep(0.2)
        assert (await follow(site, tasks)).status == 200
        assert not exchanges[0].complete
        site.admin.close()

    run_feed(scenario)
