"""Joins a second Messages stream to the part of the first that the client already has: one valid message.

Blocks are compared in order, with their type, the name of the called tool, and their text; `comparison.py` has the
rules. The ids of the message and of the tool calls that the client has are the first stream's, and so are the
signatures of the thinking that it has. Indexes count on. A restart ends the client's last block of thinking, without a
signature, and the second message follows in blocks of its own. Sans-I/O. Units: tokens.
"""

from collections.abc import Sequence

from providers.anthropic.blocks import Block, block_in, delta_in, kind_of, text_of
from providers.comparison import ComparingJoiner, Continued, Differs, Expected
from ttft_gateway.apis.anthropic.events import TEXTS
from ttft_gateway.apis.anthropic.writer import Json, event
from ttft_gateway.apis.sse import data_of
from ttft_gateway.apis.tolerant_json import as_count, loads


class MessageJoiner(ComparingJoiner):
    """The `providers.recovery.Joiner` of Messages streams.

    Args:
        blocks: the blocks that the client has of the answer.
        abandoned: number of the client's blocks before them.
        is_finished: the client has the stop reason.
        continued: the text that is continued; None for a second message.
    """

    def __init__(
        self,
        blocks: Sequence[Block],
        abandoned: int = 0,
        *,
        is_finished: bool = False,
        continued: Continued | None = None,
    ) -> None:
        super().__init__(may_restart=bool(blocks) and all(block.is_thinking for block in blocks), continued=continued)
        self._blocks = blocks
        self._is_finished = is_finished
        self._expected = [Expected(block.texts) for block in blocks]
        self._shift = abandoned  # from the second stream's indexes to the client's
        self._at = -1  # number of the second stream's present block

    @property
    def caught_up(self) -> bool:
        return self._at >= len(self._blocks) - 1 and all(expected.done for expected in self._expected)

    def _event(self, event: bytes) -> bytes:
        data = data_of(event)
        if not data:
            return event
        value = loads(data)
        if not isinstance(value, dict):
            raise Differs
        match value.get("type"):
            case "message_start":
                return b""
            case "content_block_start":
                return self._start(value)
            case "content_block_delta":
                return self._delta(value, delta_in(value))
            case "content_block_stop":
                return self._stop(value)
            case "message_delta":
                return self._finish(value)
        return event

    def _restart(self) -> bytes:
        last, number = self._blocks[-1], self._shift + len(self._blocks)
        self._blocks, self._expected, self._shift, self._at = (), [], number, -1
        return b"" if last.stopped else event("content_block_stop", {"index": number - 1})

    def _start(self, value: Json) -> bytes:
        if any(not expected.done for expected in self._expected[: self._at + 1]):
            raise Differs
        self._at += 1
        if self._at >= len(self._blocks):
            return self._sent(value)
        block = block_in(value)
        if self._blocks[self._at].kind != kind_of(block) or not self._blocks[self._at].comparable or block.get("input"):
            raise Differs
        text = text_of(block)
        new = self._take(text) if text else ""
        if not new:
            return b""
        field = str(block["type"])
        return self._sent({"type": "content_block_delta", "delta": {"type": f"{field}_delta", field: new}})

    def _delta(self, value: Json, delta: Json) -> bytes:
        if self._at >= len(self._blocks):
            return self._sent(value)
        kind, block = str(delta.get("type")), self._blocks[self._at]
        if kind in TEXTS:
            field = TEXTS[kind]
            new = self._take(str(delta.get(field) or ""))
            return self._sent({**value, "delta": {**delta, field: new}}) if new else b""
        if kind == "signature_delta" and (block.signed or block.stopped):
            return b""
        if not self.caught_up or block.stopped:
            raise Differs
        return self._sent(value)

    def _take(self, text: str) -> str:
        """Compare a piece of the present block's text; return its new part."""
        new = self._expected[self._at].take(text)
        if new and (self._blocks[self._at].stopped or not self.caught_up):
            raise Differs
        return new

    def _stop(self, value: Json) -> bytes:
        if self._at >= len(self._blocks):
            return self._sent(value)
        if not self._expected[self._at].done:
            raise Differs
        return b"" if self._blocks[self._at].stopped else self._sent(value)

    def _finish(self, value: Json) -> bytes:
        if not self.caught_up:
            raise Differs
        return b"" if self._is_finished else event("message_delta", value)

    def _sent(self, value: Json) -> bytes:
        """Write an event of the present block, with the client's index of it."""
        return event(str(value["type"]), {**value, "index": self._at + self._shift})


class ContinuedMessage(MessageJoiner):
    """The joiner of a continuation: the second stream begins where the client's text ends.

    Args:
        texts: texts of the blocks that the client has, as in the request.
        rest: white space at the end of the client's text, which is not in the request.
        is_open: the end of the last block was not sent, so that the text goes on in it.
        prefill_tokens: tokens of the answer's beginning, which the second stream's usage counts as prompt.
    """

    def __init__(self, texts: Sequence[str], rest: str, *, is_open: bool, prefill_tokens: int) -> None:
        first = Continued(texts[0], rest, is_whole=is_open and len(texts) == 1)
        super().__init__([Block(("text", None))] if is_open else [], len(texts) - is_open, continued=first)
        self._expected = [first] if is_open else []
        self._first = first
        self._is_open = is_open
        self._prefill_tokens = prefill_tokens

    @property
    def caught_up(self) -> bool:
        return self._first.done

    def _delta(self, value: Json, delta: Json) -> bytes:
        if self._at == 0 and not self._expected and delta.get("type") == "text_delta":
            new = self._first.take(str(delta.get("text") or ""))
            return self._sent({**value, "delta": {**delta, "text": new}}) if new else b""
        return super()._delta(value, delta)

    def _start(self, value: Json) -> bytes:
        kind = block_in(value).get("type")
        if kind not in ("text", "tool_use"):
            raise Differs  # the server does not continue the text
        ended = self._end_text() if kind != "text" and self._at < 0 else b""
        return ended + super()._start(value)

    def _finish(self, value: Json) -> bytes:
        ended = self._end_text() if self._at < 0 else b""
        usage = value.get("usage")
        if isinstance(usage, dict):
            value = {**value, "usage": self._moved(usage)}
        return ended + super()._finish(value)

    def _end_text(self) -> bytes:
        """End the client's text, because the answer goes on without text."""
        if not self._is_open:
            return b""
        self._is_open, self._blocks, self._expected = False, (), []
        self._shift += 1
        return event("content_block_stop", {"index": self._shift - 1})

    def _moved(self, usage: Json) -> Json:
        """Return the token counts of the whole answer."""
        prompt, completion = as_count(usage.get("input_tokens")), as_count(usage.get("output_tokens"))
        moved = dict(usage)
        if prompt is not None:
            moved["input_tokens"] = max(0, prompt - self._prefill_tokens)
        if completion is not None:
            moved["output_tokens"] = completion + self._prefill_tokens
        return moved
