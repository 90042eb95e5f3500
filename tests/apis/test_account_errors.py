"""The forms in which providers reject the gateway's own key, account or model name."""

import json

import pytest

from error_forms import DEAD, MISTAKES, Form
from providers.openai.chat import OpenAIChat
from ttft_gateway.apis.account_errors import Blame, account_blame, rejects_token
from ttft_gateway.apis.errors import BadStatus, UpstreamError
from ttft_gateway.apis.openai.errors import problem_of
from ttft_gateway.hedging.failures import classify
from ttft_gateway.hedging.outcomes import Outcome


def read(form: Form) -> UpstreamError:
    """Read an error response."""
    headers = [(b"x-amzn-errortype", form.amazon_type.encode())] if form.amazon_type else []
    return OpenAIChat().error(form.status, headers, json.dumps(form.body).encode())


@pytest.mark.parametrize("form", DEAD.values(), ids=DEAD)
def test_a_dead_account_is_the_gateways_fault(form: Form) -> None:
    """Each form is the gateway's fault, immediately only if no request can cause it."""
    failure = classify(read(form))
    assert failure.ours
    assert failure.outcome is (Outcome.MISCONFIGURED if form.at_once else Outcome.UNCLEAR_4XX)
    assert not failure.answers


@pytest.mark.parametrize("form", MISTAKES.values(), ids=MISTAKES)
def test_no_mistake_of_a_caller_is_proof(form: Form) -> None:
    """No error that one request can cause is enough to judge a replica."""
    failure = classify(read(form))
    assert failure.outcome in (Outcome.UNCLEAR_4XX, Outcome.CLIENT_ERROR)
    assert failure.ours == (form.status == 401)


def test_a_quoted_value_is_no_proof() -> None:
    """A server may quote the request: words are signs only, and a field at fault is the caller's."""
    quoted = BadStatus("Invalid value: 'credit balance is too low'.", status=400, kind="invalid_request_error")
    assert account_blame(quoted) is Blame.LIKELY
    quoted.param = "service_tier"
    assert account_blame(quoted) is None


_TOKENS = {"bedrock-key", "bedrock-expired", "bedrock-api-key", "bedrock-expired-key"}  # 403s


def test_a_new_token_may_cure_a_rejected_one() -> None:
    """Every 401 and Bedrock's 403 about a token are cured by a new token; no other error is."""
    found = {name for name, form in {**DEAD, **MISTAKES}.items() if rejects_token(read(form))}
    assert found == _TOKENS | {name for name, form in {**DEAD, **MISTAKES}.items() if form.status == 401}


def test_the_reasons_that_are_read_are_bounded() -> None:
    """Of Google's details, the first sixteen are read."""
    details: list[object] = [{}] * 15
    for count, expected in ((15, "API_KEY_INVALID"), (16, None)):
        error = {"message": "x", "details": [*details, *[{}] * (count - 15), {"reason": "API_KEY_INVALID"}]}
        problem = problem_of({"error": error})
        assert problem is not None
        assert problem.reason == expected
