"""The content blocks of a Messages stream that a client has been sent, and the place of text in their events. Pure."""

from dataclasses import dataclass, field
from typing import Final

from ttft_gateway.apis.anthropic.events import TEXTS
from ttft_gateway.apis.anthropic.writer import Json
from ttft_gateway.apis.json_fields import dict_or_empty

_THINKING: Final = frozenset({"thinking", "redacted_thinking"})
_COMPARABLE: Final = frozenset({"text", "thinking", "tool_use"})


@dataclass(slots=True)
class Block:
    """One content block that a client has been sent, in full or in part.

    Attributes:
        kind: type of the block, and the name of the called tool.
        texts: pieces of its text, thinking, or input.
        signed: it has its signature.
        stopped: its end was sent.
        comparable: it has nothing that is not text: no citation, no result of the provider's tools.
    """

    kind: tuple[str, object]
    texts: list[str] = field(default_factory=list)
    signed: bool = False
    stopped: bool = False
    comparable: bool = True

    @property
    def is_thinking(self) -> bool:
        """The block is thinking, encrypted or not."""
        return self.kind[0] in _THINKING

    def add(self, delta: Json) -> int:
        """Record a delta; return the number of its tokens."""
        kind = str(delta.get("type"))
        if kind in TEXTS:
            text = delta.get(TEXTS[kind])
            if isinstance(text, str) and text:
                self.texts.append(text)
                return 1
        elif kind == "signature_delta":
            self.signed = True
        else:
            self.comparable = False
        return 0


def started(block: Json) -> Block:
    """Return a block as it starts; most are empty then."""
    kind = str(block.get("type"))
    made = Block(kind_of(block), comparable=kind in _COMPARABLE and not block.get("citations"))
    text = text_of(block)
    if text:
        made.texts.append(text)
    if block.get("input"):
        made.comparable = False  # an input that is sent whole: its text is unknown
    made.signed = bool(block.get("signature"))
    return made


def kind_of(block: Json) -> tuple[str, object]:
    """Return the values that equal blocks have in common."""
    return str(block.get("type")), block.get("name")


def text_of(block: Json) -> str:
    """Return the text or thinking that the start of a block has."""
    text = block.get(str(block.get("type")))
    return text if isinstance(text, str) else ""


def block_in(event: Json) -> Json:
    """Return the block that an event starts."""
    return dict_or_empty(event.get("content_block"))


def delta_in(event: Json) -> Json:
    """Return the delta of an event."""
    return dict_or_empty(event.get("delta"))
