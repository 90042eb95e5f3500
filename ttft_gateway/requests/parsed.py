"""The fields read from a request body of any API, and the limits on its numbers. Pure.

`AnyArray` and `AnyObject` decode any JSON array or object without building its items, so that a typed decode costs the
same whatever a client puts there.

A whole number may be written with a fraction of zero: 16.0 is an integer of JSON Schema, and some clients write all
numbers that way. The body is passed on unchanged. Units: tokens.
"""

from collections.abc import Sequence
from collections.abc import Set as AbstractSet
from typing import Final

import msgspec

RawFields = dict[str, msgspec.Raw]
"""The values of a body's top level, by key."""

_NUMBERS: Final = frozenset({int, float})
_NO_EFFECT: Final = frozenset({b"null", b"false", b'["text"]'})


class AnyArray(msgspec.Struct, array_like=True, gc=False):
    """Any array; its items are checked to be JSON, and skipped."""


class AnyObject(msgspec.Struct, gc=False):
    """Any object; its values are checked to be JSON, and skipped."""


Tokens = list[int | float]
Prompts = list[str | int | float | AnyArray]
"""The items of a list of prompts: texts, the tokens of one prompt, or arrays, perhaps of tokens."""


class NumberLimits(msgspec.Struct, frozen=True):
    """Limits on numbers in a request.

    Attributes:
        n_max: largest `n` and `best_of`.
        max_tokens_max: largest `max_tokens` and its equivalents in other APIs.
    """

    n_max: int
    max_tokens_max: int


class ParsedFields(msgspec.Struct, frozen=True, gc=False):
    """The fields of a body that the gateway uses.

    Attributes:
        model, streaming, include_usage, choices, max_tokens, assemble: see `ttft_gateway.apis.base.Call`.
        hedgeable: True if a second attempt repeats only the generation, nothing that a provider stores or executes.
        prompt: keys of the prompt, in the order in which the model reads them.
        stored, previous_id: see `ttft_gateway.requests.request.Inbound`.
    """

    model: str
    streaming: bool
    prompt: tuple[str, ...]
    include_usage: bool = False
    choices: int = 1
    max_tokens: int | None = None
    assemble: bool = True
    hedgeable: bool = True
    stored: bool = False
    previous_id: str | None = None


def prompt_count(items: Prompts | list[Tokens]) -> int:
    """Return the number of prompts in a list; 0 if it is empty or mixed, or a token is not whole."""
    kinds = set(map(type, items))
    if kinds <= _NUMBERS:
        return int(bool(items) and _are_whole(items))
    if len(kinds) > 1 or not all(_are_whole(item) for item in items if isinstance(item, list)):
        return 0
    return len(items)


def _are_whole(items: Sequence[object]) -> bool:
    return float not in set(map(type, items)) or all(item.is_integer() for item in items if isinstance(item, float))


def without_effect(raws: RawFields, keys: AbstractSet[str]) -> bool:
    """Return True if each of these keys is missing or has a value without effect."""
    return keys.isdisjoint(raws) or all(bytes(raws[key]) in _NO_EFFECT for key in keys if key in raws)
