"""Traffic with hedges, failures, cuts and clients that leave, in virtual time, and what everyone says it has cost.

The tests make it small, scripts/acceptance in full. Money and tokens are added up four times: from the events' charges,
from the log's lines, from the metrics and from the usage table. Units: seconds, tokens, money.
"""

import asyncio
import random
from dataclasses import dataclass, field
from typing import Any

import msgspec
from prometheus_client.parser import text_string_to_metric_families

from defaults import default_hedging, default_timeouts
from gateway.events import Event, RequestEnded
from gateway.observe.logs import RequestLog
from gateway.observe.metrics import Metrics
from gateway.observe.usage import UsageTable
from gateway.race.context import Caller, Model, Runtime
from gateway.race.deadlines import TimerQueue
from gateway.race.race import Race
from running import run_virtual
from scrapes import rendered
from scripted import DONE, FINISH, RecordingClient, Scripted, ScriptedStream, Step, answer, status, text
from ttft_gateway.apis.base import Api, Call, Frame, FrameKind, Sink, Usage
from ttft_gateway.apis.errors import ConnectionCut
from ttft_gateway.hedging.budget import BudgetUnit
from ttft_gateway.hedging.charges import Disposition
from ttft_gateway.hedging.contract import RequestFacts
from ttft_gateway.hedging.plan import Policy
from ttft_gateway.limits.ledger import Ledger, Totals
from ttft_gateway.limits.prices import Prices
from ttft_gateway.pool.pool import Pool
from ttft_gateway.routing.replicas import Replica

SHARE = 0.2
PER_S = 20.0
PRICES = (Prices(2.0, 0.5, 8.0), Prices(2.0, 2.0, 6.0), Prices(2.0, 0.2, 9.0))  # a prompt costs the same everywhere
Sums = dict[Disposition, tuple[float, int]]
"""Money and tokens by standing."""


def reporting(ttft_s: float, prompt: int = 1010, cached: int = 0, completion: int = 50) -> list[Step]:
    """A whole answer that ends with its token counts."""
    usage = Frame(FrameKind.USAGE, b"", Usage(prompt, completion, cached))
    end_s = ttft_s + 0.1
    return [(0.001, "headers"), (ttft_s, text("ab")), (end_s, FINISH), (end_s, usage), (end_s, DONE), (end_s, None)]


