"""What the race must show on real sockets, as measurements: the tests make them small, scripts/acceptance in full.

Every figure is taken at the client's or at a replica's socket. Units: seconds of the event loop's clock.
"""

import asyncio
import json
import math
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field

from gateway.simulated.stats import RequestResult
from gateway_fixture import Site, serving, until
from raw_http import answer, asking, connect, head

Settings = dict[str, object]

FLUSHING: Settings = {"ttft": "20ms | 4% 1s", "headers": "at_once", "role": "early"}
SURFACING = ("429", "500", "error_frame", "error_event", "finish_error", "json_error", "empty", "done", "reset")
REFUSALS = ("content_policy+stall:0,60ms", "refusal", "content_filter:0")
_AT_ONCE: Settings = {"policy": "static", "delay": "10ms", "hedge_delay_min": "1ms", "budget": "100%"}
_BUDGET = 0.1
_CAP = 3.0  # requests; docs/design/0005
_CAP_ACCRUAL_S = 6.0


async def spread(count: int, at_a_time: int, job: Callable[[int], Awaitable[None]]) -> None:
    """Do a job so many times, never more than some at a time."""
    numbers = iter(range(count))

    async def work() -> None:
        for number in numbers:
            await job(number)

    async with asyncio.TaskGroup() as tasks:
        for _ in range(min(at_a_time, count)):
            tasks.create_task(work())


def percentile(values: Sequence[float], share: float) -> float:
    """The value that so large a share of the values does not exceed."""
    return sorted(values)[math.ceil(share * len(values)) - 1]


@dataclass
class Tail:
    """TTFTs of a run, at the client.

    Attributes:
        ttfts_s: in the order in which requests were sent.
        sent_s: when they were sent.
        hedged: which of them were hedged.
        overspent: by how many hedges the worst stretch of requests is over the budget's share of its requests.
        cap: what that may be.
    """

    ttfts_s: list[float] = field(default_factory=list)
    sent_s: list[float] = field(default_factory=list)
    hedged: list[bool] = field(default_factory=list)
    overspent: float = 0.0
    cap: float = 0.0


async def tail(policy: str, *, warm: int, count: int, at_a_time: int = 4, process: bool = False) -> Tail:
    """Three flushing replicas with a bad tail, a budget of 10 %.

    Args:
        policy: of hedging.
        warm: requests at the start; their TTFT is not counted.
        count: requests after those.
        at_a_time: requests under way.
        process: where the gateway runs.
    """
    seen = Tail([0.0] * (warm + count), [0.0] * (warm + count), [False] * (warm + count))
    profiles = dict.fromkeys("abc", FLUSHING)
    hedge: Settings = {"policy": policy, "quantile": 0.9, "budget": f"{_BUDGET:.0%}"}
    async with serving(profiles, process=process, hedge=hedge) as site:

        async def one(number: int) -> None:
            async with answer(site.port, asking(max_tokens=4)) as got:
                assert got.status == 200
                seen.sent_s[number] = got.began_s
                seen.ttfts_s[number] = await got.ttft_s()
                seen.hedged[number] = got.headers["x-ttft-result"].startswith("backup")

        await spread(warm + count, at_a_time, one)
        assert site.reached <= warm + count + sum(seen.hedged)
    seen.overspent = _worst_stretch([hedged - _BUDGET for hedged in seen.hedged])
    seen.cap = _CAP + _BUDGET * _accrual(seen.sent_s)
    seen.ttfts_s = seen.ttfts_s[warm:]
    return seen


def _worst_stretch(spent: Sequence[float]) -> float:
    """The largest sum of neighbours."""
    worst = here = 0.0
    for each in spent:
        here = max(0.0, here + each)
        worst = max(worst, here)
    return worst


def _accrual(sent_s: Sequence[float]) -> float:
    """The most requests that had been seen at any time, each fading with `_CAP_ACCRUAL_S`."""
    most = now = before_s = 0.0
    for at_s in sorted(sent_s):
        now = now * math.exp((before_s - at_s) / _CAP_ACCRUAL_S) + 1
        before_s = at_s
        most = max(most, now)
    return most


async def losers(count: int, *, process: bool = False) -> list[float]:
    """How long after the winner's first content each loser's socket was closed, both as its replica saw it.

    Answers would take minutes: whatever ends before its client leaves was closed.
    """
    profile: Settings = {"ttft": "uniform:60ms,120ms", "gap": "1s", "tokens": 1000}
    async with serving({"a": profile, "b": profile}, process=process, hedge=_AT_ONCE) as site:
        delays_s: list[float] = []
        for _ in range(3 * count):  # on a busy machine not every backup reaches its replica before the primary answers
            delay_s = await _losers_delay_s(site)
            delays_s += [] if delay_s is None else [delay_s]
            if len(delays_s) == count:
                break
        return delays_s


async def _losers_delay_s(site: Site) -> float | None:
    """One race of two; None if only one of them was reached."""
    reached = site.reached
    async with answer(site.port, asking()) as got:
        await got.ttft_s()
        winner = site.record(got.headers)
        other = site.replicas["b" if got.headers["x-ttft-replica"] == "a" else "a"].stats
        await until(lambda: not other.in_flight)
        assert winner.ended is None
    await site.until_idle()
    if site.reached < reached + 2:
        return None
    loser = next(reversed(other.records.values()))
    assert loser.ended is RequestResult.CANCELLED
    return (loser.ended_s or math.inf) - (winner.first_content_s or math.inf)


