"""Streams that stop, stall or become slow by a law, in virtual time: many answers through real races, and their gaps.

An answer is a fixed text of numbered words, one word an event, and a replica continues it from any prefix. Units:
seconds of the loop's clock, events.
"""

import asyncio
import json
import random
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Final, NamedTuple

from defaults import default_hedging, default_timeouts
from gateway.errors import GatewayError
from gateway.events import Event, RecoveryResult, RequestEnded, Role
from gateway.race.context import Caller, Model, RecoveryMode, Runtime
from gateway.race.deadlines import TimerQueue
from gateway.race.race import Race
from providers.protocols import RECOVERERS
from recovering import CONTINUES, read
from running import run_virtual
from ttft_gateway.apis.base import Api, Call, Frame, FrameKind, Sink
from ttft_gateway.hedging.contract import RequestFacts
from ttft_gateway.hedging.parameters import GuardMode
from ttft_gateway.pool.pool import Pool
from ttft_gateway.requests.parsed import NumberLimits
from ttft_gateway.requests.request import parse
from ttft_gateway.routing.replicas import Replica

TTFT_S: Final = 0.4
GAP_S: Final = 0.02
_SLOW: Final = 6.0
_SLOW_S: Final = 30.0  # length of a time in which all replicas are slow
_HEAD: Final = '"object":"chat.completion.chunk","created":1,"model":"m"'
_BODY: Final = {"model": "m", "stream": True, "temperature": 0}


class Trouble(NamedTuple):
    """What happens to one stream.

    Attributes:
        at: share of the answer after which it is silent.
        silence_s: length of the silence; 0 for none.
        factor: factor of its gaps.
    """

    at: float = 0.0
    silence_s: float = 0.0
    factor: float = 1.0


class Law(NamedTuple):
    """Shares of the answers with a trouble.

    Attributes:
        stops: stop for 30 s.
        stalls: stall by a Pareto law of 1.3, from 1 s on.
        slow: are decoded six times slower.
    """

    stops: float = 0.0
    stalls: float = 0.0
    slow: float = 0.0

    def draw(self, rand: random.Random) -> Trouble:
        """Draw the trouble of one stream."""
        draw, at = rand.random(), rand.random()
        if draw < self.stops:
            return Trouble(at, 30.0)
        draw -= self.stops
        if draw < self.stalls:
            return Trouble(at, min(120.0, (1.0 - rand.random()) ** (-1 / 1.3)))
        return Trouble(factor=_SLOW) if draw - self.stalls < self.slow else Trouble()


LAWS: Final = {
    "0.3 % stop for 30 s": Law(stops=0.003),
    "2 % stall, Pareto 1.3": Law(stalls=0.02),
    "5 % decode six times slower": Law(slow=0.05),
    "all three": Law(0.003, 0.02, 0.05),
}

SHARED: Final = ("", "request", "time")
"""See `run_law`."""


@dataclass
class Weather:
    """What all replicas share.

    Attributes:
        silent_until_s, slow_until_s: times until which all of them are silent, or slow.
    """

    silent_until_s: float = 0.0
    slow_until_s: float = 0.0


