"""Answers of every generating API, streamed or as JSON, as one kind of record: `recovering.Read`.

The readers share no code with the gateway. Places of texts are `0.content`, `0.reasoning` and `0.tool.0.arguments`;
finishes have the names of chat completions. A refusal counts as content. An answer that no SDK could read raises
`Malformed`: an event out of order, an index that restarts, a text that differs from its sum at the end.
"""

import json
from collections.abc import Callable, Iterator, Mapping
from typing import Any, TypeVar

from recovering import Read, read
from ttft_gateway.apis.base import Api

T = TypeVar("T")
Json = Mapping[str, Any]

_STOPS = {
    "end_turn": "stop",
    "stop_sequence": "stop",
    "max_tokens": "length",
    "tool_use": "tool_calls",
    "refusal": "content_filter",
}
_REASONS = {"max_output_tokens": "length", "content_filter": "content_filter"}
_PLACES = {"text": "content", "refusal": "content", "reasoning_content": "reasoning"}
_DELTAS = {
    "response.output_text.delta": "content",
    "response.refusal.delta": "content",
    "response.reasoning_text.delta": "reasoning",
    "response.reasoning_summary_text.delta": "reasoning",
}
_CALL_DELTA = "response.function_call_arguments.delta"
_TERMINAL = ("response.completed", "response.incomplete", "response.failed", "response.cancelled")


class Malformed(Exception):
    """The answer is not one of its API."""


def read_stream(api: Api, body: bytes) -> Read:
    """Read a stream.

    Raises:
        Malformed: It is not a stream of the API.
    """
    return _guarded(_STREAMS.get(api, _chat_stream), body)


def read_document(api: Api, body: bytes) -> Read:
    """Read a JSON answer with status 200.

    Raises:
        Malformed: It is not an answer of the API.
    """
    return _guarded(lambda raw: _DOCUMENTS[api](json.loads(raw)), body)


def error_code(api: Api, body: bytes) -> str:
    """Return the code or the type of a JSON error in the form of the API.

    Raises:
        Malformed: It is no error of the API.
    """
    return _guarded(lambda raw: _error(api, json.loads(raw)), body)


def _guarded(reader: Callable[[bytes], T], body: bytes) -> T:
    try:
        return reader(body)
    except (ValueError, LookupError, TypeError, AttributeError, AssertionError) as error:
        raise Malformed(f"{type(error).__name__}: {error}") from error


def _add(texts: dict[str, str], place: str, text: str) -> None:
    if text:
        texts[place] = texts.get(place, "") + text


def _error(api: Api, value: Json) -> str:
    if api is Api.MESSAGES:
        assert value["type"] == "error", value
    error = value["error"]
    assert isinstance(error["message"], str)
    assert isinstance(error["type"], str)
    assert api is Api.MESSAGES or set(error) == {"message", "type", "param", "code"}, error
    return str(error.get("code") or error["type"])


def _events(body: bytes) -> Iterator[tuple[str, Any]]:
    """Yield the name and the JSON of each event with data; None is `[DONE]`."""
    for block in body.replace(b"\r\n", b"\n").split(b"\n\n"):
        fields = [line.partition(b": ") for line in block.split(b"\n")]
        data = b"\n".join(value for name, _, value in fields if name == b"data")
        if data:
            named = "".join(value.decode() for name, _, value in fields if name == b"event")
            yield named, None if data == b"[DONE]" else json.loads(data)


# chat completions and completions


def _chat_stream(body: bytes) -> Read:
    got = read(body)
    if got.error is not None:
        last = body.rstrip().rpartition(b"data: ")[2]
        _error(Api.CHAT, json.loads(last))
    got.texts = _canonical(got.texts)
    return got


def _canonical(texts: Mapping[str, str]) -> dict[str, str]:
    named: dict[str, str] = {}
    for place, text in texts.items():
        choice, _, name = place.partition(".")
        _add(named, f"{choice}.{_PLACES.get(name, name)}", text)
    return named


