"""The SDKs of the matrix, at which versions, and everything that is checked with them. Data only.

A client makes the checks that its SDK has something for. docs/evaluation/sdks.md names all of them.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType


@dataclass(frozen=True, slots=True)
class Sdk:
    """One column.

    Attributes:
        name: as people say it.
        client: our program in this folder; its ending names the language.
        packages: what its environment has, with versions.
    """

    name: str
    client: str
    packages: tuple[str, ...]


SDKS = (
    Sdk("openai, Python", "client_openai.py", ("openai==3.54.0",)),
    Sdk("openai, Node", "client_openai.mjs", ("openai@6.49.0", "zod@4.6.7")),
    Sdk("anthropic, Python", "client_anthropic.py", ("anthropic==2.12.0",)),
    Sdk("langchain-openai", "client_langchain.py", ("langchain-openai==1.7.3",)),
    Sdk("litellm", "client_litellm.py", ("litellm==1.106.2", "mcp==2.3.0")),
    Sdk(
        "Vercel AI SDK",
        "client_ai_sdk.mjs",
        ("ai@6.0.322", "@ai-sdk/openai@3.0.141", "@ai-sdk/openai-compatible@2.0.87", "zod@4.6.7"),
    ),
)

# What `ttft_gateway` needs without a server; its transports are for httpx and httpx2.
_BASE = ("ddsketch==3.0.1", "httpx==0.28.1", "httpx2==2.16.2", "msgspec==0.22.0")
TRANSPORTS = (
    Sdk("openai", "transport_openai.py", ("openai[aiohttp]==3.54.0", *_BASE)),
    Sdk("openai 2", "transport_openai.py", ("openai==2.54.0", *_BASE)),
    Sdk("openai 1", "transport_openai.py", ("openai==1.109.1", *_BASE)),
    Sdk("anthropic", "transport_anthropic.py", ("anthropic==2.12.0", *_BASE)),
    Sdk("langchain-openai", "transport_langchain.py", ("langchain-openai==1.7.3", *_BASE)),
    Sdk("litellm", "transport_litellm.py", ("litellm==1.106.2", *_BASE)),
    Sdk("pydantic-ai", "transport_pydantic_ai.py", ("pydantic-ai-slim[anthropic,openai]==2.68.0", *_BASE)),
    Sdk("llama-index", "transport_llama_index.py", ("llama-index-llms-openai==0.8.3", *_BASE)),
    Sdk("instructor", "transport_instructor.py", ("instructor==1.17.0", *_BASE)),
)
"""SDKs over a hedging transport. The example of each is `examples/client_*.py`, with the end of its client's name."""

ANSWERS: Mapping[str, str] = MappingProxyType(
    {
        "answer": "not streamed: text, finish reason, token counts",
        "stream": "the same text as not streamed, and token counts",
        "async stream": "with the asynchronous client, if the SDK has two",
        "tools": "a tool's call, with arguments that fit its schema",
        "streamed tools": "the same, assembled by the SDK from a stream",
        "tool result": "the call and its result are sent back and answered",
        "structured output": "parsed by the SDK into a given type",
        "streamed structured output": "the same, streamed",
        "responses": "`/v1/responses`: text and structured output",
        "streamed responses": "the SDK's own helper, which checks every event against its state",
        "responses with tools": "a call, and its result sent back",
        "completions": "`/v1/completions`, streamed and not",
        "embeddings": "the SDK's own encoding, and plain numbers if the SDK can request them",
        "models": "`/v1/models`",
        "token counting": "`/v1/messages/count_tokens`",
        "cancel while waiting": "the client disconnects before the first token; the replica's connection is closed",
        "cancel a stream": "the same in the middle of a stream",
    }
)

ERRORS: Mapping[str, str] = MappingProxyType(
    {
        "wrong key": "a key that is not configured, 401",
        "unknown model": "a model that is not configured, 404",
        "refused request": "the replica's own 400: the prompt is too long",
        "rate limit": "the replica's 429",
        "failing replica": "the replica's 500, if no other replica can be tried",
        "cut stream": "the replica's connection is reset in the middle of a stream",
    }
)

CASES: Mapping[str, str] = MappingProxyType(
    {
        "late headers": "an attempt without headers loses and is closed immediately, the primary as well as the backup",
        "headers, then silence": "the same with immediate headers and no event",
        "role, then silence": "the same with the events before the first content",
        "comments": "the same with comments only",
        "errors": "a 400, a 429, a 500 and the event of an error never win",
        "empty streams": "a stream without an event, or without content, never wins",
        "resets": "a connection that ends before the first content never wins",
        "all fail": "the SDK raises the primary's error",
        "switched off": "`x-ttft-hedge: off` of a call is obeyed and not sent",
        "keys": "a backup to another host has that replica's key and model, and no other key",
        "retries": "`max_retries=2` brings at most one backup",
        "cancelled": "a task that is cancelled closes both connections",
        "any ending": "for each of 61 endings of a response, pieces and errors are the plain client's, raced or not",
        "example": "the example ends with its answer and its counts",
    }
)
"""Cases of transport_cases.py, and the example of each SDK."""

GO_PROGRAMS = ("openai_sdk", "net_http")
"""Programs of examples/go."""

GO_CHECKS: Mapping[str, str] = MappingProxyType(
    {
        "stream": "an answer arrives to its end, with the name of its replica",
        "hedge": "the same if one of two replicas sends nothing",
        "cancel while waiting": "the context is cancelled before the first token; the replica's connection is closed",
        "cancel a stream": "the same in the middle of a stream",
        "wrong key": "the program ends with the gateway's 401",
    }
)
