"""`skim` accepts what `parse` accepts, and reads the same, for a caller that needs no positions."""

import json

import pytest

from inbound_bodies import BOUNDS, MESSAGES, chat
from ttft_gateway.apis.base import Api
from ttft_gateway.requests.errors import InvalidRequest
from ttft_gateway.requests.large import SIZE_MIN
from ttft_gateway.requests.request import KEY_CHARACTERS_MAX, parse, skim

LARGE = json.dumps({"model": "m", "messages": [{"role": "user", "content": "x" * SIZE_MIN}], "n": 2})
BODIES = {
    "compact": (Api.CHAT, chat('"stream":true', '"stream_options":{"include_usage":true}', '"n":2')),
    "spaced": (Api.CHAT, json.dumps(json.loads(chat('"max_tokens":5', '"store":true')))),
    "indented": (Api.CHAT, json.dumps(json.loads(chat('"stream":true')), indent=2)),
    "without a model": (Api.CHAT, "{" + MESSAGES + "}"),
    "large": (Api.CHAT, LARGE),
    "tools of the server": (Api.CHAT, chat('"tools":[{"type":"web_search"}]')),
    "prompts": (Api.COMPLETIONS, '{"model":"m","prompt":["a","b"],"stream":true}'),
    "a message": (Api.MESSAGES, '{"model":"m","system":"s","max_tokens":9,' + MESSAGES + "}"),
    "a response": (Api.RESPONSES, '{"model":"m","input":"i","instructions":"be brief"}'),
    "an embedding": (Api.EMBEDDINGS, '{"model":"m","input":["a","b"]}'),
    "no JSON": (Api.CHAT, "{"),
    "no object": (Api.CHAT, "[]"),
    "a key twice": (Api.CHAT, chat('"stream":true', '"stream":false')),
    "the same key and value twice": (Api.CHAT, chat('"stream":true', '"stream":true')),
    "no messages": (Api.CHAT, '{"model":"m"}'),
    "a wrong type": (Api.CHAT, chat('"stream":"yes"')),
    "long keys": (Api.CHAT, chat(f'"{"k" * KEY_CHARACTERS_MAX}":1')),
    "too deep": (Api.CHAT, chat('"metadata":' + "[" * 100_000)),
}


@pytest.mark.parametrize("name", BODIES)
def test_a_body_is_read_as_by_the_parser(name: str) -> None:
    """Fields and length of the prompt are the parser's, and so is the error of an invalid body."""
    api, text = BODIES[name]
    body = text.encode()
    assert _skimmed(api, body) == _parsed(api, body)


def _parsed(api: Api, body: bytes) -> tuple[object, ...] | str:
    try:
        inbound = parse(api, body, (), BOUNDS, frozenset(), default_model="-")
    except InvalidRequest as error:
        return str(error)
    call = inbound.call
    read = (call.model, call.streaming, call.include_usage, call.choices, call.max_tokens, call.repeatable)
    return (*read, inbound.stored, len(inbound.prompt))


def _skimmed(api: Api, body: bytes) -> tuple[object, ...] | str:
    try:
        fields, prompt_bytes = skim(api, body, BOUNDS, "-")
    except InvalidRequest as error:
        return str(error)
    read = (fields.model, fields.streaming, fields.include_usage, fields.choices, fields.max_tokens, fields.hedgeable)
    return (*read, fields.stored, prompt_bytes)
