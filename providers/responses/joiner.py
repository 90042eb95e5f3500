"""Joins a second Responses stream to the part of the first that the client already has: one valid response.

Items are compared by their output index, with their type, the name of the called tool, and the text of each part;
`comparison.py` has the rules. The response keeps the id and the date of the first stream, and an item that the client
has keeps its id and the id of its call. Events are numbered on. The output of the last event is what was sent.

A restart ends the reasoning that the client has as incomplete and without encrypted content, which belongs to the id of
one item and one answer; the second response follows in items of its own. Sans-I/O. Units: tokens.
"""

from collections.abc import Sequence
from typing import Final

from providers.comparison import ComparingJoiner, Continued, Differs, Expected, after_space
from providers.responses.items import TEXTS, Fields, Item, Part, Place, endings, is_part, kind_of, place_of
from ttft_gateway.apis.json_fields import dict_or_empty, list_or_empty
from ttft_gateway.apis.responses.events import TERMINAL
from ttft_gateway.apis.sse import data_of
from ttft_gateway.apis.tolerant_json import as_count, dumps, loads

_OPENINGS: Final = frozenset({"response.created", "response.in_progress", "response.queued"})
_HEAD: Final = ("id", "created_at", "model")  # of a response
_IDS: Final = ("id", "call_id")  # of an item


class ResponseJoiner(ComparingJoiner):
    """The `providers.recovery.Joiner` of Responses streams.

    Args:
        head: the response as the first stream began it.
        number: number of the client's last event.
        items: the items that the client has of the answer.
        abandoned: the client's items before them.
        encrypts: reasoning has encrypted content, so that an item of it cannot be continued.
        continued: the text that is continued; None for a second response.
    """

    def __init__(
        self,
        head: Fields,
        number: int,
        items: Sequence[Item],
        abandoned: Sequence[Item] = (),
        *,
        encrypts: bool = False,
        continued: Continued | None = None,
    ) -> None:
        super().__init__(may_restart=bool(items) and all(item.is_thinking for item in items), continued=continued)
        self._head = head
        self._number = number
        self._items = items
        self._before = [item.fields for item in abandoned]
        self._encrypts = encrypts
        self._expected: dict[tuple[int, Place], Expected] = {
            (index, place): Expected(part.texts)
            for index, item in enumerate(items)
            for place, part in item.parts.items()
        }
        self._at = -1  # index of the second stream's last item

    @property
    def caught_up(self) -> bool:
        return self._at >= len(self._items) - 1 and all(expected.done for expected in self._expected.values())

    def _event(self, event: bytes) -> bytes:
        data = data_of(event)
        if not data:
            return event
        value = loads(data)
        if not isinstance(value, dict):
            raise Differs
        kind, index = str(value.get("type")), value.get("output_index")
        if kind in _OPENINGS:
            return b""
        if kind in TERMINAL:
            return self._end(kind, value)
        if not isinstance(index, int):
            return self._numbered(kind, value) if self.caught_up else b""
        if kind == "response.output_item.added":
            return self._begin(value, index)
        if index >= len(self._items):
            return self._sent(kind, value, index)
        return self._of_item(kind, value, index, self._items[index])

    def _restart(self) -> bytes:
        ended = b"".join(
            self._numbered(kind, {"output_index": len(self._before) + index, **fields})
            for index, item in enumerate(self._items)
            if not item.done
            for kind, fields in endings(item, status="incomplete", encrypted_content=None)
        )
        self._before += [item.fields for item in self._items]
        self._items, self._expected, self._at = (), {}, -1
        return ended

    def _begin(self, value: Fields, index: int) -> bytes:
        item = dict_or_empty(value.get("item"))
        if index >= len(self._items):
            self._check_caught_up()
            self._at = max(self._at, index)
            return self._sent("response.output_item.added", value, index)
        self._at = max(self._at, index)
        known = self._items[index]
        is_bound = known.is_thinking and not known.done and self._encrypts
        if known.kind != kind_of(item) or not known.comparable or is_bound:
            raise Differs
        return b""

    def _end_item(self, value: Fields, index: int, item: Item) -> bytes:
        if any(at == index and not expected.done for (at, _), expected in self._expected.items()):
            raise Differs
        return b"" if item.done else self._sent("response.output_item.done", value, index)

    def _of_item(self, kind: str, value: Fields, index: int, item: Item) -> bytes:
        """Compare an event of an item that the client has, and return its new part."""
        if kind == "response.output_item.done":
            return self._end_item(value, index, item)
        place = place_of(kind, value)
        part = None if place is None else item.parts.get(place)
        if part is None or place is None:  # nothing of this was sent
            self._check_caught_up(is_over=item.done)
            return self._sent(kind, value, index)
        return self._of_part(kind, value, index, item, part, self._expected[index, place])

    def _of_part(self, kind: str, value: Fields, index: int, item: Item, part: Part, expected: Expected) -> bytes:
        """Compare an event of a text that the client has, and return its new part."""
        is_over = item.done or part.done
        if is_part(kind):
            is_begin = kind.endswith(".added")
            if is_begin and dict_or_empty(value.get("part")).get("type") != part.fields.get("type"):
                raise Differs
            if not is_begin and not expected.done:
                raise Differs
            return b"" if is_begin or is_over else self._sent(kind, value, index)
        if kind.endswith(".delta"):
            new = expected.take(str(value.get("delta") or ""))
            if not new:
                return b""
            self._check_caught_up(is_over=is_over or part.text_done)
            return self._sent(kind, value if new == value["delta"] else _cut(value, new), index)
        if kind.endswith("annotation.added"):
            number = value.get("annotation_index")
            if isinstance(number, int) and number < len(part.annotations):
                return b""
            self._check_caught_up(is_over=is_over)
            return self._sent(kind, value, index)
        if not expected.done:
            raise Differs
        return b"" if is_over or part.text_done else self._sent(kind, value, index)

    def _check_caught_up(self, *, is_over: bool = False) -> None:
        if is_over or not self.caught_up:
            raise Differs

    def _end(self, kind: str, value: Fields) -> bytes:
        self._check_caught_up()
        answer = dict_or_empty(value.get("response"))
        output = [
            self._patched(dict_or_empty(item), index) for index, item in enumerate(list_or_empty(answer.get("output")))
        ]
        whole: Fields = {**answer, "output": [*self._before, *output]}
        whole.update((key, self._head[key]) for key in _HEAD if key in self._head)
        return self._numbered(kind, {**value, "response": whole})

    def _patched(self, item: Fields, index: int) -> Fields:
        """Return an item as the client has it, or with the ids that the client has for it."""
        if index >= len(self._items):
            return item
        known = self._items[index]
        if known.done:
            return known.fields
        patched = dict(item)
        patched.update((key, known.fields[key]) for key in _IDS if key in known.fields)
        return patched

    def _sent(self, kind: str, value: Fields, index: int) -> bytes:
        """Write an event of an item, with the client's index and id of it."""
        sent = {**value, "output_index": len(self._before) + index}
        if index < len(self._items):
            if "item_id" in sent:
                sent["item_id"] = self._items[index].fields.get("id")
            if isinstance(sent.get("item"), dict):
                sent["item"] = self._patched(dict_or_empty(sent["item"]), index)
        return self._numbered(kind, sent)

    def _numbered(self, kind: str, fields: Fields) -> bytes:
        """Write an event with the next number."""
        self._number += 1
        value = {"type": kind, "sequence_number": self._number}
        return b"event: %s\ndata: %s\n\n" % (kind.encode(), dumps({**fields, **value}))