def _chat_document(answer: Json) -> Read:
    got = Read(heads={(answer["id"], answer["model"])}, dones=1)
    assert not answer.get("error")
    for choice in answer["choices"]:
        index, message = choice["index"], choice.get("message", {"role": "assistant", "content": choice.get("text")})
        got.roles[index] = got.roles.get(index, 0) + (message["role"] == "assistant")
        for name in ("content", "refusal", "reasoning_content"):
            _add(got.texts, f"{index}.{_PLACES.get(name, name)}", message.get(name) or "")
        for number, call in enumerate(message.get("tool_calls") or ()):
            _call(got, f"{index}.tool.{number}", call["id"], call["function"]["name"], call["function"]["arguments"])
        if choice["finish_reason"]:
            got.finishes.setdefault(index, []).append(choice["finish_reason"])
    return got


def _call(got: Read, place: str, ident: str, name: str, arguments: str) -> None:
    for key, text in (("id", ident), ("name", name), ("arguments", arguments)):
        _add(got.texts, f"{place}.{key}", text)


# Messages


def _message_stream(body: bytes) -> Read:
    got, blocks, calls, is_open = Read(), 0, 0, False
    for name, event in _events(body):
        kind = event["type"]
        assert (name or kind) == kind, (name, kind)
        if kind == "ping":
            continue
        assert not got.dones, f"{kind} after the end"
        assert got.error is None, f"{kind} after the error"
        if kind == "error":
            got.error = _error(Api.MESSAGES, event)
        elif kind == "message_start":
            _message_head(got, event["message"])
        elif kind == "content_block_start":
            assert not is_open
            assert event["index"] == blocks, "a block has the index of another one"
            is_open, blocks = True, blocks + 1
            block = event["content_block"]
            calls += block["type"] == "tool_use"
            _message_block(got, calls - 1, block)
        elif kind == "content_block_delta":
            assert is_open
            assert event["index"] == blocks - 1, "a delta of a block that is not open"
            _message_delta(got, calls - 1, event["delta"])
        elif kind == "content_block_stop":
            assert is_open
            assert event["index"] == blocks - 1
            is_open = False
        elif kind == "message_delta":
            _message_finish(got, event["delta"].get("stop_reason"))
        else:
            assert kind == "message_stop", kind
            assert not is_open or not got.finishes, "the message ends inside a block"
            got.dones += 1
    return got


def _message_head(got: Read, message: Json) -> None:
    assert (message["type"], message["role"]) == ("message", "assistant")
    got.roles[0] = got.roles.get(0, 0) + 1
    got.heads.add((message["id"], message["model"]))


def _message_block(got: Read, call: int, block: Json) -> None:
    """Add what the start of a block has, or a whole block of a JSON answer but for its input."""
    if block["type"] == "tool_use":
        _call(got, f"0.tool.{call}", block["id"], block["name"], "")
    elif block["type"] in ("text", "thinking"):
        _add(got.texts, "0.content" if block["type"] == "text" else "0.reasoning", block[block["type"]])


def _message_delta(got: Read, call: int, delta: Json) -> None:
    kind = delta["type"]
    if kind == "text_delta":
        _add(got.texts, "0.content", delta["text"])
    elif kind == "thinking_delta":
        _add(got.texts, "0.reasoning", delta["thinking"])
    elif kind == "input_json_delta":
        _add(got.texts, f"0.tool.{call}.arguments", delta["partial_json"])
    else:
        assert kind == "signature_delta", kind


def _message_finish(got: Read, reason: str | None) -> None:
    if reason:
        got.finishes.setdefault(0, []).append(_STOPS[reason])


def _message_document(message: Json) -> Read:
    got, calls = Read(dones=1), 0
    _message_head(got, message)
    for block in message["content"]:
        calls += block["type"] == "tool_use"
        _message_block(got, calls - 1, block)
        if block["type"] == "tool_use" and block["input"]:
            _add(got.texts, f"0.tool.{calls - 1}.arguments", json.dumps(block["input"], ensure_ascii=False))
    _message_finish(got, message["stop_reason"])
    return got


