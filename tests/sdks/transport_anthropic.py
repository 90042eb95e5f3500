"""The `anthropic` package over a hedging transport; see transport_cases.py."""

from collections.abc import AsyncIterator, Iterator
from typing import Any

import anthropic

from transport_cases import PROMPT, Call, Way, run

SAY: Any = [{"role": "user", "content": PROMPT}]


def client(call: Call, made: Any) -> Any:
    """Return a client of the SDK, which adds /v1 itself."""
    url = call.url.removesuffix("/v1")
    return made(base_url=url, api_key=call.key, http_client=call.http, max_retries=call.retries)


def message(call: Call) -> Iterator[Any]:
    """Stream a message."""
    with client(call, anthropic.Anthropic).messages.stream(
        model="m", max_tokens=8, messages=SAY, extra_headers=call.headers
    ) as stream:
        yield from stream


async def message_async(call: Call) -> AsyncIterator[Any]:
    """Stream a message."""
    async with client(call, anthropic.AsyncAnthropic).messages.stream(
        model="m", max_tokens=8, messages=SAY, extra_headers=call.headers
    ) as stream:
        async for event in stream:
            yield event


def text(event: Any) -> str:
    """Return the text of an event."""
    return str(event.text) if event.type == "text" else ""


def shown(event: Any) -> str:
    """Return all fields of an event."""
    return str(event.to_json())


MESSAGE: Any = {"text": text, "shown": shown, "dialect": "messages"}
run(Way(message, is_async=False, **MESSAGE), Way(message_async, is_async=True, **MESSAGE))
