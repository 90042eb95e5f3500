"""Cases of the hedging transports, through the streams of one SDK: programs `transport_*.py` in this folder name it.

They run in an environment with the SDK and the base dependencies of `ttft_gateway`; see matrix.py. A request is late as
soon as it has reached its replica, so no case depends on a time. Units: seconds.
"""

import asyncio
import json
import re
import traceback
from collections.abc import AsyncIterator, Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import httpx
import httpx2

from client_dialects import DIALECTS
from client_replicas import Replicas, ScriptedReplica, replicas
from transport_endings import answers_of
from ttft_gateway import (
    AsyncHedgingTransport,
    AsyncHedgingTransport2,
    HedgeConfig,
    HedgingTransport,
    HedgingTransport2,
    StatsSnapshot,
    Target,
)

SOON = HedgeConfig(warmup_delay=0.02, budget_percent=100.0)
AT_ONCE = HedgeConfig(warmup_delay=0.0, min_delay=0.0, budget_percent=100.0)
NEVER = HedgeConfig(warmup_delay=3600.0)
PROMPT = "Say hello."
ERRORS = ("error_500", "error_400", "limited", "error_event")
EMPTY = ("empty", "only_done")
RESETS = ("reset", "dies")
_CLOSED_S_MAX = 60.0  # of a loaded machine
_POLL_S = 0.01
_FOUND_MAX = 400  # characters of a failure
_SYNC: Mapping[str, tuple[Any, Any, Any]] = {
    "httpx": (HedgingTransport, httpx.HTTPTransport, httpx.Client),
    "httpx2": (HedgingTransport2, httpx2.HTTPTransport, httpx2.Client),
}
_ASYNC: Mapping[str, tuple[Any, Any, Any]] = {
    "httpx": (AsyncHedgingTransport, httpx.AsyncHTTPTransport, httpx.AsyncClient),
    "httpx2": (AsyncHedgingTransport2, httpx2.AsyncHTTPTransport, httpx2.AsyncClient),
}
_awaited = asyncio.Runner().run  # one loop for all: an SDK may keep tasks of the first one


@dataclass(frozen=True, slots=True)
class Call:
    """One call of an SDK.

    Attributes:
        url: base URL of the API, which ends with /v1.
        http: client with the hedging transport.
        key: API key.
        headers: further headers of this call.
        retries: the SDK's own retries.
    """

    url: str
    http: Any
    key: str = "sk-home"
    headers: Mapping[str, str] = field(default_factory=dict)
    retries: int = 0


