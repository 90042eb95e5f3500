"""What reading a request's fields gives, whichever API it was sent to, and the limits they are held to. Pure data.

Units: tokens.
"""

from collections.abc import Set as AbstractSet
from dataclasses import dataclass
from typing import Final

import msgspec

RawFields = dict[str, msgspec.Raw]
"""The values of a body's top level, by key."""

_AS_IF_ABSENT: Final = frozenset({b"null", b"false", b'["text"]'})


@dataclass(frozen=True, slots=True)
class NumberLimits:
    """Limits on numbers in a request.

    Attributes:
        n_max: of `n` and `best_of`.
        max_tokens_max: of `max_tokens` and its other names.
    """

    n_max: int
    max_tokens_max: int


class ParsedFields(msgspec.Struct, frozen=True, gc=False):
    """What the fields of a body ask for.

    Attributes:
        model, streaming, include_usage, choices, max_tokens, assemble: see `providers.base.Call`.
        hedgeable: asking twice does no work twice that a second answer does not need.
        prompt: the keys of what the model reads, in the order in which it reads them.
        kept, follows: see `gateway.inbound.request.Inbound`.
    """

    model: str
    streaming: bool
    prompt: tuple[str, ...]
    include_usage: bool = False
    choices: int = 1
    max_tokens: int | None = None
    assemble: bool = True
    hedgeable: bool = True
    kept: bool = False
    previous_id: str | None = None


def absent(raws: RawFields, keys: AbstractSet[str]) -> bool:
    """None of these keys asks for anything."""
    return keys.isdisjoint(raws) or all(bytes(raws[key]) in _AS_IF_ABSENT for key in keys if key in raws)
