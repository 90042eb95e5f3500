"""Parses a client's request body once, for the race, the policies and every attempt. Pure.

The top level is decoded into raw values, which checks the whole JSON and gives each value's length; a comparison of the
body with its keys and values gives the values' positions. Duplicate keys are rejected: the gateway and an upstream
could use different ones for the model or the stream flag. A second, typed decode reads the few fields that the gateway
uses; all other fields go to the upstream unchanged. `ttft_gateway.requests.large` checks the messages of a large body
in one pass; `ttft_gateway.requests.headers` reads the headers; `ttft_gateway.requests.errors` and
`ttft_gateway.requests.field_errors` build the errors.

Independent of configured models and API keys. Units: bytes, seconds, tokens.
"""

import enum
import re
from collections.abc import Callable, Mapping
from typing import Final

import msgspec

from ttft_gateway.apis.base import HOPS, Api, Call, Headers
from ttft_gateway.hedging.outcomes import Denial
from ttft_gateway.requests import arrays as inbound_arrays
from ttft_gateway.requests import errors as inbound_errors
from ttft_gateway.requests import headers as inbound_headers
from ttft_gateway.requests import large as inbound_large
from ttft_gateway.requests import messages as inbound_messages
from ttft_gateway.requests import openai as inbound_openai
from ttft_gateway.requests import responses as inbound_responses
from ttft_gateway.requests.errors import InvalidRequest
from ttft_gateway.requests.headers import NO_TIMES, TIMES, CallerTimes
from ttft_gateway.requests.parsed import NumberLimits, ParsedFields, RawFields

Spans = dict[str, tuple[int, int]]
_Top = tuple[bytes, Spans, ParsedFields]
"""A body, the positions of the values at its top level, and the fields that the gateway uses."""

_BRACE: Final = b"{"[0]
KEYS_MAX: Final = 200  # keys at the top level; the API has some 40
KEY_CHARACTERS_MAX: Final = 64 * 1024  # of all keys; a key of escapes takes 20 ms for each MB


class Inbound(msgspec.Struct, frozen=True, gc=False):
    """One parsed request.

    Attributes:
        call: the call that every attempt sends.
        prompt: raw bytes of the prompt, for estimates.
        hedge_off: reason why it may not be hedged, None if it may.
        times: limits on the times of its answer, from its headers.
        stored: True if an upstream that stores answers would store this one, because `store` is not false.
        previous_id: id of the stored answer that this request continues, None if there is none.
        tells_usage: True if the client asked for a report of usage and cost.
    """

    call: Call
    prompt: bytes
    hedge_off: Denial | None
    times: CallerTimes
    stored: bool = False
    previous_id: str | None = None
    tells_usage: bool = False


_COUNTED_MIN: Final = 16 * 1024  # larger bodies may have their keys counted before the keys are decoded
_COLONS_MAX: Final = 2_000  # in a larger body: with more colons the keys are counted first; a key needs one
_read_top = msgspec.json.Decoder(RawFields).decode
_read_key = msgspec.json.Decoder(str).decode
_encode = msgspec.json.Encoder().encode

_next_key = re.compile(rb'\s*+[{,]\s*+"([^"\\]*+(?:\\.[^"\\]*+)*+)"\s*+:\s*+').match  # for JSON already checked

_READERS: Final[Mapping[Api, Callable[[bytes, RawFields, NumberLimits], ParsedFields]]] = {
    Api.CHAT: inbound_openai.read_chat,
    Api.COMPLETIONS: inbound_openai.read_completions,
    Api.RESPONSES: inbound_responses.read,
    Api.EMBEDDINGS: inbound_openai.read_embeddings,
    Api.RERANK: inbound_openai.read_passed_through,
    Api.MODERATIONS: inbound_openai.read_passed_through,
    Api.TOKENIZE: inbound_openai.read_passed_through,
    Api.MESSAGES: inbound_messages.read,
}


