"""Requests of Anthropic's Messages API as the gateway reads them, and errors as its clients do."""

import json
from typing import Any

import pytest

from gateway.api.dialects.endings import MessagesTerminator, messages_error_body
from gateway.errors import BadRequest, GatewayError, RequestTimeout, ShuttingDown, UnknownModel, UpstreamFailed
from ttft_gateway.apis.base import Api
from ttft_gateway.hedging.outcomes import Denial
from ttft_gateway.requests.errors import InvalidRequest
from ttft_gateway.requests.parsed import NumberLimits
from ttft_gateway.requests.request import Inbound, parse, parse_count

USER = {"role": "user", "content": "Hello"}
BODY = {"model": "m", "max_tokens": 64, "messages": [USER]}


def read(body: Any, **headers: str) -> Inbound:
    """Read one request."""
    pairs = [(name.replace("_", "-").encode(), value.encode()) for name, value in headers.items()]
    raw = body if isinstance(body, bytes) else json.dumps(body).encode()
    return parse(Api.MESSAGES, raw, pairs, NumberLimits(16, 1_000_000), frozenset({b"anthropic-beta"}))


def test_what_is_read() -> None:
    """Model, stream and limit are read, the prompt is all that the model reads, and betas are passed on."""
    tools = [{"name": "f", "input_schema": {}}]
    inbound = read({**BODY, "stream": True, "system": "S", "tools": tools}, anthropic_beta="b1")
    call = inbound.call
    assert (call.api, call.model, call.streaming, call.choices, call.max_tokens) == (Api.MESSAGES, "m", True, 1, 64)
    assert inbound.prompt == (json.dumps(tools) + '"S"' + json.dumps([USER])).encode()
    assert call.headers == ((b"anthropic-beta", b"b1"),)
    assert inbound.hedge_off is None
    assert read(BODY).call.assemble


@pytest.mark.parametrize(
    ("more", "hedged"),
    [
        ({"tools": [{"type": "custom", "name": "f"}]}, True),
        ({"tools": [{"type": "bash_20250124", "name": "bash"}]}, True),
        ({"tools": [{"type": "web_search_20250305", "name": "web_search"}]}, False),
        ({"tools": [{"type": "code_execution_20250825", "name": "code_execution"}]}, False),
        ({"container": "c"}, False),
        ({"container": None}, True),
        ({"thread": {"type": "create"}}, False),
        ({"thread": None}, True),
        ({"mcp_servers": [{"type": "url"}]}, False),
        ({"max_tokens": 0}, False),
    ],
)
def test_what_is_hedged(more: dict[str, Any], hedged: bool) -> None:
    """Work that Anthropic does on its own, or keeps, is not done twice; tools of the client's are no such work."""
    assert read({**BODY, **more}).hedge_off is (None if hedged else Denial.OFF)


@pytest.mark.parametrize(
    ("body", "param"),
    [
        ({"model": "m", "messages": [USER]}, "max_tokens"),
        ({**BODY, "max_tokens": -1}, "max_tokens"),
        ({**BODY, "max_tokens": 1_000_001}, "max_tokens"),
        ({**BODY, "max_tokens": "many"}, "max_tokens"),
        ({**BODY, "model": None}, "model"),
        ({**BODY, "messages": []}, "messages"),
        ({**BODY, "messages": "Hello"}, "messages"),
        ({**BODY, "messages": [{"content": "Hello"}]}, "messages[0].role"),
        ({**BODY, "stream": "yes"}, "stream"),
        ({**BODY, "tools": [5]}, "tools[0]"),
        ({**BODY, "thread": "create"}, "thread"),
        ({**BODY, "messages": [], "thread": {"type": "create"}}, "messages"),
    ],
)
def test_what_is_wrong(body: dict[str, Any], param: str) -> None:
    """A field that cannot be served is named."""
    with pytest.raises(InvalidRequest) as refused:
        read(body)
    assert refused.value.param == param


def test_what_continues_a_thread() -> None:
    """The id of the answer before is read; an answer that has not ended goes on without a new message."""
    thread = {"type": "continue", "previous_message_id": "msg_1"}
    for messages in ([USER], []):
        inbound = read({**BODY, "messages": messages, "thread": thread})
        assert (inbound.previous_id, inbound.hedge_off) == ("msg_1", Denial.OFF)
    with pytest.raises(InvalidRequest, match="max_tokens"):
        read({"model": "m", "messages": [], "thread": thread})


def test_what_is_counted() -> None:
    """Counting needs a model and messages, and no bound on the answer."""
    raw = json.dumps({"model": "m", "messages": [USER], "system": "S"}).encode()
    assert parse_count(raw, ()) == ("m", b'"S"' + json.dumps([USER]).encode())
    for broken in (b"{}", b"[", b'{"model":"m"}', b'{"model":"m","messages":[{"role":"user"}]}', b"[" * 100_000):
        with pytest.raises(InvalidRequest):
            parse_count(broken, ())


@pytest.mark.parametrize(
    ("error", "kind"),
    [
        (BadRequest("x"), "invalid_request_error"),
        (UnknownModel("x"), "not_found_error"),
        (RequestTimeout("x"), "timeout_error"),
        (ShuttingDown("x"), "overloaded_error"),
        (UpstreamFailed("x", status=529), "overloaded_error"),
        (UpstreamFailed("x", status=429, kind="requests"), "rate_limit_error"),
        (UpstreamFailed("x", status=502), "api_error"),
        (UpstreamFailed("x", status=500, kind="timeout_error"), "timeout_error"),
        (UpstreamFailed("x", status=418, kind="teapot"), "api_error"),
    ],
)
def test_errors_of_the_messages_api(error: GatewayError, kind: str) -> None:
    """Every error has Anthropic's form and type, in a body and as the end of a stream."""
    assert json.loads(messages_error_body(error)) == {
        "type": "error",
        "error": {
            "type": kind,
            "message": "x",
            **({"code": error.code} if error.code else {}),
        },
    }
    ended = MessagesTerminator("req_1").error(error)
    assert ended == b"event: error\ndata: " + messages_error_body(error)[:-1] + b',"request_id":"req_1"}\n\n'
