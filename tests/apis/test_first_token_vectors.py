"""docs/first-token-vectors.json against the readers: the kind of each event of real servers.

Fields of a row; all but the first four are optional:

- server: a kind of the catalogue, or another server with its API.
- what: the event in a few words.
- kind: the expected `FrameKind`: "preamble", "comment", "content", "usage", "finish", "error" and so on.
- event: the bytes of the event as text, with the empty line at its end.
- api: "chat" (the default), "completions", "responses" or "messages".
- include_usage: true if the request sets `stream_options.include_usage`.
- phase: the expected `Phase`: "reasoning" or "tool call"; none by default.
- forward: the bytes that the client gets; by default the event's.
- usage: the fields of `Usage` in their order; none by default.
- answer: the expected kind with `first_token: answer`; by default `kind`.
- error: expected attributes of the error of a row of kind "error".
- unknown: keys that the reader reports as unknown.
"""

import json
from collections.abc import Mapping
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from checkout import DOCS
from openai_calls import call_of
from providers.anthropic.protocol import AnthropicMessages
from providers.openai.chat import OpenAIChat, OpenAICompletions
from providers.responses.protocol import OpenAIResponses
from ttft_gateway.apis.base import FIRST_CONTENT, Api, EventReader, FirstToken, FrameKind, Usage
from ttft_gateway.apis.catalog import CATALOG
from ttft_gateway.apis.openai.events import has_output

FILE = DOCS / "first-token-vectors.json"
ROWS: list[dict[str, Any]] = json.loads(FILE.read_text(encoding="utf-8"))
SERVERS = {*CATALOG} - {"compatible", "simulated"}  # these two are no server of their own
APIS: Mapping[str, Api] = {
    "chat": Api.CHAT,
    "completions": Api.COMPLETIONS,
    "responses": Api.RESPONSES,
    "messages": Api.MESSAGES,
}


def _reader(row: Mapping[str, Any], first_token: FirstToken = "any") -> EventReader:
    api = APIS[row.get("api", "chat")]
    options = {"include_usage": row.get("include_usage", False)}
    call = call_of({"model": "m", "stream": True, "stream_options": options}, api)
    if api is Api.CHAT:
        return OpenAIChat(first_token=first_token).reader(call)
    if api is Api.MESSAGES:
        return AnthropicMessages(first_token=first_token).reader(call)
    if api is Api.RESPONSES:
        return OpenAIResponses(first_token=first_token).reader(call)
    return OpenAICompletions().reader(call)


@pytest.mark.parametrize("row", ROWS, ids=lambda row: f"{row['server']}: {row['what']}")
def test_events_of_real_servers(row: dict[str, Any]) -> None:
    """Every event of the table is classified as in the table."""
    reader, raw = _reader(row), row["event"].encode()
    frame = reader.read(raw)
    assert frame.kind.value == row["kind"]
    assert frame.raw.decode() == row.get("forward", row["event"])
    assert (None if frame.phase is None else frame.phase.value) == row.get("phase")
    usage = frame.usage and msgspec.structs.replace(frame.usage, hidden_reasoning=False, tier=None)
    assert usage == (Usage(*row["usage"]) if "usage" in row else None)
    assert sorted(getattr(reader, "unknown_keys", ())) == row.get("unknown", [])
    error = frame.error
    assert (error is not None) == (frame.kind is FrameKind.ERROR)
    for name, value in {"status": None, **row.get("error", {})}.items():
        assert getattr(error, name, None) == value
    if row.get("api") != "completions":
        assert _reader(row, "answer").read(raw).kind.value == row.get("answer", row["kind"])


def test_the_table_is_complete() -> None:
    """Every kind of frame, every API and every server of the catalogue's families has rows."""
    assert {kind.value for kind in FrameKind} == {row["kind"] for row in ROWS}
    missing = {*SERVERS, "transformers"} - {row["server"] for row in ROWS}
    assert not missing, f"add events of {missing} to docs/first-token-vectors.json"
    assert len({row["event"] + row.get("api", "") for row in ROWS}) == len(ROWS)
    for api in APIS:
        assert len([row for row in ROWS if row.get("api", "chat") == api]) >= 5


@given(
    row=st.sampled_from(ROWS),
    noise=st.none() | st.binary(max_size=80),
    at=st.integers(0, 600),
    drop=st.integers(0, 3),
    piece=st.binary(max_size=3),
)
def test_no_bytes_break_a_reader(row: dict[str, Any], noise: bytes | None, at: int, drop: int, piece: bytes) -> None:
    """All bytes of an upstream, damaged or not, are classified and never raise; `has_output` agrees with the reader."""
    raw = row["event"].encode() if noise is None else noise
    at %= len(raw) + 1
    for each in (raw, raw[:at] + b"\n\n", raw[:at] + piece + raw[at + drop :]):
        frame = _reader(row).read(each)
        assert (frame.error is not None) == (frame.kind is FrameKind.ERROR)
        if APIS[row.get("api", "chat")] in {Api.CHAT, Api.COMPLETIONS}:
            found = has_output(each)
            assert found is None or (found is (frame.kind in FIRST_CONTENT) and frame.kind is not FrameKind.ERROR)