def parse(
    api: Api,
    body: bytes,
    headers: Headers,
    bounds: NumberLimits,
    passed_headers: frozenset[bytes],
    default_model: str | None = None,
    by_name: Mapping[bytes, bytes] | None = None,
    owner: str = "",
) -> Inbound:
    """Parse one request.

    Args:
        headers: request headers, names in lower case.
        bounds: limits on numbers in the body.
        passed_headers: names of client headers to pass on.
        default_model: model of a request without `model`; None: such a request is invalid.
        by_name: `headers` by name, if the caller has them.
        owner: see `ttft_gateway.apis.base.Call`.

    Raises:
        InvalidRequest: the request is invalid; the message has what was found, where, and what to send instead.
    """
    if by_name is None:
        by_name = dict(headers)
    if b"content-encoding" in by_name or by_name.get(b"content-type") != b"application/json":
        inbound_headers.check_content_headers(by_name)
    wants_hedge = b"x-ttft-hedge" not in by_name or inbound_headers.is_on(by_name, b"x-ttft-hedge")
    tells_usage = b"x-ttft-usage" in by_name and inbound_headers.is_on(by_name, b"x-ttft-usage")
    times = NO_TIMES if TIMES.isdisjoint(by_name) else inbound_headers.caller_times(by_name)
    top = _large_top(api, body, bounds) if len(body) > inbound_large.SIZE_MIN else None
    body, spans, fields = top or _top(api, body, bounds, default_model)
    streaming, choices, repeatable = fields.streaming, fields.choices, fields.hedgeable
    call = Call(
        api,
        body,
        spans,
        1 if body[0] == _BRACE else body.index(b"{") + 1,
        fields.model,
        streaming,
        fields.include_usage,
        choices,
        fields.max_tokens,
        fields.assemble,
        () if passed_headers.isdisjoint(by_name) else inbound_headers.passed(headers, passed_headers),
        repeatable,
        True,
        owner,
        inbound_headers.hops(by_name) if HOPS in by_name else 0,
    )
    prompt = b""
    for key in fields.prompt:
        start, end = spans[key]
        prompt += body[start:end]
    may_hedge = wants_hedge and repeatable and choices == 1 and (streaming or call.timed)
    return Inbound(
        call,
        prompt,
        None if may_hedge else Denial.OFF,
        times,
        fields.stored,
        fields.previous_id,
        tells_usage,
    )


def skim(api: Api, body: bytes, bounds: NumberLimits, default_model: str) -> tuple[ParsedFields, int]:
    """Read the fields of a body, and the bytes of its prompt, for a caller that sends the body unchanged.

    It is valid if and only if `parse` accepts it; positions of values are computed only where they show duplicate keys.

    Raises:
        InvalidRequest: as in `parse`.
    """
    top = _large_top(api, body, bounds) if len(body) > inbound_large.SIZE_MIN else None
    if top is not None:
        _, spans, fields = top
        return fields, sum(spans[key][1] - spans[key][0] for key in fields.prompt)
    raws = _top_level(body)
    if "model" not in raws:
        body = _with_model(body, raws, default_model)
        raws = _read_top(body)
    try:
        if not _is_compact(body, raws):
            _spans(body, raws)
        fields = _READERS[api](body, raws, bounds)
    except RecursionError:
        raise inbound_errors.too_deep() from None
    return fields, sum(map(len, map(raws.__getitem__, fields.prompt)))


def parse_count(body: bytes, headers: Headers, default_model: str | None = None) -> tuple[str, bytes]:
    """Parse a request of the Messages API to count tokens; return its model and its prompt.

    Args:
        default_model: as in `parse`.

    Raises:
        InvalidRequest: as in `parse`.
    """
    inbound_headers.check_content_headers(dict(headers))
    raws = _top_level(body)
    if default_model is not None and "model" not in raws:
        body = _with_model(body, raws, default_model)
    try:
        model = inbound_messages.read_count(body, raws)
    except RecursionError:
        raise inbound_errors.too_deep() from None
    return model, b"".join(bytes(raws[key]) for key in inbound_messages.PROMPT if key in raws)


def _with_model(body: bytes, raws: RawFields, model: str) -> bytes:
    """Return the body with a `model`, which it does not have."""
    at = body.index(b"{") + 1
    return b'%b"model":%b%b%b' % (body[:at], _encode(model), b"," if raws else b"", body[at:])


def _top_level(body: bytes) -> RawFields:
    """Check the JSON of the whole body and return the values of its top level."""
    try:
        if not body.isascii():
            body.decode()  # the decoder does not check the encoding of values that it skips
        if len(body) > _COUNTED_MIN and body.count(b":") > _COLONS_MAX:
            _check_keys(body)
        raws = _read_top(body)
    except UnicodeDecodeError as error:
        raise inbound_errors.not_utf8(body, error.start) from None
    except msgspec.ValidationError:
        raise inbound_errors.not_object(body) from None
    except msgspec.DecodeError as error:
        raise inbound_errors.not_json(body, str(error)) from None
    except RecursionError:
        raise inbound_errors.too_deep() from None
    if len(raws) > KEYS_MAX:
        raise inbound_errors.too_many_keys(KEYS_MAX)
    if ("tools" in raws or "input" in raws) and body.count(b"{") > inbound_arrays.OBJECTS_MAX:
        inbound_arrays.check_objects(raws)
    return raws


