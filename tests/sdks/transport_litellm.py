"""The `litellm` package as a library over a hedging transport; see transport_cases.py."""

import os

os.environ["LITELLM_LOCAL_MODEL_COST_MAP"] = "True"  # else it requests prices from another host when it is imported

from collections.abc import AsyncIterator, Iterator
from typing import Any

import litellm
from litellm.llms.custom_httpx.http_handler import AsyncHTTPHandler, HTTPHandler

from transport_cases import PROMPT, Call, Way, run

SAY: Any = [{"role": "user", "content": PROMPT}]
litellm.suppress_debug_info = True


def reached(call: Call) -> dict[str, Any]:
    """Return the arguments of a call. LiteLLM keeps clients by their addresses."""
    litellm.in_memory_llm_clients_cache.flush_cache()
    return {
        "model": "openai/m",
        "messages": SAY,
        "api_base": call.url,
        "api_key": call.key,
        "extra_headers": dict(call.headers),
        "max_retries": call.retries,
        "stream": True,
    }


def chat(call: Call) -> Iterator[Any]:
    """Stream a chat completion."""
    litellm.client_session = call.http
    stream: Any = litellm.completion(**reached(call))
    yield from stream


async def chat_async(call: Call) -> AsyncIterator[Any]:
    """Stream a chat completion."""
    litellm.aclient_session = call.http
    stream: Any = await litellm.acompletion(**reached(call))
    async for chunk in stream:
        yield chunk


def message(call: Call) -> Iterator[Any]:
    """Stream a message from a provider that LiteLLM reaches without another SDK."""
    own = {"model": "anthropic/m", "api_base": call.url.removesuffix("/v1"), "max_tokens": 8}
    stream: Any = litellm.completion(**reached(call) | own, client=HTTPHandler(client=call.http))
    yield from stream


async def message_async(call: Call) -> AsyncIterator[Any]:
    """Stream a message from a provider that LiteLLM reaches without another SDK."""
    own = {"model": "anthropic/m", "api_base": call.url.removesuffix("/v1"), "max_tokens": 8}
    handler = AsyncHTTPHandler(transport=call.http._transport)
    stream: Any = await litellm.acompletion(**reached(call) | own, client=handler)
    async for chunk in stream:
        yield chunk


def text(chunk: Any) -> str:
    """Return the text of a chunk."""
    return chunk.choices[0].delta.content or "" if chunk.choices else ""


CHAT: Any = {"text": text, "library": "httpx"}
MESSAGE: Any = {**CHAT, "dialect": "messages", "tries": 1}  # without retries of LiteLLM's own
run(
    Way(chat, is_async=False, **CHAT),
    Way(chat_async, is_async=True, **CHAT),
    Way(message, is_async=False, **MESSAGE),
    Way(message_async, is_async=True, **MESSAGE),
)
