"""The output items of a Responses stream that a client has been sent, and the place of text in their events. Pure.

An item has its text in parts, of which there are two lists: `content`, and the `summary` of reasoning. The text of a
tool call belongs to the item itself; here it is a part, too, of a list without a name.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Final, NamedTuple

from ttft_gateway.apis.json_fields import dict_or_empty
from ttft_gateway.apis.responses.writer import CALL_FIELDS

Fields = dict[str, object]
Place = tuple[str, object]
"""The list of a part, and the part's index in it."""

_INDEXES: Final = {"content": "content_index", "summary": "summary_index", "": ""}
_PARTS: Final = {"response.content_part": "content", "response.reasoning_summary_part": "summary"}
_SIGNS: Final = frozenset({"output_text", "refusal", "reasoning_text", "summary_text"})  # parts that are only text


class Text(NamedTuple):
    """The texts of one kind of event.

    Attributes:
        list: the list of its part.
        field: the field of the whole text, in the part and in the event that ends it.
    """

    list: str
    field: str


TEXTS: Final[Mapping[str, Text]] = {  # events `….delta` and `….done` of texts
    "response.output_text": Text("content", "text"),
    "response.refusal": Text("content", "refusal"),
    "response.reasoning_text": Text("content", "text"),
    "response.reasoning_summary_text": Text("summary", "text"),
    **{f"response.{name}": Text("", text_field) for text_field, name in CALL_FIELDS.values()},
}
_OF_PARTS: Final = {  # type of a part -> the name of its text's events
    "output_text": "response.output_text",
    "refusal": "response.refusal",
    "reasoning_text": "response.reasoning_text",
    "summary_text": "response.reasoning_summary_text",
}


@dataclass(slots=True)
class Part:
    """One text of an item that a client has been sent, in full or in part.

    Attributes:
        fields: the part as it was added, empty for the text of a tool call.
        texts: pieces of its text.
        annotations: its annotations so far.
        text_done: the end of the text was sent.
        done: the end of the part was sent.
    """

    fields: Fields = field(default_factory=dict)
    texts: list[str] = field(default_factory=list)
    annotations: list[object] = field(default_factory=list)
    text_done: bool = False
    done: bool = False


@dataclass(slots=True)
class Item:
    """One output item that a client has been sent, in full or in part.

    Attributes:
        fields: the item as it was added, or as it ended.
        parts: its texts by place.
        done: its end was sent.
        comparable: it has nothing that is not text.
    """

    fields: Fields
    parts: dict[Place, Part] = field(default_factory=dict)
    done: bool = False
    comparable: bool = True

    @property
    def kind(self) -> tuple[object, ...]:
        """The values that equal items have in common."""
        return kind_of(self.fields)

    @property
    def is_thinking(self) -> bool:
        """The item is reasoning, encrypted or not."""
        return self.fields.get("type") == "reasoning"

    def add(self, kind: str, event: Fields) -> int:
        """Record an event of this item; return the number of its tokens."""
        stem, _, last = kind.rpartition(".")
        place = place_of(kind, event)
        if place is None:
            self.comparable = False
            return 0
        part = self.parts.setdefault(place, Part())
        if stem in _PARTS:
            part.fields = dict_or_empty(event.get("part"))
            part.done = last == "done"
            self.comparable = self.comparable and part.fields.get("type") in _SIGNS
        elif last == "done":
            part.text_done = True
        elif kind.endswith("annotation.added"):
            part.annotations.append(event.get("annotation"))
        else:
            text = event.get("delta")
            if isinstance(text, str) and text:
                part.texts.append(text)
                return 1
        return 0


def kind_of(item: Fields) -> tuple[object, ...]:
    """Return the values that equal items have in common."""
    return item.get("type"), item.get("name"), item.get("namespace")


def place_of(kind: str, event: Fields) -> Place | None:
    """Return the place of the text of an event, None for an event of something else."""
    stem = kind.removesuffix(".annotation.added").removesuffix(".delta").removesuffix(".done").removesuffix(".added")
    name = TEXTS[stem].list if stem in TEXTS else _PARTS.get(stem)
    if name is None:
        return None
    return name, event.get(_INDEXES[name]) if name else 0


def is_part(kind: str) -> bool:
    """Return True for an event that begins or ends a part."""
    return kind.rpartition(".")[0] in _PARTS


def endings(item: Item, **fields: object) -> Iterator[tuple[str, Fields]]:
    """Yield the events that end an item where it is, without their numbers and output index.

    Args:
        item: the item; afterwards it has the fields of its end.
        fields: fields that the item has at its end.
    """
    lists: dict[str, list[Fields]] = {}
    for (name, index), part in item.parts.items():
        at: Fields = {"item_id": item.fields.get("id"), _INDEXES[name]: index}
        kind = str(part.fields.get("type"))
        text_field = "refusal" if kind == "refusal" else "text"
        annotations: Fields = {"annotations": part.annotations} if kind == "output_text" else {}
        whole = {**part.fields, text_field: "".join(part.texts), **annotations}
        lists.setdefault(name, []).append(whole)
        if not part.text_done:
            logprobs: Fields = {"logprobs": []} if kind == "output_text" else {}
            yield f"{_OF_PARTS[kind]}.done", {**at, text_field: whole[text_field], **logprobs}
        if not part.done:
            event = next(stem for stem, each in _PARTS.items() if each == name)
            yield f"{event}.done", {**at, "part": whole}
    item.fields = {**item.fields, **lists, **fields}
    item.done = True
    yield "response.output_item.done", {"item": item.fields}
