"""The cost of the exchange for a real server: CPU time and bytes of a batch, with the real pools of many gateways.

The gateways are in this process, on a clock of their own that goes from batch to batch, and the server has the same
one. So the counts and bytes do not depend on the load of the machine; CPU times do. In an *idle* fleet each pool had a
request lately and none is under way; in a *busy* one each gateway gets requests at a rate. Units: seconds, bytes.
"""

import heapq
import random
import time
from collections import deque
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Final, Literal, NamedTuple

import redis
from msgspec.structs import replace

from defaults import default_hedging
from gateway.share.messages import Answered, Ask
from gateway.share.pools import exchanges_of
from gateway.share.redis import LIBRARY, RedisEngine
from gateway.share.server_rows import ServerRows
from gateway.share.sync import Sync
from gateway.share.wire import pack, unpack
from pooled import Seen, send
from redis_server import redis_server
from scripted import Scripted
from share_engines import with_clock
from ttft_gateway.hedging.outcomes import Outcome
from ttft_gateway.limits.budget import RetryBudget
from ttft_gateway.pool.pool import Pool
from ttft_gateway.routing.replicas import Replica

Traffic = Literal["idle", "busy"]

BUSY_PER_S: Final = 20.0  # requests per second and gateway
_TTFT_S, _STREAM_S = 0.3, 2.0  # mean time to the first content, and from there to the end
_START_S: Final = 1_000_000.0  # of the server's clock
_WARM_S: Final = {"idle": 20.0, "busy": 4.0}  # until all streams of an idle fleet have ended
_FAST_S: Final = {"idle": 17.0, "busy": 0.0}  # of that with a tenth of the batches, after which others are known again
_MEASURED_S: Final = 4.0  # a multiple of the time after which what was learned is read


class Cost(NamedTuple):
    """The cost of a fleet.

    Attributes:
        server_s: time of the server in its function for a batch of all pools.
        batch_bytes: bytes of a batch, both ways.
        bytes_per_s: bytes of a gateway per second.
        batches_per_s: batches of a gateway per second.
        gateway_s: CPU time of the gateway for a batch.
    """

    server_s: float
    batch_bytes: float
    bytes_per_s: float
    batches_per_s: float
    gateway_s: float


class Crowd(NamedTuple):
    """A fleet to measure."""

    gateways: int
    pools: int
    replicas: int
    traffic: Traffic

    def __str__(self) -> str:
        """Return the row's name."""
        return f"{self.gateways:,} gateways, {self.pools} x {self.replicas} replicas, {self.traffic}"


CROWDS: Final = (
    (Crowd(8, 20, 10, "idle"), 0.15e-3),
    (Crowd(8, 20, 10, "busy"), 0.3e-3),
    (Crowd(48, 20, 10, "idle"), 0.15e-3),
    (Crowd(48, 20, 10, "busy"), 0.3e-3),
    (Crowd(8, 100, 3, "idle"), 0.15e-3),
    (Crowd(8, 100, 3, "busy"), 0.3e-3),
    (Crowd(48, 100, 3, "idle"), 0.15e-3),
    (Crowd(48, 100, 3, "busy"), 0.3e-3),
    (Crowd(100, 20, 10, "busy"), 0.4e-3),
    (Crowd(1_000, 1, 16, "busy"), 0.15e-3),
)
"""Fleets, and the bound of the server's time for a batch."""
KB_PER_S_MAX: Final = 30  # of one gateway, both ways


