"""The end of a gateway, and exceptions that only its event loop receives."""

import asyncio

import pytest

from gateway.api.plain_routes import contract
from gateway.config.settings import Settings
from gateway.events import ComponentFailed, Event
from gateway.server.app import Gateway
from pretended_client import connected, request
from running import run_virtual


def test_a_body_that_comes_after_the_end_is_not_sent_on() -> None:
    """A request with an incomplete body when all others were ended is rejected, and not billed."""
    replica = {"name": "a", "kind": "vllm", "base_url": "http://127.0.0.1:1/v1"}
    checked = Settings.model_validate({"models": [{"name": "m", "replicas": [replica]}]})
    contract()  # read the file while no loop is running

    async def main() -> None:
        async with asyncio.TaskGroup() as tasks:
            gateway = Gateway(checked, tasks)
            client, loop = connected(gateway), asyncio.get_running_loop()
            whole = request(b'{"model":"m","messages":[{"role":"user","content":"hi"}]}')
            client.send(whole[:-9])
            loop.call_soon(gateway.public.end_streams)
            loop.call_later(1.0, client.send, whole[-9:])
            assert (await client.receive()).status == 503
            assert gateway.public.active == 0
            assert gateway.in_force.topology.memory.held == 0
            client.leave()
            gateway.close()

    run_virtual(main())


def test_a_failing_callback_is_logged_once_a_minute(caplog: pytest.LogCaptureFixture) -> None:
    """Each exception of a callback is an event for the metric; the first of a minute has a traceback."""
    replica = {"name": "a", "kind": "vllm", "base_url": "http://127.0.0.1:1/v1"}
    checked = Settings.model_validate({"models": [{"name": "m", "replicas": [replica]}]})
    contract()  # read the file while no loop is running
    events: list[Event] = []

    def fail() -> None:
        raise ValueError("a bug")

    async def main() -> None:
        async with asyncio.TaskGroup() as tasks:
            gateway = Gateway(checked, tasks)
            gateway.hub.listeners.append(events.append)
            loop = asyncio.get_running_loop()
            usual = loop.get_exception_handler()
            loop.set_exception_handler(gateway.on_loop_error)
            for second in range(90):
                loop.call_later(second, fail)
            await asyncio.sleep(100)
            loop.set_exception_handler(usual)
            gateway.close()

    run_virtual(main())
    failed = [(event.component, event.error) for event in events if isinstance(event, ComponentFailed)]
    assert failed == [("event_loop", "ValueError")] * 90
    assert [record.exc_info is not None for record in caplog.records] == [True, True]