# Responses


def _response_stream(body: bytes) -> Read:
    got, parts, items, calls = Read(), dict[tuple[int, object], str](), 0, list[int]()
    for number, (name, event) in enumerate(_events(body)):
        if event is None:  # SDKs stop there
            got.dones += 1
            continue
        kind = event["type"]
        assert (name or kind) == kind, (name, kind)
        assert not got.dones, f"{kind} after the end"
        assert got.error is None or kind == "response.failed", f"{kind} after the error"
        assert event["sequence_number"] == number, "an event has the number of another one"
        place = (event.get("output_index", 0), event.get("content_index"))
        if kind == "error":
            problem = event.get("error") or event
            got.error = str(problem.get("code") or problem["message"])
        elif kind == "response.created":
            got.roles[0] = got.roles.get(0, 0) + 1
            got.heads.add((event["response"]["id"], event["response"]["model"]))
        elif kind == "response.output_item.added":
            assert place[0] == items, "an item has the index of another one"
            items, item = items + 1, event["item"]
            if item["type"] == "function_call":
                calls.append(place[0])
                _call(got, f"0.tool.{len(calls) - 1}", item["call_id"], item["name"], "")
        elif kind in _DELTAS or kind == _CALL_DELTA:
            assert place[0] == items - 1, "a delta of an item that is not open"
            target = _DELTAS.get(kind) or f"tool.{calls.index(place[0])}.arguments"
            _add(got.texts, f"0.{target}", event["delta"])
            parts[place] = parts.get(place, "") + event["delta"]
        elif kind.endswith((".output_text.done", ".refusal.done", ".reasoning_text.done", "_arguments.done")):
            whole = next(event[key] for key in ("text", "refusal", "arguments") if key in event)
            assert whole == parts.get(place, ""), "the text of a part is not the sum of its deltas"
        elif kind in _TERMINAL:
            _response_end(got, kind, event["response"])
    return got


def _response_end(got: Read, kind: str, response: Json) -> None:
    """Take the terminal event; its output must be what the deltas have added up to."""
    status = kind.rpartition(".")[2]
    assert response["status"] == status
    got.heads.add((response["id"], response["model"]))
    whole = _response_document(response)
    if status in ("failed", "cancelled"):
        got.error = whole.error
        return
    assert whole.texts == got.texts, "the output is not the sum of the deltas"
    got.finishes = whole.finishes
    got.dones += 1


def _response_document(response: Json) -> Read:
    assert response["object"] == "response"
    got = Read(heads={(response["id"], response["model"])}, roles={0: 1}, dones=1)
    calls, status = 0, response["status"]
    for item in response["output"]:
        if item["type"] == "function_call":
            _call(got, f"0.tool.{calls}", item["call_id"], item["name"], item["arguments"])
            calls += 1
            continue
        for part in (*item.get("summary", ()), *(item.get("content") or ())):
            name = "reasoning" if item["type"] == "reasoning" else "content"
            _add(got.texts, f"0.{name}", part.get("text") or part.get("refusal") or "")
    if status in ("failed", "cancelled"):
        got.dones, got.error = 0, str((response.get("error") or {}).get("code") or status)
    elif status == "incomplete":
        got.finishes[0] = [_REASONS[response["incomplete_details"]["reason"]]]
    elif status == "completed":
        got.finishes[0] = ["tool_calls" if calls else "stop"]
    return got


_STREAMS = {Api.MESSAGES: _message_stream, Api.RESPONSES: _response_stream}
_DOCUMENTS = {
    Api.CHAT: _chat_document,
    Api.COMPLETIONS: _chat_document,
    Api.MESSAGES: _message_document,
    Api.RESPONSES: _response_document,
}
