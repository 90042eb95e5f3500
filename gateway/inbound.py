"""A client's request body, read once: what the race, the policies and every attempt need to know of it. Pure.

The top level is decoded into raw values, which checks the whole JSON and gives each value's length; where the values
stand follows from one walk over the keys. No key may stand there twice: the gateway and an upstream could take
different ones for the model or the stream flag. A second, typed decode reads the few fields that matter; whatever else
was sent goes to the upstream as it is. What is wrong with a request is worded in `gateway.inbound_syntax` and
`gateway.inbound_fields`.

Knows nothing of models, keys or HTTP but headers. Units: bytes, seconds, tokens.
"""

import math
import re
from collections.abc import Set as AbstractSet
from dataclasses import dataclass
from typing import Final

import msgspec

from gateway import inbound_fields, inbound_syntax
from gateway.hedging.outcomes import Denial
from providers.base import Api, Call, Headers

Raws = dict[str, msgspec.Raw]
Spans = dict[str, tuple[int, int]]

KEYS_MAX: Final = 200  # at the top level; the API has some 40


@dataclass(frozen=True, slots=True)
class Bounds:
    """Limits on numbers in a request.

    Attributes:
        n_max: of `n` and `best_of`.
        max_tokens_max: of `max_tokens` and `max_completion_tokens`.
    """

    n_max: int
    max_tokens_max: int


class Inbound(msgspec.Struct, frozen=True, gc=False):
    """One request as it came in.

    Attributes:
        call: what every attempt needs.
        prompt: the raw bytes of `messages` or `prompt`, for estimates.
        hedge_off: why it may not be hedged, None when it may.
        deadline_s: the client waits no longer than this, None when it did not say.
    """

    call: Call
    prompt: bytes
    hedge_off: Denial | None
    deadline_s: float | None


class _StreamOptions(msgspec.Struct, gc=False):
    include_usage: bool | None = None


class _Tool(msgspec.Struct, gc=False):
    type: str | None = None


class _Message(msgspec.Struct, gc=False):
    role: str
    content: str | list[msgspec.Raw] | None = None


class _Fields(msgspec.Struct, gc=False):
    """What both APIs share; null counts as absent."""

    model: str | None = None
    stream: bool | None = None
    stream_options: _StreamOptions | None = None
    n: int | None = None
    best_of: int | None = None
    max_tokens: int | None = None
    max_completion_tokens: int | None = None
    tools: list[_Tool] | None = None

    def within(self, bounds: Bounds) -> bool:
        """All is there, within its bounds, and goes together."""
        n_max, tokens_max = bounds.n_max, bounds.max_tokens_max
        return (
            bool(self.model)
            and (self.n is None or 1 <= self.n <= n_max)
            and (self.best_of is None or 1 <= self.best_of <= n_max)
            and (self.max_tokens is None or 1 <= self.max_tokens <= tokens_max)
            and (self.max_completion_tokens is None or 1 <= self.max_completion_tokens <= tokens_max)
            and (self.stream_options is None or self.stream is True)
        )


class _Chat(_Fields, gc=False):
    messages: list[_Message] | None = None

    def prompts(self) -> int:
        """How many prompts are asked, 0 for none or too many."""
        return 1 if self.messages and len(self.messages) <= inbound_fields.MESSAGES_MAX else 0


class _Completions(_Fields, gc=False):
    prompt: str | list[str | int | list[int]] | None = None

    def prompts(self) -> int:
        """How many prompts are asked, 0 for none, too many, or texts mixed with token numbers."""
        if isinstance(self.prompt, list):
            kinds = set(map(type, self.prompt))
            count = 1 if kinds == {int} else len(self.prompt)
            return count if len(kinds) == 1 and count <= inbound_fields.PROMPTS_MAX else 0
        return 0 if self.prompt is None else 1


_read_top = msgspec.json.Decoder(Raws).decode
_read_chat = msgspec.json.Decoder(_Chat).decode
_read_completions = msgspec.json.Decoder(_Completions).decode
_read_key = msgspec.json.Decoder(str).decode
_encode = msgspec.json.Encoder().encode

_next_key = re.compile(rb'\s*+[{,]\s*+"([^"\\]*+(?:\\.[^"\\]*+)*+)"\s*+:\s*+').match  # in JSON already checked

# Work that must not be done twice: what is kept by the provider, and what the provider does on its own.
_ONCE: Final = frozenset({"background", "plugins", "search_parameters", "store", "web_search_options"})
# What a stream does not tell, or tells in another form than the body would.
_UNSTREAMED: Final = frozenset(
    {
        "audio",  # another format in streams
        "deferred",
        "echo",
        "kv_transfer_params",
        "modalities",
        "prompt_logprobs",
        "return_hidden_states",
        "return_token_ids",
        "use_beam_search",
    }
)
_RARE: Final = _ONCE | _UNSTREAMED
_AS_IF_ABSENT: Final = frozenset({b"null", b"false", b'["text"]'})
_CLIENT_TOOLS: Final = frozenset({"function", "custom", None})