@dataclass(frozen=True, slots=True)
class Way:
    """One way to stream an answer.

    Attributes:
        ask: yields the pieces of the answer to `PROMPT`, as the SDK returns them.
        is_async: True for an asynchronous iterator.
        dialect: API, a key of `DIALECTS`.
        library: client library of the SDK, "httpx" or "httpx2".
        inner: makes the transport that sends; None: the client library's own.
        tries: tries of a call with `retries=2`.
        text: returns the text of a piece.
        shown: returns all that is known of a piece, and is the same for each call; None: its text.
    """

    ask: Callable[[Call], Iterator[Any] | AsyncIterator[Any]]
    is_async: bool
    dialect: str = "chat"
    library: str = "httpx2"
    inner: Callable[..., Any] | None = None
    tries: int = 3
    text: Callable[[Any], str] = str
    shown: Callable[[Any], str] | None = None

    def run(
        self,
        home: ScriptedReplica,
        config: HedgeConfig = SOON,
        targets: Sequence[Target] = (),
        work: Callable[[Call], Any] | None = None,
        **call: Any,
    ) -> tuple[str, StatsSnapshot]:
        """Stream one answer, or await `work`; return its text and the counts."""
        made, inner, client = self._kinds()
        transport = made(config, replicas=targets, transport=inner(verify=False))
        transport.hedger.clock = lambda: 1.0 if home.seen else 0.0
        transport.hedger.rand = lambda: 0.0
        pieces: list[Any] = []
        self._send(client(transport=transport, timeout=60.0), home.url, pieces, work, **call)
        return "".join(map(self.text, pieces)), transport.stats.snapshot()

    def received(self, url: str, config: HedgeConfig | None) -> tuple[list[str], str]:
        """Stream one answer; return all that is known of its pieces, and its error.

        Args:
            config: None for the plain client.
        """
        made, inner, client = self._kinds()
        sender = inner(verify=False)
        http = client(
            transport=sender if config is None else made(config, transport=sender), timeout=60.0, follow_redirects=True
        )
        pieces: list[Any] = []
        error = ""
        try:
            self._send(http, url, pieces)
        except Exception as raised:
            error = f"{type(raised).__name__} {getattr(raised, 'status_code', '')} {raised} {raised.__cause__!r}"
        return list(map(self.shown or self.text, pieces)), error

    def _kinds(self) -> tuple[Any, Any, Any]:
        """Return the classes of the hedging transport, of the one that sends, and of the client."""
        made, inner, client = (_ASYNC if self.is_async else _SYNC)[self.library]
        return made, self.inner or inner, client

    def _send(
        self, http: Any, url: str, pieces: list[Any], work: Callable[[Call], Any] | None = None, **given: Any
    ) -> None:
        """Add the pieces of one answer to a list, or await `work` in place of the call; close the client."""
        call = Call(url, http, **given)
        if not self.is_async:
            with http:
                pieces.extend(self.ask(call))  # type: ignore[arg-type] # also before an error
        else:

            async def whole() -> None:
                async with http:
                    if work is not None:
                        await work(call)
                    else:
                        await self.gather(call, pieces)

            _awaited(whole())

    async def gather(self, call: Call, pieces: list[Any]) -> None:
        """Add the pieces of an answer to a list."""
        asked: Any = self.ask(call)
        async for piece in asked:
            pieces.append(piece)  # noqa: PERF401 # also before an error


