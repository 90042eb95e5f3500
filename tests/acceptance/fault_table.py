"""The table of docs/evaluation/faults.md: each fault, the client's view of it, the time and the upstream calls.

The gateway's own race over simulated replicas in virtual time, hedging off, so that every figure is exact. The replicas
give the same text and count the calls. `python tests/acceptance/fault_table.py` prints the table. Units: seconds.
"""

import asyncio
import errno
import json
import random
import sys
from collections.abc import Sequence
from dataclasses import dataclass

from defaults import default_hedging, default_timeouts
from gateway.errors import GatewayError
from gateway.events import Event, RequestEnded
from gateway.race.context import Caller, Model, RecoveryMode, Runtime
from gateway.race.deadlines import TimerQueue
from gateway.race.race import Race
from gateway.simulated.profile import parse_profile
from gateway.simulated.replica import SimulatedReplica
from providers.protocols import RECOVERERS
from providers.transport.origin import unreachable
from recovering import CONTINUES
from running import run_virtual
from scripted import Scripted
from simulated_calls import body_of
from simulated_endpoint import SimulatedEndpoint
from ttft_gateway.apis.base import Api, Call, Sink, Stream
from ttft_gateway.hedging.contract import RequestFacts
from ttft_gateway.hedging.plan import Policy
from ttft_gateway.pool.pool import Pool
from ttft_gateway.requests.parsed import NumberLimits
from ttft_gateway.requests.request import parse
from ttft_gateway.routing.replicas import Replica

TOKENS = 60
HEALTHY: dict[str, object] = {"ttft": "200ms", "gap": "10ms", "tokens": TOKENS}
HEALTHY_S = 0.2 + (TOKENS - 1) * 0.01
_OFF = default_hedging(policy=Policy.OFF)


@dataclass(frozen=True)
class Fault:
    """One row.

    Attributes:
        name: name in the table.
        first: faults of the first replica.
        second: faults of the other replica, None without another replica.
        fallback: faults of a fallback's replica, None without a fallback.
        warm: number of requests sent before the measured one.
        form: provider that has this form of the fault.
        prefills: the replicas continue answers.
        alike: the replicas give the same answer.
        recovery: recovery mode of the model.
    """

    name: str
    first: str
    second: str | None = ""
    fallback: str | None = None
    warm: int = 0
    form: str = ""
    prefills: bool = False
    alike: bool = True
    recovery: RecoveryMode = RecoveryMode.AUTO


@dataclass
class Seen:
    """The result of a request."""

    text: str
    error: GatewayError | None
    after_s: float
    calls: int


_NO_FILE = "no open file is left"


class _Counted:
    """A simulated replica that counts how often it was called; with the fault _NO_FILE nothing arrives there."""

    def __init__(self, faults: str, seed: int = 1) -> None:
        self._is_unreached = faults == _NO_FILE
        profile = parse_profile({**HEALTHY, "faults": [faults] if faults and not self._is_unreached else []})
        self._endpoint = SimulatedEndpoint(SimulatedReplica(profile, random.Random(1), seed))
        self.calls = 0

    def open(self, call: Call, sink: Sink) -> Stream:
        if self._is_unreached:
            return Scripted([(0.0, unreachable(OSError(errno.EMFILE, "")))]).open(call, sink)
        self.calls += 1
        return self._endpoint.open(call, sink)


class _Client:
    """Puts the text together as an SDK does."""

    def __init__(self) -> None:
        self._raw = b""
        self.error: GatewayError | None = None

    @property
    def committed(self) -> bool:
        return bool(self._raw)

    def begin(self, headers: list[tuple[bytes, bytes]]) -> None:
        del headers

    def keep_alive(self) -> None:
        pass

    def write(self, raw: bytes) -> None:
        self._raw += raw

    def finish(self) -> None:
        assert b'"finish_reason":"' in self._raw, "a clean end of a short answer"

    def fail(self, error: GatewayError) -> None:
        self.error = error

    def text(self) -> str:
        datas = [line[6:] for line in self._raw.split(b"\n") if line.startswith(b"data: {")]
        deltas = [choice["delta"] for data in datas for choice in json.loads(data)["choices"]]
        return "".join(delta.get("content") or delta.get("refusal") or "" for delta in deltas)


def play(fault: Fault) -> Seen:
    """Send one streaming request and return its result."""
    return run_virtual(_play(fault))


async def _play(fault: Fault) -> Seen:
    loop = asyncio.get_running_loop()
    groups = [[each for each in (fault.first, fault.second) if each is not None]]
    groups += [[fault.fallback]] if fault.fallback is not None else []
    endpoints = [
        [_Counted(each, 1 if fault.alike else number) for number, each in enumerate(group, 1)] for group in groups
    ]
    names, prefills = iter("abcd"), CONTINUES if fault.prefills else frozenset()
    pools = [
        Pool(f"m/{number}", [Replica(next(names), endpoint, prefills=prefills) for endpoint in group], _OFF)
        for number, group in enumerate(endpoints)
    ]
    model = Model("m", pools, default_timeouts(), recovery=fault.recovery, recoverers=RECOVERERS)
    for _ in range(fault.warm):
        await _ask(model, loop)
    before = sum(each.calls for group in endpoints for each in group)
    seen = await _ask(model, loop)
    seen.calls = sum(each.calls for group in endpoints for each in group) - before
    return seen


