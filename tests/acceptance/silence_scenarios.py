"""Streams in which the model thinks in silence for minutes, read by the SDKs, directly and through nginx.

A replica sends one event of reasoning, nothing for minutes, and then the answer. All streams run together, each with a
model of its own, so that its upstream calls can be counted, and with a relay in front of its SDK, which measures the
time between the bytes. The gateway and nginx have their default timeouts. Units: seconds.
"""

import asyncio
import contextlib
import json
import os
import shutil
import tempfile
from collections.abc import AsyncIterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple
from urllib.parse import urlsplit

import clients
from checks import SDKS
from gateway.simulated.profile import parse_profile
from gateway.simulated.server import SimulatedServer
from served import gateway

_KEY = "sk-silence"
_PROMPT = "Say something about rivers."
_ANSWER_TOKENS = 20  # of an Anthropic answer to a chat completion: simulated replicas use the bound up
_PROFILE: Mapping[str, object] = {"ttft": "50ms", "gap": "10ms", "reasoning_tokens": 1}
_SBIN = "/usr/sbin:/usr/local/sbin"  # Debian's folder of nginx, which is not in every PATH
_NGINX = """worker_processes 1; daemon off; pid {folder}/nginx.pid; error_log stderr error;
events {{ }}
http {{
  access_log off; client_body_temp_path {folder}/body; proxy_temp_path {folder}/proxy;
  server {{ listen 127.0.0.1:{port}; location / {{ proxy_pass {url}; }} }}
}}
"""
_CLIENT_S_MAX = 360.0  # beyond the silence, for 16 SDKs that start together on a busy machine
_START_S_MAX = 30.0
_PIECE_BYTES = 65536


class Reader(NamedTuple):
    """An SDK that reads a silent stream.

    Attributes:
        api: API of the request.
        upstream: kind of the replicas.
        client: the SDK's client in checks.py; its environment is used.
        program: the program that reads the stream.
    """

    api: str
    upstream: str
    client: str
    program: str


READERS = (
    Reader("chat", "openai", "client_openai.py", "quiet_openai.py"),
    Reader("chat", "openai", "client_openai.mjs", "quiet_openai.mjs"),
    Reader("chat", "anthropic", "client_openai.py", "quiet_openai.py"),
    Reader("responses", "openai", "client_openai.py", "quiet_openai.py"),
    Reader("responses", "openai", "client_openai.mjs", "quiet_openai.mjs"),
    Reader("responses", "anthropic", "client_openai.py", "quiet_openai.py"),
    Reader("messages", "anthropic", "client_anthropic.py", "quiet_anthropic.py"),
    Reader("messages", "openai", "client_anthropic.py", "quiet_anthropic.py"),
)


@dataclass
class Silent:
    """One stream.

    Attributes:
        reader: its SDK.
        proxied: True if it was read through nginx.
        whole: True if the SDK read what it reads of the same answer without a silence.
        calls: requests that the replicas received for it.
        connections: connections that the SDK opened for it.
        gap_s: longest time without bytes from its request on, at the client's socket.
        failure: the SDK's error output; empty without an error.
    """

    reader: Reader
    proxied: bool
    whole: bool = False
    calls: int = 0
    connections: int = 0
    gap_s: float = 0.0
    failure: str = ""


def nginx_program() -> str | None:
    """Return the path of nginx; None if it is not installed."""
    return shutil.which("nginx", path=f"{os.environ.get('PATH', '')}:{_SBIN}")


async def silent(silence_s: float, *, timeouts: Mapping[str, str] | None = None) -> list[Silent]:
    """Read all streams at the same time, those through nginx only if it is installed.

    Args:
        silence_s: time between the reasoning and the answer.
        timeouts: timeouts of the gateway; None: its defaults.
    """
    ways = (False, True) if nginx_program() else (False,)
    streams = [Silent(reader, proxied) for proxied in ways for reader in READERS]
    environments = {sdk.client: clients.environment(sdk) for sdk in SDKS if sdk.client in {r.client for r in READERS}}
    async with contextlib.AsyncExitStack() as opened:
        rows, servers = [], []
        for number, stream in enumerate(streams):
            for name, faults in (("quiet", [f"stall:1,{silence_s:g}s"]), ("whole", [])):
                pair = [await opened.enter_async_context(_replica(faults)) for _ in range(2)]
                rows.append(_model(f"{name}-{number}", stream.reader.upstream, pair))
                servers += [pair] if name == "quiet" else []
        folder = Path(opened.enter_context(tempfile.TemporaryDirectory()))
        config = {"keys": [{"name": "silence", "key": _KEY}], "models": rows}
        config |= {"timeouts": timeouts} if timeouts else {}
        url = opened.enter_context(gateway(config, folder)).url
        proxy_url = await opened.enter_async_context(_nginx(url)) if True in ways else ""
        relays = [await opened.enter_async_context(_relay(proxy_url if each.proxied else url)) for each in streams]
        async with asyncio.timeout(silence_s + _CLIENT_S_MAX), asyncio.TaskGroup() as tasks:
            for number, (stream, relay) in enumerate(zip(streams, relays, strict=True)):
                urls = {"url": url, "relay": f"http://127.0.0.1:{relay.port}"}
                models = {"whole": f"whole-{number}", "quiet": f"quiet-{number}"}
                tasks.create_task(_read(stream, environments[stream.reader.client], urls | models))
        for stream, relay, pair in zip(streams, relays, servers, strict=True):
            stream.calls = sum(server.stats.requests for server in pair)
            stream.connections, stream.gap_s = relay.connections, relay.gap_s
    return streams


