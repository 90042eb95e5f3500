"""Instructor's client of the `openai` package over a hedging transport; see transport_cases.py."""

from collections.abc import AsyncIterator, Iterator
from typing import Any

import instructor
import openai

from transport_cases import PROMPT, Call, Way, run

SAY: Any = [{"role": "user", "content": PROMPT}]


def client(call: Call, made: Any) -> Any:
    """Return Instructor's client above the SDK's."""
    sdk = made(base_url=call.url, api_key=call.key, http_client=call.http, max_retries=call.retries)
    return instructor.from_openai(sdk)


def chat(call: Call) -> Iterator[Any]:
    """Stream a chat completion."""
    yield from client(call, openai.OpenAI).chat.completions.create(
        model="m", messages=SAY, stream=True, response_model=None, extra_headers=call.headers
    )


async def chat_async(call: Call) -> AsyncIterator[Any]:
    """Stream a chat completion."""
    stream = await client(call, openai.AsyncOpenAI).chat.completions.create(
        model="m", messages=SAY, stream=True, response_model=None, extra_headers=call.headers
    )
    async for chunk in stream:
        yield chunk


def text(chunk: Any) -> str:
    """Return the text of a chunk."""
    return "".join(choice.delta.content or "" for choice in chunk.choices or ())


def shown(chunk: Any) -> str:
    """Return all fields of a chunk."""
    return str(chunk.to_json())


CHAT: Any = {"text": text, "shown": shown}
run(Way(chat, is_async=False, **CHAT), Way(chat_async, is_async=True, **CHAT))
