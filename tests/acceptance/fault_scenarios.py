"""Many answers under all kinds of faults together: each text follows from its request, so every wrong byte is found.

Clients of four APIs ask for streams and for JSON (`fault_requests`) and compute the answers that the replicas can give
(`fault_judge`). Hedges race, some clients disconnect in the middle, and replicas write their bytes in odd ways. Units:
seconds.
"""

import asyncio
import contextlib
import random
import tempfile
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from urllib.parse import urlsplit

from client_reads import Malformed
from fault_judge import WRONG, result_of
from fault_requests import FAULTS, POOLS, RECOVERIES, SEEDS, Asked, model_of, request_of
from gateway.simulated.profile import parse_profile
from gateway.simulated.server import SimulatedServer
from marked_texts import MarkedTexts
from race_scenarios import spread
from raw_http import Cut, answer
from served import Served, gateway

# After the fault in the order of edits: pieces of events are no events, lengths come last.
_ODD_BYTES = [
    "pings 5%",
    "fields 5%",
    "crlf 10%",
    "coalesce:4 10%",
    "split:24 10%",
    "informational 5%",
    "chunk_extensions 10%",
    "length 5%",
    "close 5%",
]
_PROFILE: Mapping[str, object] = {"ttft": "uniform:2ms,40ms", "gap": "0ms | 30% 1ms", "headers": "at_once"}
_TIMEOUTS = {
    "ttft_failover": "500ms",
    "ttft_max": "2s",
    "stall": "1s",
    "stall_tool_call": "1s",
    "stall_thinking": "1s",
    "retry_after_max": "1s",
}
_HEDGE = {"policy": "static", "delay": "20ms", "hedge_delay_min": "1ms", "budget": "100%"}
_LEAVE = 0.02  # share of additional clients that disconnect in the middle
_LEAVE_S_MAX = 0.06  # after which they do so
_ANSWER_S_MAX = 30.0
_IDLE_S_MAX = 10.0  # until all upstream requests are over
_BUGS = ("Traceback", "never retrieved", "ignored", '"component_failed"')  # in the output of the gateway


@dataclass
class Results:
    """Results of many requests.

    Attributes:
        counts: by kind of fault, by shape, and by result.
        examples: requests and answers of some wrong results, by a name.
        troubles: bugs that the gateway reports, and what it leaves behind.
    """

    counts: Counter[tuple[str, str, str]] = field(default_factory=Counter)
    examples: dict[str, bytes] = field(default_factory=dict)
    troubles: list[str] = field(default_factory=list)

    def add(self, other: "Results") -> None:
        """Add other results."""
        self.counts += other.counts
        self.examples |= other.examples
        self.troubles += other.troubles

    def by(self, column: int) -> dict[str, Counter[str]]:
        """Return the number of each result by kind (0) or by shape (1)."""
        table: dict[str, Counter[str]] = {}
        for key, number in self.counts.items():
            table.setdefault(key[column], Counter())[key[2]] += number
        return table

    @property
    def wrong(self) -> int:
        """Number of wrong results."""
        return sum(number for (_, _, result), number in self.counts.items() if result in WRONG)


