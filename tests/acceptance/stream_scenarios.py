"""What streams must show on real sockets, as measurements: the tests make them small, scripts/acceptance in full.

Hashes are taken at the replica's socket, by the replica, and at the client's, by raw_http.py. Units: bytes, seconds.
"""

import asyncio
import hashlib
import socket
from dataclasses import dataclass, field
from pathlib import Path

import openai

from gateway.simulated.stats import RequestResult
from gateway_fixture import Site, serving, until
from race_scenarios import Settings, spread
from raw_http import answer, asking
from sdk_clients import async_client, read, read_async, sync_client

ODD_BYTES = (
    "split:5",  # events cut anywhere
    "crlf+split:9",
    "utf8",  # a character in two pieces
    "big:1000000+split:4096",
    "coalesce:5",
    "chunk_extensions",
    "length",
    "close",
    "informational",
)
STALLING = "stall:3,5m"
BROKEN = (  # in the middle of an answer
    "cut_rst:3",
    "cut_fin:3",  # looks complete to HTTP
    "cut_chunked:3",
    "cut_mid:3",
    "short:3",
    "error_frame:3",
    "error_event:3",
    "finish_error:3",
    "malformed:2+malformed:3",
    STALLING,
)
TOKENS = 12
BREAKING: Settings = {"ttft": "5ms", "gap": "1ms", "tokens": TOKENS}
STALL: Settings = {"stall": "1s"}  # on a busy machine less might pass between two events of an answer that is fine
_RACING: Settings = {"policy": "static", "delay": "5ms", "hedge_delay_min": "1ms", "budget": "100%"}
_WITH_USAGE = {"include_usage": True}  # else the gateway takes out the chunk that only it has asked for
_PAGE = 4096
_LONG = 12_000  # tokens; with logprobs they make 15 MB
_SEND_BYTES = 64 * 1024  # of the replica's sockets, so that the kernel takes little; it would take 4 MB


@dataclass
class Compared:
    """Streams that were compared byte for byte.

    Attributes:
        equal: hashes were the same at both ends.
        unequal: they were not.
        raced: two replicas were asked.
        manners: how often the winner was a replica of each kind.
    """

    equal: int = 0
    unequal: int = 0
    raced: int = 0
    manners: dict[str, int] = field(default_factory=dict)


async def compared(count: int, *, process: bool = False) -> Compared:
    """Many streams at the same time, raced over replicas that write their bytes in different ways."""
    result = Compared()
    profiles: dict[str, Settings] = {
        fault: {"ttft": "uniform:10ms,60ms", "gap": "uniform:0ms,4ms", "tokens": 30, "faults": [fault]}
        for fault in ODD_BYTES
    }
    async with serving(profiles, process=process, hedge=_RACING) as site:

        async def one(_number: int) -> None:
            async with answer(site.port, asking(stream_options=_WITH_USAGE)) as got:
                assert got.status == 200
                sha256 = hashlib.sha256(await got.body()).hexdigest()
                replica = got.headers["x-ttft-replica"]
                record = site.record(got.headers)
            await until(lambda: record.ended is not None)
            assert record.ended is RequestResult.COMPLETE
            result.equal += sha256 == record.sha256
            result.unequal += sha256 != record.sha256
            result.raced += got.headers["x-ttft-result"].startswith("backup")
            result.manners[replica] = result.manners.get(replica, 0) + 1

        await spread(count, count, one)
    return result


@dataclass
class Slowed:
    """Clients that did not read for a while.

    Attributes:
        taken_bytes_max: the most that a replica could write of one stream meanwhile, kernel buffers included.
        whole_bytes: what each stream had in all.
        paused: how often replicas had to wait.
        equal: streams that arrived whole, once they were read.
        rss_bytes: how much the gateway's memory grew; 0 where it is not a process of its own.
    """

    taken_bytes_max: int = 0
    whole_bytes: int = 0
    paused: int = 0
    equal: int = 0
    rss_bytes: int = 0


async def slowed(count: int, *, stall_s: float, process: bool = False) -> Slowed:
    """Clients that read nothing for longer than what counts as a stall, and then everything.

    Args:
        count: of clients.
        stall_s: what counts as a stall; more than it takes the replica to make that many long answers.
        process: where the gateway runs.
    """
    result = Slowed()
    profile: Settings = {"ttft": "5ms", "tokens": _LONG, "tokens_max": _LONG}
    payload = asking(stream_options=_WITH_USAGE, temperature=0, logprobs=True, top_logprobs=20)
    timeouts = {"stall": f"{stall_s:g}s"}
    async with serving({"a": profile}, process=process, timeouts=timeouts) as site, asyncio.TaskGroup() as tasks:
        listener = site.replicas["a"]._listener
        assert listener is not None
        listener.sockets[0].setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, _SEND_BYTES)  # connections inherit it
        before_bytes = _rss_bytes(site)
        read_on = asyncio.Event()
        waiting = asyncio.Barrier(count + 1)

        async def one() -> None:
            async with answer(site.port, payload, receive_bytes=_PAGE) as got:
                await waiting.wait()
                await read_on.wait()
                body = await got.body()
                record = site.record(got.headers)
            result.whole_bytes = len(body)
            result.equal += hashlib.sha256(body).hexdigest() == record.sha256

        for _ in range(count):
            tasks.create_task(one())
        await waiting.wait()
        await asyncio.sleep(1.5 * stall_s)
        taken = [record.content_events for record in site.records()]
        result.rss_bytes = _rss_bytes(site) - before_bytes
        result.paused = site.replicas["a"].stats.paused
        read_on.set()
    result.taken_bytes_max = max(taken) * result.whole_bytes // _LONG
    return result


def _rss_bytes(site: Site) -> int:
    """Resident memory of a gateway that is a process of its own, where the system tells (Linux)."""
    file = Path(f"/proc/{site.pid}/statm")
    return int(file.read_text().split()[1]) * _PAGE if site.pid and file.exists() else 0


def timeouts_of(fault: str) -> Settings:
    """Short only where there is something to wait for."""
    return STALL if fault == STALLING else {}


async def broken(fault: str, count: int, *, process: bool = False) -> int:
    """Streams that break, read by the SDK's two clients in turn; how often that raised what it should."""
    raised = 0
    profile: Settings = {**BREAKING, "faults": [fault]}
    async with (
        serving({"a": profile}, process=process, timeouts=timeouts_of(fault)) as site,
        async_client(site.url) as client,
    ):
        with sync_client(site.url) as blocking_client:

            async def one(number: int) -> None:
                nonlocal raised
                try:
                    if number % 2:
                        await asyncio.to_thread(read, blocking_client, "m", [])
                    else:
                        await read_async(client, "m", [])
                except openai.APIError as error:
                    raised += type(error) is openai.APIError and error.code is not None

            await spread(count, 10, one)
    return raised
