"""Reads the requests of APIs that are passed through: rerank, moderations, tokenize. Pure. No units.

Only the model is read: the replica judges the other fields, whose names differ between servers. Such a request is
never hedged: its answers come as a whole, in milliseconds.
"""

from typing import Final

import msgspec

from gateway.inbound.field_errors import wrong_model
from gateway.inbound.parsed import NumberLimits, ParsedFields, RawFields


class _Whole(msgspec.Struct, gc=False):
    model: str | None = None


_decode = msgspec.json.Decoder(_Whole).decode
_PROMPT: Final = ("query", "documents", "texts", "input", "prompt", "messages", "content")


def read(body: bytes, raws: RawFields, _bounds: NumberLimits) -> ParsedFields:
    """Read the model of a body.

    Raises:
        InvalidRequest: the body has no valid model.
    """
    try:
        model = _decode(body).model
    except msgspec.ValidationError:
        model = None
    if not model:
        raise wrong_model(raws)
    prompt = tuple(key for key in _PROMPT if key in raws)
    return ParsedFields(model=model, streaming=False, prompt=prompt, assemble=False, hedgeable=False)
