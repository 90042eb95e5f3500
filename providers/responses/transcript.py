"""Records the items of one Responses answer that a client has been sent, and continues it.

Built only after a stream broke, from the forwarded events, which may be translated. A continuation is a request with
the message so far at the end of its input, in progress. OpenAI's own API does not continue such a message; engines do,
natively or in chat completions. Sans-I/O. Units: tokens are counted as events with text.
"""

from typing import Final

from msgspec.structs import replace

from providers.comparison import is_halved
from providers.openai.request import edited, lowered, value_of
from providers.recovery import OPEN_CHOICES, Continuation
from providers.responses.items import Fields, Item
from providers.responses.joiner import ContinuedResponse, ResponseJoiner
from ttft_gateway.apis.base import Api, Call, Prefix
from ttft_gateway.apis.errors import ProtocolError
from ttft_gateway.apis.json_fields import dict_or_empty, list_or_empty
from ttft_gateway.apis.sse import data_of, events_of, object_in
from ttft_gateway.apis.tolerant_json import dumps, loads

ENCRYPTED: Final = "reasoning.encrypted_content"
LOGPROBS: Final = "message.output_text.logprobs"
"""Values of `include`."""


class ResponsesRecoverer:
    """The `providers.recovery.Recoverer` of the Responses API."""

    continues = "only one text without reasoning can be continued from its beginning"

    def is_deterministic(self, call: Call) -> bool:
        """Temperature 0; see `Recoverer.is_deterministic`."""
        temperature = loads(value_of(call, "temperature"))
        return isinstance(temperature, int | float) and temperature == 0

    def prefix(self, call: Call) -> Prefix | None:
        """Text without a format or log probabilities; see `Recoverer.prefix`."""
        form = dict_or_empty(dict_or_empty(loads(value_of(call, "text"))).get("format")).get("type")
        is_open = loads(value_of(call, "tool_choice")) in OPEN_CHOICES
        logprobs = LOGPROBS in _included(call) or loads(value_of(call, "top_logprobs"))
        if not call.repeatable or form not in (None, "text") or not is_open or logprobs:
            return None
        return Api.RESPONSES, value_of(call, "tools") not in (b"null", b"[]")

    def transcript(self, call: Call) -> "ResponseTranscript":
        return ResponseTranscript(call, self.prefix(call))


class ResponseTranscript:
    """A `providers.recovery.Transcript`.

    Args:
        call: the call that was answered.
        prefix: see `Recoverer.prefix`.

    Attributes:
        tokens: see `Transcript`.
    """

    __slots__ = ("_abandoned", "_call", "_head", "_is_readable", "_items", "_number", "_prefix", "tokens")

    def __init__(self, call: Call, prefix: Prefix | None) -> None:
        self._call = call
        self._prefix = prefix
        self._head: Fields = {}
        self._number = -1  # of the last event
        self._items: list[Item] = []
        self._abandoned = 0  # items of reasoning of another answer, at the beginning
        self._is_readable = True
        self.tokens = 0

    @property
    def comparable(self) -> bool:
        return self._is_readable and all(item.comparable for item in self._items[self._abandoned :])

    @property
    def restartable(self) -> bool:
        items = self._items[self._abandoned :]
        return self._is_readable and bool(items) and all(item.is_thinking for item in items)

    def abandon(self) -> None:
        self._abandoned = len(self._items)

    def add(self, raw: bytes) -> None:
        for event in events_of(raw):
            try:
                value = object_in(data_of(event))
            except ProtocolError:  # bytes that are no UTF-8 in a field that is not read
                self._is_readable = False
                continue
            if value is not None:
                self._add(str(value.get("type")), value)

    def _add(self, kind: str, event: Fields) -> None:
        number, index = event.get("sequence_number"), event.get("output_index")
        self._number = number if isinstance(number, int) else self._number
        if not self._head and isinstance(event.get("response"), dict):
            self._head = dict_or_empty(event["response"])
        if not isinstance(index, int):
            return
        if kind == "response.output_item.added":
            self._is_readable = self._is_readable and index == len(self._items)
            self._items.append(Item(dict_or_empty(event.get("item"))))
            self.tokens += bool(self._items[-1].fields.get("call_id"))
        elif index >= len(self._items):
            self._is_readable = False
        elif kind == "response.output_item.done":
            self._items[index].fields, self._items[index].done = dict_or_empty(event.get("item")), True
        else:
            self.tokens += self._items[index].add(kind, event)

    def joiner(self) -> ResponseJoiner:
        abandoned, items = self._items[: self._abandoned], self._items[self._abandoned :]
        return ResponseJoiner(self._head, self._number, items, abandoned, encrypts=ENCRYPTED in _included(self._call))

    def continuation(self) -> Continuation | None:
        """See `Transcript.continuation`.

        White space at the end is not sent: chat templates remove it.
        """
        text = self._open_text()
        if text is None or self._prefix is None or is_halved(text):
            return None
        sent = text.rstrip()
        tokens = self.tokens - (sent != text)
        values = lowered(self._call, ("max_output_tokens",), self.tokens, tokens)
        before = self._input()
        if not sent or values is None or before is None:
            return None
        message = {
            "type": "message",
            "role": "assistant",
            "status": "in_progress",
            "content": [{"type": "output_text", "text": sent, "annotations": []}],
        }
        call = replace(edited(self._call, {**values, "input": before + b"," + dumps(message) + b"]"}), continues=True)
        joiner = ContinuedResponse(self._head, self._number, self._items[0], sent, prefill_tokens=tokens)
        return Continuation(call, joiner, tokens)

    def _open_text(self) -> str | None:
        """Return the only text so far; None if there is anything else, or if the text has ended."""
        if len(self._items) != 1 or not self.comparable or self._items[0].fields.get("type") != "message":
            return None
        parts = list(self._items[0].parts.values())
        if len(parts) != 1 or parts[0].text_done or parts[0].fields.get("type") != "output_text":
            return None
        return "".join(parts[0].texts)

    def _input(self) -> bytes | None:
        """Return the client's input as an unfinished list; None if the client has started the answer itself."""
        raw = value_of(self._call, "input")
        value = loads(raw)
        if isinstance(value, str):
            return b"[" + dumps({"role": "user", "content": value})
        last = dict_or_empty(list_or_empty(value)[-1]) if value else {}
        return raw[:-1] if last and last.get("role") != "assistant" else None


def _included(call: Call) -> list[object]:
    return list_or_empty(loads(value_of(call, "include")))
