"""The tier that an answer names is part of its usage, in each API, in streams and whole answers."""

import json

import pytest

from providers.anthropic.protocol import AnthropicMessages
from providers.openai.chat import OpenAIChat
from providers.responses.protocol import OpenAIResponses
from ttft_gateway.apis.base import Api, Call, Usage
from ttft_gateway.limits.prices import Prices, TierPrices

USAGE = {"prompt_tokens": 9, "completion_tokens": 2}
RESPONSES = {"input_tokens": 9, "output_tokens": 2}
MESSAGE = {
    "type": "message",
    "role": "assistant",
    "content": [{"type": "text", "text": "a"}],
    "stop_reason": "end_turn",
    "usage": {"input_tokens": 9, "output_tokens": 2, "service_tier": "priority"},
}


def call(api: Api) -> Call:
    """A call of an API."""
    return Call(api, b"{}", {}, 1, "m", streaming=True)


@pytest.mark.parametrize("tier", ["flex", None, 5])
def test_a_stream_names_its_tier(tier: object) -> None:
    """The usage chunk of a chat completion has the tier; anything but a name is none."""
    chunk = {"choices": [], "usage": USAGE, "service_tier": tier}
    frame = OpenAIChat().reader(call(Api.CHAT)).read(f"data: {json.dumps(chunk)}\n\n".encode())
    assert frame.usage == Usage(9, 2, tier=tier if isinstance(tier, str) else None)


def test_the_end_of_a_response_names_its_tier() -> None:
    """The last event of the Responses API has the whole response, with its tier."""
    response = {"status": "completed", "output": [], "usage": RESPONSES, "service_tier": "flex"}
    event = f"event: response.completed\ndata: {json.dumps({'type': 'response.completed', 'response': response})}\n\n"
    frame = OpenAIResponses().reader(call(Api.RESPONSES)).read(event.encode())
    assert frame.usage is not None
    assert frame.usage.tier == "flex"


def test_a_whole_answer_names_its_tier() -> None:
    """An answer in one piece has the tier, whether it is read whole or by its outline."""
    chat = {"choices": [{"message": {"content": "a"}, "finish_reason": "stop"}], "usage": USAGE, "service_tier": "flex"}
    body = json.dumps(chat).encode()
    for frame in (OpenAIChat().whole(call(Api.CHAT), body), OpenAIChat().outlined(body)):
        assert frame.usage is not None
        assert frame.usage.tier == "flex"
    frame = AnthropicMessages().whole(call(Api.MESSAGES), json.dumps(MESSAGE).encode())
    assert frame.usage is not None
    assert frame.usage.tier == "priority"


@pytest.mark.parametrize(
    ("named", "billed"), [(None, 2.0), ("priority", 2.0), ("default", 1.0), ("standard", 1.0), ("ultrafast", 2.0)]
)
def test_the_tier_that_was_used_is_billed(named: str | None, billed: float) -> None:
    """A priority request that was served as default costs what default costs; an unknown tier, what was asked for."""
    usual = Prices(1.0, 0.1, 4.0)
    prices = TierPrices("priority", usual, {"default": usual, "priority": usual.times(2.0)})
    assert prices.billed(named).prompt == billed
