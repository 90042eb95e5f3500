"""Reasons of upstream errors that decide what happens next: a policy, a prompt that is too long, or streaming.

Reads the code and text of an `UpstreamError` of any wire protocol.
"""

import re

from providers.errors import UpstreamError

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
_TOO_LONG = {"context_length_exceeded", "exceed_context_size_error"}  # OpenAI, llama.cpp
_names_policy = re.compile(
    r"content exists risk|blocked by content filtering policy",  # DeepSeek, Anthropic, with no code of their own
    re.IGNORECASE,
).search
_names_length = re.compile(
    r"context (length|window)|available context size|max_new_tokens|input token count|reduce the length"
    r"|prompt is too long|exceed context limit",  # Anthropic
    re.IGNORECASE,
).search
_names_stream = re.compile(r"\bstream(_options|ing|ed)?\b", re.IGNORECASE).search


def is_refusal(error: UpstreamError) -> bool:
    """Return True for a refusal by the provider's policy: an answer, never sent to another replica."""
    return error.code in _POLICY or error.kind in _POLICY or _names_policy(error.message) is not None


def blames_request(error: UpstreamError) -> bool:
    """Return True if an error object of the protocol blames the request: another replica would answer the same."""
    return error.kind in _BLAME or error.param not in (None, "model")


def is_too_long(error: UpstreamError) -> bool:
    """Return True if the prompt does not fit the model: a model with a longer context may accept it."""
    if error.status not in (400, 413, 422):
        return False
    return error.code in _TOO_LONG or error.kind in _TOO_LONG or _names_length(error.message) is not None


def is_stream_refused(error: UpstreamError) -> bool:
    """Return True if the server rejected `stream` or `stream_options`: the call may be sent again without streaming."""
    if error.status not in (400, 422):
        return False
    return _names_stream(f"{error.param} {error.message}") is not None
