"""A gateway before real engines and the OpenAI SDK as its client: chat, and time to first token. Units: seconds."""

import asyncio
import contextlib
import random
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import openai

from engine_replicas import busy_slots, get, prompt
from served import gateway

_FREE_S_MAX = 120.0
_POLL_S = 0.002


@dataclass(frozen=True, slots=True)
class Site:
    """What runs.

    Attributes:
        engines: the addresses of the replicas e0, e1, ...
        client: of the gateway, without retries.
        log: the gateway's.
        admin_url: the gateway's admin address.
    """

    engines: Sequence[str]
    client: openai.AsyncOpenAI
    log: Path
    admin_url: str

    def chat(self, text: str, model: str, **more: Any) -> Any:
        """A chat completion, or a stream of one, to be awaited."""
        messages: Any = [{"role": "user", "content": text}]
        return self.client.chat.completions.create(model=model, messages=messages, **({"max_tokens": 8} | more))

    async def ttft_s(self, tokens: int, model: str, draw: random.Random, **more: Any) -> float:
        """The time to the first token of a new prompt of about so many tokens; the stream is read to its end."""
        loop = asyncio.get_running_loop()
        text, began_s, first_s = prompt(tokens, draw), loop.time(), 0.0
        async for chunk in await self.chat(text, model, stream=True, **more):
            if not first_s and chunk.choices and chunk.choices[0].delta.content:
                first_s = loop.time()
        assert first_s, "a stream without a token"
        return first_s - began_s

    async def free_s(self, number: int, leave: Callable[[], Awaitable[object]]) -> float:
        """How long a replica's slot stays busy once its client has been told to leave."""
        loop = asyncio.get_running_loop()
        await leave()
        left_s = loop.time()
        await until(lambda: not busy_slots(self.engines[number]))
        return loop.time() - left_s


async def until(holds: Callable[[], bool]) -> None:
    """Wait until something holds that is asked over HTTP."""
    async with asyncio.timeout(_FREE_S_MAX):
        while not await asyncio.to_thread(holds):
            await asyncio.sleep(_POLL_S)


@contextlib.asynccontextmanager
async def serving(
    engines: Sequence[str], policies: Mapping[str, Mapping[str, object]], folder: Path
) -> AsyncIterator[Site]:
    """A gateway process while inside.

    Args:
        engines: the replicas' addresses.
        policies: for each model over all of them, how it is hedged; besides there is a model for each replica.
        folder: for the gateway's files.
    """
    replicas = [
        {"name": f"e{number}", "kind": "llamacpp", "base_url": f"{engine}/v1", "model": "random"}
        for number, engine in enumerate(engines)
    ]
    alone = [{"name": str(each["name"]), "replicas": [each]} for each in replicas]
    raced = [{"name": name, "replicas": replicas, "hedge": dict(hedge)} for name, hedge in policies.items()]
    with gateway({"models": [*alone, *raced]}, folder) as served:
        http = openai.DefaultAsyncHttpxClient(trust_env=False)
        async with openai.AsyncOpenAI(
            base_url=f"{served.url}/v1", api_key="none", max_retries=0, timeout=300.0, http_client=http
        ) as client:
            yield Site(engines, client, folder / "gateway.log", served.admin_url)


def properties(engine: str) -> Any:
    """What an engine says of itself."""
    return get(f"{engine}/props")
