"""The end of a gateway: what has not begun by then is refused."""

import asyncio
from typing import Any

from gateway.api.plain_routes import contract
from gateway.app import Gateway
from gateway.config.settings import Settings
from running import run_virtual


def test_a_body_that_comes_after_the_end_is_not_sent_on() -> None:
    """A request whose body was incomplete when all others were ended is rejected, and not billed."""
    replica = {"name": "a", "kind": "vllm", "base_url": "http://127.0.0.1:1/v1"}
    checked = Settings.model_validate({"models": [{"name": "m", "replicas": [replica]}]})
    contract()  # read the file while no loop is running

    async def main() -> None:
        inbox: asyncio.Queue[dict[str, Any]] = asyncio.Queue()
        sent: list[Any] = []

        async def send(message: Any) -> None:
            sent.append(message)
            if message["type"] == "http.response.body" and not message.get("more_body", False):
                inbox.put_nowait({"type": "http.disconnect"})

        async with asyncio.TaskGroup() as tasks:
            gateway = Gateway(checked, tasks)
            scope = {"type": "http", "method": "POST", "path": "/v1/chat/completions", "headers": []}
            asyncio.get_running_loop().call_soon(gateway.end_streams)
            body = b'{"model":"m","messages":[{"role":"user","content":"hi"}]}'
            message = {"type": "http.request", "body": body, "more_body": False}
            asyncio.get_running_loop().call_later(1.0, inbox.put_nowait, message)
            await gateway.application(scope, inbox.get, send)
            assert sent[0]["status"] == 503
            assert gateway.active == 0
            assert gateway._topology.memory.held == 0
            gateway.close()

    run_virtual(main())
