"""Writes events of the Responses API: numbered, each with its type twice, as OpenAI sends them. Pure."""

from collections.abc import Iterator, Mapping
from typing import Final

from ttft_gateway.apis.json_fields import list_or_empty
from ttft_gateway.apis.tolerant_json import dumps

FINISHED: Final = ("completed", "incomplete")
"""The `status` of a response that has all of its output, and the end of its last event's name."""


class EventWriter:
    """Numbers the events of one stream."""

    __slots__ = ("_number",)

    def __init__(self, first: int = 0) -> None:
        self._number = first

    def event(self, kind: str, **fields: object) -> bytes:
        """Write one event."""
        body = dumps({"type": kind, "sequence_number": self._number, **fields})
        self._number += 1
        return b"event: %s\ndata: %s\n\n" % (kind.encode(), body)

    def lifecycle(self, kind: str, answer: Mapping[str, object]) -> bytes:
        """Write an event that has the response object."""
        return self.event(f"response.{kind}", response=answer)


def events_of_answer(answer: Mapping[str, object], *, ends: bool = True) -> Iterator[bytes]:
    """Write the events of a stream with this response object; `ends`: with the last event, if it is finished."""
    writer = EventWriter()
    started = {**answer, "status": "in_progress", "output": [], "usage": None, "incomplete_details": None}
    yield writer.lifecycle("created", started)
    yield writer.lifecycle("in_progress", started)
    output = answer.get("output")
    for index, item in enumerate(output if isinstance(output, list) else ()):
        if isinstance(item, dict):
            yield from _events_of_item(writer, item, index)
    if ends and answer.get("status") in FINISHED:
        yield writer.lifecycle(str(answer["status"]), answer)


CALL_FIELDS = {  # item type -> its streamed text field, and the name of that field's events
    "function_call": ("arguments", "function_call_arguments"),
    "custom_tool_call": ("input", "custom_tool_call_input"),
}
_PARTS = {  # type of a part -> its field, and the name of its events
    "output_text": ("text", "output_text"),
    "refusal": ("refusal", "refusal"),
    "reasoning_text": ("text", "reasoning_text"),
    "summary_text": ("text", "reasoning_summary_text"),
}
_LISTS = {  # list of parts of an item -> the name of the parts' events, and their index
    "summary": ("reasoning_summary_part", "summary_index"),
    "content": ("content_part", "content_index"),
}


def _events_of_item(writer: EventWriter, item: dict[str, object], index: int) -> Iterator[bytes]:
    position = {"item_id": item.get("id"), "output_index": index}
    kind = item.get("type")
    field, name = CALL_FIELDS.get(str(kind), ("", ""))
    lists = [each for each in _LISTS if kind in ("message", "reasoning") and isinstance(item.get(each), list)]
    blank: dict[str, object] = {field: ""} if field else {each: [] for each in lists}
    yield writer.event(
        "response.output_item.added", output_index=index, item={**item, "status": "in_progress", **blank}
    )
    if field:
        yield writer.event(f"response.{name}.delta", **position, delta=item.get(field))
        yield writer.event(f"response.{name}.done", **position, **{field: item.get(field)})
    for each in lists:
        event, index_name = _LISTS[each]
        for number, part in enumerate(list_or_empty(item[each])):
            if isinstance(part, dict):
                yield from _events_of_part(writer, event, part, {**position, index_name: number})
    yield writer.event("response.output_item.done", output_index=index, item=item)


def _events_of_part(
    writer: EventWriter, event: str, part: dict[str, object], position: dict[str, object]
) -> Iterator[bytes]:
    field, name = _PARTS.get(str(part.get("type")), ("", ""))
    yield writer.event(f"response.{event}.added", **position, part={**part, field: ""} if field else part)
    if field:
        logprobs = {"logprobs": part.get("logprobs") or []} if name == "output_text" else {}
        yield writer.event(f"response.{name}.delta", **position, delta=part.get(field), **logprobs)
        yield writer.event(f"response.{name}.done", **position, **{field: part.get(field)}, **logprobs)
    yield writer.event(f"response.{event}.done", **position, part=part)
