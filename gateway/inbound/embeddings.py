"""Reads the fields of an embeddings request in one typed decode. Pure. No units."""

import msgspec

from gateway.inbound import field_errors as inbound_fields
from gateway.inbound.parsed import NumberLimits, ParsedFields, Prompts, RawFields, prompt_count
from providers.base import Api


class _Embeddings(msgspec.Struct, gc=False):
    model: str | None = None
    input: str | Prompts | None = None
    stream: bool | None = None


_decode = msgspec.json.Decoder(_Embeddings).decode


def read(body: bytes, raws: RawFields, _bounds: NumberLimits) -> ParsedFields:
    """Read the fields of a body.

    Raises:
        BadRequest: the fields are invalid.
    """
    reason = "its fields are inconsistent"
    try:
        fields = _decode(body)
        if fields.model and fields.input and fields.stream is not True and _is_uniform(fields.input):
            return ParsedFields(model=fields.model, streaming=False, prompt=("input",), assemble=False)
    except msgspec.ValidationError as error:
        reason = str(error)
    raise inbound_fields.wrong_field(Api.EMBEDDINGS, raws, {}, reason)


def _is_uniform(value: str | Prompts) -> bool:
    """Return True for one text or one list of tokens, or at most `PROMPTS_MAX` of either, unmixed."""
    return isinstance(value, str) or 1 <= prompt_count(value) <= inbound_fields.PROMPTS_MAX
