"""Builds a `Call` from a JSON body, for tests of wire protocols; finds the spans the simple way."""

import json
from typing import Any

from ttft_gateway.apis.base import Api, Body, Call


def call_of(body: dict[str, Any] | bytes, api: Api = Api.CHAT, **over: Any) -> Call:
    """A call with this body, as the gateway's request parser would make it."""
    raw = body if isinstance(body, bytes) else json.dumps(body).encode()
    text, value = raw.decode(), json.loads(raw)
    spans, at = {}, text.index("{") + 1
    for key in value:
        name = json.dumps(key)
        start = text.index(":", text.index(name, at) + len(name)) + 1
        start += len(text[start:]) - len(text[start:].lstrip())
        _, at = json.JSONDecoder().raw_decode(text, start)
        spans[key] = (len(text[:start].encode()), len(text[:at].encode()))
    options = value.get("stream_options")
    asked = isinstance(options, dict) and options.get("include_usage") is True
    fields = {"streaming": value.get("stream") is True, "include_usage": asked, "choices": value.get("n", 1)}
    return Call(api, raw, spans, raw.index(b"{") + 1, value.get("model", "m"), **{**fields, **over})


def in_one_piece(body: Body) -> bytes:
    """Return the whole body of an upstream request."""
    return body if isinstance(body, bytes) else b"".join(body)


STREAMED = call_of({"model": "m", "stream": True})
WHOLE = call_of({"model": "m"})
