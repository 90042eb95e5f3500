"""Writes events of the Responses API: numbered, each with its type twice, as OpenAI sends them. Pure."""

from collections.abc import Iterator, Mapping

from providers.tolerant_json import dumps


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


def events_of_answer(answer: Mapping[str, object]) -> Iterator[bytes]:
    """Write the events of a stream that ends with this response object."""
    writer = EventWriter()
    started = {**answer, "status": "in_progress", "output": [], "usage": None, "incomplete_details": None}
    yield writer.lifecycle("created", started)
    yield writer.lifecycle("in_progress", started)
    output = answer.get("output")
    for index, item in enumerate(output if isinstance(output, list) else ()):
        if isinstance(item, dict):
            yield from _events_of_item(writer, item, index)
    yield writer.lifecycle("incomplete" if answer.get("status") == "incomplete" else "completed", answer)


CALL_FIELDS = {  # item type -> its streamed text field, and the name of that field's events
    "function_call": ("arguments", "function_call_arguments"),
    "custom_tool_call": ("input", "custom_tool_call_input"),
}
_PARTS = {"output_text": ("text", "output_text"), "refusal": ("refusal", "refusal")}


def _events_of_item(writer: EventWriter, item: dict[str, object], index: int) -> Iterator[bytes]:
    position = {"item_id": item.get("id"), "output_index": index}
    kind = item.get("type")
    field, name = CALL_FIELDS.get(str(kind), ("", ""))
    blank: dict[str, object] = {"content": []} if kind == "message" else {field: ""} if field else {}
    yield writer.event(
        "response.output_item.added", output_index=index, item={**item, "status": "in_progress", **blank}
    )
    if field:
        yield writer.event(f"response.{name}.delta", **position, delta=item.get(field))
        yield writer.event(f"response.{name}.done", **position, **{field: item.get(field)})
    content = item.get("content") if kind == "message" else None
    for number, part in enumerate(content if isinstance(content, list) else ()):
        if isinstance(part, dict):
            yield from _events_of_part(writer, part, {**position, "content_index": number})
    yield writer.event("response.output_item.done", output_index=index, item=item)


def _events_of_part(writer: EventWriter, part: dict[str, object], position: dict[str, object]) -> Iterator[bytes]:
    field, name = _PARTS.get(str(part.get("type")), ("", ""))
    yield writer.event("response.content_part.added", **position, part={**part, field: ""} if field else part)
    if field:
        logprobs = {"logprobs": part.get("logprobs") or []} if name == "output_text" else {}
        yield writer.event(f"response.{name}.delta", **position, delta=part.get(field), **logprobs)
        yield writer.event(f"response.{name}.done", **position, **{field: part.get(field)}, **logprobs)
    yield writer.event("response.content_part.done", **position, part=part)
