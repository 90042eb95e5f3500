"""Records the blocks of one Messages answer that a client has been sent, and continues it.

Built only after a stream broke, from the forwarded events, which may be translated. A continuation is a request with
the text so far as the assistant's last turn. The API continues text only: not after thinking, not a tool's input.
Sans-I/O. Units: tokens are counted as events with text.
"""

import re
from typing import Final

from msgspec.structs import replace

from providers.anthropic.blocks import Block, block_in, delta_in, started
from providers.anthropic.joiner import ContinuedMessage, MessageJoiner
from providers.comparison import is_halved
from providers.openai.event_runs import runs_of
from providers.openai.request import edited, lowered, value_of
from providers.recovery import OPEN_CHOICES, Continuation
from ttft_gateway.apis.base import Api, Call, Prefix
from ttft_gateway.apis.errors import ProtocolError
from ttft_gateway.apis.json_fields import dict_or_empty
from ttft_gateway.apis.sse import data_of, object_in
from ttft_gateway.apis.tolerant_json import dumps, loads

_TEXT: Final = re.compile(rb'"(?:text|thinking|partial_json)": ?"([^"\\]+)"\}\}').search


class MessagesRecoverer:
    """The `providers.recovery.Recoverer` of the Messages API."""

    continues = "only text without thinking can be continued from its beginning"

    def is_deterministic(self, call: Call) -> bool:
        """Temperature 0; see `Recoverer.is_deterministic`."""
        temperature = loads(value_of(call, "temperature"))
        return isinstance(temperature, int | float) and temperature == 0

    def prefix(self, call: Call) -> Prefix | None:
        """Text without thinking or a format; see `Recoverer.prefix`."""
        thinking = dict_or_empty(loads(value_of(call, "thinking"))).get("type")
        form = dict_or_empty(loads(value_of(call, "output_config"))).get("format")
        choice = dict_or_empty(loads(value_of(call, "tool_choice"))).get("type")
        if not call.repeatable or thinking not in (None, "disabled") or form or choice not in OPEN_CHOICES:
            return None
        return Api.MESSAGES, value_of(call, "tools") not in (b"null", b"[]")

    def transcript(self, call: Call) -> "MessageTranscript":
        return MessageTranscript(call, self.prefix(call))


class MessageTranscript:
    """A `providers.recovery.Transcript`.

    Args:
        call: the call that was answered.
        prefix: see `Recoverer.prefix`.

    Attributes:
        tokens: see `Transcript`.
    """

    __slots__ = ("_abandoned", "_blocks", "_call", "_is_finished", "_is_readable", "_prefix", "tokens")

    def __init__(self, call: Call, prefix: Prefix | None) -> None:
        self._call = call
        self._prefix = prefix
        self._blocks: list[Block] = []
        self._abandoned = 0  # blocks of thinking of another answer, at the beginning
        self._is_finished = False  # the stop reason was sent
        self._is_readable = True
        self.tokens = 0

    @property
    def comparable(self) -> bool:
        return self._is_readable and all(block.comparable for block in self._blocks[self._abandoned :])

    @property
    def restartable(self) -> bool:
        blocks = self._blocks[self._abandoned :]
        return self._is_readable and bool(blocks) and all(block.is_thinking for block in blocks)

    def abandon(self) -> None:
        self._abandoned = len(self._blocks)

    def add(self, raw: bytes) -> None:
        for event, events in runs_of(raw, _TEXT):
            try:
                value = object_in(data_of(event))
            except ProtocolError:  # bytes that are no UTF-8 in a field that is not read
                self._is_readable = False
                continue
            if value is None:
                continue
            kind = value.get("type")
            if kind == "content_block_start":
                self._blocks.append(started(block_in(value)))
                self.tokens += self._blocks[-1].kind[0] == "tool_use"
            elif kind == "content_block_delta" and self._blocks:
                self.tokens += events * self._blocks[-1].add(delta_in(value))
            elif kind == "content_block_stop" and self._blocks:
                self._blocks[-1].stopped = True
            elif kind == "message_delta":
                self._is_finished = self._is_finished or bool(delta_in(value).get("stop_reason"))

    def joiner(self) -> MessageJoiner:
        blocks = tuple(self._blocks[self._abandoned :])
        return MessageJoiner(blocks, self._abandoned, is_finished=self._is_finished)

    def continuation(self) -> Continuation | None:
        """See `Transcript.continuation`.

        White space at the end is not sent: the API rejects it.
        """
        if (
            self._prefix is None
            or self._is_finished
            or not self.comparable
            or not all(block.kind[0] == "text" for block in self._blocks)
        ):
            return None
        texts = ["".join(block.texts) for block in self._blocks]
        sent = texts[-1].rstrip() if texts else ""
        is_open = bool(self._blocks) and not self._blocks[-1].stopped
        if not sent or (sent != texts[-1] and not is_open):
            return None
        unsent = int(sent != texts[-1])
        content = [{"type": "text", "text": text} for text in (*texts[:-1], sent) if text.strip()]
        values = lowered(self._call, ("max_tokens",), self.tokens, self.tokens - unsent)
        messages = value_of(self._call, "messages")
        turns = loads(messages)
        last = turns[-1] if isinstance(turns, list) and turns else None
        if values is None or not isinstance(last, dict) or last.get("role") == "assistant" or is_halved("".join(texts)):
            return None
        turn = dumps({"role": "assistant", "content": sent if len(content) == 1 else content})
        call = replace(edited(self._call, {**values, "messages": messages[:-1] + b"," + turn + b"]"}), continues=True)
        rest, tokens = texts[-1][len(sent) :], self.tokens - unsent
        return Continuation(
            call, ContinuedMessage([*texts[:-1], sent], rest, is_open=is_open, prefill_tokens=tokens), tokens
        )