class _Stream:
    """One stream of an endpoint."""

    def __init__(self, sink: Sink, first: int, words: int, trouble: Trouble, weather: Weather) -> None:
        self._sink, self._at, self._words, self._trouble, self._weather = sink, first, words, trouble, weather
        self._loop = asyncio.get_running_loop()
        self._silent = trouble.silence_s > 0
        self._timer = self._loop.call_later(TTFT_S, self._word)

    def _word(self) -> None:
        now_s, until_s = self._loop.time(), self._weather.silent_until_s
        if self._silent and self._at >= self._trouble.at * (self._words - 1):
            self._silent, until_s = False, max(until_s, now_s + self._trouble.silence_s)
        if until_s > now_s:
            self._timer = self._loop.call_at(until_s, self._word)
            return
        if self._at == self._words:
            self._end()
            return
        self._at += 1
        factor = _SLOW if now_s < self._weather.slow_until_s else self._trouble.factor
        self._timer = self._loop.call_later(GAP_S * factor, self._word)
        self._sink.on_frame(Frame(FrameKind.CONTENT, _chunk(f'{{"content":"{self._at} "}}')))

    def _end(self) -> None:
        self._sink.on_frame(Frame(FrameKind.FINISH, _chunk("{}", '"stop"')))
        self._sink.on_frame(Frame(FrameKind.DONE, b"data: [DONE]\n\n"))
        self._sink.on_end(None)

    def pause(self) -> None:
        """No client is slow here."""

    resume = pause

    def abort(self) -> None:
        """Stop."""
        self._timer.cancel()

    def finish(self) -> bool:
        """Return False: its answer is never whole before its end."""
        return False


def _chunk(delta: str, finish: str = "null") -> bytes:
    return f'data: {{"id":"c",{_HEAD},"choices":[{{"index":0,"delta":{delta},"finish_reason":{finish}}}]}}\n\n'.encode()


class Stalling:
    """An endpoint with a law.

    Args:
        words: length of each answer.
        trouble: draws the trouble of the stream of a call.
        weather: what all replicas share.
    """

    def __init__(self, words: int, trouble: Callable[[Call], Trouble], weather: Weather) -> None:
        self._words, self._trouble, self._weather = words, trouble, weather

    def open(self, call: Call, sink: Sink) -> _Stream:
        """Answer, or continue an answer."""
        last = json.loads(call.body)["messages"][-1]
        first = len(last["content"].split()) if last["role"] == "assistant" else 0
        sink.on_headers(200, [])
        return _Stream(sink, first, self._words, self._trouble(call), self._weather)


@dataclass
class TimedClient:
    """A client that keeps what it got, and its longest gap.

    Attributes:
        gap_s: longest time between two writes.
        last_s: time of the last write; 0 before the first.
    """

    got: bytearray = field(default_factory=bytearray)
    gap_s: float = 0.0
    last_s: float = 0.0
    error: GatewayError | None = None

    @property
    def committed(self) -> bool:
        return bool(self.got)

    def begin(self, headers: list[tuple[bytes, bytes]]) -> None:
        """Nothing is kept of it."""

    def keep_alive(self) -> None:
        """A keep-alive is no content."""

    def write(self, raw: bytes) -> None:
        now_s = asyncio.get_running_loop().time()
        if self.last_s:
            self.gap_s = max(self.gap_s, now_s - self.last_s)
        self.last_s = now_s
        self.got += raw

    def finish(self) -> None:
        """The report follows."""

    def fail(self, error: GatewayError) -> None:
        self.error = error


class Figures(NamedTuple):
    """What the answers came to.

    Attributes:
        gap_p999_s: p99.9 of the longest gap of an answer.
        total_p99_s: p99 of the time of a whole answer.
        guards: guards sent, as a share of the answers.
        lost: guards that did not win, as a share of the answers.
        tokens: prompt tokens of the guards, as a share of the prompt tokens of the answers.
        errors: answers that ended with an error, after the beginning of their text.
        wrong: answers with another text, or without a proper end.
    """

    gap_p999_s: float
    total_p99_s: float
    guards: float
    lost: float
    tokens: float
    errors: int
    wrong: int


