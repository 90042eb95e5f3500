"""Quotas under load in virtual time: who gets a 429, and whether the ledger's books add up.

Used in small by the tests and in full by tests/acceptance/acceptance.py. Units: seconds of the loop's clock, tokens.
"""

import asyncio
import random
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final

from defaults import default_hedging, default_timeouts
from gateway.errors import GatewayError
from gateway.events import ComponentFailed, Event, RequestEnded, Role
from gateway.race.context import Caller, Model, Runtime
from gateway.race.deadlines import TimerQueue
from gateway.race.race import Race
from running import run_virtual
from scripted import FINISH, Scripted, ScriptedStream, Step, answer, status, text
from streaming_bench.simulation.comparison import ComparisonPlan, compare
from streaming_bench.simulation.provider_quota import LimitHeaders
from streaming_bench.simulation.scenario import load
from ttft_gateway.apis.base import Api, Call, Frame, FrameKind, Headers, RateLimit, Resource, Sink, Usage
from ttft_gateway.apis.errors import ConnectError, ConnectionCut
from ttft_gateway.hedging.contract import RequestFacts
from ttft_gateway.hedging.outcomes import Outcome
from ttft_gateway.hedging.plan import Policy
from ttft_gateway.limits.ledger import Ledger, Totals
from ttft_gateway.pool.pool import Pool
from ttft_gateway.routing.replicas import Replica

SEEDS: Final = (101, 102, 103, 104, 105)


@dataclass(frozen=True, slots=True)
class Refused:
    """What became of one seed's requests under one policy.

    Attributes:
        requests: how many.
        primaries: 429s of primaries and failovers,
        hedges: and of hedges, as the simulated provider counted them.
        failed: requests that got no answer at all, those the gateway refused included.
        hedged: share of requests that were hedged.
        p99_s: of the TTFT, outside the brown-out.
    """

    requests: float
    primaries: float
    hedges: float
    failed: float
    hedged: float
    p99_s: float


def refused(
    headers: LimitHeaders, *, others: float = 0.0, headroom: float = 1.12, requests: int, seed: int
) -> dict[str, Refused]:
    """W6 with quotas at `headroom` times the traffic, hedged and not, on the same samples."""
    scenario = load("W6", requests)
    plan = ComparisonPlan(("adaptive", "off"), (seed,), headroom=headroom, limit_headers=headers, others=others)
    rows: Any = compare(scenario, plan)["rows"]
    return {row["policy"]: _refused(row) for row in rows}


def _refused(row: dict[str, Any]) -> Refused:
    parts = [row, *(part for name, part in row["parts"].items() if name == "brown-out")]
    requests = sum(part["requests"] for part in parts)
    hedges = sum(part["rate_limited_hedges"] for part in parts)
    return Refused(
        requests=requests,
        primaries=sum(part["rate_limited"] for part in parts) - hedges,
        hedges=hedges,
        failed=sum(part["failed"] for part in parts),
        hedged=sum(part["hedges"] * part["requests"] for part in parts) / requests,
        p99_s=row["p99"] / 1000,
    )


@dataclass(frozen=True, slots=True)
class Books:
    """What a ledger's books say when everything is over.

    Attributes:
        totals: of the ledger.
        outcomes: how attempts ended, each way with its number.
        hedges: attempts that were hedges.
    """

    totals: Totals
    outcomes: dict[Outcome, int]
    hedges: int


def books(count: int, seed: int = 1) -> Books:
    """Requests with hedges, cuts, errors, refusals and clients that leave, over three replicas of one quota."""
    return run_virtual(_books(count, random.Random(seed)))


async def _books(count: int, rng: random.Random) -> Books:
    loop = asyncio.get_running_loop()
    ledger, outcomes, done = Ledger(), dict.fromkeys(Outcome, 0), asyncio.Event()
    hedges = ended = 0

    def hear(event: Event) -> None:
        nonlocal hedges, ended
        assert not isinstance(event, ComponentFailed)
        if isinstance(event, RequestEnded):
            ended += 1
            hedges += sum(attempt.role is Role.BACKUP for attempt in event.attempts)
            for attempt in event.attempts:
                outcomes[attempt.outcome] += 1
            if ended == count:
                done.set()

    settings = default_hedging(policy=Policy.STATIC, static_delay_s=0.2, budget=0.5)
    replicas = [
        Replica(name, _Weather(rng), "q", read_limits=_read, bills_cancelled=name == "c", counts_max_tokens=name == "b")
        for name in "abc"
    ]
    model = Model(
        "m", [Pool("m", replicas, settings, {"q": ledger})], default_timeouts(ttft_failover_s=1.0, ttft_max_s=3.0)
    )
    runtime, client = Runtime(loop, hear, rng.random, TimerQueue(loop)), _Patient()
    for n in range(count):
        facts = RequestFacts(
            prompt_tokens=rng.uniform(1, 5_000), answer_tokens=rng.choice([None, 50, 900]), coin=rng.random()
        )
        caller = Caller(str(n), "", loop.time())
        race = Race(model, Call(Api.CHAT, b"{}", {}, 1, "m", streaming=True), facts, client, caller, runtime)
        race.start()
        if rng.random() < 0.15:
            loop.call_later(rng.uniform(0.0, 1.5), race.client_gone)
        await asyncio.sleep(rng.expovariate(20.0))
    await done.wait()
    return Books(ledger.totals, outcomes, hedges)


class _Weather(Scripted):
    """A replica that answers in every way there is."""

    def __init__(self, rng: random.Random) -> None:
        super().__init__()
        self._rng = rng

    def open(self, call: Call, sink: Sink) -> ScriptedStream:
        """Play something."""
        self.scripts, self.streams = (self._script(),), []
        return super().open(call, sink)

    def _script(self) -> list[Step]:
        rng = self._rng
        ttft_s = rng.lognormvariate(-1.8, 0.5) + (5.0 if rng.random() < 0.05 else 0.0)
        usage = Frame(FrameKind.USAGE, b"", Usage(rng.randrange(5_000), rng.randrange(900)))
        end_s = ttft_s + 0.02
        whole: list[Step] = [*answer(ttft_s)[:4], (end_s, usage), (end_s, FINISH), (end_s, None)]
        if rng.random() < 0.003:  # each keeps hedges away for a while
            return status(0.01, 429, None, 0.05)
        others: tuple[list[Step], ...] = (
            [(0.001, "headers"), (ttft_s, text("a")), (ttft_s + 0.01, ConnectionCut("cut"))],
            status(0.01, 500),
            status(0.01, 400, "invalid_value"),
            status(0.01, 401, "invalid_api_key"),
            [(0.01, ConnectError("refused"))],
            answer(ttft_s),
        )
        return whole if rng.random() < 0.8 else rng.choice(others)


class _Patient:
    """A client that takes everything."""

    committed = False

    def begin(self, headers: list[tuple[bytes, bytes]]) -> None: ...

    def keep_alive(self) -> None: ...

    def write(self, raw: bytes) -> None: ...

    def finish(self) -> None: ...

    def fail(self, error: GatewayError) -> None: ...


def _read(headers: Headers) -> Sequence[RateLimit]:
    """Limits that are stated with every answer."""
    return (RateLimit(Resource.TOKENS, 60.0, 1e9, 9e8),) if headers else ()
