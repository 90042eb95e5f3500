"""The `openai` package over a hedging transport: chat completions and responses; see transport_cases.py."""

from typing import Any

import openai

from transport_cases import PROMPT, Call, Way, run

SAY: Any = [{"role": "user", "content": PROMPT}]


def client(call: Call, made: Any) -> Any:
    """Return a client of the SDK."""
    return made(base_url=call.url, api_key=call.key, http_client=call.http, max_retries=call.retries)


def chat(call: Call) -> str:
    """Stream a chat completion."""
    stream = client(call, openai.OpenAI).chat.completions.create(
        model="m", messages=SAY, stream=True, extra_headers=call.headers
    )
    return "".join(choice.delta.content or "" for chunk in stream for choice in chunk.choices)


async def chat_async(call: Call) -> str:
    """Stream a chat completion."""
    stream = await client(call, openai.AsyncOpenAI).chat.completions.create(
        model="m", messages=SAY, stream=True, extra_headers=call.headers
    )
    return "".join([choice.delta.content or "" async for chunk in stream for choice in chunk.choices])


def responses(call: Call) -> str:
    """Stream a response."""
    stream = client(call, openai.OpenAI).responses.create(
        model="m", input=PROMPT, stream=True, store=False, extra_headers=call.headers
    )
    return "".join(event.delta for event in stream if event.type == "response.output_text.delta")


async def responses_async(call: Call) -> str:
    """Stream a response."""
    stream = await client(call, openai.AsyncOpenAI).responses.create(
        model="m", input=PROMPT, stream=True, store=False, extra_headers=call.headers
    )
    return "".join([event.delta async for event in stream if event.type == "response.output_text.delta"])


run(
    Way(chat, is_async=False),
    Way(chat, is_async=False, library="httpx"),
    Way(chat_async, is_async=True),
    Way(chat_async, is_async=True, library="httpx"),
    Way(responses, is_async=False, dialect="responses"),
    Way(responses_async, is_async=True, dialect="responses"),
)