class Fickle(Scripted):
    """A replica that answers each request in some other way."""

    def __init__(self, rng: random.Random) -> None:
        super().__init__()
        self._rng = rng

    def open(self, call: Call, sink: Sink) -> ScriptedStream:
        """The next request gets another script."""
        self.scripts = (self._script(),)
        return super().open(call, sink)

    def _script(self) -> list[Step]:
        rng, chance = self._rng, self._rng.random()
        prompt, completion = rng.randint(500, 1500), rng.randint(1, 400)
        if chance < 0.80:
            return reporting(rng.uniform(0.02, 0.08), prompt, rng.choice([0, prompt // 2]), completion)
        if chance < 0.92:
            return reporting(rng.uniform(0.3, 3.0), prompt, 0, completion)
        return rng.choice(
            [
                answer(0.05, "abcdef"),
                status(0.01, 503),
                status(0.01, 400),
                [(0.001, "headers"), (0.05, text("a")), (0.08, ConnectionCut("cut"))],
                [(0.02, ConnectionCut("cut"))],
            ]
        )


@dataclass
class Accounted:
    """What a run came to.

    Attributes:
        ended: every request.
        sent: upstream requests, as the replicas counted them.
        left: clients that left.
        told: money and tokens, by who told them.
        totals: of the quota that all replicas share.
    """

    ended: list[RequestEnded] = field(default_factory=list)
    sent: int = 0
    left: int = 0
    told: dict[str, Sums] = field(default_factory=dict)
    totals: Totals = field(default_factory=lambda: Totals(0, 0, 0))

    @property
    def attempts(self) -> int:
        """As they were reported."""
        return sum(len(event.attempts) for event in self.ended)

    @property
    def hedged(self) -> int:
        """Requests with a backup."""
        return sum(event.result.value.startswith("backup") for event in self.ended)

    def cost(self, disposition: Disposition) -> float:
        """Money."""
        return self.told["events"].get(disposition, (0.0, 0))[0]


class Books:
    """Everyone who hears of what requests cost."""

    def __init__(self) -> None:
        self.ended: list[RequestEnded] = []
        self._batches: list[bytes] = []
        self._usage = UsageTable()
        self._metrics = Metrics(list, usage=self._usage)
        self._log = RequestLog(self._batches.append, lambda: 0.0)

    def hear(self, event: Event) -> None:
        """Tell all of them."""
        self._log.on_events([event])
        self._metrics.on_events([event])
        if isinstance(event, RequestEnded):
            self.ended.append(event)

    async def told(self) -> dict[str, Sums]:
        """Money and tokens, by who tells them."""
        return {
            "events": _from_events(self.ended),
            "log": _from_log(b"".join(self._batches).splitlines()),
            "metrics": _from_metrics(await rendered(await self._metrics.scrape())),
            "usage": _from_usage(self._usage),
        }


def disagreements(told: dict[str, Sums]) -> list[str]:
    """Who says something else than the events do."""
    expected = _rounded(told["events"])
    return [name for name, sums in told.items() if _rounded(sums) != expected]


def _rounded(sums: Sums) -> Sums:
    return {disposition: (round(cost, 9), tokens) for disposition, (cost, tokens) in sums.items() if cost or tokens}


def traffic(count: int, seed: int) -> Accounted:
    """Requests to a pool of three, with hedges that may cost a share of the spend; every fifth client may leave."""

    async def main() -> Accounted:
        loop, rng, seen, books = asyncio.get_running_loop(), random.Random(seed), Accounted(), Books()
        ledger, replicas = Ledger(), [Fickle(rng) for _ in PRICES]
        hedge = default_hedging(policy=Policy.STATIC, static_delay_s=0.1, budget=SHARE, budget_unit=BudgetUnit.COST)
        members = [Replica(f"r{n}", each, "quota", prices=PRICES[n]) for n, each in enumerate(replicas)]
        model = Model("m", [Pool("m", members, hedge, {"quota": ledger})], default_timeouts())
        runtime = Runtime(loop, books.hear, rng.random, TimerQueue(loop))
        call = Call(Api.CHAT, b"{}", {}, 1, "m", streaming=True)

        def ask(at_s: float) -> None:
            facts = RequestFacts(prompt_tokens=1000.0, coin=rng.random())
            race = Race(model, call, facts, RecordingClient(), Caller("r", rng.choice("xyz"), at_s), runtime)
            race.start()
            if rng.random() < 0.2:
                loop.call_later(rng.uniform(0.0, 0.4), race.client_gone)

        at_s = 0.0
        for _ in range(count):
            at_s += rng.expovariate(PER_S)
            loop.call_at(at_s, ask, at_s)
        over = asyncio.Event()
        loop.call_at(at_s + 700.0, over.set)  # no request may take so long
        await over.wait()
        seen.ended = books.ended
        seen.sent = sum(len(each.streams) for each in replicas)
        seen.left = sum(event.error == "client_gone" for event in seen.ended)
        seen.totals = ledger.totals
        seen.told = await books.told()
        return seen

    return run_virtual(main())


def _add(sums: Sums, disposition: Disposition, cost: float, tokens: int) -> None:
    before = sums.get(disposition, (0.0, 0))
    sums[disposition] = (before[0] + cost, before[1] + tokens)


def _from_events(ended: list[RequestEnded]) -> Sums:
    sums: Sums = {}
    for charge in (attempt.charge for event in ended for attempt in event.attempts):
        _add(sums, charge.disposition, charge.cost or 0.0, charge.prompt_tokens + charge.completion_tokens)
    return sums


def _from_log(lines: list[bytes]) -> Sums:
    """Each attempt's line has its charge, each request's line the money; they must agree, too."""
    sums: Sums = {}
    for line in map(msgspec.json.decode, lines):
        if line["event"] != "request":
            continue
        money = 0.0
        for charge in (attempt["charge"] for attempt in line["attempts"]):
            tokens = charge.get("prompt_tokens", 0) + charge.get("completion_tokens", 0)
            _add(sums, Disposition(charge["disposition"]), charge["cost"], tokens)
            money += charge["cost"]
        assert abs(sum(line.get("cost", {}).values()) - money) < 1e-12
    return sums


def _from_metrics(scrape: bytes) -> Sums:
    sums: Sums = {}
    for family in text_string_to_metric_families(scrape.decode()):
        for sample in family.samples:
            if sample.name == "ttft_gateway_cost_total":
                _add(sums, Disposition(sample.labels["disposition"]), sample.value, 0)
            elif sample.name == "ttft_gateway_billed_tokens_total":
                _add(sums, Disposition(sample.labels["disposition"]), 0.0, int(sample.value))
    return sums


def _from_usage(usage: UsageTable) -> Sums:
    """The rows, which must add up to the total."""
    told = msgspec.json.decode(msgspec.json.encode(usage.report()))
    rows: Sums = {}
    for row in told["rows"]:
        _add_row(rows, row)
    total: Sums = {}
    _add_row(total, told["total"])
    assert _rounded(rows) == _rounded(total)
    return rows


def _add_row(sums: Sums, row: dict[str, Any]) -> None:
    for disposition in Disposition:
        found = row.get(disposition.value)
        if found is not None:
            tokens = found.get("prompt_tokens", 0) + found.get("completion_tokens", 0)
            _add(sums, disposition, found.get("cost", 0.0), tokens)
