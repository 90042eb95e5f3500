"""The SDKs of the matrix, at which versions, and everything that is checked with them. Data only.

A client makes the checks that its SDK has something for. docs/compatibility.md names all of them.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType


@dataclass(frozen=True, slots=True)
class Sdk:
    """One column.

    Attributes:
        name: as people say it.
        client: our program beside this file; its ending says the language.
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
