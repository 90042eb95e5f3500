"""The errors of servers and providers for a prompt that does not fit the model, each with its source."""

import json
from typing import Any

import pytest

from gateway.race.failures import client_error
from providers.openai.chat import OpenAIChat
from ttft_gateway.apis.error_reasons import is_too_long
from ttft_gateway.apis.errors import BadStatus, ConnectError, ErrorFrame
from ttft_gateway.hedging.failures import RetryHint, classify
from ttft_gateway.hedging.outcomes import Outcome


def openai_error(message: str, code: str | None = None, kind: str = "invalid_request_error") -> dict[str, Any]:
    """An error object of OpenAI's API."""
    return {"error": {"message": message, "type": kind, "param": None, "code": code}}


# server or provider, status, body, source
TOO_LONG: tuple[tuple[str, int, dict[str, Any], str], ...] = (
    (
        "OpenAI",
        400,
        openai_error(
            "This model's maximum context length is 4097 tokens. However, your messages resulted in 4111 tokens. "
            "Please reduce the length of the messages.",
            "context_length_exceeded",
        ),
        "https://github.com/chathub-dev/chathub/issues/320",
    ),
    (
        "OpenAI, Responses API",
        400,
        openai_error("Your input exceeds the context window of this model. Please adjust your input and try again."),
        "https://github.com/the-open-agent/openagent/issues/2344",
    ),
    (
        "Anthropic, Vertex AI",
        400,
        {"type": "error", **openai_error("prompt is too long: 209353 tokens > 199999 maximum")},
        "https://github.com/entropy-research/Devon/issues/88",
    ),
    (
        "Bedrock",
        400,
        {"message": "Input is too long for requested model."},
        "https://github.com/aws-samples/assessment-generator/issues/2",
    ),
    (
        "Bedrock, ConverseStream",
        400,
        {"message": "The model returned the following errors: Input is too long for requested model."},
        "https://github.com/continuedev/continue/issues/6005",
    ),
    (
        "Bedrock, Claude Opus 4.6",
        400,
        {"message": "The model returned the following errors: prompt is too long: 903884 tokens > 200000 maximum"},
        "https://github.com/strands-agents/harness-sdk/pull/1663",
    ),
    (
        "Bedrock, Titan",
        400,
        {"message": "400 Bad Request: Too many input tokens. Max input tokens: 8192, request input token count: 9279 "},
        "https://github.com/open-metadata/OpenMetadata/pull/29920",
    ),
    (
        "TGI, prompt",
        422,
        {
            "error": "Input validation error: `inputs` must have less than 4096 tokens. Given: 4545",
            "error_type": "validation",
        },
        "https://github.com/meta-llama/llama/issues/1103",
    ),
    (
        "TGI and Together, prompt and answer",
        422,
        {
            "error": "Input validation error: `inputs` tokens + `max_new_tokens` must be <= 2048. "
            "Given: 3474 `inputs` tokens and 60 `max_new_tokens`",
            "error_type": "validation",
        },
        "https://github.com/huggingface/llm-vscode/issues/94",
    ),
    (
        "vLLM",
        400,
        {
            "object": "error",
            "message": "This model's maximum context length is 16384 tokens. However, you requested 19591 tokens (9591 "
            "in the messages, 10000 in the completion). Please reduce the length of the messages or completion. None",
            "type": "BadRequestError",
            "param": None,
            "code": 400,
        },
        "https://github.com/vllm-project/vllm/issues/20409",
    ),
    (
        "vLLM, checked by the engine",
        400,
        {
            "object": "error",
            "message": "The decoder prompt (length 21535) is longer than the maximum model length of 16384. Make sure "
            "that `max_model_len` is no smaller than the number of text tokens.",
            "type": "BadRequestError",
            "param": None,
            "code": 400,
        },
        "https://github.com/xorbitsai/inference/issues/3785",
    ),
    (
        "SGLang",
        400,
        {
            "object": "error",
            "message": "The input (61709 tokens) is longer than the model's context length (40960 tokens).",
            "type": "BadRequestError",
            "param": None,
            "code": 400,
        },
        "https://github.com/QwenLM/Qwen3/issues/1321",
    ),
    (
        "SGLang, less room in the cache",
        400,
        {
            "object": "error",
            "message": "Input length (160062 tokens) exceeds the maximum allowed length (59862 tokens).",
            "type": "BadRequestError",
        },
        "https://github.com/sgl-project/sglang/issues/4048",
    ),
    (
        "llama.cpp",
        400,
        openai_error(
            "the request exceeds the available context size, try increasing it", None, "exceed_context_size_error"
        ),
        "https://github.com/oobabooga/textgen/issues/7257",
    ),
    (
        "llama.cpp, first version of the type",
        500,
        openai_error("the request exceeds the available context size.", None, "exceed_context_size_error"),
        "https://github.com/ggml-org/llama.cpp/pull/15780",
    ),
    (
        "llama-cpp-python",
        400,
        openai_error("Requested tokens (2285) exceed context window of 2048"),
        "https://github.com/abetlen/llama-cpp-python/issues/120",
    ),
    (
        "Ollama",
        400,
        openai_error("the input length exceeds the context length"),
        "https://github.com/nano-step/nano-brain/issues/208",
    ),
    (
        "LM Studio",
        400,
        {
            "error": "Trying to keep the first 15857 tokens when context the overflows. However, the model is loaded "
            "with context length of only 8192 tokens, which is not enough. Try to load the model with a larger context "
            "length, or provide a shorter input"
        },
        "https://github.com/lmstudio-ai/lmstudio-bug-tracker/issues/237",
    ),
    (
        "LM Studio, 2026",
        400,
        {
            "error": "The number of tokens to keep from the initial prompt is greater than the context length "
            "(n_keep: 10247 >= n_ctx: 4096)."
        },
        "https://github.com/tinyhumansai/openhuman/issues/3550",
    ),
    (
        "TensorRT-LLM and Triton",
        400,
        {"error": "Encountered an error when fetching new request: Prompt length (200) exceeds maximum input length"},
        "https://github.com/triton-inference-server/tensorrtllm_backend/issues/565",
    ),
    (
        "TensorRT-LLM, earlier",
        400,
        {"error": "Cannot process new request: Prompt length (5056) exceeds maximum sequence length (2048)"},
        "https://github.com/triton-inference-server/tensorrtllm_backend/issues/141",
    ),
    (
        "Gemini",
        400,
        {
            "error": {
                "code": 400,
                "message": "The input token count (81881) exceeds the maximum number of tokens allowed (65536).",
                "status": "INVALID_ARGUMENT",
            }
        },
        "https://github.com/google-gemini/gemini-cli/issues/27197",
    ),
    (
        "Mistral",
        400,
        {
            "object": "Error",
            "message": "Prompt contains 65673 tokens, too large for model with 32768 maximum context length",
            "type": "invalid_request_error",
            "code": 3051,
        },
        "https://discuss.google.dev/t/mistral-large-2407-inference-context-length-error/165446",
    ),
    (
        "Cohere",
        400,
        {
            "message": "too many tokens: total number of tokens (prompt and prediction) cannot exceed 2048 - received "
            "6354. Try using a shorter prompt or a smaller max_tokens value."
        },
        "https://github.com/cohere-ai/sandbox-topically/issues/4",
    ),
    (
        "xAI",
        400,
        {"error": "This model's maximum prompt length is 131072 but the request contains 136973 tokens."},
        "https://github.com/cline/cline/issues/3120",
    ),
    (
        "Groq, more than a minute's tokens",
        413,
        openai_error(
            "Request too large for model `llama-3.1-70b-versatile` in organization `org` on tokens per minute (TPM): "
            "Limit 6000, Requested 14368, please reduce your message size and try again.",
            "rate_limit_exceeded",
            "tokens",
        ),
        "https://github.com/assafelovic/gpt-researcher/issues/985",
    ),
    (
        "DeepSeek",
        400,
        openai_error(
            "This model's maximum context length is 131072 tokens. However, you requested 131134 tokens (122942 in the "
            "messages, 8192 in the completion). Please reduce the length of the messages or completion.",
            "invalid_request_error",
        ),
        "https://github.com/evalstate/fast-agent/issues/621",
    ),
    (
        "OpenRouter",
        400,
        {
            "error": {
                "code": 400,
                "message": "This endpoint's maximum context length is 32768 tokens. However, you requested about 42832 "
                "tokens (42832 of text input). Please reduce the length of either one.",
            }
        },
        "https://github.com/refly-ai/refly/issues/1177",
    ),
    (
        "GitHub Copilot",
        400,
        openai_error("prompt token count of 93854 exceeds the limit of 90000", "", ""),
        "https://github.com/jjleng/copilot-more/issues/35",
    ),
    (
        "Qwen, DashScope",
        400,
        openai_error(
            "<400> InternalError.Algo.InvalidParameter: Range of input length should be [1, 983616]",
            "invalid_parameter_error",
        ),
        "https://github.com/agentscope-ai/QwenPaw/issues/6255",
    ),
    (
        "Moonshot",
        400,
        openai_error("Invalid request: Your request exceeded model token limit: 262144 (requested: 269030)"),
        "https://github.com/MoonshotAI/kimi-cli/issues/2011",
    ),
    (
        "MiniMax",
        400,
        openai_error("invalid params, context window exceeds limit (2013)"),
        "https://github.com/MiniMax-AI/MiniMax-M2/issues/119",
    ),
)