def run_law(
    law: Law,
    *,
    guard: GuardMode = GuardMode.AUTO,
    count: int = 500,
    words: int = 200,
    rate: float = 8.0,
    replicas: int = 2,
    shared: str = "",
    seed: int = 1,
    prompt: float = 1000.0,
) -> Figures:
    """Send answers through races over replicas with a law, and measure.

    Args:
        rate: requests a second.
        shared: "request": a continuation has the trouble of its answer; "time": all replicas are silent together, so
            that each answer is silent with the probability of the law; empty: each stream has its own trouble.
    """

    async def main() -> Figures:
        loop, rand = asyncio.get_running_loop(), random.Random(seed)
        weather, own = Weather(), dict[str, Trouble]()

        def trouble(call: Call) -> Trouble:
            if shared == "request":
                user = json.loads(call.body)["messages"][0]["content"]
                if user in own:  # a continuation: the rest has the same trouble, from its beginning on
                    return own[user]._replace(at=0.0)
                own[user] = law.draw(rand)
                return own[user]
            return Trouble() if shared == "time" else law.draw(rand)

        names = [f"r{number}" for number in range(replicas)]
        pool = Pool(
            "m",
            [Replica(name, Stalling(words, trouble, weather), prefills=CONTINUES) for name in names],
            default_hedging(guard=guard),
        )
        model = Model("m", [pool], default_timeouts(), recovery=RecoveryMode.AUTO, recoverers=RECOVERERS)
        clients: list[TimedClient] = []
        reports: list[RequestEnded] = []
        ended = asyncio.Event()

        def emit(event: Event) -> None:
            if isinstance(event, RequestEnded):
                reports.append(event)
                if len(reports) == count:
                    ended.set()

        runtime = Runtime(loop, emit, rand.random, TimerQueue(loop))
        life_s = TTFT_S + words * GAP_S
        for number in range(count):
            if shared == "time":
                _change(weather, law, rand, loop.time(), rate, life_s)
            body = json.dumps({**_BODY, "messages": [{"role": "user", "content": f"q{number}"}]}).encode()
            inbound = parse(Api.CHAT, body, [], NumberLimits(16, 100_000), frozenset())
            client = TimedClient()
            clients.append(client)
            facts = RequestFacts(prompt_tokens=prompt, hedge_off=inbound.hedge_off, coin=rand.random())
            Race(model, inbound.call, facts, client, Caller("r", "k", loop.time()), runtime).start()
            await asyncio.sleep(rand.expovariate(rate))
        await ended.wait()
        return _figures(clients, reports, words, prompt)

    return run_virtual(main())


def _change(weather: Weather, law: Law, rand: random.Random, now_s: float, rate: float, life_s: float) -> None:
    """Change what all replicas share before a request, so that each answer has a trouble with its probability."""
    chance = law.stops + law.stalls
    if chance and rand.random() < chance / (rate * life_s):  # each silence meets all answers under way
        drawn = Law(law.stops / chance, law.stalls / chance).draw(rand)
        weather.silent_until_s = max(weather.silent_until_s, now_s + drawn.silence_s)
    if law.slow and rand.random() < law.slow / (rate * (life_s + _SLOW_S)):
        weather.slow_until_s = now_s + _SLOW_S


def _figures(clients: list[TimedClient], reports: list[RequestEnded], words: int, prompt: float) -> Figures:
    count = len(reports)
    text = "".join(f"{number} " for number in range(1, words + 1))
    guards = [attempt for report in reports for attempt in report.attempts if attempt.role is Role.GUARD]
    lost = [
        recovery
        for report in reports
        for recovery in report.recoveries
        if recovery.guard is not None and recovery.result is not RecoveryResult.RECOVERED
    ]
    again = sum(
        recovery.tokens_again for report in reports for recovery in report.recoveries if recovery.guard is not None
    )
    errors = wrong = 0
    for client in clients:
        got = read(bytes(client.got))
        said = got.texts.get("0.content", "")
        errors += client.error is not None
        wrong += not text.startswith(said) if client.error is not None else said != text or got.dones != 1
    gaps_s = sorted(client.gap_s for client in clients)
    totals_s = sorted(report.total_s for report in reports)
    return Figures(
        gaps_s[min(count - 1, int(0.999 * count))],
        totals_s[min(count - 1, int(0.99 * count))],
        len(guards) / count,
        len(lost) / count,
        again / (prompt * count),
        errors,
        wrong,
    )
