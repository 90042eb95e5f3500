"""Uploads that are rejected on their way, through a whole gateway on a pretended connection, in virtual time."""

import asyncio

from gateway.config.settings import Settings
from gateway.events import RequestPassed
from gateway.server.app import Gateway
from pretended_client import connected
from running import run_virtual

_HEAD = b"POST /v1/files HTTP/1.1\r\nhost: localhost\r\ntransfer-encoding: chunked\r\n\r\n"
_REPLICA = {"name": "a", "kind": "vllm", "base_url": "http://127.0.0.1:1/v1"}


def test_an_upload_is_rejected_once() -> None:
    """One that is too large has one response, although nothing more is counted while the rest of it is dropped."""
    model = {"name": "m", "replicas": [_REPLICA], "pass_through": ["files"]}
    limits = {"upload_max": "1kB", "request_body_max": "1kB", "buffered_bodies_max": "1kB"}
    given = {"models": [model], "limits": limits, "timeouts": {"request_body": "500ms"}}

    async def never(*_where: object, **_how: object) -> None:
        await asyncio.get_running_loop().create_future()

    async def main() -> tuple[list[bytes], int]:
        loop, settings = asyncio.get_running_loop(), Settings.model_validate(given)
        vars(loop)["create_connection"] = never
        async with asyncio.TaskGroup() as tasks:
            gateway = Gateway(settings, tasks)
            events: list[object] = []
            gateway.hub.listeners.append(events.append)
            client = connected(gateway)
            client.send(_HEAD + b"7d0\r\n" + bytes(2000))
            await asyncio.sleep(1.9)
            written = b"".join(client.transport.written)
            gateway.hub.flush()
            client.leave()
            gateway.close()
        return [part[:3] for part in written.split(b"HTTP/1.1 ")[1:]], sum(
            isinstance(event, RequestPassed) for event in events
        )

    assert run_virtual(main()) == ([b"413"], 1)