def _model(name: str, upstream: str, servers: Sequence[SimulatedServer]) -> dict[str, object]:
    replicas = [
        {"name": f"{name}-{number}", "kind": upstream, "base_url": server.url, "api_key": "none"}
        for number, server in enumerate(servers)
    ]
    return {"name": name, "replicas": [{**each, "max_tokens_default": _ANSWER_TOKENS} for each in replicas]}


@contextlib.asynccontextmanager
async def _replica(faults: Sequence[str]) -> AsyncIterator[SimulatedServer]:
    """Run a replica while inside; all replicas give the same text."""
    server = SimulatedServer(parse_profile({**_PROFILE, "faults": list(faults)}))
    await server.start()
    try:
        yield server
    finally:
        await server.close()


async def _read(stream: Silent, environment: Path, asked: Mapping[str, str]) -> None:
    """Run the SDK's program and compare its two answers."""
    request = json.dumps({"api": stream.reader.api, "key": _KEY, "prompt": _PROMPT, **asked})
    pipe = asyncio.subprocess.PIPE
    argv = [*clients.command(stream.reader.program, environment), request]
    process = await asyncio.create_subprocess_exec(*argv, env=clients.surroundings(), stdout=pipe, stderr=pipe)
    try:
        out, failure = await process.communicate()
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()
    stream.failure = failure.decode(errors="replace").strip() if process.returncode else ""
    if not process.returncode:
        answers = json.loads(out)
        stream.whole = answers["quiet"] == answers["whole"] and all(answers["quiet"])


# at the client's socket


class _Relay:
    """A relay in front of one SDK.

    Attributes:
        port: port of the relay.
        connections: connections accepted.
        gap_s: longest time from bytes of the request or the response to the next bytes of the response.
    """

    def __init__(self, url: str) -> None:
        self.port = 0
        self.connections = 0
        self.gap_s = 0.0
        self._target = urlsplit(url).port
        self._loop = asyncio.get_running_loop()

    async def accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Relay one connection until both sides have ended."""
        self.connections += 1
        last_s = self._loop.time()

        async def copy(source: asyncio.StreamReader, target: asyncio.StreamWriter, *, response: bool) -> None:
            nonlocal last_s
            with contextlib.suppress(ConnectionError):
                while piece := await source.read(_PIECE_BYTES):
                    now_s = self._loop.time()
                    if response:
                        self.gap_s = max(self.gap_s, now_s - last_s)
                    last_s = now_s
                    target.write(piece)
                    await target.drain()
            target.close()

        upstream, sending = await asyncio.open_connection("127.0.0.1", self._target)
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(copy(reader, sending, response=False))
            tasks.create_task(copy(upstream, writer, response=True))


@contextlib.asynccontextmanager
async def _relay(url: str) -> AsyncIterator[_Relay]:
    """Run a relay to this address while inside."""
    relay = _Relay(url)
    async with await asyncio.start_server(relay.accept, "127.0.0.1", 0) as server:
        relay.port = server.sockets[0].getsockname()[1]
        yield relay


@contextlib.asynccontextmanager
async def _nginx(url: str) -> AsyncIterator[str]:
    """Run nginx in front of this address while inside, with nothing configured but the address.

    Raises:
        TimeoutError: nginx did not start.
    """
    with tempfile.TemporaryDirectory(prefix="ttft-silence-") as folder:
        listening = await asyncio.start_server(lambda _reader, _writer: None, "127.0.0.1", 0)
        port = listening.sockets[0].getsockname()[1]
        listening.close()
        file = Path(folder) / "nginx.conf"
        file.write_text(_NGINX.format(folder=folder, port=port, url=url), encoding="utf-8")
        command = [nginx_program() or "nginx", "-e", "stderr", "-p", folder, "-c", str(file)]
        process = await asyncio.create_subprocess_exec(*command, stdin=asyncio.subprocess.DEVNULL)
        try:
            async with asyncio.timeout(_START_S_MAX):
                while not await _listens(port):
                    await asyncio.sleep(0.05)
            yield f"http://127.0.0.1:{port}"
        finally:
            process.terminate()
            await process.wait()


async def _listens(port: int) -> bool:
    try:
        _, writer = await asyncio.open_connection("127.0.0.1", port)
    except OSError:
        return False
    writer.close()
    return True
