"""Bodies with values set or capped for one upstream: what changes, and that nothing else does."""

import json

import pytest

from openai_calls import call_of, in_one_piece
from providers.openai.edits import BodyEdits
from providers.protocols import ProtocolOptions, protocols
from ttft_gateway.apis.base import Api
from ttft_gateway.apis.catalog import CATALOG

_EDITS = BodyEdits({"service_tier": b'"flex"'}, {"max_tokens": 100.0, "temperature": 0.5})
_HI = '"messages":[{"role":"user","content":"hi"}]'


@pytest.mark.parametrize(
    ("body", "sent"),
    [
        ('{ "a" : [1, 2] }', '{"service_tier":"flex", "a" : [1, 2] }'),
        ('{"service_tier":"auto","a":1}', '{"service_tier":"flex","a":1}'),
        ('{"max_tokens":101,"service_tier":"flex"}', '{"max_tokens":100,"service_tier":"flex"}'),
        (
            '{"service_tier":"flex","max_completion_tokens": 1e3 ,"max_output_tokens":200}',
            '{"service_tier":"flex","max_completion_tokens": 100 ,"max_output_tokens":100}',
        ),
        ('{"service_tier":"flex","temperature":1}', '{"service_tier":"flex","temperature":0.5}'),
    ],
)
def test_a_value_is_set_or_capped_in_its_place(body: str, sent: str) -> None:
    """A set value replaces the client's or follows the brace, a larger number is lowered, other bytes stay."""
    assert _EDITS.apply(call_of(body.encode())).body == sent.encode()


@pytest.mark.parametrize(
    "body",
    [
        '{"service_tier":"flex"}',
        '{"service_tier":"flex","max_tokens":100,"temperature":0.5}',
        '{"service_tier":"flex","max_tokens":null,"temperature":"hot"}',
        '{"service_tier":"flex","max_tokens":true,"temperature":[1]}',
    ],
)
def test_a_body_that_needs_no_change_is_untouched(body: str) -> None:
    """A body within the limits is the same object, not a copy; a value that is no number is left to the upstream."""
    call = call_of(body.encode())
    assert _EDITS.apply(call) is call


@pytest.mark.parametrize(
    ("kind", "api", "body", "name"),
    [
        ("vllm", Api.CHAT, f'{{"model":"m",{_HI},"max_tokens":500}}', "max_tokens"),
        ("vllm", Api.COMPLETIONS, '{"model":"m","prompt":"hi","max_tokens":500}', "max_tokens"),
        ("openai", Api.RESPONSES, '{"model":"m","input":"hi","max_output_tokens":500}', "max_output_tokens"),
        ("anthropic", Api.MESSAGES, f'{{"model":"m",{_HI},"max_tokens":500}}', "max_tokens"),
        ("anthropic", Api.CHAT, f'{{"model":"m",{_HI},"max_tokens":500}}', "max_tokens"),
        ("openai", Api.MESSAGES, f'{{"model":"m",{_HI},"max_tokens":500}}', "max_completion_tokens"),
        ("anthropic", Api.RESPONSES, '{"model":"m","input":"hi","max_output_tokens":500}', "max_tokens"),
    ],
)
def test_every_generating_api_is_edited_once(kind: str, api: Api, body: str, name: str) -> None:
    """Native and translated bodies are edited in the form of the upstream's own API."""
    served = protocols(CATALOG[kind], CATALOG[kind].apis, ProtocolOptions(edits=_EDITS))
    sent = json.loads(in_one_piece(served[api].build(call_of(body.encode(), api), "up", stream=True)))
    assert (sent[name], sent["service_tier"], sent["model"]) == (100, "flex", "up")


def test_embeddings_are_not_edited() -> None:
    """An embeddings body has none of these fields and is sent without them."""
    served = protocols(CATALOG["vllm"], CATALOG["vllm"].apis, ProtocolOptions(edits=_EDITS))
    call = call_of(b'{"model":"m","input":"hi"}', Api.EMBEDDINGS)
    sent = in_one_piece(served[Api.EMBEDDINGS].build(call, "up", stream=False))
    assert json.loads(sent) == {"model": "up", "input": "hi"}
