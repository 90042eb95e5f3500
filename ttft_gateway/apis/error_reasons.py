"""Reasons of upstream errors that decide what happens next: a policy, a prompt's length, streaming, a token limit.

Reads the code and text of an `UpstreamError` of any wire protocol.
"""

import re

from ttft_gateway.apis.errors import UpstreamError

_POLICY = {
    "content_policy_violation",
    "content_filter",
    "ResponsibleAIPolicyViolation",  # Azure, inner code
    "invalid_prompt",  # OpenAI, reasoning models: the prompt was flagged
    "data_inspection_failed",  # Alibaba
}
_BLAME = {  # types of errors that blame the request
    "invalid_request_error",  # OpenAI, Anthropic, llama.cpp, Mistral
    "BadRequestError",  # vLLM, SGLang
    "Bad Request",  # the same servers, for a body that does not match their schema
    "INVALID_ARGUMENT",  # Gemini
    "validation",  # TGI
}
_TOO_LONG = {"context_length_exceeded", "exceed_context_size_error", "model_context_window_exceeded"}
_names_policy = re.compile(
    r"content exists risk|blocked by content filtering policy",  # DeepSeek, Anthropic, with no code of their own
    re.IGNORECASE,
).search
# The messages of each server, with their sources, are in tests/apis/test_too_long.py.
_names_length = re.compile(
    r"context[_ ](?:length|window|size|limit)|reduce the length|prompt token count|input token count"
    r"|(?:prompt|input) is too long|too large for model|model token limit|must have less than \d+ tokens"
    r"|max_new_tokens\W+must be <=|maximum (?:prompt|model|input) length"
    r"|(?:prompt|input) length.{0,60}(?:exceed|should be)|too many (?:input tokens|tokens: total)",
    re.IGNORECASE,
).search
_counts_tokens = re.compile(
    r"\btokens? (?:per|rate limit)|\bTP[MD]\b|input_token|InputTokens|too many tokens",  # Bedrock
    re.IGNORECASE,
).search
# OpenAI and Groq, for a request above the whole limit; a text with the part in use is about a limit that has room again
_names_size = re.compile(r"request too large for .{0,400}?\bLimit \d+, Requested \d+", re.IGNORECASE | re.DOTALL).search
_LENGTH_STATUSES = (None, 400, 413, 422)  # None: an error event, which has no status
_names_stream = re.compile(r"\bstream(_options|ing|ed)?\b", re.IGNORECASE).search


def is_refusal(error: UpstreamError) -> bool:
    """Return True for a refusal by the provider's policy: an answer, never sent to another replica."""
    return error.code in _POLICY or error.kind in _POLICY or _names_policy(error.message) is not None


def blames_request(error: UpstreamError) -> bool:
    """Return True if an error object of the protocol blames the request: another replica would answer the same."""
    return error.kind in _BLAME or error.param not in (None, "model")


def is_too_long(error: UpstreamError) -> bool:
    """Return True if the prompt does not fit the model: a model with a longer context may accept it.

    A code is enough with any status but 429: llama.cpp has sent it with 500.
    """
    if error.code in _TOO_LONG or error.kind in _TOO_LONG:
        return error.status != 429
    return error.status in _LENGTH_STATUSES and _names_length(error.message) is not None


def is_stream_refused(error: UpstreamError) -> bool:
    """Return True if the server rejected `stream` or `stream_options`: the call may be sent again without streaming."""
    if error.status not in (400, 422):
        return False
    return _names_stream(f"{error.param} {error.message}") is not None


def is_above_limit(error: UpstreamError) -> bool:
    """Return True if a request alone exceeds a rate limit: it never fits, and others may."""
    return error.status in (413, 429) and _names_size(error.message) is not None


def names_tokens(error: UpstreamError) -> bool:
    """Return True if a rate limit counts tokens."""
    return error.kind == "tokens" or _counts_tokens(error.message) is not None
