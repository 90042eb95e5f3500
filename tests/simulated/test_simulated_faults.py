"""Faults of simulated replicas: the effect of each one on the script of a healthy response."""

import json

import pytest

from gateway.simulated.script import End, Framing, Script
from simulated_calls import answer_of, contents, play, replica_of


def kinds(script: Script) -> list[str]:
    """Return the kinds of the steps."""
    return [step.frame.kind.value for step in script.steps]


@pytest.mark.parametrize(
    ("fault", "expected", "end"),
    [
        ("error_frame", ["error"], End.COMPLETE),
        ("error_frame:2", ["content", "content", "error"], End.COMPLETE),
        ("error_event:1", ["content", "error"], End.COMPLETE),
        ("finish_error:1", ["content", "error"], End.COMPLETE),
        ("empty", [], End.COMPLETE),
        ("done", ["done"], End.COMPLETE),
        ("done:2", ["content", "content", "done"], End.COMPLETE),
        ("failed_event:2", ["content", "content", "error"], End.COMPLETE),
        ("cancelled_event", ["error"], End.COMPLETE),
        ("json_error", ["error"], End.COMPLETE),
        ("cut_rst:2", ["content", "content"], End.RST),
        ("cut_fin:99", ["content"] * 4, End.FIN),
        ("cut_chunked:0", [], End.FIN),
        ("cut_mid:1", ["content", "preamble"], End.FIN),
        ("short:1", ["content"], End.COMPLETE),
        ("reset", [], End.RST),
        ("silence", [], End.SILENCE),
        ("headers_silence", [], End.SILENCE),
        ("malformed:2", ["content", "content", "malformed", "content", "content", "finish", "done"], End.COMPLETE),
        ("no_done", ["content"] * 4 + ["finish"], End.COMPLETE),
        ("content_filter", ["refusal", "done"], End.COMPLETE),
        ("content_filter:1", ["content", "refusal", "done"], End.COMPLETE),
        ("refusal", ["refusal"] * 5 + ["finish", "done"], End.COMPLETE),
        ("pings", ["comment", "content"] * 4 + ["comment", "finish", "comment", "done"], End.COMPLETE),
        ("coalesce:3", ["content", "content"], End.COMPLETE),
    ],
)
def test_fault_changes_the_events(fault: str, expected: list[str], end: End) -> None:
    """A fault turns a response of four tokens into exactly these events and this end."""
    script = play(replica_of(), fault=fault, max_tokens=4)
    assert (kinds(script), script.end) == (expected, end)


@pytest.mark.parametrize(
    ("fault", "status", "code"),
    [
        ("429", 429, "rate_limit_exceeded"),
        ("500", 500, None),
        ("503", 503, None),
        ("401", 401, "invalid_api_key"),
        ("404", 404, "model_not_found"),
        ("status:418", 418, None),
        ("context_length", 400, "context_length_exceeded"),
        ("content_policy", 400, "content_policy_violation"),
        ("no_stream", 400, None),
        ("early_413", 413, "request_too_large"),
    ],
)
def test_error_status_comes_at_once(fault: str, status: int, code: str | None) -> None:
    """An error status takes no slot and no time, and its body has the right code."""
    script = play(replica_of(ttft="1s"), fault=fault)
    assert (script.status, script.slot, script.head_s, script.steps[0].at_s) == (status, False, None, 0.0)
    assert json.loads(script.steps[0].frame.raw)["error"]["code"] == code
    assert script.length == len(script.steps[0].frame.raw)


def test_retry_after_of_a_503_is_optional() -> None:
    """A 503 has a Retry-After when seconds are given."""
    assert (b"retry-after", b"2") in play(replica_of(), fault="503:2s").headers
    assert all(name != b"retry-after" for name, _ in play(replica_of(), fault="503").headers)


def test_stall_delays_what_follows() -> None:
    """After its events a stall moves the rest by its seconds."""
    script = play(replica_of(ttft="100ms", gap="10ms"), fault="stall:2,5s", max_tokens=3)
    assert contents(script) == pytest.approx([0.1, 0.11, 5.12])


BYTES_AS_THEY_WERE = ["split:7", "utf8", "coalesce:3", "length", "close", "chunk_extensions", "informational", "stall"]


