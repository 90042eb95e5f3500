"""Requests without tokens that wait for limits of their key, on pretended connections, in virtual time."""

import asyncio

import pytest

from gateway.admission.admission import Entry
from gateway.config.settings import Settings
from gateway.errors import OverKeyLimit
from gateway.events import RequestPassed
from gateway.server.app import Gateway
from pretended_client import connected, request
from running import run_virtual

_REPLICA = {"name": "a", "kind": "vllm", "base_url": "http://127.0.0.1:1/v1"}
_MODEL = {"name": "m", "replicas": [_REPLICA], "pass_through": ["images"]}
_KEY = {"name": "k", "key": "sk-of-the-caller-0123456789", "requests_per_min": 60}
_COUNT = ("/v1/messages/count_tokens", b'{"model":"m","messages":[{"role":"user","content":"hello"}]}')
_PASSED = ("/v1/images/generations", b'{"model":"m","prompt":"hello"}')


@pytest.mark.parametrize(("path", "body"), [_COUNT, _PASSED], ids=["count", "passed"])
@pytest.mark.parametrize("end", ["admitted", "refused", "left"])
def test_a_request_goes_on_once_its_key_has_room(
    path: str, body: bytes, end: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is sent or answered then, refused once, and not sent after its client has left."""
    asked: list[float] = []
    connects: list[float] = []

    def admit(_entry: Entry, _size: object) -> bool:
        asked.append(asyncio.get_running_loop().time())
        if len(asked) > 2 and end == "refused":
            raise OverKeyLimit("no room", 1.0)
        return len(asked) > 2

    async def never(*_where: object, **_how: object) -> None:
        connects.append(asyncio.get_running_loop().time())
        await asyncio.get_running_loop().create_future()

    async def main() -> tuple[list[bytes], int]:
        loop = asyncio.get_running_loop()
        vars(loop)["create_connection"] = never
        async with asyncio.TaskGroup() as tasks:
            gateway = Gateway(Settings.model_validate({"models": [_MODEL], "keys": [_KEY]}), tasks)
            events: list[object] = []
            gateway.hub.listeners.append(events.append)
            client = connected(gateway)
            client.send(request(body, path, {"authorization": f"Bearer {_KEY['key']}"}))
            assert not client.transport.written
            if end == "left":
                client.leave()
            await asyncio.sleep(0.1)
            written = b"".join(client.transport.written)
            client.leave()
            await asyncio.sleep(0.1)
            gateway.hub.flush()
            gateway.close()
        return [part[:3] for part in written.split(b"HTTP/1.1 ")[1:]], sum(
            isinstance(event, RequestPassed) for event in events
        )

    monkeypatch.setattr(Entry, "admit", admit)
    statuses, passed = run_virtual(main())
    is_passed = path == _PASSED[0]
    assert len(asked) == (1 if end == "left" else 3)
    assert statuses == {"admitted": [] if is_passed else [b"200"], "refused": [b"429"], "left": []}[end]
    assert bool(connects) == (is_passed and end == "admitted")
    assert passed == is_passed
