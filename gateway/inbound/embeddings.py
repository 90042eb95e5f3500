"""Reads the fields of an embeddings request in one typed decode. Pure. No units."""

import msgspec

from gateway.inbound import arrays as inbound_arrays
from gateway.inbound import field_errors as inbound_fields
from gateway.inbound.parsed import AnyArray, NumberLimits, ParsedFields, RawFields
from providers.base import Api


class _Embeddings(msgspec.Struct, gc=False):
    model: str | None = None
    input: str | AnyArray | None = None
    stream: bool | None = None


_decode = msgspec.json.Decoder(_Embeddings).decode


def read(body: bytes, raws: RawFields, _bounds: NumberLimits) -> ParsedFields:
    """Read the fields of a body.

    Raises:
        InvalidRequest: the fields are invalid.
    """
    reason = "its fields are inconsistent"
    try:
        fields = _decode(inbound_arrays.without_prompts("input", body, raws))
        is_uniform = fields.input and inbound_arrays.count_prompts("input", fields.input, raws)
        if fields.model and is_uniform and fields.stream is not True:
            return ParsedFields(model=fields.model, streaming=False, prompt=("input",), assemble=False)
    except msgspec.ValidationError as error:
        reason = str(error)
    raise inbound_fields.wrong_field(Api.EMBEDDINGS, raws, {}, reason)
