"""The hedging transports under one interface, each with the client library and the SDK that use it."""

import asyncio
import threading
from collections.abc import Callable
from typing import Any

import httpx
import httpx2
import openai

from client_replicas import ScriptedReplica
from ttft_gateway import (
    AsyncHedgingTransport,
    AsyncHedgingTransport2,
    HedgingTransport,
    HedgingTransport2,
    StatsSnapshot,
)
from ttft_gateway.client.config import HedgeConfig

SOON = HedgeConfig(warmup_delay=0.02, budget_percent=100.0)
PROMPT: Any = [{"role": "user", "content": "hello"}]


class Kit:
    """One transport, and clients that use it.

    Args:
        transport: makes the transport.
        inner: makes the transport that sends.
        client: makes a client with the transport.
    """

    error = openai.APIStatusError

    def __init__(
        self, transport: Callable[..., Any], inner: Callable[..., Any], client: Callable[..., Any], *, is_async: bool
    ) -> None:
        self.transport = transport
        self._inner = inner
        self._client = client
        self.is_async = is_async

    def run(self, work: Callable[["Session"], Any], config: HedgeConfig = SOON, **options: Any) -> Any:
        """Make a client, call `work`, which may return a coroutine, and close the client."""
        transport = self.transport(config, transport=self._inner(verify=False), **options)
        session = Session(self, transport, self._client(transport=transport, timeout=60.0))
        if not self.is_async:
            with session.client:
                result = work(session)
        else:

            async def whole() -> Any:
                async with session.client:
                    found = await work(session)
                while len(asyncio.all_tasks()) > 1:  # the SDK's own generators end in tasks, too
                    await asyncio.sleep(0)
                return found

            result = asyncio.run(whole())
        assert not [each.name for each in threading.enumerate() if each.name.startswith("ttft-hedge")]
        return result

    def chat(self, replica: ScriptedReplica, config: HedgeConfig = SOON, **options: Any) -> tuple[str, StatsSnapshot]:
        """Stream one chat completion with the OpenAI SDK; return its text and the counts.

        The request is late as soon as it has reached the replica, so that the primary is the first one there.
        """

        def work(session: "Session") -> Any:
            session.transport.hedger.clock = lambda: 1.0 if replica.seen else 0.0
            return session.chat(replica.url)

        found: tuple[str, StatsSnapshot] = self.run(work, config, **options)
        return found


class Session:
    """A client that is open."""

    def __init__(self, kit: Kit, transport: Any, client: Any) -> None:
        self._kit = kit
        self.transport = transport
        self.client = client

    def sdk(self, base_url: str, **options: Any) -> Any:
        """Return the OpenAI SDK with this client."""
        made = openai.AsyncOpenAI if self._kit.is_async else openai.OpenAI
        return made(base_url=base_url, api_key="sk-home", http_client=self.client, **{"max_retries": 0, **options})

    def chat(self, base_url: str, retries: int = 0, **fields: Any) -> Any:
        """Stream one chat completion; return its text and the counts, or a coroutine for them."""
        sdk = self.sdk(base_url, max_retries=retries)
        if self._kit.is_async:
            return self._chat(sdk, fields)
        stream = sdk.chat.completions.create(model="m", messages=PROMPT, stream=True, **fields)
        return "".join(map(_text, stream)), self.transport.stats.snapshot()

    async def _chat(self, sdk: Any, fields: dict[str, Any]) -> tuple[str, StatsSnapshot]:
        stream = await sdk.chat.completions.create(model="m", messages=PROMPT, stream=True, **fields)
        return "".join([_text(each) async for each in stream]), self.transport.stats.snapshot()

    def send(self, method: str, url: str, **options: Any) -> Any:
        """Send one request with the client; return its response with its body, or a coroutine for it."""
        return self.client.request(method, url, **options)


def _text(chunk: Any) -> str:
    return "".join(choice.delta.content or "" for choice in chunk.choices)


KITS = {
    "httpx": Kit(HedgingTransport, httpx.HTTPTransport, httpx.Client, is_async=False),
    "httpx async": Kit(AsyncHedgingTransport, httpx.AsyncHTTPTransport, httpx.AsyncClient, is_async=True),
    "httpx2": Kit(HedgingTransport2, httpx2.HTTPTransport, httpx2.Client, is_async=False),
    "httpx2 async": Kit(AsyncHedgingTransport2, httpx2.AsyncHTTPTransport, httpx2.AsyncClient, is_async=True),
}
