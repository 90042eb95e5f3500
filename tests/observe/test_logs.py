"""Fields of a log line, one line each, written without waiting for a reader."""

import re
from datetime import UTC, datetime
from typing import get_args

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from checkout import ROOT
from gateway.events import (
    AttemptFailed,
    BreakerChanged,
    ComponentFailed,
    Event,
    HedgeDenied,
    HedgeFired,
    ParamsDropped,
    PreviousKeyUsed,
    RecoveryKind,
    RecoveryReport,
    RecoveryResult,
    RequestEnded,
    RequestPassed,
    RequestRejected,
)
from gateway.observe.logs import AttemptLine, RecoveryLine, RequestLine, RequestLog, loss_line
from gateway.process_events import (
    AcceptingChanged,
    ConfigReloaded,
    CredentialChanged,
    DiscoveryChanged,
    HealthChanged,
    HedgingMeasured,
    HedgingSwitched,
    KeysChanged,
    LearnedFileFailed,
    LearnedRestored,
    ReplicasFound,
    ReplicaSwitched,
    ShareAway,
    ShareBack,
    StateDropped,
    WorkerChanged,
)
from gateway.traces import Trace
from sample_events import BACKUP, HEDGED, LOSER, PRIMARY, REJECTED, REQUEST
from ttft_gateway.apis.base import Usage
from ttft_gateway.hedging.charges import Charge
from ttft_gateway.hedging.outcomes import Denial, GuardCause, Outcome

NOW = datetime(2026, 3, 1, 12, 30, 15, 250_000, tzinfo=UTC)
RARE: list[Event] = [
    HealthChanged(1.0, "degraded", "replica a of llama is slow", ("TtftReplicaSlow",)),
    RequestRejected(1.0, "r-2", "team-a", 404, "model_not_found"),
    RequestPassed(1.0, "r-3", "team-a", "llama", "files", "POST", 502, "upstream_cut", "a", 1.5),
    HedgeFired(1.0, "r-2", "llama", "a", "b", 0.25),
    HedgeDenied(1.0, "r-2", "llama", Denial.BUDGET, 0.25),
    AttemptFailed(1.0, "r-2", "llama", "a", Outcome.FAILED, "connect", None),
    BreakerChanged(1.0, "llama", "a", "open"),
    HedgingSwitched(1.0, None, on=False),
    ReplicaSwitched(1.0, "llama", "a", out=True),
    ReplicasFound(1.0, "llama", "llama", "dns vllm:8000", ("10.0.0.3:8000",), ("10.0.0.1:8000",), 2),
    DiscoveryChanged(1.0, "llama", "llama", "dns vllm:8000", 2, "the answer is empty"),
    KeysChanged(1.0, "keys.jsonl", 100, 2, 1),
    ConfigReloaded(1.0, 1, 2, 0, "no"),
    CredentialChanged(1.0, "command token", 297.5, "the program token ended with code 1"),
    LearnedRestored(1.0, "learned.json", 12.5, 1, 0),
    LearnedFileFailed(1.0, "learned.json", "the file is damaged"),
    ComponentFailed(1.0, "plan", "ValueError"),
    AcceptingChanged(1.0, "127.0.0.1:8080", accepting=False, error="Too many open files"),
    ParamsDropped(1.0, "llama", "a", ("seed", "logit_bias")),
    WorkerChanged(1.0, 2, 4211, ready=False, reason="was ended by SIGKILL"),
    ShareAway(1.0, 4, "share", 0.225, "no reply"),
    ShareBack(1.0, 4, 2.5),
    StateDropped(1.0, "share", "the loads of a in llama", "Expected `float` <= 100000.0 - at `$[0]`"),
    HedgingMeasured(1.0, "llama", 5.0, 9000, 500, 50, (40.0, 30.0, 55.0), None, None, None, 9000, 0.5, None),
]
DOCS = (ROOT / "docs" / "logs.md").read_text(encoding="utf-8")


class Lines:
    """A log and what it wrote."""

    def __init__(self, *, text: bool = False) -> None:
        self.batches: list[bytes] = []
        self.log = RequestLog(self.batches.append, lambda: NOW.timestamp() - REQUEST.at_s, text=text)

    @property
    def written(self) -> list[bytes]:
        """Every line so far."""
        return b"".join(self.batches).splitlines(keepends=True)

    def of(self, *events: Event) -> list[dict[str, object]]:
        """Every line so far as JSON, after these events."""
        self.log.on_events(events)
        return [msgspec.json.decode(line) for line in self.written]


