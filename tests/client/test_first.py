"""Finds the first event in a body, in pieces of any size, compressed or not, for each API."""

import errno
import json
import zlib
from typing import Any

import pytest

from checkout import DOCS
from ttft_gateway.client.asked import Asked, ask
from ttft_gateway.client.config import HedgeConfig
from ttft_gateway.client.first import HELD_MAX, Verdict, detector, failure_by, failure_of, is_error
from ttft_gateway.client.hedger import Failure
from ttft_gateway.client.rules import Rules
from ttft_gateway.hedging.outcomes import Outcome

ROWS: list[dict[str, Any]] = json.loads((DOCS / "first-token-vectors.json").read_text(encoding="utf-8"))
RULES = Rules(HedgeConfig())
FIRST, ERROR = ("content", "refusal"), ("error",)
BODIES = {
    "chat": ("chat/completions", '{"model":"m","messages":[{"role":"user","content":"a"}],"stream":true}'),
    "completions": ("completions", '{"model":"m","prompt":"a","stream":true}'),
    "responses": ("responses", '{"model":"m","input":"a","stream":true}'),
    "messages": (
        "messages",
        '{"model":"m","messages":[{"role":"user","content":"a"}],"max_tokens":9,"stream":true}',
    ),
}
EVENTS = [(b"content-type", b"text/event-stream")]


def _asked(api: str) -> Asked:
    path, body = BODIES[api]
    return ask("POST", "http://host:1", f"/v1/{path}".encode(), (), body.encode(), 0.5, RULES)


@pytest.mark.parametrize("row", ROWS, ids=lambda row: f"{row['server']}: {row['what']}")
def test_events_of_real_servers(row: dict[str, Any]) -> None:
    """The event that ends a race is the gateway's first token, for each recorded event."""
    finder = detector(_asked(row.get("api", "chat")), "content", EVENTS)
    assert finder is not None
    expected = Verdict.FIRST if row["kind"] in FIRST else Verdict.ERROR if row["kind"] in ERROR else Verdict.WAIT
    verdicts = [finder(bytes([byte])) for byte in row["event"].encode()]
    assert next((each for each in verdicts if each is not Verdict.WAIT), Verdict.WAIT) is expected


@pytest.mark.parametrize(
    ("choice", "rest", "verdict"),
    [
        ('{"index":0,"delta":{"role":"assistant"}}', "", Verdict.WAIT),
        ('{"index":0,"delta":{"role":"assistant","content":"","refusal":null},"finish_reason":null}', "", Verdict.WAIT),
        ('{"index":0,"delta":{"role":"assistant","content":"a"}}', "", Verdict.FIRST),
        ('{"index":0,"delta":{"content":"\\n"}}', "", Verdict.FIRST),
        ('{"index":0,"delta":{"content":""}}', "", Verdict.WAIT),
        ('{"index":0,"delta":{"role":"assistant","content":"","tool_calls":[{"index":0}]}}', "", Verdict.FIRST),
        ('{"index":0,"delta":{"role":"assistant"}},{"index":1,"delta":{"content":"a"}}', "", Verdict.FIRST),
        ('{"index":0,"delta":{"content":"a"},"finish_reason":"error"}', "", Verdict.ERROR),
        ('{"index":0,"delta":{"content":"a"},"finish_reason":"abort"}', "", Verdict.ERROR),
        ('{"index":0,"delta":{"role":"assistant","content":""}}', ',"error":{"message":"x"}', Verdict.ERROR),
        ('{"index":0,"delta":{"content":"a"}}', ',"error":{"message":"x"}', Verdict.ERROR),
        ('{"index":0,"delta":{"role":"assistant"}}', '}\n\ndata: {"error":{"message":"x"}', Verdict.ERROR),
    ],
)
def test_usual_events_are_not_mistaken(choice: str, rest: str, verdict: Verdict) -> None:
    """An event that begins as most do is read further where its other fields or events decide."""
    finder = detector(_asked("chat"), "content", EVENTS)
    assert finder is not None
    assert finder(f'data: {{"id":"c","choices":[{choice}]{rest}}}\n\n'.encode()) is verdict


@pytest.mark.parametrize("coding", ["gzip", "deflate"])
def test_a_compressed_stream_is_read(coding: str) -> None:
    """A stream that is compressed is decompressed for the search alone."""
    pack = zlib.compressobj(wbits=31 if coding == "gzip" else 15)
    finder = detector(_asked("chat"), "content", [*EVENTS, (b"Content-Encoding", coding.encode())])
    assert finder is not None
    verdicts = []
    for delta in ("{}", '{"content":"a"}'):
        event = b'data: {"choices":[{"index":0,"delta":%b}]}\n\n' % delta.encode()
        verdicts.append(finder(pack.compress(event) + pack.flush(zlib.Z_SYNC_FLUSH)))
    assert verdicts == [Verdict.WAIT, Verdict.FIRST]


@pytest.mark.parametrize(
    "headers",
    [
        [*EVENTS, (b"content-encoding", b"br")],
        [*EVENTS, (b"content-encoding", b"gzip")],
        [(b"content-type", b"application/json")],
    ],
)
def test_a_body_of_unknown_form_wins_with_its_first_byte(headers: list[tuple[bytes, bytes]]) -> None:
    """What cannot be read is passed on: a client library withholds no answer."""
    finder = detector(_asked("chat"), "content", headers)
    assert finder is not None
    assert finder(b"\x00 no events") is Verdict.FIRST


def test_an_event_without_an_end_is_passed_on() -> None:
    """An event that is too long for the search counts as content."""
    finder = detector(_asked("chat"), "content", EVENTS)
    assert finder is not None
    verdicts = {finder(b"data: " + b"x" * HELD_MAX) for _ in range(5)}
    assert verdicts == {Verdict.WAIT, Verdict.FIRST}


def test_errors_are_classified() -> None:
    """Statuses and exceptions get the gateway's outcomes."""
    chat, get = _asked("chat"), ask("GET", "http://host:1", b"/", (), b"", 0.5, RULES)
    assert [is_error(chat, status) for status in (200, 404, 500)] == [False, True, True]
    assert [is_error(get, status) for status in (200, 404, 429, 503)] == [False, False, True, True]
    failure = failure_of(429, [(b"Retry-After", b"7")])
    assert (failure.outcome, failure.retry_after_s) == (Outcome.RATE_LIMITED, 7.0)
    assert failure_of(401, []).outcome is Outcome.MISCONFIGURED
    assert failure_of(502, []).outcome is Outcome.FAILED
    for name, outcome in (("ConnectError", Outcome.FAILED), ("PoolTimeout", Outcome.CLIENT_GONE)):
        assert failure_by(type(name, (Exception,), {})()).outcome is outcome
    not_connected = type("ConnectError", (Exception,), {})()
    not_connected.__cause__ = OSError(errno.EMFILE, "Too many open files")
    assert failure_by(not_connected) == Failure(Outcome.OUT_OF_RESOURCES, error="connect")
    not_connected.__cause__ = OSError(errno.ECONNREFUSED, "Connection refused")
    assert failure_by(not_connected) == Failure(Outcome.FAILED, error="connect")
    timed_out = type("TimeoutException", (Exception,), {})
    assert failure_by(type("ReadTimeout", (timed_out,), {})()).outcome is Outcome.TTFT_TIMEOUT