class Cases:
    """The cases of one way.

    Args:
        site: makes replicas.
    """

    def __init__(self, way: Way, site: Replicas) -> None:
        self._way = way
        self._site = site

    def _add(self, *plan: str, headers: bytes = b"") -> ScriptedReplica:
        return self._site.add(*plan, headers=headers, answers=DIALECTS[self._way.dialect])

    def silent(self, behaviour: str) -> None:
        """The attempt without content loses, whichever it is, and is closed immediately."""
        replica = self._add(behaviour, "quick")
        text, counts = self._way.run(replica)
        assert (text, counts.requests, counts.hedge_wins) == ("Hello", 1, 1), (text, counts)
        assert replica.seen[0].closed.wait(_CLOSED_S_MAX)
        replica = self._add("late:quick", behaviour)
        text, counts = self._way.run(replica)
        assert (text, counts.hedges, counts.primary_wins) == ("Hello", 1, 1), (text, counts)
        assert replica.seen[1].closed.wait(_CLOSED_S_MAX)

    def failing(self, behaviours: Sequence[str]) -> None:
        """An attempt that fails leaves the race to the other one."""
        for behaviour in behaviours:
            text, counts = self._way.run(self._add("patient:quick", behaviour))
            assert (text, counts.primary_wins) == ("Hello", 1), (behaviour, text, counts)
            text, counts = self._way.run(self._add(f"late:{behaviour}", "patient:quick"))
            assert (text, counts.hedge_wins) == ("Hello", 1), (behaviour, text, counts)

    def all_fail(self) -> None:
        """The caller gets the error of the primary, as the SDK raises it."""
        try:
            self._way.run(self._add("late:error_500", "patient:error_400"))
        except Exception as error:
            assert getattr(error, "status_code", None) == 500, repr(error)
        else:
            raise AssertionError("no error was raised")

    def off(self) -> None:
        """A call with the switch off gets no backup, and the switch is not sent."""
        replica = self._add("quick")
        text, counts = self._way.run(replica, AT_ONCE, headers={"x-ttft-hedge": "off"})
        assert (text, counts.hedges) == ("Hello", 0), (text, counts)
        assert ["x-ttft-hedge" in seen.headers for seen in replica.seen] == [False]

    def keys(self) -> None:
        """A backup to another host has that replica's key and model, and no other key."""
        home, other = self._add("late_headers"), self._add("quick")
        away = Target(other.url.replace("127.0.0.1", "localhost"), api_key="sk-away", model="away")
        text, counts = self._way.run(home, targets=[Target(home.url), away])
        assert (text, counts.hedge_wins) == ("Hello", 1), (text, counts)
        [at_home], [at_away] = home.seen, other.seen
        assert "sk-home" in at_home.head
        assert "sk-away" in at_away.head
        assert "sk-home" not in at_away.head
        assert json.loads(at_away.body)["model"] == "away"

    def retries(self) -> None:
        """The tries of the SDK bring at most one backup, the backup of the first try."""
        replica = self._add("error_500", headers=b"retry-after-ms: 1\r\n")
        try:
            self._way.run(replica, AT_ONCE, retries=2)
        except Exception as error:
            assert getattr(error, "status_code", None) == 500, repr(error)
        else:
            raise AssertionError("no error was raised")
        assert 0 <= len(replica.seen) - self._way.tries <= 1, len(replica.seen)

    def cancelled(self) -> None:
        """A caller that is cancelled leaves no connection open."""
        replica = self._add("late_headers")

        async def work(call: Call) -> None:
            async with asyncio.TaskGroup() as group:
                task = group.create_task(self._way.gather(call, []))
                while len(replica.seen) < 2:
                    await asyncio.sleep(_POLL_S)
                task.cancel()

        self._way.run(replica, work=work)
        assert all(seen.closed.wait(_CLOSED_S_MAX) for seen in replica.seen)

    def same(self) -> None:
        """Whatever the server answers, pieces and errors are the same as from the plain client, raced or not."""
        way = self._way
        answers = answers_of(way.dialect)
        found = []
        for ending in answers:
            plans = (ending,), (ending,), (f"late:{ending}", ending)
            plain, alone, raced = (self._site.add(*plan, answers=answers) for plan in plans)
            expected = _anywhere(way.received(plain.url, None), plain.port)
            for how, replica, config in (("alone", alone, NEVER), ("raced", raced, AT_ONCE)):
                got = _anywhere(way.received(replica.url, config), replica.port)
                found += [f"{ending}, {how}: {got}, not {expected}"] if got != expected else []
            found += [f"{ending}, requests: {len(alone.seen)}"] if len(alone.seen) != len(plain.seen) else []
        assert not found, "\n".join(found)


def _anywhere(received: tuple[list[str], str], port: int) -> tuple[list[str], str]:
    pieces, error = received
    return pieces, re.sub(r"0x[0-9a-f]+", "0x", error.replace(str(port), "PORT"))


CASES: Mapping[str, Callable[[Cases], None]] = {
    "late headers": lambda cases: cases.silent("late_headers"),
    "headers, then silence": lambda cases: cases.silent("headers"),
    "role, then silence": lambda cases: cases.silent("role"),
    "comments": lambda cases: cases.silent("comments"),
    "errors": lambda cases: cases.failing(ERRORS),
    "empty streams": lambda cases: cases.failing(EMPTY),
    "resets": lambda cases: cases.failing(RESETS),
    "all fail": Cases.all_fail,
    "switched off": Cases.off,
    "keys": Cases.keys,
    "retries": Cases.retries,
    "cancelled": Cases.cancelled,
    "any ending": Cases.same,
}


def run(*ways: Way) -> None:
    """Run all cases in each way, and print a JSON line for each case; a failure ends its case only."""
    with replicas() as site:
        for name, case in CASES.items():
            line: dict[str, object] = {"check": name, "ok": True, "said": ""}
            try:
                for way in ways:
                    if way.is_async or name != "cancelled":
                        case(Cases(way, site))
            except Exception as error:
                traceback.print_exc()
                line |= {"ok": False, "said": f"{type(error).__name__}: {error}"[:_FOUND_MAX]}
            print(json.dumps(line), flush=True)