@dataclass
class Surfaced:
    """How often a backup failed immediately while the primary lived, and how often the client saw anything of it."""

    backups: int = 0
    seen: int = 0


async def surfaced(fault: str, count: int, *, process: bool = False) -> Surfaced:
    """A good but slow replica, and one that fails immediately.

    Each request asks a model of its own, so that no breaker remembers. Where the slow replica happens to be the
    primary, the backup fails; where the other is, that is a failover, and the client must not see anything of it
    either.
    """
    result = Surfaced()
    profiles: dict[str, Settings] = {"slow": {"ttft": "60ms", "tokens": 3}, "bad": {"faults": [fault]}}
    # Even if only every second primary were the slow one, three times as many requests are enough.
    async with serving(profiles, models=3 * count + 20, process=process, hedge=_AT_ONCE) as site:

        async def one(number: int) -> None:
            if result.backups >= count:
                return
            async with answer(site.port, asking(model=f"m{number}", stream_options={"include_usage": True})) as got:
                whole = got.headers.get("x-ttft-replica") == "slow" and _is_whole(await got.body())
                backup = got.headers.get("x-ttft-result") == "backup_lost"
            result.backups += backup
            result.seen += not (got.status == 200 and whole)

        await spread(3 * count + 20, 16, one)
    return result


def _is_whole(body: bytes) -> bool:
    """Three tokens, a finish_reason, token counts and the closing event, all of them JSON and nothing else."""
    events = body.decode().split("\n\n")
    chunks = [json.loads(event.removeprefix("data: ")) for event in events[:-2]]
    words = [choice["delta"].get("content") for chunk in chunks for choice in chunk["choices"]]
    return events[-2:] == ["data: [DONE]", ""] and len(list(filter(None, words))) == 3 and bool(chunks[-1]["usage"])


async def overridden(refusal: str, count: int, *, process: bool = False) -> Surfaced:
    """A replica that refuses after 60 ms, and one that would answer seconds later; `seen`: how often it did.

    Whichever is the primary, both are asked before the refusal comes. On a busy machine not every backup reaches its
    replica by then: whoever refused alone does not count.
    """
    result = Surfaced()
    profiles: dict[str, Settings] = {"no": {"ttft": "60ms", "faults": [refusal]}, "yes": {"ttft": "5s"}}
    async with serving(profiles, process=process, hedge=_AT_ONCE) as site:

        async def one(_number: int) -> None:
            async with answer(site.port, asking()) as got:
                body = await got.body()
            said_no = got.headers.get("x-ttft-replica") == "no" and (b"refusal" in body or b"content_filter" in body)
            refused = got.status == 400 and got.error(body)["code"] == "content_policy_violation"
            result.seen += not (refused if got.status == 400 else said_no)

        for asked in (count, 2 * count, 3 * count):
            await spread(count, 16, one)
            await site.until_idle()
            result.backups = site.reached - asked
            if result.backups >= count:
                break
        assert site.replicas["yes"].stats.complete == 0
    return result


@dataclass
class Departures:
    """Clients that left, and how long after that each of their upstream attempts was closed, as its replica saw it."""

    clients: int = 0
    delays_s: list[float] = field(default_factory=list)


async def departures(
    count: int, *, waiting: bool, streaming: bool = True, gap: str = "10ms", process: bool = False
) -> Departures:
    """Clients that leave, twenty at the same moment.

    Args:
        count: of clients.
        waiting: before any content has come, two attempts each under way; else in mid-stream.
        streaming: what they asked for.
        gap: between the 2000 tokens of an answer.
        process: where the gateway runs.
    """
    profile: Settings = {"ttft": "10m"} if waiting else {"ttft": "5ms", "gap": gap, "tokens": 2000}
    hedge = _AT_ONCE if waiting else {"policy": "off"}
    patience: Settings = {"ttft_failover": "5m", "ttft_max": "5m"}
    result = Departures()
    async with serving({"a": profile, "b": profile}, process=process, hedge=hedge, timeouts=patience) as site:
        while result.clients < count:
            crowd = min(20, count - result.clients)
            for server in site.replicas.values():
                server.stats.reset()
            left_s = await _leave(site, crowd, waiting=waiting, streaming=streaming)
            await site.until_idle()
            records = site.records()
            assert all(record.ended is RequestResult.CANCELLED for record in records)
            result.delays_s += [(record.ended_s or math.inf) - left_s for record in records]
            result.clients += crowd
    return result


async def _leave(site: Site, crowd: int, *, waiting: bool, streaming: bool) -> float:
    """Ask, wait until all is under way, leave: every second client properly, the others by a reset; when that was."""
    loop = asyncio.get_running_loop()
    pairs = [await connect(site.port) for _ in range(crowd)]
    for _, writer in pairs:
        writer.write(asking(stream=streaming))
    if streaming and not waiting:
        for reader, writer in pairs:
            await (await head(reader, writer, loop.time())).ttft_s()
    attempts = 2 * crowd if waiting else crowd
    await until(lambda: len([each for each in site.records() if waiting or each.content_events]) == attempts)
    left_s = loop.time()
    for number, (_, writer) in enumerate(pairs):
        if number % 2:
            writer.close()
        else:
            writer.transport.abort()
    return left_s
