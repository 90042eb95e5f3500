"""pydantic-ai over a hedging transport; its streams are asynchronous. See transport_cases.py."""

from collections.abc import AsyncIterator
from typing import Any

from pydantic_ai import Agent
from pydantic_ai.models.anthropic import AnthropicModel
from pydantic_ai.models.openai import OpenAIChatModel
from pydantic_ai.providers.anthropic import AnthropicProvider
from pydantic_ai.providers.openai import OpenAIProvider

from transport_cases import PROMPT, Call, Way, run


def chat(call: Call) -> AsyncIterator[str]:
    """Stream a chat completion."""
    provider = OpenAIProvider(base_url=call.url, api_key=call.key, http_client=call.http)
    return streamed(call, provider, OpenAIChatModel("m", provider=provider))


def message(call: Call) -> AsyncIterator[str]:
    """Stream a message."""
    url = call.url.removesuffix("/v1")
    provider = AnthropicProvider(base_url=url, api_key=call.key, http_client=call.http)
    return streamed(call, provider, AnthropicModel("m", provider=provider))


async def streamed(call: Call, provider: Any, model: Any) -> AsyncIterator[str]:
    """Stream an agent's answer."""
    provider.client.max_retries = call.retries  # of the SDK below, which pydantic-ai creates
    settings: Any = {"extra_headers": dict(call.headers)}
    async with Agent(model).run_stream(PROMPT, model_settings=settings) as result:
        async for text in result.stream_text(delta=True, debounce_by=None):
            yield text


run(Way(chat, is_async=True), Way(message, is_async=True, dialect="messages"))
