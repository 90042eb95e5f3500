"""Limits across a supervisor that is killed and replaced: a key's requests a minute, and a model's concurrency; Linux.

Two workers, real processes and sockets. Slots are counted at the replica, and a true bucket is charged for each
admitted request when it arrives there: on a busy machine the times of a client are late. Refusals are compared with a
bucket that is charged when the client sends. Units: seconds, requests.
"""

import asyncio
import json
import os
import signal
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Final, NamedTuple

import simulated_sockets
from gateway.simulated.server import SimulatedServer
from spawned import children
from worker_site import Site, site_before

LIMIT: Final = 120  # a minute
SLOTS: Final = 6
WORKERS: Final = 2
_KILLS_S: Final = (8.0, 16.0, 24.0)
_LASTS_S: Final = 32.0
_SLOT_S: Final = 0.62  # time of an answer of the model with the concurrency limit
_KEY: Final = "key-of-the-limited-team"


class Sent(NamedTuple):
    """A request: the times at which it was sent and answered, and the status."""

    begin_s: float
    end_s: float
    status: int


class Limited(NamedTuple):
    """What came of both limits.

    Attributes:
        admitted: requests within the key's limit.
        offered: all requests with the key.
        over: deepest debt of the true bucket.
        refused: requests that were refused while this bucket had room for 1 % and two requests.
        slots: most requests of the model with a concurrency limit at a time, at the replica.
        others: statuses that are neither an answer nor a refusal.
    """

    admitted: int
    offered: int
    over: float
    refused: int
    slots: int
    others: frozenset[int]

    @property
    def holds(self) -> bool:
        """True if no limit was exceeded by more than 1 % and one request or slot of each worker, or refused in vain."""
        is_kept = self.over <= 0.01 * LIMIT + WORKERS and self.slots <= SLOTS + WORKERS
        return is_kept and not self.refused and not self.others

    def __str__(self) -> str:
        more = f", statuses {sorted(self.others)}" if self.others else ""
        kept = f"{self.admitted} of {self.offered} admitted, over by {self.over:.1f}, {self.refused} refused with room"
        return f"{kept}; {self.slots} slots of {SLOTS}{more}"


async def limited(load: float) -> Limited:
    """Offer a part of both limits, while the supervisor is killed three times."""
    with tempfile.TemporaryDirectory() as folder:
        async with (
            simulated_sockets.serving(0, ttft="20ms", gap="10ms", tokens=3) as quick,
            simulated_sockets.serving(0, ttft="600ms", gap="10ms", tokens=3) as slow,
        ):
            replicas = [[{"name": "a", "kind": "simulated", "base_url": each.url}] for each in (quick, slow)]
            settings = {
                "models": [
                    {"name": "m", "replicas": replicas[0]},
                    {"name": "slots", "replicas": replicas[1], "concurrency": SLOTS, "queue": {"max": 0}},
                ],
                "keys": [{"name": "team", "key": _KEY, "requests_per_min": LIMIT}, {"name": "free", "key": "free-key"}],
                "allow_anonymous": False,
            }
            async with site_before(quick.url, Path(folder), WORKERS, **settings) as home:
                keyed, others = await _offered(home, load)
        return _judged(keyed, quick, slow, others)


async def _offered(home: Site, load: float) -> tuple[list[Sent], frozenset[int]]:
    """Return the requests with the key, and wrong statuses of all."""
    loop = asyncio.get_running_loop()
    start_s, top = loop.time(), home.gateway.process.pid
    workers = {row["process"] for row in (await home.get("/admin/workers"))["workers"]}
    found: dict[str, list[Sent]] = {"m": [], "slots": []}

    async def send(model: str, key: str) -> None:
        begin_s = loop.time()
        status = await _status(home.port, model, key)
        found[model].append(Sent(begin_s, loop.time(), status))

    async def kill() -> None:
        for at_s in _KILLS_S:
            await asyncio.sleep(start_s + at_s - loop.time())
            for supervisor in children(top) - workers:
                os.kill(supervisor, signal.SIGKILL)

    async def offer(model: str, key: str, per_s: float, tasks: asyncio.TaskGroup) -> None:
        number = 0
        while (at_s := number / per_s) < _LASTS_S:
            await asyncio.sleep(start_s + at_s - loop.time())
            tasks.create_task(send(model, key))
            number += 1

    async with asyncio.TaskGroup() as tasks:
        tasks.create_task(kill())
        for _ in range(LIMIT if load > 1 else 0):  # the burst
            tasks.create_task(send("m", _KEY))
        tasks.create_task(offer("m", _KEY, load * LIMIT / 60, tasks))
        tasks.create_task(offer("slots", "free-key", load * SLOTS / _SLOT_S, tasks))
    wrong = {each.status for each in found["m"]} - {200, 429}
    return found["m"], frozenset(wrong | ({each.status for each in found["slots"]} - {200, 503}))


async def _status(port: int, model: str, key: str) -> int:
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    body = json.dumps({"model": model, "messages": [{"role": "user", "content": "x"}], "max_tokens": 2}).encode()
    head = f"POST /v1/chat/completions HTTP/1.1\r\nhost: a\r\nconnection: close\r\nauthorization: Bearer {key}\r\n"
    writer.write(f"{head}content-type: application/json\r\ncontent-length: {len(body)}\r\n\r\n".encode() + body)
    try:
        async with asyncio.timeout(30):
            answer = await reader.read()
    except OSError:
        answer = b""
    writer.close()
    return int(answer[9:12]) if answer.startswith(b"HTTP") else 0


def _judged(keyed: list[Sent], quick: SimulatedServer, slow: SimulatedServer, others: frozenset[int]) -> Limited:
    first_s, refused = min(each.begin_s for each in keyed), 0
    lowest = min(level for _, level in _levels(first_s, [each.received_s for each in quick.stats.records.values()]))
    # A request may have been admitted long before the replica has it, but not before it was sent.
    points = _levels(first_s, [each.begin_s for each in keyed if each.status == 200])
    for sent in (each for each in keyed if each.status == 429):
        times_s = (sent.begin_s, *(at_s for at_s, _ in points if sent.begin_s < at_s <= sent.end_s), sent.end_s)
        least = min(_level(max(each for each in points if each[0] <= at_s), at_s) for at_s in times_s)
        refused += least >= 1 + 0.01 * LIMIT + WORKERS
    running = most = 0
    spans = ((each.received_s, each.ended_s or each.received_s) for each in slow.stats.records.values())
    for _, change in sorted((at_s, step) for begin_s, end_s in spans for at_s, step in ((begin_s, 1), (end_s, -1))):
        running += change
        most = max(most, running)
    return Limited(len(points) - 1, len(keyed), max(0.0, -lowest), refused, most, others)


def _levels(first_s: float, times_s: Sequence[float]) -> list[tuple[float, float]]:
    """Return the times at which a full bucket is charged, and its level after that, from a time on."""
    points = [(first_s, float(LIMIT))]
    for at_s in sorted(times_s):
        points.append((at_s, _level(points[-1], at_s) - 1.0))
    return points


def _level(point: tuple[float, float], at_s: float) -> float:
    before_s, level = point
    return min(float(LIMIT), level + (at_s - before_s) * LIMIT / 60)