def parse(api: Api, body: bytes, headers: Headers, bounds: Bounds, passed_headers: frozenset[bytes]) -> Inbound:
    """Read one request.

    Args:
        api: which API was called.
        body: the whole request body.
        headers: of the request, names in lower case.
        bounds: on numbers in the body.
        passed_headers: names of client headers to pass on.

    Raises:
        BadRequest: it cannot be served; says what was found, where, and what to send instead.
    """
    given = dict(headers)
    hedge_asked = _checked(given)
    raws = _top_level(body)
    spans = _spans_compact(body, raws) or _spans(body, raws)
    fields = _fields(api, body, raws, bounds)
    plain = _RARE.isdisjoint(raws)
    call = Call(
        api=api,
        body=body,
        spans=spans,
        insert_at=body.index(b"{") + 1,
        model=fields.model or "",
        streaming=fields.stream is True,
        include_usage=fields.stream_options is not None and fields.stream_options.include_usage is True,
        choices=(fields.n or 1) * fields.prompts(),
        max_tokens=fields.max_completion_tokens or fields.max_tokens,
        assemble=(fields.best_of or 1) == 1 and (plain or _absent(raws, _UNSTREAMED)),
        headers=() if passed_headers.isdisjoint(given) else tuple(h for h in headers if h[0] in passed_headers),
    )
    hedgeable = (
        hedge_asked
        and call.choices == 1
        and (call.streaming or call.assemble)
        and (plain or _absent(raws, _ONCE))
        and (fields.tools is None or all(tool.type in _CLIENT_TOOLS for tool in fields.tools))
    )
    start, end = spans["messages" if api is Api.CHAT else "prompt"]
    return Inbound(call, body[start:end], None if hedgeable else Denial.OFF, _deadline_s(given))


def _checked(given: dict[bytes, bytes]) -> bool:
    """Whether the headers leave hedging on; refuses a body in a form that is not read here."""
    media = given.get(b"content-type")
    if media is not None and media != b"application/json":
        kind = media.partition(b";")[0].strip().lower()
        if kind not in (b"", b"application/json") and not kind.endswith(b"+json"):
            raise inbound_syntax.content_type(kind)
    coding = given.get(b"content-encoding")
    if coding is not None and coding.strip().lower() not in (b"", b"identity"):
        raise inbound_syntax.content_encoding(coding)
    hedge = given.get(b"x-ttft-hedge", b"on").strip().lower()
    if hedge not in (b"on", b"off"):
        raise inbound_syntax.hedge_header(hedge)
    return hedge == b"on"


def _deadline_s(given: dict[bytes, bytes]) -> float | None:
    """How long the client waits, as the OpenAI SDKs say it; nonsense is taken for silence."""
    value = given.get(b"x-stainless-read-timeout")
    if value is None:
        return None
    try:
        deadline_s = float(value)
    except ValueError:
        return None
    return deadline_s if 0 < deadline_s < math.inf else None


def _top_level(body: bytes) -> Raws:
    """The values of the top level, the JSON of the whole body checked."""
    try:
        if not body.isascii():
            body.decode()  # the decoder skips over values without looking at their encoding
        raws = _read_top(body)
    except UnicodeDecodeError as error:
        raise inbound_syntax.not_utf8(body, error.start) from None
    except msgspec.ValidationError:
        raise inbound_syntax.not_object(body) from None
    except msgspec.DecodeError as error:
        raise inbound_syntax.not_json(body, str(error)) from None
    except RecursionError:
        raise inbound_syntax.too_deep() from None
    if len(raws) > KEYS_MAX:
        raise inbound_syntax.too_many_keys(len(raws), KEYS_MAX)
    return raws


def _fields(api: Api, body: bytes, raws: Raws, bounds: Bounds) -> _Chat | _Completions:
    """The fields that matter, in order and within their bounds."""
    why = "its fields do not fit together"
    try:
        fields = _read_chat(body) if api is Api.CHAT else _read_completions(body)
        if fields.within(bounds) and fields.prompts():
            return fields
    except RecursionError:
        raise inbound_syntax.too_deep() from None
    except msgspec.ValidationError as error:
        why = str(error)
    maxima = {
        "n": bounds.n_max,
        "best_of": bounds.n_max,
        "max_tokens": bounds.max_tokens_max,
        "max_completion_tokens": bounds.max_tokens_max,
    }
    raise inbound_fields.wrong_field(api, raws, maxima, why)


def _spans_compact(body: bytes, raws: Raws) -> Spans | None:
    """Where the values stand in a body without white space around top-level keys, which most clients send; or None.

    What the encoder makes of the values has each key once, so a body equal to that has, too.
    """
    if _encode(raws) != body:
        return None
    spans = {}
    end = 0
    for key, raw in raws.items():
        start = end + len(key) + 4  # the brace or comma before it, two quotes, the colon
        end = start + len(raw)
        spans[key] = (start, end)
    return spans if end + 1 == len(body) else None  # a key with escapes is longer than it looks


def _spans(body: bytes, raws: Raws) -> Spans:
    """Where the values stand in any body; finds any key that stands there twice.

    `raws` has the last value of each key. No JSON value is the beginning of another one, but for numbers: so where the
    bytes are those of the last value and the next key or the end follows, this is the value.
    """
    spans: Spans = {}
    key, end = "", 0
    while entry := _next_key(body, end):
        key = entry[1].decode()
        if "\\" in key:
            key = _read_key(b'"%b"' % entry[1])
        value = bytes(raws[key])
        start = entry.end()
        end = start + len(value)
        if key in spans or not body.startswith(value, start):
            raise inbound_syntax.duplicate(key)
        spans[key] = (start, end)
    if raws and body[end:].strip() != b"}":  # a number that begins like the last one of its key
        raise inbound_syntax.duplicate(key)
    return spans


def _absent(raws: Raws, keys: AbstractSet[str]) -> bool:
    """None of these keys asks for anything."""
    return all(bytes(raws[key]) in _AS_IF_ABSENT for key in keys if key in raws)
