"""The OpenAI SDK's clients as the tests use them: of one gateway or replica, without retries and without proxies."""

from collections.abc import Iterable

import openai
from openai.types.chat import ChatCompletionChunk, ChatCompletionMessageParam

HELLO: list[ChatCompletionMessageParam] = [{"role": "user", "content": "hello"}]


def sync_client(url: str, *, key: str = "none", retries: int = 0) -> openai.OpenAI:
    """The synchronous client; use it on a thread."""
    http = openai.DefaultHttpxClient(trust_env=False)
    return openai.OpenAI(base_url=url, api_key=key, max_retries=retries, http_client=http)


def async_client(url: str, *, key: str = "none", retries: int = 0) -> openai.AsyncOpenAI:
    """The asynchronous client."""
    http = openai.DefaultAsyncHttpxClient(trust_env=False)
    return openai.AsyncOpenAI(base_url=url, api_key=key, max_retries=retries, http_client=http)


def azure_client(endpoint: str, *, key: str = "none", deployment: str | None = None) -> openai.AsyncAzureOpenAI:
    """The client for Azure: of a deployment, or of the one that each call names."""
    http = openai.DefaultAsyncHttpxClient(trust_env=False)
    return openai.AsyncAzureOpenAI(
        azure_endpoint=endpoint,
        azure_deployment=deployment,
        api_version="2024-10-21",
        api_key=key,
        max_retries=0,
        http_client=http,
    )


def words_of(chunks: Iterable[ChatCompletionChunk]) -> list[str]:
    """The texts that a stream's events carry."""
    return [choice.delta.content for chunk in chunks for choice in chunk.choices if choice.delta.content]


def read(client: openai.OpenAI, model: str, words: list[str]) -> None:
    """Read a stream; what had come before an error is in `words` then."""
    for chunk in client.chat.completions.create(model=model, messages=HELLO, stream=True):
        words += words_of([chunk])


async def read_async(client: openai.AsyncOpenAI, model: str, words: list[str]) -> None:
    """The same with the asynchronous client."""
    async for chunk in await client.chat.completions.create(model=model, messages=HELLO, stream=True):
        words += words_of([chunk])
