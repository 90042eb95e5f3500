"""Translates the chunks of a chat completion to the events of the Responses API.

Chunks only add text; events also mark where each item begins and ends: one item is open at a time (reasoning, message
or tool call), and the start of another item closes it. The response object repeats the request's fields, as OpenAI's
does, and has `store: false`, because the answer is not stored. Pure.
"""

from collections.abc import Iterator, Mapping
from typing import Final

from providers.translation.base import REASONING
from providers.translation.responses_to_chat.tool_groups import groups_by_name
from ttft_gateway.apis.errors import ProtocolError
from ttft_gateway.apis.json_fields import dict_or_empty, list_or_empty
from ttft_gateway.apis.json_values import ITEMS_MAX
from ttft_gateway.apis.openai.events import finish_of, usage_of
from ttft_gateway.apis.responses.writer import CALL_FIELDS, EventWriter
from ttft_gateway.apis.sse import data_of, object_in
from ttft_gateway.apis.tolerant_json import as_count, as_key

Fields = dict[str, object]

_ECHOED: Final[Mapping[str, object]] = {  # fields of the request that the answer repeats, and their defaults
    "background": False,
    "instructions": None,
    "max_output_tokens": None,
    "max_tool_calls": None,
    "metadata": {},
    "parallel_tool_calls": True,
    "previous_response_id": None,
    "reasoning": {"effort": None, "summary": None},
    "temperature": None,
    "text": {"format": {"type": "text"}},
    "tool_choice": "auto",
    "tools": [],
    "top_logprobs": 0,
    "top_p": None,
    "truncation": "disabled",
    "user": None,
}
READ_FIELDS: Final = frozenset({"model", *_ECHOED})  # fields of the request that the events use
_INCOMPLETE: Final = {"length": "max_output_tokens", "content_filter": "content_filter"}
_PART: Final = {"output_text": "text", "refusal": "refusal", "reasoning_text": "text"}  # part type -> its field


