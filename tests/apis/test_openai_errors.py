"""Error bodies of all shapes, as one error with the upstream's own words."""

import json
from typing import Any

import pytest

from gateway.race.failures import client_error
from providers.openai.chat import OpenAIChat
from ttft_gateway.apis.error_reasons import is_refusal, is_stream_refused, is_too_long
from ttft_gateway.apis.openai.errors import problem_of
from ttft_gateway.apis.tolerant_json import loads

OPENAI = {
    "message": "Incorrect API key provided",
    "type": "invalid_request_error",
    "param": None,
    "code": "invalid_api_key",
}
GEMINI = {
    "code": 429,
    "message": "Quota exceeded",
    "status": "RESOURCE_EXHAUSTED",
    "details": [{"@type": "type.googleapis.com/google.rpc.QuotaFailure"}, {"retryDelay": "52s"}],
}
AZURE = {
    "message": "The response was filtered",
    "type": None,
    "param": "prompt",
    "code": "content_filter",
    "status": 400,
    "innererror": {"code": "ResponsibleAIPolicyViolation"},
}
FASTAPI = [
    {"loc": ["body", "stream_options"], "msg": "extra fields not permitted", "type": "value_error.extra"},
    {"loc": ["body", "n"], "msg": "not a number", "type": "type_error"},
]
ANTHROPIC = {"type": "not_found_error", "message": "no"}
ANTHROPIC_READ = {"message": "no", "kind": "not_found_error"}
SILENT = {"message": "the upstream answered with status 400 and a body without a readable error"}


def read(body: Any, status: int = 400, headers: tuple[tuple[bytes, bytes], ...] = ()) -> dict[str, Any]:
    """The fields read from a response, without those that are not set."""
    raw = body if isinstance(body, bytes) else json.dumps(body).encode()
    error = OpenAIChat().error(status, headers, raw)
    assert error.status == status
    return {key: value for key, value in vars(error).items() if value is not None and key != "status"}


@pytest.mark.parametrize(
    ("body", "said"),
    [
        ({"error": OPENAI}, {"message": OPENAI["message"], "kind": "invalid_request_error", "code": "invalid_api_key"}),
        ([{"error": GEMINI}], {"message": "Quota exceeded", "kind": "RESOURCE_EXHAUSTED", "retry_after_s": 52.0}),
        ({"error": AZURE}, {"message": "The response was filtered", "param": "prompt", "code": "content_filter"}),
        (
            {"error": {**AZURE, "code": None}},
            {"message": "The response was filtered", "param": "prompt", "code": "ResponsibleAIPolicyViolation"},
        ),
        ({"error": {"code": "429", "message": "slow down"}}, {"message": "slow down", "code": "429"}),
        ({"error": "model 'x' not found"}, {"message": "model 'x' not found"}),
        ({"error": "Bad Request", "message": "no such model"}, {"message": "no such model"}),
        ({"error": "too long", "error_type": "validation"}, {"message": "too long", "kind": "validation"}),
        (
            {"object": "error", "message": "no", "type": "NotFoundError", "param": None, "code": 404},
            {"message": "no", "kind": "NotFoundError"},
        ),
        (
            {"error": {"code": 503, "message": "Loading model", "type": "unavailable_error"}},
            {"message": "Loading model", "kind": "unavailable_error"},
        ),
        ({"error": {"message": "flagged", "code": 1301}}, {"message": "flagged", "code": "1301"}),
        ({"detail": "Not Found"}, {"message": "Not Found"}),
        ({"detail": FASTAPI}, {"message": "extra fields not permitted; not a number", "param": "stream_options"}),
        ({"detail": {"error": OPENAI}}, {"message": OPENAI["message"], "kind": OPENAI["type"], "code": OPENAI["code"]}),
        ({"detail": {"message": "no", "code": "x"}}, {"message": "no", "code": "x"}),
        (
            {"object": "error", "message": {"detail": FASTAPI[1:]}, "type": "invalid_request_error", "code": None},
            {"message": "not a number", "kind": "invalid_request_error"},
        ),
        ({"message": "Unauthorized", "request_id": "1"}, {"message": "Unauthorized"}),
        (
            {"error": {"code": 403, "message": "flagged", "metadata": {"reasons": ["x"], "flagged_input": "y"}}},
            {"message": "flagged", "code": "content_policy_violation"},
        ),
        (
            {"type": "error", "error": {**ANTHROPIC, "details": {"error_code": "thread_not_found", "more": 1}}},
            {**ANTHROPIC_READ, "details": '{"error_code":"thread_not_found","more":1}'},
        ),
        ({"error": {**ANTHROPIC, "details": {"error_visibility": "user_facing"}}}, ANTHROPIC_READ),
        ({"error": {**ANTHROPIC, "details": {"error_code": "x", "more": "y" * 5000}}}, ANTHROPIC_READ),
        ({"error": {"message": "x" * 10_000}}, {"message": "x" * 4096}),
        ({"error": True}, SILENT),
        ({}, SILENT),
        (b"<html>secret</html>", SILENT),
        (b"upstream connect error", SILENT),
        (b'{"error":{"message":"cut at 64', SILENT),
        (b"", {"message": "the upstream answered with status 400 and an empty body"}),
        ([], SILENT),
        ({"detail": [3]}, SILENT),
        ({"error": {"message": 3, "type": [], "param": {}, "code": True, "details": [1, {"retryDelay": 5}]}}, SILENT),
    ],
)
def test_bodies(body: object, said: dict[str, Any]) -> None:
    """Message, type, param and code are the upstream's where it gave them, and nothing is quoted that is no message."""
    assert said == read(body)