async def _ask(model: Model, loop: asyncio.AbstractEventLoop) -> Seen:
    """Send one request and wait for its `RequestEnded`."""
    over = asyncio.Event()

    def emit(event: Event) -> None:
        if isinstance(event, RequestEnded):
            over.set()

    inbound = parse(Api.CHAT, body_of(stream=True), (), NumberLimits(16, 1000), frozenset())
    client = _Client()
    start_s = loop.time()
    caller = Caller("req_1", "key", start_s)
    Race(
        model, inbound.call, RequestFacts(), client, caller, Runtime(loop, emit, lambda: 0.0, TimerQueue(loop))
    ).start()
    await over.wait()
    return Seen(client.text(), client.error, loop.time() - start_s, 0)


_PROVIDERS = [
    *("openai", "azure", "anthropic", "groq", "fireworks", "openrouter", "gemini"),
    *("mistral", "together", "cerebras", "vllm"),  # which do not state a time
]
_SEVEN = "429:7s,openai always"
FAULTS: Sequence[Fault] = (
    Fault("none", ""),
    *(Fault("429 once for 2 s, single replica", f"429:2s,{name} once", None, form=name) for name in _PROVIDERS),
    *(Fault("429 always", f"429:7s,{name} always", form=name) for name in _PROVIDERS),
    Fault("429 always for 7 s, both replicas", _SEVEN, _SEVEN),
    Fault("429 for 7 s, both replicas, known from an earlier request", _SEVEN, _SEVEN, warm=1),
    Fault("429 always for 7 s, single replica, a fallback", _SEVEN, None, ""),
    Fault("500 once", "500 once"),
    Fault("500 once, single replica", "500 once", None),
    Fault("500 once, both replicas", "500 once", "500 once"),
    Fault("503 always", "503 always"),
    Fault("503 always, single replica, a fallback", "503 always", None, ""),
    Fault("503 always, both replicas", "503 always", "503 always"),
    Fault("connection refused", "refuse always"),
    Fault("the gateway is out of open files, with an idle connection to the other replica", _NO_FILE),
    Fault("the gateway is out of open files", _NO_FILE, _NO_FILE),
    Fault("reset once", "reset once"),
    Fault("accepted, then silence", "silence always"),
    Fault("accepted, then silence, single replica, a fallback", "silence always", None, ""),
    Fault("headers, then silence", "headers_silence always"),
    Fault("empty 200", "empty always"),
    Fault("[DONE] and nothing else", "done always"),
    Fault("200 with a JSON error", "json_error always"),
    Fault("200 with an error event first", "error_frame:0 always"),
    Fault("400, prompt too long", "context_length always"),
    Fault("400, prompt too long, a fallback accepts it", "context_length always", "context_length always", ""),
    Fault("400, content policy", "content_policy always"),
    Fault("the model refuses", "refusal always"),
    Fault("401 from one replica", "401 always"),
    Fault("401 from both replicas", "401 always", "401 always"),
    Fault("404, no such model, from one replica", "404 always"),
    Fault("403 with an HTML page from one replica", "html always"),
    Fault("403 with an HTML page from both replicas", "html always", "html always"),
    Fault("one malformed event", "malformed always"),
    Fault("no [DONE]", "no_done always"),
    Fault("cut after 40 of 60 tokens, replayed", "cut_rst:40 once"),
    Fault("cut after 40 of 60 tokens, continued", "cut_rst:40 once", prefills=True),
    Fault(
        "cut after 40 of 60 tokens, the other replica rejects the continuation",
        "cut_rst:40 once",
        "status:400 once",
        prefills=True,
    ),
    Fault("cut after 40 of 60 tokens, single replica, continued", "cut_rst:40 once", None, prefills=True),
    Fault("cut after 40 of 60 tokens, the other replica gives another answer", "cut_rst:40 once", alike=False),
    Fault("cut after 40 of 60 tokens, recovery off", "cut_rst:40 once", recovery=RecoveryMode.OFF),
    Fault("cut after 40 of 60 tokens, both replicas, continued", "cut_rst:40 once", "cut_rst:10 once", prefills=True),
    Fault("silent for 30 s after 40 of 60 tokens, continued", "stall:40,30s once", prefills=True),
    Fault("an error event after 40 of 60 tokens, continued", "error_frame:40 once", prefills=True),
    Fault("two malformed events, continued", "malformed:40+malformed:41 once", prefills=True),
    Fault("the body ends after 40 of 60 tokens, continued", "short:40 once", prefills=True),
)


def result(seen: Seen, whole: str) -> str:
    """The cells after a fault's name."""
    if seen.error is None:
        what = "the whole answer" if seen.text == whole else f"the refusal: {seen.text[:40]!r}"
    else:
        what = f"{seen.error.status} `{seen.error.code or seen.error.kind}`"
        if seen.error.retry_after_s is not None:
            what += f", retry after {seen.error.retry_after_s:g} s"
        if seen.text:
            what = f"part of the answer, then the error {what}"
    return f"{what} | {seen.after_s:.2f} s | {seen.calls} |"


def table() -> str:
    """The table as Markdown; forms of a fault with equal results share a row."""
    whole = play(FAULTS[0]).text
    rows: dict[tuple[str, str], list[str]] = {}
    for fault in FAULTS:
        rows.setdefault((fault.name, result(play(fault), whole)), []).append(fault.form)
    head = ["| fault of the first replica | the client sees | after | upstream calls |", "|---|---|---|---|"]
    lines = [
        f"| {name}{', in the form of ' * any(forms)}{', '.join(forms)} | {came}" for (name, came), forms in rows.items()
    ]
    return "\n".join([*head, *lines])


if __name__ == "__main__":
    sys.stdout.write(table() + "\n")