class ResponseEventsFromChat:
    """The `providers.translation.base.Translator` of an answer for a client of the Responses API.

    Args:
        request: the client's request.
    """

    def __init__(self, request: Mapping[str, object]) -> None:
        self._request = request
        self._writer = EventWriter()
        self._head: Fields = {}
        self._output: list[Fields] = []
        self._open: Fields | None = None  # the open item
        self._part: Fields | None = None  # its open part, in messages and reasoning
        self._texts: list[str] = []  # pieces of the part's text
        self._arguments: dict[object, list[str]] = {}  # pieces of the calls' arguments, by ids of items
        self._numbers: dict[object, int] = {}  # places of items in the output, by their ids
        self._call: object = None  # index of the last tool call in the chunks
        self._calls: dict[object, Fields] = {}
        self._groups: Mapping[object, tuple[str, str]] | None = None  # of the request's tools, read at the first call
        self._finish: object = None
        self._usage: Fields | None = None
        self._ended = False

    def read(self, event: bytes) -> bytes:
        data = data_of(event) or b""
        if data.startswith(b"[DONE]"):
            return self.close()
        chunk = None if self._ended else object_in(data)
        return b"".join(self._chunk(chunk)) if chunk is not None else b""

    def close(self) -> bytes:
        if self._ended:
            return b""
        self._ended = True
        return b"".join(self._closing())

    # reading

    def _chunk(self, chunk: Fields) -> Iterator[bytes]:
        choices = [choice for choice in list_or_empty(chunk.get("choices")) if isinstance(choice, dict)]
        beside = [dict_or_empty(chunk.get("x_groq")), *choices]  # places of `usage` at Groq and Moonshot
        self._usage = next((_usage(each["usage"]) for each in (chunk, *beside) if each.get("usage")), self._usage)
        if not self._head and (chunk.get("id") or choices or self._ended):  # Azure begins with an event without id
            self._head = {
                "id": f"resp_{chunk.get('id') or 'translated'}",
                "object": "response",
                "created_at": chunk.get("created") or 0,
                "model": chunk.get("model") or self._request.get("model"),
            }
            yield self._writer.lifecycle("created", self._answer("in_progress"))
            yield self._writer.lifecycle("in_progress", self._answer("in_progress"))
        for choice in choices:
            yield from self._delta(dict_or_empty(choice.get("delta")), choice)
            self._finish = finish_of(choice) or self._finish

    def _delta(self, delta: Fields, choice: Fields) -> Iterator[bytes]:
        reasoning = next((delta[name] for name in REASONING if delta.get(name)), None)
        content = delta.get("content")
        if isinstance(content, list):  # Mistral: reasoning and text as parts
            reasoning, content = _parts(content)
        if isinstance(reasoning, str) and reasoning:
            yield from self._text("reasoning", "reasoning_text", reasoning)
        if isinstance(content, str) and content:
            logprobs = dict_or_empty(choice.get("logprobs")).get("content")
            yield from self._text("message", "output_text", content, logprobs if isinstance(logprobs, list) else [])
        if isinstance(delta.get("refusal"), str) and delta["refusal"]:
            yield from self._text("message", "refusal", str(delta["refusal"]))
        for annotation in list_or_empty(delta.get("annotations")):
            yield from self._annotate(dict_or_empty(annotation))
        for call in list_or_empty(delta.get("tool_calls")):
            yield from self._tool_call(dict_or_empty(call))

    def _text(self, item: str, part: str, text: str, logprobs: list[object] | None = None) -> Iterator[bytes]:
        """Add text to a part; begin the part if it is not open."""
        if self._open is None or self._open["type"] != item:
            yield from self._begin(_new_item(item, self._ident(item)))
        if self._part is None or self._part["type"] != part:
            yield from self._end_part()
            yield self._begin_part(part)
        assert self._part is not None
        self._texts.append(text)
        extra = {}
        if part == "output_text":
            extra = {"logprobs": logprobs or []}
            if logprobs:
                known_logprobs = self._part.setdefault("logprobs", [])
                assert isinstance(known_logprobs, list)
                known_logprobs += logprobs
        yield self._writer.event(f"response.{part}.delta", **self._position(), delta=text, **extra)

    def _annotate(self, annotation: Fields) -> Iterator[bytes]:
        """Add a source of the text; begin a text if none is open."""
        if self._part is None or self._part["type"] != "output_text":
            yield from self._text("message", "output_text", "")
        assert self._part is not None
        kind = str(annotation.get("type"))
        translated = {"type": kind, **dict_or_empty(annotation.get(kind))}
        known = self._part["annotations"]
        assert isinstance(known, list)
        known.append(translated)
        position = {**self._position(), "annotation_index": len(known) - 1}
        yield self._writer.event("response.output_text.annotation.added", **position, annotation=translated)

    def _tool_call(self, call: Fields) -> Iterator[bytes]:
        index = as_key(call.get("index", len(self._calls) if call.get("id") else self._call))
        custom = call.get("type") == "custom" or "custom" in call
        call_fields = dict_or_empty(call.get("custom" if custom else "function"))
        if index not in self._calls:
            kind = "custom_tool_call" if custom else "function_call"
            item = _new_item(kind, self._ident(kind))
            item |= {"call_id": call.get("id") or f"call_{item['id']}", **self._named(call_fields.get("name") or "")}
            yield from self._begin(item)
            self._calls[index], self._call = item, index
        item = self._calls[index]
        field, name = CALL_FIELDS[str(item["type"])]
        more = call_fields.get(field)
        if isinstance(more, str) and more:
            self._arguments.setdefault(item["id"], []).append(more)
            position = {"item_id": item["id"], "output_index": self._numbers[item["id"]]}
            yield self._writer.event(f"response.{name}.delta", **position, delta=more)

    def _named(self, name: object) -> Fields:
        """Return the name of a called tool as the request has it, with the name of its group."""
        if self._groups is None:
            self._groups = groups_by_name(self._request.get("tools"))
        grouped = self._groups.get(as_key(name))
        return {"name": name} if grouped is None else {"name": grouped[1], "namespace": grouped[0]}

    # items and their ends

    def _ident(self, kind: str) -> str:
        prefix = {"reasoning": "rs", "message": "msg", "function_call": "fc", "custom_tool_call": "ctc"}[kind]
        return f"{prefix}_{str(self._head['id']).removeprefix('resp_')}_{len(self._output)}"

    def _position(self) -> Fields:
        assert self._open is not None
        content = self._open["content"]
        assert isinstance(content, list)
        return {
            "item_id": self._open["id"],
            "output_index": self._numbers[self._open["id"]],
            "content_index": len(content) - 1,
        }

    def _begin(self, item: Fields) -> Iterator[bytes]:
        yield from self._end_item()
        if len(self._output) == ITEMS_MAX:
            raise ProtocolError(f"the upstream's answer has over {ITEMS_MAX} output items")
        self._open = item
        self._numbers[item["id"]] = len(self._output)
        self._output.append(item)
        yield self._writer.event("response.output_item.added", output_index=len(self._output) - 1, item=item)

    def _begin_part(self, kind: str) -> bytes:
        assert self._open is not None
        self._part = {"type": kind, _PART[kind]: "", **({"annotations": []} if kind == "output_text" else {})}
        content = self._open["content"]
        assert isinstance(content, list)
        content.append(self._part)
        return self._writer.event("response.content_part.added", **self._position(), part=self._part)

    def _end_part(self) -> Iterator[bytes]:
        if self._part is None:
            return
        kind = str(self._part["type"])
        field = _PART[kind]
        self._part[field], self._texts = "".join(self._texts), []
        extra = {"logprobs": self._part.get("logprobs", [])} if kind == "output_text" else {}
        yield self._writer.event(f"response.{kind}.done", **self._position(), **{field: self._part[field]}, **extra)
        yield self._writer.event("response.content_part.done", **self._position(), part=self._part)
        self._part = None

    def _end_item(self) -> Iterator[bytes]:
        """End the open item; tool calls end only with the answer, because their pieces may be interleaved."""
        yield from self._end_part()
        item, self._open = self._open, None
        if item is not None and item["type"] in ("reasoning", "message"):
            yield self._done(item, "completed")

    def _done(self, item: Fields, status: str) -> bytes:
        if item["type"] != "reasoning":
            item["status"] = status
        return self._writer.event("response.output_item.done", output_index=self._numbers[item["id"]], item=item)

    def _closing(self) -> Iterator[bytes]:
        """End everything that is open, then send the whole answer."""
        if not self._head:
            yield from self._chunk({})
        reason = _INCOMPLETE.get(str(self._finish))
        status = "incomplete" if reason else "completed"
        last = self._output[-1] if self._output else None
        yield from self._end_part()
        if self._open is not None and self._open["type"] in ("reasoning", "message"):
            yield self._done(self._open, status)
        for item in self._calls.values():
            field, name = CALL_FIELDS[str(item["type"])]
            item[field] = "".join(self._arguments.get(item["id"], ()))
            position = {"item_id": item["id"], "output_index": self._numbers[item["id"]]}
            yield self._writer.event(f"response.{name}.done", **position, **{field: item[field]})
            yield self._done(item, status if item is last else "completed")
        details = {"reason": reason} if reason else None
        answer = {**self._answer(status), "incomplete_details": details, "output": self._output, "usage": self._usage}
        yield self._writer.lifecycle(status, answer)

    def _answer(self, status: str) -> Fields:
        requested = {name: value for name, value in self._request.items() if name in _ECHOED and value is not None}
        echoed = {**_ECHOED, **requested}
        rest: Fields = {"error": None, "incomplete_details": None, "output": [], "store": False, "usage": None}
        return {**self._head, "status": status, **echoed, **rest}


