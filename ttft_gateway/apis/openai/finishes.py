"""Finish reasons of chat completions and completions: which of them end an answer. Pure."""

from typing import Final

ORDINARY: Final = ("stop", "length", "tool_calls")
"""No filter ended the answer."""

# The server gave up, although some end the stream as if the answer were whole: OpenRouter and Mistral; vLLM and SGLang;
# watsonx; DeepSeek; Zhipu.
_GIVEN_UP: Final = frozenset({"error", "abort", "cancelled", "insufficient_system_resource", "network_error"})


def is_finish(reason: object) -> bool:
    """Return True if an answer with this finish reason is whole."""
    return bool(reason) and not is_given_up(reason)


def is_given_up(reason: object) -> bool:
    """Return True if a finish reason means that the server gave up."""
    return isinstance(reason, str) and reason in _GIVEN_UP


def is_filter(reason: object) -> bool:
    """Return True if a policy ended the answer; Gemini adds its reason after a colon."""
    return isinstance(reason, str) and reason.startswith(("content_filter", "refusal"))