async def faulty(kinds: Sequence[str], count: int, *, seed: int = 1, at_once: int = 100) -> Results:
    """Read answers under these kinds of faults, with a gateway in a process of its own.

    Args:
        kinds: kinds of faults.
        count: number of answers for each kind, spread over APIs, streams and JSON, pools and recoveries.
        seed: seed of requests and faults.
        at_once: requests under way.
    """
    rng, results = random.Random(f"{seed} {kinds}"), Results()
    async with contextlib.AsyncExitStack() as opened:
        models, servers = [], dict[str, SimulatedServer]()
        for kind in kinds:
            for pool in POOLS:
                rows, started = await _replicas(opened, kind, pool, seed)
                servers |= started
                models += [
                    {"name": model_of(kind, pool, each), "replicas": rows, "recovery": each} for each in RECOVERIES
                ]
        folder = Path(opened.enter_context(tempfile.TemporaryDirectory()))
        config = {"models": models, "hedge": _HEDGE, "timeouts": _TIMEOUTS}
        with gateway(config, folder) as served:
            port = urlsplit(served.url).port or 0

            async def one(number: int) -> None:
                asked = request_of(kinds[number % len(kinds)], number // len(kinds), seed)
                if rng.random() < _LEAVE:
                    await _leave(port, asked, _LEAVE_S_MAX * rng.random())
                await _ask(port, asked, results)

            await spread(count * len(kinds), at_once, one)
            results.troubles += await _left_behind(servers)
        results.troubles += _reported(served, folder)
    return results


async def _replicas(
    opened: contextlib.AsyncExitStack, kind: str, pool: str, seed: int
) -> tuple[list[dict[str, object]], dict[str, SimulatedServer]]:
    """Start the replicas of a pool; return their rows of the configuration, and the replicas by name."""
    rows: list[dict[str, object]] = []
    servers = {}
    faults = [*FAULTS[kind], *_ODD_BYTES, *(["no_stream"] if pool == "unstreamed" else [])]
    other = list(FAULTS).index(kind) % len(POOLS[pool])  # the replica with other answers
    for number, settings in enumerate(POOLS[pool]):
        server = SimulatedServer(parse_profile({**_PROFILE, "faults": faults}), SEEDS[number == other])
        await server.start()
        opened.push_async_callback(server.close)
        server.replica._rng.seed(f"{seed} {kind} {pool} {number}")  # the same texts for the same seed
        server.replica._generator = MarkedTexts(*server.replica._generator)
        alike = {"answers_alike": False} if number == other else {}
        rows.append({"name": f"{pool}-{number}", "base_url": server.url, **alike, **settings})
        servers[f"{kind} {pool}-{number}"] = server
    return rows, servers


async def _leave(port: int, asked: Asked, patience_s: float) -> None:
    """Send a request and disconnect after a time."""
    with contextlib.suppress(Cut, TimeoutError):
        async with asyncio.timeout(patience_s), answer(port, asked.raw()) as got:
            await got.body()


async def _ask(port: int, asked: Asked, results: Results) -> None:
    """Read one answer and count its result; keep it if it is wrong."""
    body, status, ended = bytearray(), 0, True
    try:
        async with asyncio.timeout(_ANSWER_S_MAX), answer(port, asked.raw()) as got:
            status = got.status
            async with contextlib.aclosing(got.pieces()) as pieces:
                async for piece in pieces:
                    body += piece
    except (Cut, TimeoutError):
        ended = False
    try:
        result, why = result_of(asked, status, bytes(body), ended=ended), ""
    except Malformed as error:
        result, why = "malformed", str(error)
    results.counts[asked.kind, asked.shape, result] += 1
    if result in WRONG:
        name = f"{asked.kind}-{result}-{asked.marked.number}".replace(":", "-").replace(" ", "-")
        note = f"{result}: {asked.shape}, status {status}, ended {ended}, {asked.marked} {why}\n\n"
        results.examples[name] = note.encode() + asked.raw() + b"\n\n" + bytes(body)


async def _left_behind(servers: Mapping[str, SimulatedServer]) -> list[str]:
    """Return the replicas at which the gateway has requests of clients that are gone."""
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(_IDLE_S_MAX):
            while any(server.stats.in_flight for server in servers.values()):
                await asyncio.sleep(0.01)
    left = {name: server.stats.in_flight for name, server in servers.items() if server.stats.in_flight}
    return [f"{number} requests are left behind at {name}" for name, number in left.items()]


def _reported(served: Served, folder: Path) -> list[str]:
    """Return the lines of a gateway's output that report a bug."""
    log = (folder / "gateway.log").read_text(encoding="utf-8", errors="replace").splitlines()
    return [line for line in (*served.stderr, *log) if any(sign in line for sign in _BUGS)]
