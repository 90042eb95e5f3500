"""Thinking of earlier turns without a signature: Anthropic rejects it, engines accept it."""

import json

import pytest

from providers.anthropic.protocol import AnthropicMessages
from ttft_gateway.apis.base import Api
from ttft_gateway.requests.parsed import NumberLimits
from ttft_gateway.requests.request import parse

USER = {"role": "user", "content": "hi"}
BROKEN = {"type": "thinking", "thinking": "hm", "signature": ""}
SIGNED = {"type": "thinking", "thinking": "hm", "signature": "abc"}
TEXT = {"type": "text", "text": "hello"}


@pytest.mark.parametrize(
    ("content", "sent"),
    [
        pytest.param([BROKEN, SIGNED, TEXT], [SIGNED, TEXT], id="a restarted answer"),
        pytest.param([BROKEN, TEXT], [TEXT], id="of another server"),
        pytest.param([SIGNED, TEXT], [SIGNED, TEXT], id="signed"),
        pytest.param([BROKEN], None, id="nothing else"),
        pytest.param('"signature":""', '"signature":""', id="a text about it"),
    ],
)
@pytest.mark.parametrize("signs", [True, False])
@pytest.mark.parametrize("separators", [(",", ":"), (", ", ": ")], ids=["compact", "spaced"])
def test_unsigned_thinking_is_not_sent_to_a_server_that_signs(
    content: object, sent: object, signs: bool, separators: tuple[str, str]
) -> None:
    """A server that signs gets signed thinking only; any other server gets the client's own bytes."""
    turns = [USER, {"role": "assistant", "content": content}, USER]
    body = json.dumps({"model": "m", "max_tokens": 9, "messages": turns}, separators=separators).encode()
    call = parse(Api.MESSAGES, body, [], NumberLimits(16, 10_000), frozenset()).call
    built = AnthropicMessages(signs_thinking=signs).build(call, "m", stream=False)
    assert isinstance(built, bytes)
    if not signs:
        assert built == body
        return
    kept = [USER, *([] if sent is None else [{"role": "assistant", "content": sent}]), USER]
    assert json.loads(built)["messages"] == kept
