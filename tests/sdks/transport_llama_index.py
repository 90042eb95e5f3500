"""LlamaIndex's `OpenAI` over a hedging transport; see transport_cases.py. It has `openai` 2, and so httpx."""

from collections.abc import AsyncIterator, Iterator
from typing import Any

from llama_index.core.llms import ChatMessage
from llama_index.llms.openai import OpenAI

from transport_cases import PROMPT, Call, Way, run

SAY = [ChatMessage(role="user", content=PROMPT)]


def model(call: Call) -> Any:
    """Return a model of LlamaIndex, which knows models by their names."""
    http = {"async_http_client" if hasattr(call.http, "aclose") else "http_client": call.http}
    return OpenAI(
        model="gpt-4o-mini",
        api_base=call.url,
        api_key=call.key,
        max_retries=call.retries,
        additional_kwargs={"extra_headers": dict(call.headers)},
        **http,
    )


def chat(call: Call) -> Iterator[Any]:
    """Stream a chat completion."""
    yield from model(call).stream_chat(SAY)


async def chat_async(call: Call) -> AsyncIterator[Any]:
    """Stream a chat completion."""
    async for chunk in await model(call).astream_chat(SAY):
        yield chunk


def text(chunk: Any) -> str:
    """Return the text of a chunk."""
    return chunk.delta or ""


def shown(chunk: Any) -> str:
    """Return the SDK's chunk below."""
    return str(chunk.raw.to_json())


CHAT: Any = {"text": text, "shown": shown, "library": "httpx"}
run(Way(chat, is_async=False, **CHAT), Way(chat_async, is_async=True, **CHAT))
