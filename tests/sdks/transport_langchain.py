"""LangChain's `ChatOpenAI` over a hedging transport; see transport_cases.py."""

from collections.abc import AsyncIterator, Iterator
from typing import Any

from langchain_openai import ChatOpenAI

from transport_cases import PROMPT, Call, Way, run


def model(call: Call) -> Any:
    """Return a model of LangChain; the clients go to the SDK below it."""
    # A client of the other kind is not given: the one that LangChain makes itself is not used.
    http = {"http_async_client" if hasattr(call.http, "aclose") else "http_client": call.http}
    return ChatOpenAI(model="m", base_url=call.url, api_key=call.key, max_retries=call.retries, **http)


def chat(call: Call) -> Iterator[Any]:
    """Stream a chat completion."""
    yield from model(call).stream(PROMPT, extra_headers=call.headers)


async def chat_async(call: Call) -> AsyncIterator[Any]:
    """Stream a chat completion."""
    async for chunk in model(call).astream(PROMPT, extra_headers=call.headers):
        yield chunk


def text(chunk: Any) -> str:
    """Return the text of a chunk."""
    return str(chunk.text)


run(Way(chat, is_async=False, text=text), Way(chat_async, is_async=True, text=text))