def test_request_line() -> None:
    """A request's line has its caller, each attempt and its reason, in milliseconds, without absent values."""
    usage = {"prompt_tokens": 100, "completion_tokens": 11, "cached_tokens": 40, "reasoning_tokens": 5}
    (line,) = Lines().of(replace(HEDGED, denials=(Denial.QUOTA,)))
    assert line == {
        "time": "2026-03-01T12:30:15.250000Z",
        "level": "info",
        "event": "request",
        "request_id": "r-1",
        "key": "team-a",
        "model": "llama",
        "api": "chat/completions",
        "stream": True,
        "status": 200,
        "result": "backup_won",
        "total_ms": 1200.0,
        "gateway_ms": 0.2,
        "events": 11,
        "ttft_ms": 300.0,
        "winner": "b",
        "denials": ["quota"],
        "usage": usage,
        "attempts": [
            {
                "replica": "a",
                "role": "primary",
                "reason": "first choice",
                "outcome": "lost",
                "start_ms": 0.0,
                "end_ms": 300.0,
                "ttfb_ms": 10.0,
                "status": 200,
                "expected_ms": 180.0,
                "hedge_after_ms": 250.0,
                "charge": {"disposition": "loser", "billed": "used", "prompt_tokens": 90, "estimated": True},
            },
            {
                "replica": "b",
                "role": "backup",
                "reason": "a had no token after 250 ms",
                "outcome": "finished",
                "start_ms": 250.0,
                "end_ms": 1200.0,
                "ttfb_ms": 10.0,
                "ttft_ms": 50.0,
                "status": 200,
                "upstream_request_id": "req-1",
                "usage": usage,
                "expected_ms": 180.0,
            },
        ],
    }


def test_costs_are_logged_where_prices_are_known() -> None:
    """With prices each attempt's line has its cost, and the request's what the winner and the losers cost."""
    loser = replace(LOSER, charge=replace(LOSER.charge, cost=0.25))
    backup = replace(BACKUP, charge=replace(BACKUP.charge, cost=0.5))
    (line,) = Lines().of(replace(HEDGED, attempts=(loser, backup)))
    assert line["cost"] == {"loser": 0.25, "winner": 0.5}
    assert isinstance(line["attempts"], list)
    assert [attempt["charge"]["cost"] for attempt in line["attempts"]] == [0.25, 0.5]
    text = Lines(text=True)
    text.log.on_events([replace(HEDGED, attempts=(loser, backup))])
    assert b" loser=0.25 winner=0.5 | a " in text.written[0]


def test_text_line() -> None:
    """On a terminal the same is one line for people."""
    lines = Lines(text=True)
    lines.log.on_events([replace(HEDGED, denials=(Denial.QUOTA,), error="cut", status=502)])
    lines.log.on_events([BreakerChanged(REQUEST.at_s, "llama", "a", "open")])
    request, breaker = lines.written
    assert request == (
        b"2026-03-01 12:30:15.250 error 502 llama backup_won 1200ms ttft=300ms key=team-a id=r-1 error=cut denied=quota"
        b" | a primary lost expected=180ms hedge_after=250ms 300ms (first choice)"
        b" | b backup finished ttft=50ms expected=180ms 1200ms (a had no token after 250 ms)\n"
    )
    assert breaker == b"2026-03-01 12:30:15.250 warning breaker_changed model=llama replica=a state=open\n"


def test_a_request_that_could_not_be_hedged_has_the_reason() -> None:
    """If no hedge timer was set, the line has the reason, as JSON and as text."""
    alone = replace(REQUEST, never_hedged=Denial.ONE_REPLICA)
    assert Lines().of(alone)[0]["never_hedged"] == "one_replica"
    lines = Lines(text=True)
    lines.log.on_events([alone])
    assert b" never_hedged=one_replica " in lines.written[0]


def test_recoveries() -> None:
    """A recovered stream's line has the method, the replica, the tokens before, the gap, and the tokens paid twice."""
    report = RecoveryReport(RecoveryKind.REPLAY, RecoveryResult.RECOVERED, "b", 40, 0.75, 140)
    (line,) = Lines().of(replace(REQUEST, recoveries=(report,)))
    assert line["recoveries"] == [
        {
            "kind": "replay",
            "result": "recovered",
            "replica": "b",
            "after_tokens": 40,
            "gap_ms": 750.0,
            "tokens_again": 140,
        }
    ]
    lines = Lines(text=True)
    lines.log.on_events([replace(REQUEST, recoveries=(report,))])
    assert b" recovery=replay:recovered (after 40 tokens, gap 750ms) |" in lines.written[0]