class ContinuedResponse(ResponseJoiner):
    """The joiner of a continuation: the second stream begins where the client's text ends.

    Args:
        head, number: see `ResponseJoiner`.
        item: the client's only item, a message with one text that has not ended.
        sent: the part of its text that is in the request.
        prefill_tokens: tokens of that part, which the second stream's usage counts as prompt.
    """

    def __init__(self, head: Fields, number: int, item: Item, sent: str, *, prefill_tokens: int) -> None:
        (place, part), *_ = item.parts.items()
        rest = "".join(part.texts)[len(sent) :]
        continued = Continued(sent, rest)
        items = [Item(item.fields, {place: Part(part.fields, [], part.annotations)})]
        super().__init__(head, number, items, continued=continued)
        self._expected = {(0, place): continued}
        self._message, self._start, self._rest, self._prefill_tokens = item, sent + rest, rest, prefill_tokens

    @property
    def caught_up(self) -> bool:
        return all(expected.done for expected in self._expected.values())

    def _begin(self, value: Fields, index: int) -> bytes:
        kind = dict_or_empty(value.get("item")).get("type")
        if self._at < 0 and kind in ("function_call", "custom_tool_call"):
            return self._end_message() + super()._begin(value, index)
        if kind == "reasoning":
            raise Differs  # the server does not continue the text
        return super()._begin(value, index)

    def _end(self, kind: str, value: Fields) -> bytes:
        ended = self._end_message() if self._at < 0 else b""
        answer = dict_or_empty(value.get("response"))
        usage = dict_or_empty(answer.get("usage"))
        return ended + super()._end(kind, {**value, "response": {**answer, "usage": self._moved(usage) or None}})

    def _end_message(self) -> bytes:
        """End the client's message, because the answer goes on without text."""
        ended = b"".join(
            self._numbered(kind, {"output_index": 0, **fields})
            for kind, fields in endings(self._message, status="completed")
        )
        self._before, self._items, self._expected = [self._message.fields], (), {}
        return ended

    def _sent(self, kind: str, value: Fields, index: int) -> bytes:
        if index < len(self._items):
            stem = kind.removesuffix(".done")
            if stem != kind and stem in TEXTS:
                field = TEXTS[stem].field
                value = {**value, field: self._whole(value.get(field))}
            elif kind == "response.content_part.done":
                value = {**value, "part": self._with_start(dict_or_empty(value.get("part")))}
        return super()._sent(kind, value, index)

    def _patched(self, item: Fields, index: int) -> Fields:
        item = super()._patched(item, index)
        if index >= len(self._items):
            return item
        parts = list_or_empty(item.get("content"))
        return {**item, "content": [self._with_start(dict_or_empty(part)) for part in parts[:1]] + parts[1:]}

    def _with_start(self, part: Fields) -> Fields:
        """Return a part with the beginning of its text."""
        return {**part, "text": self._whole(part.get("text"))}

    def _whole(self, text: object) -> str:
        return self._start + after_space(str(text or ""), self._rest)

    def _moved(self, usage: Fields) -> Fields:
        """Return the token counts of the whole answer."""
        prompt, completion = as_count(usage.get("input_tokens")), as_count(usage.get("output_tokens"))
        if prompt is None or completion is None:
            return usage
        moved = min(self._prefill_tokens, prompt)
        return {**usage, "input_tokens": prompt - moved, "output_tokens": completion + moved}


def _cut(event: Fields, text: str) -> Fields:
    """Return an event with a part of its text, without the values that belong to all of it."""
    cut: Fields = {**event, "delta": text}
    if "logprobs" in cut:
        cut["logprobs"] = []
    cut.pop("obfuscation", None)
    return cut
