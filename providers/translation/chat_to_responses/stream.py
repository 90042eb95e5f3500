"""Translates the events of the Responses API to the chunks of a chat completion.

Deltas become chunks; a text that an upstream sends only in a done event, or an output that it sends only in the
terminal event, becomes chunks, too. The terminal event becomes
the finish_reason, the token counts and `[DONE]`. Pure.
"""

from collections.abc import Iterator, Mapping
from typing import Final

from ttft_gateway.apis.json_fields import dict_or_empty
from ttft_gateway.apis.openai.events import DONE_EVENT
from ttft_gateway.apis.responses.writer import CALL_FIELDS, events_of_answer
from ttft_gateway.apis.sse import data_of, object_in
from ttft_gateway.apis.tolerant_json import as_key, dumps

Fields = dict[str, object]

_TEXTS: Final[Mapping[str, tuple[str, str]]] = {  # event -> the delta's key, and where the done event has the text
    "response.output_text": ("content", "text"),
    "response.refusal": ("refusal", "refusal"),
    "response.reasoning_text": ("reasoning_content", "text"),
    "response.reasoning_summary_text": ("reasoning_content", "text"),
}
_ARGUMENTS: Final[Mapping[str, tuple[str, str]]] = {  # event -> the call's key, and its field
    "response.function_call_arguments": ("function", "arguments"),
    "response.custom_tool_call_input": ("custom", "input"),
}
_REASONS: Final = {"max_output_tokens": "length", "content_filter": "content_filter"}


class ChatChunksFromResponses:
    """The `providers.translation.base.Translator` of an answer for a client of chat completions.

    Args:
        with_usage: the client gets the chunk with token counts.
    """

    def __init__(self, *, with_usage: bool) -> None:
        self._with_usage = with_usage
        self._head: Fields = {"id": "chatcmpl-translated", "object": "chat.completion.chunk", "created": 0, "model": ""}
        self._started = False
        self._calls: dict[object, int] = {}  # output_index -> the call's number
        self._sent: set[tuple[object, ...]] = set()  # texts that came in deltas
        self._ended = False

    def read(self, event: bytes) -> bytes:
        value = None if self._ended else object_in(data_of(event))
        return b"".join(self._event(value)) if value is not None else b""

    def close(self) -> bytes:
        """See `Translator.close`: every complete answer has its terminal event."""
        return b""

    def _event(self, event: Fields) -> Iterator[bytes]:
        kind = str(event.get("type"))
        stem, _, last = kind.rpartition(".")
        if kind == "response.created":
            self._name(dict_or_empty(event.get("response")))
        elif stem in _TEXTS and last in ("delta", "done"):
            yield from self._text(stem, last, event)
        elif stem in _ARGUMENTS and last in ("delta", "done"):
            yield from self._arguments(stem, last, event)
        elif kind == "response.output_item.added":
            yield from self._begin_call(event)
        elif kind == "response.output_item.done":
            yield from self._end_call(event)
        elif kind in ("response.completed", "response.incomplete"):
            yield from self._end(dict_or_empty(event.get("response")))

    def _name(self, answer: Fields) -> None:
        ident = str(answer.get("id") or "translated").removeprefix("resp_")
        self._head |= {"id": f"chatcmpl-{ident}", "created": answer.get("created_at") or 0}
        self._head["model"] = answer.get("model") or ""

    def _text(self, stem: str, last: str, event: Fields) -> Iterator[bytes]:
        key, field = _TEXTS[stem]
        key_of_text = (stem, *(as_key(event.get(name)) for name in ("output_index", "content_index", "summary_index")))
        text = event.get("delta") if last == "delta" else event.get(field)
        if last == "done" and key_of_text in self._sent:
            return
        self._sent.add(key_of_text)
        if isinstance(text, str) and text:
            found = event.get("logprobs")
            logprobs = {"content": found, "refusal": None} if isinstance(found, list) and found else None
            yield self._chunk({key: text}, logprobs=logprobs)

    def _begin_call(self, event: Fields) -> Iterator[bytes]:
        item = dict_or_empty(event.get("item"))
        item_type = str(item.get("type"))
        if item_type not in CALL_FIELDS:
            return
        number = self._calls.setdefault(as_key(event.get("output_index")), len(self._calls))
        kind = "function" if item_type == "function_call" else "custom"
        field, _ = CALL_FIELDS[item_type]
        call = {"index": number, "id": item.get("call_id"), "type": kind, kind: {"name": item.get("name"), field: ""}}
        yield self._chunk({"tool_calls": [call]})

    def _arguments(self, stem: str, last: str, event: Fields) -> Iterator[bytes]:
        kind, field = _ARGUMENTS[stem]
        index = as_key(event.get("output_index"))
        more = event.get("delta") if last == "delta" else event.get(field)
        if last == "done" and (stem, index) in self._sent:
            return
        self._sent.add((stem, index))
        number = self._calls.get(index)
        if number is not None and isinstance(more, str) and more:
            yield self._chunk({"tool_calls": [{"index": number, kind: {field: more}}]})

    def _end_call(self, event: Fields) -> Iterator[bytes]:
        item = dict_or_empty(event.get("item"))
        field, name = CALL_FIELDS.get(str(item.get("type")), ("", ""))
        if field:
            if as_key(event.get("output_index")) not in self._calls:
                yield from self._begin_call(event)
            yield from self._arguments(f"response.{name}", "done", {**event, field: item.get(field)})

    def _end(self, answer: Fields) -> Iterator[bytes]:
        if not self._started:
            for each in events_of_answer(answer, ends=False):
                yield self.read(each)
        self._ended = True
        reason = _REASONS.get(str(dict_or_empty(answer.get("incomplete_details")).get("reason")))
        yield self._chunk({}, finish=reason or ("tool_calls" if self._calls else "stop"))
        usage = answer.get("usage")
        if self._with_usage and isinstance(usage, dict):
            yield _event({**self._head, "choices": [], "usage": _usage(usage)})
        yield DONE_EVENT

    def _chunk(self, delta: Fields, finish: str | None = None, logprobs: object = None) -> bytes:
        """Write one chunk; the first one has the role."""
        if not self._started:
            self._started = True
            delta = {"role": "assistant", "content": None if "content" not in delta else "", **delta}
        choice = {"index": 0, "delta": delta, "logprobs": logprobs, "finish_reason": finish}
        return _event({**self._head, "choices": [choice]})


def _usage(usage: Fields) -> Fields:
    read = dict_or_empty(usage.get("input_tokens_details"))
    return {
        "prompt_tokens": usage.get("input_tokens"),
        "completion_tokens": usage.get("output_tokens"),
        "total_tokens": usage.get("total_tokens"),
        "prompt_tokens_details": {name: read.get(name) or 0 for name in ("cached_tokens", "cache_write_tokens")},
        "completion_tokens_details": {
            "reasoning_tokens": dict_or_empty(usage.get("output_tokens_details")).get("reasoning_tokens") or 0
        },
    }


def _event(chunk: Fields) -> bytes:
    return b"data: %s\n\n" % dumps(chunk)