def test_guards() -> None:
    """The line of a guard has its cause, as JSON and as text."""
    report = RecoveryReport(RecoveryKind.CONTINUE, RecoveryResult.RECOVERED, "b", 40, 1.5, 140, GuardCause.SILENT)
    (line,) = Lines().of(replace(REQUEST, recoveries=(report,)))
    assert "'guard': 'silent'" in str(line["recoveries"])
    lines = Lines(text=True)
    lines.log.on_events([replace(REQUEST, recoveries=(report,))])
    assert b" silent_guard=continue:recovered (after 40 tokens, gap 1500ms) |" in lines.written[0]


@pytest.mark.parametrize(
    ("status", "level"), [(200, "info"), (404, "info"), (499, "info"), (429, "warning"), (502, "error")]
)
def test_level(status: int, level: str) -> None:
    """A failure on our side is an error, a rate limit a warning, a caller's own error neither."""
    assert Lines().of(replace(REQUEST, status=status))[0]["level"] == level


def test_rare_events() -> None:
    """Every other event has a line of its own, but for those that the request's line or a metric sums up."""
    assert {type(event) for event in RARE} | {RequestEnded, PreviousKeyUsed} == set(get_args(Event))
    named = [(line["level"], line["event"]) for line in Lines().of(*RARE)]
    assert named == [
        ("warning", "health_changed"),
        ("info", "request_rejected"),
        ("info", "request_passed"),
        ("warning", "breaker_changed"),
        ("warning", "hedging_switched"),
        ("warning", "replica_switched"),
        ("info", "replicas_found"),
        ("warning", "discovery_changed"),
        ("warning", "keys_changed"),
        ("warning", "config_reloaded"),
        ("warning", "credential_changed"),
        ("info", "learned_restored"),
        ("warning", "learned_file_failed"),
        ("error", "component_failed"),
        ("warning", "accepting_changed"),
        ("warning", "params_dropped"),
        ("warning", "worker_changed"),
        ("warning", "share_away"),
        ("warning", "share_back"),
        ("warning", "state_dropped"),
        ("info", "hedging_measured"),
    ]


def test_a_failing_component_is_logged_once_a_minute() -> None:
    """A part that fails for every request costs one line a minute, with the number of failures in between."""
    failures = [ComponentFailed(float(second), "plan", "ValueError") for second in range(130)]
    lines = Lines().of(*failures, ComponentFailed(130.0, "routing", "KeyError"))
    assert [(line["component"], line["more"]) for line in lines] == [
        ("plan", 0),
        ("plan", 59),
        ("plan", 59),
        ("routing", 0),
    ]


def test_the_line_of_lost_lines() -> None:
    """The number of lost lines is a line of its own, as JSON and as text."""
    assert msgspec.json.decode(loss_line(3, NOW, text=False))["lines"] == 3
    assert loss_line(3, NOW, text=True) == b"2026-03-01 12:30:15.250 warning lines_lost lines=3\n"


def test_a_target_is_logged() -> None:
    """A request with a TTFT target has it in its line, as JSON and as text."""
    (line,) = Lines().of(replace(REQUEST, ttft_target_s=2.5))
    assert line["ttft_target_ms"] == 2500.0
    text = Lines(text=True)
    text.log.on_events([replace(REQUEST, ttft_target_s=2.5)])
    assert b" ttft=200ms ttft_target=2500ms key=" in text.written[0]


def test_a_trace_id_is_in_every_line_of_its_request() -> None:
    """The trace of the caller is in the line of a request and of a rejection, as JSON and as text."""
    events = (replace(REQUEST, trace_id="ab" * 16), replace(REJECTED, trace_id="ab" * 16))
    lines = Lines().of(*events)
    assert [line["trace_id"] for line in lines] == ["ab" * 16] * 2
    assert not any("span_id" in line for line in lines)


@pytest.mark.parametrize("sampled", [True, False])
def test_an_exported_span_is_in_every_line_of_its_request(*, sampled: bool) -> None:
    """The id of the request's span is in the line if the trace is exported, as JSON and as text."""
    trace = Trace("ab" * 16, "cd" * 8, None, sampled=sampled)
    events = (replace(REQUEST, trace_id="ab" * 16, trace=trace), replace(REJECTED, trace_id="ab" * 16, trace=trace))
    lines = Lines().of(*events)
    assert [line.get("span_id") for line in lines] == ["cd" * 8 if sampled else None] * 2
    assert all("trace" not in line for line in lines)
    text = Lines(text=True)
    text.log.on_events(events)
    assert [b"cd" * 8 in line for line in text.written] == [sampled] * 2
    text = Lines(text=True)
    text.log.on_events(events)
    assert [b"ab" * 16 in line for line in text.written] == [True, True]