def _new_item(kind: str, ident: str) -> Fields:
    head: Fields = {"id": ident, "type": kind}
    if kind == "reasoning":
        return {**head, "summary": [], "content": []}
    head["status"] = "in_progress"
    if kind == "message":
        return {**head, "role": "assistant", "content": []}
    return {**head, CALL_FIELDS[kind][0]: ""}


def _parts(content: list[object]) -> tuple[str, str]:
    reasoning, text = "", ""
    for part in map(dict_or_empty, content):
        if part.get("type") == "thinking":
            inner = part.get("thinking")
            texts = (
                [str(dict_or_empty(each).get("text") or "") for each in inner]
                if isinstance(inner, list)
                else [str(inner)]
            )
            reasoning += "".join(texts)
        elif isinstance(part.get("text"), str):
            text += str(part["text"])
    return reasoning, text


def _usage(value: object) -> Fields | None:
    usage = usage_of(value)
    if usage is None:
        return None
    read, written = usage.prompt_tokens or 0, usage.completion_tokens or 0
    to_cache = as_count(dict_or_empty(dict_or_empty(value).get("prompt_tokens_details")).get("cache_write_tokens")) or 0
    return {
        "input_tokens": read,
        "input_tokens_details": {"cached_tokens": usage.cached_tokens or 0, "cache_write_tokens": to_cache},
        "output_tokens": written,
        "output_tokens_details": {"reasoning_tokens": usage.reasoning_tokens or 0},
        "total_tokens": read + written,
    }
