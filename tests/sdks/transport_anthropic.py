"""The `anthropic` package over a hedging transport; see transport_cases.py."""

from typing import Any

import anthropic

from transport_cases import PROMPT, Call, Way, run

SAY: Any = [{"role": "user", "content": PROMPT}]


def client(call: Call, made: Any) -> Any:
    """Return a client of the SDK, which adds /v1 itself."""
    url = call.url.removesuffix("/v1")
    return made(base_url=url, api_key=call.key, http_client=call.http, max_retries=call.retries)


def message(call: Call) -> str:
    """Stream a message."""
    with client(call, anthropic.Anthropic).messages.stream(
        model="m", max_tokens=8, messages=SAY, extra_headers=call.headers
    ) as stream:
        return "".join(stream.text_stream)


async def message_async(call: Call) -> str:
    """Stream a message."""
    async with client(call, anthropic.AsyncAnthropic).messages.stream(
        model="m", max_tokens=8, messages=SAY, extra_headers=call.headers
    ) as stream:
        return "".join([text async for text in stream.text_stream])


run(Way(message, is_async=False, dialect="messages"), Way(message_async, is_async=True, dialect="messages"))
