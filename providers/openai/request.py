"""Builds the request body for OpenAI-compatible servers: the client's own bytes, with three values replaced.

Only the spans of `model`, `stream` and `stream_options` change: all other bytes reach the upstream as the client sent
them. Independent of HTTP and providers.
"""

import re
from collections.abc import Collection, Iterable, Mapping

import msgspec

from ttft_gateway.apis.base import Body, Call
from ttft_gateway.apis.tolerant_json import dumps, loads

_Replaced = tuple[tuple[int, int], bytes]
"""The span of a value, and the bytes to put there."""

_COPIED_MAX = 256 * 1024  # bytes of a body that is copied for each upstream request
_STREAM = b'"stream":true,'
_ASK_USAGE = b'"stream_options":{"include_usage":true},'
_encode = msgspec.json.Encoder().encode
_MODEL_KEY = re.compile(rb'"model"[ \t\r\n]*:[ \t\r\n]*\Z')
_KEY_MAX = 64  # bytes before the value of `model` in which its key is looked for
_options = msgspec.json.Decoder(dict[str, msgspec.Raw] | None).decode


def build(call: Call, model: str, *, stream: bool, ask_usage: bool) -> Body:
    """Build the body to send.

    Args:
        call: the client's call.
        model: the replica's name of the model.
        stream: request a stream.
        ask_usage: with a stream, request token counts too (not every server supports `stream_options`).
    """
    if call.streaming and not stream:
        call = without(call, ("stream", "stream_options"))
    elif not call.options:
        call = without(call, ("stream_options",))
    body, spans, at = call.body, call.spans, call.insert_at
    asks = stream and ask_usage and call.options and not call.include_usage
    is_usual = stream is call.streaming and "model" in spans and not (asks and "stream_options" in spans)
    if is_usual and len(body) <= _COPIED_MAX:
        start, end = spans["model"]
        return b"".join((body[:at], _ASK_USAGE if asks else b"", body[at:start], _encode(model), body[end:]))
    added, replaced = b"", list[_Replaced]()
    if "model" in spans:
        replaced.append((spans["model"], _encode(model)))
    else:
        added = b'"model":%b,' % _encode(model)
    if stream and not call.streaming:
        if "stream" in spans:
            replaced.append((spans["stream"], b"true"))
        else:
            added += _STREAM
    if asks:
        if "stream_options" in spans:
            replaced.append((spans["stream_options"], _usage_asked(call)))
        else:
            added += _ASK_USAGE
    return _replaced(call, replaced, added)


def build_instead(call: Call, field: bytes, *, stream: bool) -> Body:
    """Build the body for a server that has the model in its path.

    Args:
        call: the client's call.
        field: field in JSON that is sent instead of `model`; the call's body has none of this name.
        stream: request a stream.
    """
    if call.streaming and not stream:
        call = without(call, ("stream",))
    start, end = call.spans.get("model", (0, 0))
    first = max(0, start - _KEY_MAX)
    key = _MODEL_KEY.search(call.body[first:start])
    replaced, added = list[_Replaced](), b""
    if key is not None:
        replaced.append(((first + key.start(), end), field))
    else:
        call, added = without(call, ("model",)), field + b","
    if stream and not call.streaming:
        if "stream" in call.spans:
            replaced.append((call.spans["stream"], b"true"))
        else:
            added += _STREAM
    return _replaced(call, replaced, added)


def edited(call: Call, values: Mapping[str, bytes]) -> Call:
    """Return the call with the JSON of some top-level values replaced; absent keys follow the opening brace.

    Args:
        call: a call with at least one key in its body.
        values: JSON by key.
    """
    pieces = [call.body[: call.insert_at]]
    spans: dict[str, tuple[int, int]] = {}
    size = call.insert_at

    def put(prefix: bytes, key: str, value: bytes) -> None:
        nonlocal size
        start = size + len(prefix)
        size = start + len(value)
        spans[key] = (start, size)
        pieces.extend((prefix, value))

    comma = b""
    for key in (key for key in values if key not in call.spans):
        put(comma + _encode(key) + b":", key, values[key])
        comma = b","
    at = call.insert_at
    for key, (start, end) in sorted(call.spans.items(), key=lambda entry: entry[1]):
        put(comma + call.body[at:start], key, values.get(key, call.body[start:end]))
        at, comma = end, b""
    pieces.append(call.body[at:])
    return msgspec.structs.replace(call, body=b"".join(pieces), spans=spans)


def value_of(call: Call, key: str) -> bytes:
    """Return the JSON of a top-level value of the client's body, null if it is absent."""
    start, end = call.spans.get(key, (0, 0))
    return call.body[start:end] or b"null"


def lowered(call: Call, keys: Iterable[str], tokens: int, sent: int) -> dict[str, bytes] | None:
    """Return the call's bounds on tokens for the rest of an answer; None if the answer has reached one of them.

    Args:
        keys: names of the bounds.
        tokens: tokens so far.
        sent: tokens among them that the request has as the beginning of the answer.
    """
    values: dict[str, bytes] = {}
    for key in keys:
        limit = loads(value_of(call, key))
        if isinstance(limit, int | float):
            if limit <= tokens:
                return None
            values[key] = b"%d" % (int(limit) - sent)
    return values


def without(call: Call, keys: Collection[str]) -> Call:
    """Return the call without some of its top-level keys; the same object if it has none of them."""
    if not any(key in call.spans for key in keys):
        return call
    ordered = sorted(call.spans.items(), key=lambda entry: entry[1])
    body, spans = written({key: call.body[start:end] for key, (start, end) in ordered if key not in keys})
    return msgspec.structs.replace(call, body=body, spans=spans, insert_at=1)


def written(fields: Mapping[str, bytes]) -> tuple[bytes, dict[str, tuple[int, int]]]:
    """Return the JSON object with these fields, and the span of each value in it.

    Args:
        fields: JSON by key.
    """
    spans: dict[str, tuple[int, int]] = {}
    pieces, at = [b"{"], 1
    for key, value in fields.items():
        prefix = b"%b%b:" % (b"," if spans else b"", dumps(key))
        start = at + len(prefix)
        at = start + len(value)
        spans[key] = (start, at)
        pieces += (prefix, value)
    return b"".join([*pieces, b"}"]), spans


def _usage_asked(call: Call) -> bytes:
    """The client's `stream_options` with `include_usage` set; a value that is not an object is sent unchanged."""
    start, end = call.spans["stream_options"]
    try:
        options = _options(call.body[start:end]) or {}
    except msgspec.ValidationError:
        return call.body[start:end]
    return _encode({**options, "include_usage": True})


def _replaced(call: Call, replaced: list[_Replaced], added: bytes) -> Body:
    """Return the body with other values in these spans, and with fields added after the opening brace.

    Of a large body the client's bytes are not copied: many requests with images would need all their memory twice.
    """
    is_large = len(call.body) > _COPIED_MAX
    body: bytes | memoryview = memoryview(call.body) if is_large else call.body
    at = call.insert_at
    pieces: list[bytes | memoryview] = [body[:at], added if call.spans else added[:-1]]
    for (start, end), value in sorted(replaced) if replaced[1:] else replaced:
        pieces += (body[at:start], value)
        at = end
    pieces += (body[at:],)
    return tuple(pieces) if is_large else b"".join(pieces)
