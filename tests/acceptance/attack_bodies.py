"""Attacks with request bodies: announced, half-sent, hostile to parse. Units: seconds, bytes."""

import asyncio
import contextlib
import json
from collections import Counter
from collections.abc import AsyncIterator

from attack_rows import Row, Scale
from gateway_fixture import Site, fronting
from hostile_bodies import SHAPES
from line_process import process
from raw_http import ASK, CHAT, answer, connect, head, request_bytes

_KEYS = [
    {"name": "hostile", "key": "sk-hostile"},
    {"name": "bounded", "key": "sk-bounded", "concurrency": 1, "requests_per_min": 1},
    {"name": "other", "key": "sk-other"},
]
_WAIT_S = 30.0
_HELD_MS_MAX = 20
_SERVER_ERROR = 500


def _as(key: str, body: bytes, **headers: str) -> bytes:
    return request_bytes(body, headers={"authorization": f"Bearer sk-{key}", **headers})


@contextlib.asynccontextmanager
async def attacked_gateway() -> AsyncIterator[Site]:
    """A gateway with three keys: one without limits, one at its limits, and one of another client.

    The replica is a process of its own: reading a large body there must not delay the client that is watched.
    """
    async with process("gateway.simulated.fleet", json.dumps([{"ttft": "1ms", "tokens": 1}])) as replica:
        [[port, _]] = await replica.read()
        async with fronting({"a": f"http://127.0.0.1:{port}/v1"}, process=True, keys=_KEYS) as site:
            yield site


def _abort(writer: asyncio.StreamWriter) -> None:
    writer.transport.abort()