# errors that resemble these and are something else
NOT_TOO_LONG: tuple[tuple[int, str], ...] = (
    (
        400,
        "Invalid 'user': string too long. Expected a string with maximum length 64, but got a string with length 65.",
    ),
    (400, "messages.0.content is too long for this field"),
    (400, "`max_new_tokens` must be strictly positive"),
    (400, "max_tokens must be less than or equal to 16384"),
    (400, "too many tokens: max tokens must be less than or equal to 4096"),
    (422, "Input validation error: `temperature` must be strictly positive"),
    (429, "Request too large for gpt-4o on tokens per min (TPM): Limit 30000, Requested 342389."),
    (500, "CUDA error: an illegal memory access was encountered"),
    (401, "the context length of this key is limited"),
)


@pytest.mark.parametrize(("server", "status", "body", "source"), TOO_LONG, ids=[case[0] for case in TOO_LONG])
def test_a_prompt_that_is_too_long_is_for_a_fallback(
    server: str, status: int, body: dict[str, Any], source: str
) -> None:
    """Every server's error for a prompt that does not fit goes to another model and is no fault of the replica.

    Without another model the caller gets it with OpenAI's code, unless the server sent one of its own.
    """
    assert source.startswith("https://"), server
    error = OpenAIChat().error(status, (), json.dumps(body).encode())
    failure = classify(error)
    assert (failure.outcome, failure.hint) == (Outcome.CLIENT_ERROR, RetryHint.FALLBACK)
    assert client_error(error).code == (error.code or "context_length_exceeded")


@pytest.mark.parametrize(("status", "message"), NOT_TOO_LONG)
def test_errors_that_resemble_it(status: int, message: str) -> None:
    """A fault of another field, a rate limit and a crash are not taken for a prompt that is too long."""
    assert not is_too_long(BadStatus(message, status=status))


def test_an_error_event_without_a_status_is_the_callers() -> None:
    """LM Studio sends the error inside a 200: the caller gets 400 `context_length_exceeded`, not 502."""
    event = ErrorFrame("the model is loaded with context length of only 8192 tokens, which is not enough")
    assert classify(event).hint is RetryHint.FALLBACK
    error = client_error(event)
    assert (error.status, error.code) == (400, "context_length_exceeded")
    assert not is_too_long(ConnectError("no connection to the upstream"))
