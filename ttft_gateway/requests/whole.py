"""Reads the requests of APIs whose answers are whole: embeddings, and rerank, moderations and tokenize. Pure. No units.

Of the latter three, which are passed through, only the model is read: the replica judges the other fields, whose names
differ between servers. Such a request is never hedged: its answer comes as a whole, in milliseconds.
"""

from typing import Final

import msgspec

from ttft_gateway.apis.base import Api
from ttft_gateway.requests import arrays as inbound_arrays
from ttft_gateway.requests import field_errors as inbound_fields
from ttft_gateway.requests.parsed import AnyArray, NumberLimits, ParsedFields, RawFields

_PROMPT: Final = ("query", "documents", "texts", "input", "prompt", "messages", "content")


class _Embeddings(msgspec.Struct, gc=False):
    model: str | None = None
    input: str | AnyArray | None = None
    stream: bool | None = None


class _Whole(msgspec.Struct, gc=False):
    model: str | None = None


_decode_embeddings = msgspec.json.Decoder(_Embeddings).decode
_decode_whole = msgspec.json.Decoder(_Whole).decode


def read_embeddings(body: bytes, raws: RawFields, _bounds: NumberLimits) -> ParsedFields:
    """Read the fields of an embeddings request, in one typed decode.

    Raises:
        InvalidRequest: the fields are invalid.
    """
    reason = "its fields are inconsistent"
    try:
        fields = _decode_embeddings(inbound_arrays.without_prompts("input", body, raws))
        is_uniform = fields.input and inbound_arrays.count_prompts("input", fields.input, raws)
        if fields.model and is_uniform and fields.stream is not True:
            return ParsedFields(model=fields.model, streaming=False, prompt=("input",), assemble=False)
    except msgspec.ValidationError as error:
        reason = str(error)
    raise inbound_fields.wrong_field(Api.EMBEDDINGS, raws, {}, reason)


def read_passed_through(body: bytes, raws: RawFields, _bounds: NumberLimits) -> ParsedFields:
    """Read the model of a request that is passed through.

    Raises:
        InvalidRequest: the body has no valid model.
    """
    try:
        model = _decode_whole(body).model
    except msgspec.ValidationError:
        model = None
    if not model:
        raise inbound_fields.wrong_model(raws)
    prompt = tuple(key for key in _PROMPT if key in raws)
    return ParsedFields(model=model, streaming=False, prompt=prompt, assemble=False, hedgeable=False)