AWKWARD = st.text() | st.text("\n\r\x00\x1b\x7f\x85\u2028\u2029\u202e\u061c\u2066ab\\")


@given(AWKWARD, AWKWARD, AWKWARD)
def test_nothing_breaks_a_line(upstream_id: str, error: str, model: str) -> None:
    """For any value, the line stays one line, controls no terminal, and its JSON decodes to the value."""
    attempt = replace(PRIMARY, upstream_request_id=upstream_id, error=error)
    event = replace(REQUEST, model=model, error=error, attempts=(attempt,))
    for text in (False, True):
        lines = Lines(text=text)
        lines.log.on_events([event])
        (line,) = lines.written
        assert line.endswith(b"\n")
        assert len(line.decode().splitlines()) == 1
        assert not re.search("[\x00-\x09\x0b-\x1f\x7f-\x9f\u2028-\u202e]", line.decode())
        if not text:
            found = msgspec.json.decode(line)
            assert (found["model"], found["attempts"][0]["upstream_request_id"]) == (model, upstream_id[:200])


_TOKEN = re.compile(
    r'(?:(?P<name>[a-z_]+)=)?(?:"(?P<quoted>(?:[^"\\]|\\.)*)"|(?P<plain>[^\s"=\\|()]+))|(?P<bar>\|)'
    r'|\((?:"(?P<quoted_remark>(?:[^"\\]|\\.)*)"|(?P<remark>[^"=\\()]+))\)'
)
FORGING = (
    AWKWARD | st.text('a ="\\|()\n\t{}:,') | st.sampled_from(["x never_hedged=quota", "a (b)", "| b won", "", "="])
)


def _tokens(line: bytes) -> list[tuple[str, str]]:
    """Read a text line back: name and value of each field; "" for a word, "|" and "()" for bars and remarks."""
    found, at, text = [], 0, line.decode().removesuffix("\n")
    while at < len(text):
        token = _TOKEN.match(text, at)
        assert token is not None, text[at:]
        quoted = token["quoted"] if token["quoted"] is not None else token["quoted_remark"]
        value = token["plain"] or token["remark"] or "" if quoted is None else msgspec.json.decode(f'"{quoted}"')
        kind = "|" if token["bar"] else "()" if token[0].startswith("(") else token["name"] or ""
        found.append((kind, value))
        assert text[token.end() : token.end() + 1] in (" ", "")
        at = token.end() + 1
    return found


@given(FORGING, FORGING, FORGING, FORGING)
def test_text_is_read_back(error: str, model: str, replica: str, reason: str) -> None:
    """Every value of a text line can be read back, and none adds a word or a field."""
    attempt = replace(PRIMARY, replica=replica, error=error, reason=reason)
    event = replace(REQUEST, model=model, key_name=model, error=error, denied_why=reason, attempts=(attempt,))
    plain_attempt = replace(PRIMARY, replica="r", error="e", reason="w")
    plain = replace(REQUEST, model="m", key_name="m", error="e", denied_why="w", attempts=(plain_attempt,))
    lines = Lines(text=True)
    lines.log.on_events([event, plain, BreakerChanged(REQUEST.at_s, model, replica, reason)])
    cut = {"e": error[:200], "m": model, "r": replica, "w": reason}
    found, wanted, breaker = map(_tokens, lines.written)
    free = {"error", "key", "()", ""}
    whole = iter([error[:200], error])  # of the request, and of the attempt, which is not cut here
    expected = [
        (kind, next(whole) if kind == "error" else cut.get(value, value) if kind in free else value)
        for kind, value in wanted
    ]
    assert found == expected
    assert breaker[4:] == [("model", model), ("replica", replica), ("state", reason)]


def test_upstream_words_are_cut() -> None:
    """An upstream cannot fill the log with an endless id or error code."""
    attempt = replace(PRIMARY, upstream_request_id="i" * 10_000)
    lines = Lines()
    lines.log.on_events([replace(REQUEST, error="e" * 10_000, attempts=(attempt,))])
    assert len(lines.written[0]) < 1500


def test_every_field_is_documented() -> None:
    """docs/logs.md has a row for each field and each event."""
    documented = set(re.findall(r"^\| `(\w+)` \|", DOCS, re.MULTILINE))
    fields = {*RequestLine.__struct_fields__, *AttemptLine.__struct_fields__, *Charge.__struct_fields__}
    fields |= {*RecoveryLine.__struct_fields__, *Usage.__struct_fields__}
    names = {"request", "lines_lost", *(str(line["event"]) for line in Lines().of(*RARE))}
    names |= {"hedge_fired", "hedge_denied", "attempt_failed", "previous_key_used"}  # only followed live
    assert fields | names <= documented