async def _others(site: Site, requests: int, body_bytes: int) -> Counter[int]:
    """Statuses of another key's requests, small and large in turn."""
    statuses: Counter[int] = Counter()
    for number in range(requests):
        user = "x" * (body_bytes // 4 if number % 4 == 0 else 100)
        async with asyncio.timeout(_WAIT_S), answer(site.port, _as("other", _chat(user=user))) as got:
            statuses[got.status] += 1
            await got.body()
    return statuses


def _chat(**fields: object) -> bytes:
    return json.dumps({**ASK, "stream": False, **fields}).encode()


class Probe:
    """Another client, which sends one small request after the other.

    Attributes:
        longest_s: longest time of one of them.
    """

    def __init__(self) -> None:
        self.longest_s = 0.0
        self._ending = False

    @contextlib.asynccontextmanager
    async def running(self, port: int, pause_s: float = 0.0) -> AsyncIterator[None]:
        """Send requests while inside; the last response may come after that, as the loop may still free a body."""
        reader, writer = await connect(port)
        try:
            async with asyncio.TaskGroup() as tasks:
                tasks.create_task(self._ask(reader, writer, pause_s))
                yield
                self._ending = True
        finally:
            await _closed(writer)

    async def _ask(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, pause_s: float) -> None:
        loop = asyncio.get_running_loop()
        while not self._ending:
            began_s = loop.time()
            writer.write(b"GET /healthz HTTP/1.1\r\nhost: x\r\n\r\n")
            await reader.readuntil(b"}")
            self.longest_s = max(self.longest_s, loop.time() - began_s)
            await asyncio.sleep(pause_s)


async def _closed(writer: asyncio.StreamWriter) -> None:
    writer.transport.abort()
    with contextlib.suppress(ConnectionError):
        await writer.wait_closed()


async def limits(scale: Scale, site: Site) -> list[Row]:
    """Bodies that are announced, or begun and never finished, by a key without limits and one with all of them."""
    rows = []
    async with contextlib.AsyncExitStack() as opened:
        opened.push_async_callback(asyncio.sleep, 0)  # after the aborts, which close in the next turn of the loop
        for what, key, sent in (
            ("bodies announced", "hostile", 1),
            ("bodies begun, never finished", "hostile", scale.body_bytes // 2),
            ("bodies of a key at its limits", "bounded", 1),
        ):
            count = scale.clients if sent == 1 else min(scale.clients, 60)
            pairs = []
            for _ in range(count):
                reader, writer = await connect(site.port)
                opened.callback(_abort, writer)
                writer.write(_as(key, b"", **{"content-length": str(scale.body_bytes)}) + b" " * sent)
                pairs.append((reader, writer))
            seen = await _others(site, scale.requests, scale.body_bytes)
            refused = seen.total() - seen[200]
            rows.append(Row(f"{count} {what}", "0 others refused", f"{refused} of {seen.total()}", refused == 0))
            if key == "bounded":
                async with asyncio.timeout(_WAIT_S):
                    statuses = Counter([(await head(*pair, 0.0)).status for pair in pairs[1:]])
                rows.append(
                    Row("the same: its own requests", "429 unread", str(dict(statuses)), statuses[429] == count - 1)
                )
    return rows


async def framing(_scale: Scale, site: Site) -> list[Row]:
    """Keys in trailers, and headers that two servers could read differently."""
    body = _chat()
    post = f"POST {CHAT} HTTP/1.1\r\ncontent-type: application/json\r\nconnection: close\r\n".encode()
    host, key, length = (
        b"host: localhost\r\n",
        b"authorization: Bearer sk-other\r\n",
        b"content-length: %d\r\n" % len(body),
    )
    chunks = b"transfer-encoding: chunked\r\n\r\n%x\r\n%b\r\n0\r\n" % (len(body), body)
    hostile = b"authorization: Bearer sk-hostile\r\n"
    attacks = {
        "a key in a trailer": (post + host + chunks + key + b"\r\n", 401),
        "an unknown key, and one in a trailer": (post + host + b"x-api-key: no\r\n" + chunks + key + b"\r\n", 401),
        "two keys": (post + host + key + hostile + length + b"\r\n" + body, 400),
        "two hosts": (post + host + host + key + length + b"\r\n" + body, 400),
        "no host": (post + key + length + b"\r\n" + body, 400),
        "none of these": (post + host + key + length + b"\r\n" + body, 200),
    }
    rows = []
    for what, (payload, status) in attacks.items():
        async with asyncio.timeout(_WAIT_S), answer(site.port, payload) as got:
            rows.append(Row(what, str(status), str(got.status), got.status == status))
    return rows


async def shapes(scale: Scale, site: Site) -> list[Row]:
    """Bodies that are expensive to read: the longest wait of another client while one of them is read."""
    rows = []
    for what, (api, _, make) in SHAPES.items():
        body = make(scale.body_bytes)
        payload = request_bytes(body, f"/v1/{api.value}", headers={"authorization": "Bearer sk-hostile"})
        held_s, statuses = _WAIT_S, Counter[int]()
        for _ in range(1 if scale.short else 3):
            probe = Probe()
            async with asyncio.timeout(_WAIT_S), probe.running(site.port), answer(site.port, payload) as got:
                statuses[got.status] += 1
                await got.body()
            held_s = min(held_s, probe.longest_s)
        each_ms = 1000 * held_s / (len(body) / 1e6)
        fine = not any(status >= _SERVER_ERROR for status in statuses) and (scale.short or each_ms <= _HELD_MS_MAX)
        measured = f"{each_ms:.1f} ms/MB of {len(body) / 1e6:.1f} MB, status {min(statuses)}"
        rows.append(Row(what, f"<= {_HELD_MS_MAX} ms/MB", measured, fine))
    return rows


async def answers(_scale: Scale, site: Site) -> list[Row]:
    """A stored answer of one key, continued with another one."""
    path = "/v1/responses"
    rows = []
    async with asyncio.timeout(_WAIT_S):

        async def asked(key: str, **fields: object) -> tuple[int, str]:
            body = json.dumps({"model": "m", "input": "hello", **fields}).encode()
            payload = request_bytes(body, path, headers={"authorization": f"Bearer sk-{key}"})
            async with answer(site.port, payload) as got:
                return got.status, json.loads(await got.body()).get("id", "")

        _, kept = await asked("other", store=True)
        for key, status in (("hostile", 404), ("other", 200)):
            got, _ = await asked(key, previous_response_id=kept)
            rows.append(Row(f"an answer of key other, with key {key}", str(status), str(got), got == status))
        got, _ = await asked("hostile", previous_response_id="r" * 1_000_000)
        rows.append(Row("an id of 1 MB", "404", str(got), got == 404))
    return rows