class _TopKey(enum.Enum):
    """Any key of the top level, for a decode that only counts keys and stops early."""

    ANY = ""

    @classmethod
    def _missing_(cls, _value: object) -> "_TopKey | None":
        _keys_left.pop()  # raises after the last one, which ends the decode
        return cls.ANY


_keys_left: list[None] = []
_count_keys = msgspec.json.Decoder(dict[_TopKey, msgspec.Raw]).decode


def _check_keys(body: bytes) -> None:
    """Reject a body with too many keys at its top level before all of them are decoded.

    `_read_top` builds an object for each key, which takes 40 ms for each MB of a body that is nothing but keys.

    Raises:
        InvalidRequest: there are too many.
    """
    _keys_left[:] = [None] * KEYS_MAX
    try:
        _count_keys(body)
    except msgspec.ValidationError:
        if not _keys_left:
            raise inbound_errors.too_many_keys(KEYS_MAX) from None


def _top(api: Api, body: bytes, bounds: NumberLimits, default_model: str | None) -> _Top:
    raws = _top_level(body)
    if default_model is not None and "model" not in raws:
        body = _with_model(body, raws, default_model)
        raws = _read_top(body)
    try:
        return body, _spans(body, raws), _READERS[api](body, raws, bounds)
    except RecursionError:
        raise inbound_errors.too_deep() from None


def _large_top(api: Api, body: bytes, bounds: NumberLimits) -> _Top | None:
    """Read the top level of a large body, with its messages apart from its other fields.

    Returns:
        None if the body is invalid, because its error has positions in the whole body, or if it has another form.
    """
    if not (body.isascii() or _is_utf8(body)):
        return None
    before = len(body)
    for _ in range(2 if before <= inbound_large.AGAIN_MAX else 1):  # the last bracket may belong to another value
        large = inbound_large.find(api, body, before)
        if large is None:
            return None
        begin, end = large.span
        try:
            _, spans, fields = _top(api, large.stubbed, bounds, None)
        except InvalidRequest:
            return None
        if spans.get(large.key) != (begin, begin + len(inbound_large.STUB)):
            return None
        found = inbound_large.end_of_messages(api, body, large.span)
        if found is None:
            return None
        before = found
        if before == end:
            longer = end - begin - len(inbound_large.STUB)
            later = {key: (start + longer, stop + longer) for key, (start, stop) in spans.items() if start > begin}
            return body, {**spans, **later, large.key: large.span}, fields
    return None


def _is_utf8(body: bytes) -> bool:
    try:
        body.decode()
    except UnicodeDecodeError:
        return False
    return True


def _is_compact(body: bytes, raws: RawFields) -> bool:
    """Return True if the top level of a body has no white space, no escape in a key, and no duplicate key.

    Such a body is as long as its keys, its values, and 4 bytes for each pair: quotes, colon, and comma or brace. White
    space, an escape, a character outside ASCII and a duplicate key make a body longer.

    Raises:
        InvalidRequest: the keys are too long.
    """
    keys = sum(map(len, raws))
    if keys > KEY_CHARACTERS_MAX:
        raise inbound_errors.too_long_keys(KEY_CHARACTERS_MAX)
    return keys + sum(map(len, raws.values())) + 4 * len(raws) + 1 == len(body)


def _spans(body: bytes, raws: RawFields) -> Spans:
    """Return the values' positions in any body; rejects duplicate keys.

    `raws` has the last value of each key. No JSON value except a number is a prefix of another one. So if the bytes at
    a position equal the last value, and the next key or the end follows, this is the value. In a compact body, as most
    clients send it, the lengths give the positions, in a third of the time.
    """
    spans: Spans = {}
    key, end = "", 0
    if _is_compact(body, raws):
        for key, raw in raws.items():
            start = end + len(key) + 4
            end = start + len(raw)
            spans[key] = (start, end)
        return spans
    while entry := _next_key(body, end):
        key = entry[1].decode()
        if "\\" in key:
            key = _read_key(b'"%b"' % entry[1])
        value = raws[key]
        start = entry.end()
        end = start + len(value)
        if key in spans or not body.startswith(value, start):
            raise inbound_errors.duplicate(key)
        spans[key] = (start, end)
    if raws and body[end:].strip() != b"}":  # a duplicate key: its number starts with the digits of the last one
        raise inbound_errors.duplicate(key)
    return spans
