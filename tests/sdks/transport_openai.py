"""The `openai` package over a hedging transport: chat completions and responses; see transport_cases.py.

Versions 1 and 2 have clients of httpx, version 3 of both libraries, and of aiohttp.
"""

from collections.abc import AsyncIterator, Iterator
from typing import Any

import openai

from transport_cases import PROMPT, Call, Way, run

SAY: Any = [{"role": "user", "content": PROMPT}]


def client(call: Call, made: Any) -> Any:
    """Return a client of the SDK."""
    return made(base_url=call.url, api_key=call.key, http_client=call.http, max_retries=call.retries)


def chat(call: Call) -> Iterator[Any]:
    """Stream a chat completion."""
    yield from client(call, openai.OpenAI).chat.completions.create(
        model="m", messages=SAY, stream=True, extra_headers=call.headers
    )


async def chat_async(call: Call) -> AsyncIterator[Any]:
    """Stream a chat completion."""
    stream = await client(call, openai.AsyncOpenAI).chat.completions.create(
        model="m", messages=SAY, stream=True, extra_headers=call.headers
    )
    async for chunk in stream:
        yield chunk


def responses(call: Call) -> Iterator[Any]:
    """Stream a response."""
    yield from client(call, openai.OpenAI).responses.create(
        model="m", input=PROMPT, stream=True, store=False, extra_headers=call.headers
    )


async def responses_async(call: Call) -> AsyncIterator[Any]:
    """Stream a response."""
    stream = await client(call, openai.AsyncOpenAI).responses.create(
        model="m", input=PROMPT, stream=True, store=False, extra_headers=call.headers
    )
    async for event in stream:
        yield event


def text_of_chat(chunk: Any) -> str:
    """Return the text of a chunk."""
    return "".join(choice.delta.content or "" for choice in chunk.choices or ())


def text_of_response(event: Any) -> str:
    """Return the text of an event."""
    return str(event.delta) if event.type == "response.output_text.delta" else ""


def shown(piece: Any) -> str:
    """Return all fields of a chunk or an event."""
    return str(piece.to_json())


def by_aiohttp(**options: Any) -> Any:
    """Return the transport that the SDK has over aiohttp."""
    return openai.DefaultAioHttpClient(**options)._transport


LIBRARIES = ("httpx2", "httpx") if int(openai.__version__.partition(".")[0]) > 2 else ("httpx",)
CHAT: Any = {"text": text_of_chat, "shown": shown}
RESPONSE: Any = {"text": text_of_response, "shown": shown, "dialect": "responses"}
ways = []
for library in LIBRARIES:
    ways += [
        Way(chat, is_async=False, library=library, **CHAT),
        Way(chat_async, is_async=True, library=library, **CHAT),
    ]
ways += [
    Way(responses, is_async=False, library=LIBRARIES[0], **RESPONSE),
    Way(responses_async, is_async=True, library=LIBRARIES[0], **RESPONSE),
]
if "httpx2" in LIBRARIES:
    ways.append(Way(chat_async, is_async=True, inner=by_aiohttp, **CHAT))
run(*ways)