class _Gateway:
    """The pools of one gateway, and its connection (an `Engine`).

    Attributes:
        now_s: time of its clock.
        sync: its exchange.
        batches: number of batches; with many pools, each is sent in parts.
        calls: number of these parts.
        own_s: CPU time of the gateway for them.
    """

    def __init__(self, name: str, client: redis.Redis, crowd: Crowd, rand: random.Random) -> None:
        self._pools = [
            Pool(
                f"model-{pool:03}",
                [Replica(f"10.0.{pool}.{place}:8000", Scripted()) for place in range(crowd.replicas)],
                default_hedging(),
                None,
            )
            for pool in range(crowd.pools)
        ]
        self.now_s, self.batches, self.calls, self.own_s = 0.0, 0, 0, 0.0
        self.sync = Sync(self, lambda: self.now_s, _at_once, rand.random, RedisEngine.batch_exchanges)
        self.sync.exchanges = exchanges_of([([pool], RetryBudget()) for pool in self._pools], {})
        self._traffic, self._name, self._client, self._rand = crowd.traffic, name, client, rand
        self._rows = ServerRows()
        self._running: deque[tuple[float, Pool, Seen]] = deque()
        self._next_s = 0.0

    def work(self, until_s: float) -> None:
        """Serve the requests until a time, and send a batch, if anything is due."""
        self._serve(until_s)
        self.now_s = until_s
        began_s, calls = time.thread_time(), self.calls
        self.sync.exchange()
        self.batches += self.calls > calls
        self.own_s += time.thread_time() - began_s

    def ask(self, asks: Sequence[Ask], answered: Answered) -> None:
        """Send a part of a batch, and read the reply."""
        self.calls += 1
        pipe = self._client.pipeline(transaction=False)
        micros = round(1e6 * (_START_S + self.now_s))
        pipe.mset({"clock:s": micros // 1_000_000, "clock:us": micros % 1_000_000})
        calls = pack(asks, self._rows, self.now_s)
        for arguments in calls:
            pipe.fcall("ttft3_ask", 1, "ttft3:{prod}:processes", self._name, *arguments)
        reply = unpack(asks, pipe.execute()[1:], self._rows)
        sent = sum(len(part) for arguments in calls for part in arguments)
        answered(replace(reply, size_bytes=reply.size_bytes + sent))

    def close(self) -> None:
        """Close the connection."""
        self._client.close()

    def _serve(self, until_s: float) -> None:
        if self._traffic == "idle" and not self.batches:
            for pool in self._pools:
                for place in range(len(pool.replicas)):
                    self._send(pool, place, 0.0)
        while self._traffic == "busy" and self._next_s < until_s:
            pool = self._rand.choice(self._pools)
            flights = [replica.in_flight + self._rand.random() for replica in pool.replicas]
            self._send(pool, flights.index(min(flights)), self._next_s)
            self._next_s += self._rand.expovariate(BUSY_PER_S)
        for _ in range(len(self._running)):
            due_s, pool, attempt = self._running.popleft()
            if due_s > until_s:
                self._running.append((due_s, pool, attempt))
            elif attempt.content_s is None:
                pool.on_content(attempt, due_s)
                attempt.content_s = attempt.first_token_s = due_s
                self._running.append((due_s + self._rand.expovariate(1 / _STREAM_S), pool, attempt))
            else:
                pool.on_end(attempt, Outcome.FINISHED, until_s, None)

    def _send(self, pool: Pool, place: int, now_s: float) -> None:
        attempt = send(pool, place, now_s)
        self._running.append((now_s + self._rand.expovariate(1 / _TTFT_S), pool, attempt))


class Unused:
    """A timer that never calls."""

    def cancel(self) -> None:
        """Do nothing."""


def _at_once(_delay_s: float, call: Callable[[], None]) -> Unused:
    """Call a function that is due in a later turn of an event loop (a `call_later` of `Sync`)."""
    call()
    return Unused()


def exchange_cost(folder: Path, crowd: Crowd) -> Cost:
    """Measure a fleet, after it has found its state."""
    rand = random.Random(str(crowd))
    with redis_server(folder, "--maxclients", str(crowd.gateways + 100)) as server:
        admin = redis.Redis(unix_socket_path=str(server.socket), protocol=2)
        admin.function_load(with_clock(LIBRARY), replace=True)
        gateways = [
            _Gateway(f"process-{n:08}", redis.Redis(unix_socket_path=str(server.socket), protocol=2), crowd, rand)
            for n in range(crowd.gateways)
        ]
        due = [(0.1 * n / crowd.gateways, n) for n in range(crowd.gateways)]
        _run(gateways, due, _FAST_S[crowd.traffic], speed=10.0)
        _run(gateways, due, _WARM_S[crowd.traffic], speed=1.0)
        before, start_s, batches = _counts(admin), due[0][0], sum(each.batches for each in gateways)
        own_s = sum(each.own_s for each in gateways)
        _run(gateways, due, start_s + _MEASURED_S, speed=1.0)
        after = _counts(admin)
        batches = sum(each.batches for each in gateways) - batches
        own_s = sum(each.own_s for each in gateways) - own_s
        for gateway in gateways:
            gateway.close()
        admin.close()
    spent = {name: after[name] - before[name] for name in before}
    per_s = 1 / _MEASURED_S / crowd.gateways
    return Cost(
        spent["function_s"] / batches,
        spent["bytes"] / batches,
        spent["bytes"] * per_s,
        batches * per_s,
        own_s / batches,
    )


def _run(gateways: Sequence[_Gateway], due: list[tuple[float, int]], until_s: float, speed: float) -> None:
    """Let each gateway work at the end of each of its periods; with a higher speed, after more periods at a time."""
    while due[0][0] < until_s:
        now_s, place = heapq.heappop(due)
        gateways[place].work(now_s)
        heapq.heappush(due, (now_s + speed * gateways[place].sync.period_s, place))


def _counts(admin: redis.Redis) -> dict[str, float]:
    info = admin.info("everything")
    return {
        "function_s": info.get("cmdstat_fcall", {"usec": 0})["usec"] / 1e6,
        "bytes": info["total_net_input_bytes"] + info["total_net_output_bytes"],
    }