@pytest.mark.parametrize("fault", BYTES_AS_THEY_WERE)
def test_faults_of_the_wire_keep_the_bytes(fault: str) -> None:
    """Faults of writes keep the bytes of the healthy response (with an accented first token for utf8)."""
    script = play(replica_of(), fault=fault)
    plain = play(replica_of(), fault="utf8+split:9999" if fault == "utf8" else "")
    assert b"".join(step.frame.raw for step in script.steps) == b"".join(step.frame.raw for step in plain.steps)


def test_split_cuts_at_many_places() -> None:
    """Splitting cuts each event into pieces of at most the size, in order of time; content is counted once."""
    script = play(replica_of(), fault="split:7", max_tokens=2)
    pieces = [step.frame.raw for step in script.steps]
    assert max(map(len, pieces)) <= 7
    assert len(set(map(len, pieces))) == 7
    assert len(contents(script)) == 2


def test_utf8_is_cut_inside_a_character() -> None:
    """No half of a cut event is valid UTF-8."""
    script = play(replica_of(), fault="utf8", max_tokens=1)
    with pytest.raises(UnicodeDecodeError):
        script.steps[0].frame.raw.decode()
    assert script.steps[1].at_s > script.steps[0].at_s


def test_big_event_has_the_size() -> None:
    """The first token can be a megabyte long."""
    script = play(replica_of(), fault="big", max_tokens=2)
    assert 2**20 < len(script.steps[0].frame.raw) < 2**20 + 500
    assert len(script.steps[1].frame.raw) < 500


def test_crlf_ends_every_line() -> None:
    """With CRLF framing no line ends otherwise, the prelude's neither."""
    script = play(replica_of(), fault="crlf")
    for frame in [*script.prelude, *(step.frame for step in script.steps)]:
        assert frame.raw.count(b"\n") == frame.raw.count(b"\r\n") == 2


def test_fields_add_id_and_retry_and_events_without_data() -> None:
    """Each event has the fields that break the OpenAI SDK."""
    raw = play(replica_of(), fault="fields").steps[0].frame.raw
    assert raw.startswith(b"retry: 2000\n\nid: 7\nretry: 3000\ndata: {")


def test_json_answer_to_a_stream() -> None:
    """A JSON response can replace a requested stream."""
    assert answer_of(play(replica_of(), fault="json_answer"))["choices"][0]["finish_reason"] == "stop"


def test_silence_has_no_length_of_what_came() -> None:
    """A response that stops after its head is not complete by its content-length."""
    assert play(replica_of(), fault="headers_silence+length").framing is Framing.CHUNKED


@pytest.mark.parametrize(("fault", "framing"), [("cut_fin", Framing.CLOSE), ("cut_chunked", Framing.CHUNKED)])
def test_cut_by_fin_looks_complete_only_without_chunks(fault: str, framing: Framing) -> None:
    """The end of the connection is the body's end in one case, and a missing last chunk in the other."""
    assert play(replica_of(), fault=fault).framing is framing


@pytest.mark.parametrize(
    ("fault", "framing", "end"),
    [
        ("cut_rst", Framing.LENGTH, End.RST),
        ("cut_mid", Framing.LENGTH, End.FIN),
        ("cut_chunked", Framing.CHUNKED, End.FIN),
        ("cut_fin", Framing.CLOSE, End.FIN),
    ],
)
def test_cut_of_a_json_answer_has_each_framing(fault: str, framing: Framing, end: End) -> None:
    """The length of a cut JSON response is stated, unknown until its last chunk, or never stated."""
    script = play(replica_of(), stream=False, fault=fault)
    assert (script.framing, script.end) == (framing, end)


@pytest.mark.parametrize("fault", ["cut_rst", "cut_fin", "cut_chunked", "cut_mid"])
def test_cut_json_answer_is_half(fault: str) -> None:
    """A cut JSON response has half of the bytes of its content-length."""
    whole = play(replica_of(), stream=False)
    half = play(replica_of(), stream=False, fault=fault)
    assert 2 * len(half.steps[0].frame.raw) <= half.length == whole.length
    assert half.end is not End.COMPLETE


@pytest.mark.parametrize(
    "fault",
    ["error_frame", "error_event", "finish_error", "failed_event:2", "json_error", "malformed", "empty", "done"],
)
def test_faults_of_events_apply_to_json(fault: str) -> None:
    """For JSON these faults give a body that is no completion, with the right length."""
    script = play(replica_of(), stream=False, fault=fault)
    raw = b"".join(step.frame.raw for step in script.steps)
    assert len(raw) == script.length
    assert b'"error"' in raw or raw[:1] != b"{"