def test_a_redirection_names_the_setting_to_check() -> None:
    """It is most likely a wrong scheme, host or path of a base_url, or the login page of a proxy."""
    message = str(read(b"<html>moved</html>", 307)["message"])
    assert "status 307 and redirects the request; check the replica's base_url" in message


def test_headers() -> None:
    """Retry-After of the headers comes before the body's, and x-should-retry is passed on."""
    assert read({"error": GEMINI}, 429, ((b"retry-after", b"7"),))["retry_after_s"] == 7.0
    assert read(b"", 429, ((b"retry-after", b"0"),))["retry_after_s"] == 0.0
    assert read({"error": GEMINI}, 429, ((b"retry-after", b"soon"),))["retry_after_s"] == 52.0
    assert read(b"", 500, ((b"x-should-retry", b"false"),))["should_retry"] is False
    assert read(b"", 500, ((b"x-should-retry", b"True"),))["should_retry"] is True
    assert "should_retry" not in read(b"", 500, ((b"x-should-retry", b"maybe"),))


def test_nesting_does_no_harm() -> None:
    """An error body nested as deeply as a decoder allows is read without recursion."""
    deep: object = "x"
    for _ in range(400):
        deep = {"error": None, "message": None, "detail": deep}
    assert problem_of(deep) is not None
    assert loads(b'{"error":' * 100_000) is None


@pytest.mark.parametrize(
    ("reason", "status", "body"),
    [
        ("refusal", 400, {"error": {"message": "x", "code": "content_policy_violation"}}),
        ("refusal", 400, {"error": AZURE}),
        ("refusal", 400, {"error": {"message": "flagged", "code": "invalid_prompt"}}),
        ("refusal", 400, {"error": {"message": "high risk", "type": "content_filter"}}),
        ("refusal", 400, {"error": {"message": "Content Exists Risk", "type": "invalid_request_error"}}),
        ("refusal", 403, {"error": {"code": 403, "message": "x", "metadata": {"reasons": ["violence"]}}}),
        ("too long", 400, {"error": {"message": "x", "code": "context_length_exceeded"}}),
        ("too long", 400, {"error": {"message": "x", "type": "exceed_context_size_error", "code": 400}}),
        ("too long", 400, {"message": "This model's maximum context length is 4096 tokens.", "code": 400}),
        ("too long", 400, {"error": {"message": "the request exceeds the available context size", "code": 400}}),
        ("too long", 422, {"error": "`inputs` tokens + `max_new_tokens` must be <= 4096", "error_type": "validation"}),
        ("too long", 400, [{"error": {"code": 400, "message": "The input token count (9) exceeds the maximum"}}]),
        ("stream", 400, {"error": {"message": "Unsupported value", "param": "stream"}}),
        ("stream", 400, {"error": {"message": "Unrecognized request argument supplied: stream_options"}}),
        ("stream", 422, {"detail": FASTAPI}),
        ("stream", 400, {"error": {"message": "streaming is not supported for this model"}}),
        ("none", 400, {"error": {"message": "the upstreamed file is bad"}}),
        ("none", 500, {"error": {"message": "stream broke"}}),
        ("none", 500, {"error": {"message": "context length"}}),
        ("none", 401, {"error": OPENAI}),
        ("none", 429, [{"error": GEMINI}]),
    ],
)
def test_reasons(reason: str, status: int, body: object) -> None:
    """The three reasons that decide what happens next are distinguished in every server's messages."""
    error = OpenAIChat().error(status, (), json.dumps(body).encode())
    told = {"refusal": is_refusal(error), "too long": is_too_long(error), "stream": is_stream_refused(error)}
    assert {name for name, is_so in told.items() if is_so} == {reason} - {"none"}


def test_unpaired_surrogates_are_replaced() -> None:
    """An error with half an emoji reaches the client: the half, which UTF-8 cannot encode, is replaced."""
    said = json.dumps(
        {"error": {"message": "bad \ud83d \U0001f600", "type": "\ud83d", "param": "\ude00x", "code": "c\ud83d"}}
    )
    error = OpenAIChat().error(400, [], said.encode())
    assert (error.message, error.kind, error.param, error.code) == (
        "bad \ufffd \U0001f600",
        "\ufffd",
        "\ufffdx",
        "c\ufffd",
    )
    assert json.loads(client_error(error).body())["error"]["message"] == "bad \ufffd \U0001f600"
