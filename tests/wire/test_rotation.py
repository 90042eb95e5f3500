"""Replacing keys without a restart: keys of callers with an overlap, keys of replicas under way, over real sockets."""

import asyncio
import contextlib
import json
import signal
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from gateway.api.plain_routes import contract
from gateway.config.loader import load
from gateway.errors import Unauthorized
from gateway.events import Event, PreviousKeyUsed
from gateway.server.app import Gateway
from raw_http import answer, asking
from running import run_real
from spawned import started
from ttft_gateway.routing.replicas import BreakerState, Replica

contract()  # read the file while no loop is running

_FIRST = b'data: {"choices":[{"index":0,"delta":{"role":"assistant","content":"one"}}]}\n\n'
_LAST = b'data: {"choices":[{"index":0,"delta":{},"finish_reason":"stop"}]}\n\ndata: [DONE]\n\n'


class Provider:
    """A provider that accepts some keys; its streams wait after the first token.

    Attributes:
        accepted: headers of authorization that it accepts.
        seen: headers of authorization of the requests so far.
    """

    def __init__(self, *accepted: str) -> None:
        self.accepted = {f"Bearer {key}" for key in accepted}
        self.seen: list[str] = []
        self.go_on = asyncio.Event()
        self.port = 0

    async def on_connection(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Answer the requests of a connection."""
        with contextlib.suppress(asyncio.IncompleteReadError, ConnectionError):
            while head := await reader.readuntil(b"\r\n\r\n"):
                headers = dict(line.split(": ", 1) for line in head.decode().lower().split("\r\n")[1:-2])
                await reader.readexactly(int(headers["content-length"]))
                key = headers["authorization"].replace("bearer", "Bearer")
                self.seen.append(key)
                if key not in self.accepted:
                    body = b'{"error":{"message":"Incorrect API key provided.","code":"invalid_api_key"}}'
                    writer.write(b"HTTP/1.1 401 Unauthorized\r\ncontent-type: application/json\r\n")
                    writer.write(b"content-length: %d\r\n\r\n%b" % (len(body), body))
                    continue
                writer.write(
                    b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ntransfer-encoding: chunked\r\n\r\n"
                )
                writer.write(b"%x\r\n%b\r\n" % (len(_FIRST), _FIRST))
                await self.go_on.wait()
                writer.write(b"%x\r\n%b\r\n0\r\n\r\n" % (len(_LAST), _LAST))
        writer.close()


@contextlib.asynccontextmanager
async def provider(*accepted: str) -> AsyncIterator[Provider]:
    """A provider on a free port."""
    made = Provider(*accepted)
    server = await asyncio.start_server(made.on_connection, "127.0.0.1", 0)
    made.port = server.sockets[0].getsockname()[1]
    try:
        yield made
    finally:
        server.close()


def written(folder: Path, port: int, **settings: object) -> Path:
    """A configuration with one replica and its key in the file `provider`."""
    row = {"name": "a", "kind": "openai", "base_url": f"http://127.0.0.1:{port}/v1", "api_key_file": "provider"}
    config = {"listen": "127.0.0.1:0", "admin_listen": "off", "models": [{"name": "m", "replicas": [row]}], **settings}
    file = folder / "gateway.yaml"
    file.write_text(json.dumps(config), encoding="utf-8")
    return file


def test_a_replaced_key_of_a_provider_cuts_no_stream(tmp_path: Path) -> None:
    """After SIGHUP new requests have the new key; the stream under way ends with the old one, which is gone by then."""

    async def main() -> None:
        async with provider("sk-old-key-1") as there:
            (tmp_path / "provider").write_text("sk-old-key-1\n")
            async with started("serve", "--config", str(written(tmp_path, there.port))) as gateway:
                await gateway.ready(gateway.process.stderr)
                async with answer(gateway.port, asking()) as under_way:
                    pieces, got = under_way.pieces(), b""
                    while b'"one"' not in got:
                        got += await anext(pieces)
                    there.accepted = {"Bearer sk-new-key-2"}
                    (tmp_path / "provider").write_text("sk-new-key-2\n")
                    gateway.process.send_signal(signal.SIGHUP)
                    await gateway.says(gateway.process.stdout, b'"rekeyed":1')
                    async with answer(gateway.port, asking()) as after:
                        assert (after.status, there.seen) == (200, ["Bearer sk-old-key-1", "Bearer sk-new-key-2"])
                        there.go_on.set()
                        assert (await after.body()).endswith(b"data: [DONE]\n\n")
                    got += b"".join([piece async for piece in pieces])
                    assert got.endswith(b"data: [DONE]\n\n")

    run_real(main())


def test_a_revoked_key_is_no_fault_of_the_caller(tmp_path: Path) -> None:
    """A key that the provider rejects is a 502 that blames the gateway's key; the new key is used immediately."""

    async def main() -> None:
        async with provider("sk-new-key-2") as there:
            there.go_on.set()
            (tmp_path / "provider").write_text("sk-old-key-1\n")
            async with started("serve", "--config", str(written(tmp_path, there.port))) as gateway:
                await gateway.ready(gateway.process.stderr)
                for _ in range(3):
                    async with answer(gateway.port, asking()) as rejected:
                        error = rejected.error(await rejected.body())
                        assert (rejected.status, error["code"]) == (502, "upstream_misconfigured")
                        assert "gateway's own key" in error["message"]
                        assert "sk-old" not in error["message"]
                (tmp_path / "provider").write_text("sk-new-key-2\n")
                gateway.process.send_signal(signal.SIGHUP)
                await gateway.says(gateway.process.stdout, b'"rekeyed":1')
                async with answer(gateway.port, asking()) as after:
                    assert after.status == 200

    run_real(main())


@contextlib.asynccontextmanager
async def held(file: Path) -> AsyncIterator[tuple[Gateway, list[Event]]]:
    """A gateway without sockets, and its events."""
    events: list[Event] = []
    async with asyncio.TaskGroup() as tasks:
        gateway = Gateway(await asyncio.to_thread(load, file, {}), tasks, lambda: load(file, {}))
        gateway.hub.listeners.append(events.append)
        yield gateway, events
        gateway.close()


def replica(gateway: Gateway) -> Replica:
    """The only replica."""
    return gateway.in_force.topology.replicas["m", "a"]


def test_a_new_key_keeps_what_was_learned(tmp_path: Path) -> None:
    """A replica with a new key keeps its latencies and its quota with its name; its breaker closes."""

    async def main() -> None:
        (tmp_path / "provider").write_text("sk-old-key-1\n")
        async with held(written(tmp_path, 9)) as (gateway, _):
            kept = replica(gateway)
            gateway.in_force.topology.models["m"].pools[0].learning.add_content("a", 0.5, None, 0.0)
            kept.breaker.trip(0.0)
            ledger = gateway.in_force.topology.ledgers["127.0.0.1/m"]
            for key in ("sk-new-key-2", "sk-new-key-3"):
                (tmp_path / "provider").write_text(key)
                done = await gateway.reloads.reload()
                assert (done.kept, done.new, done.rekeyed) == (1, 0, 1)
            learned = gateway.in_force.topology.models["m"].pools[0].learning
            assert replica(gateway) is kept
            assert learned.ttft["a"].event_count(0.0) == 1
            assert (kept.breaker.state, kept.quota) == (BreakerState.CLOSED, "127.0.0.1/m")
            assert gateway.in_force.topology.ledgers["127.0.0.1/m"] is ledger
            assert kept.secrets == ("sk-new-key-3", "sk-new-key-2", "sk-old-key-1")  # also of attempts under way
            assert (await gateway.reloads.reload()).rekeyed == 0

    run_real(main())


def test_a_key_that_is_given_up_is_not_used(tmp_path: Path) -> None:
    """Settings that are prepared and then abandoned leave the key as it was."""

    async def main() -> None:
        (tmp_path / "provider").write_text("sk-old-key-1\n")
        file = written(tmp_path, 9)
        async with held(file) as (gateway, _):
            endpoint = replica(gateway).endpoint
            (tmp_path / "provider").write_text("sk-new-key-2\n")
            gateway.reloads.abandon(gateway.reloads.prepare(await asyncio.to_thread(load, file, {})))
            assert replica(gateway).endpoint is endpoint

    run_real(main())


def test_two_secrets_of_a_caller_are_valid_for_a_time(tmp_path: Path) -> None:
    """The second line of a key file is valid and counted until it is removed; the limits of the key go on."""

    async def main() -> None:
        (tmp_path / "provider").write_text("sk-old-key-1\n")
        file = written(tmp_path, 9, keys=[{"name": "team-a", "key_file": "team-a", "requests_per_min": 2}])
        team = tmp_path / "team-a"
        team.write_text("old-secret\n")
        async with held(file) as (gateway, events):

            def name(secret: str) -> str:
                return gateway.public.raced.serving.keyring.name([(b"authorization", f"Bearer {secret}".encode())])

            limiter = gateway.in_force.topology.key_limiters["team-a"]
            team.write_text("new-secret\nold-secret\n")
            await gateway.reloads.reload()
            assert [name("old-secret"), name("new-secret")] == ["team-a", "team-a"]
            gateway.hub.flush()
            assert [event.key for event in events if isinstance(event, PreviousKeyUsed)] == ["team-a"]
            team.write_text("new-secret\n")
            await gateway.reloads.reload()
            assert gateway.in_force.topology.key_limiters["team-a"] is limiter
            assert name("new-secret") == "team-a"
            with pytest.raises(Unauthorized, match="the API key is unknown"):
                name("old-secret")

    run_real(main())
