"""What OpenAI's SDK sees of short faults and of silent replicas: tests make it small, scripts/acceptance in full.

A replica is silent from its first byte, or after four tokens; the SDK has a timeout of 0.8 s and otherwise its
defaults. A blip is a fault of both replicas at the same time for 200 ms. Units: seconds.
"""

import asyncio
from typing import NamedTuple

import openai

from gateway_fixture import serving
from race_scenarios import Settings
from sdk_clients import HELLO, async_client, words_of

TIMEOUT_S = 0.8
BLIP_S = 0.2
_GOOD: Settings = {"ttft": "10ms", "gap": "5ms", "tokens": 12}
_SDK_RETRIES = 2  # its default
SILENT: dict[str, Settings] = {
    "from the first byte": {**_GOOD, "faults": ["silence always"]},
    "after the headers": {**_GOOD, "faults": ["headers_silence always"]},
    "after four tokens": {**_GOOD, "faults": ["stall:4,60s always"]},
}


class Ended(NamedTuple):
    """The end of one call.

    Attributes:
        words: words received.
        error: type of the exception; None for a complete answer.
        silent_s: time from the last word, or from the call, to the end.
    """

    words: int
    error: str | None
    silent_s: float


async def _call(client: openai.AsyncOpenAI) -> Ended:
    """Read one stream to its end."""
    loop = asyncio.get_running_loop()
    words, since_s, error = 0, loop.time(), None
    try:
        stream = await client.chat.completions.create(model="m", messages=HELLO, stream=True)
        async for chunk in stream:
            if words_of([chunk]):
                words, since_s = words + 1, loop.time()
    except openai.APIError as raised:
        error = type(raised).__name__
    return Ended(words, error, loop.time() - since_s)


async def silences(replica: Settings, count: int) -> list[Ended]:
    """Call a gateway with one silent replica, one call after the other, with a timeout of 0.8 s."""
    async with (
        serving({"a": replica}, process=True, model={"recovery": "auto"}) as site,
        async_client(site.url, retries=_SDK_RETRIES) as client,
    ):
        return [await _call(client.with_options(timeout=TIMEOUT_S)) for _ in range(count)]


async def blips(count: int, *, process: bool) -> list[Ended]:
    """Call a gateway at the start of each of several blips, with the SDK's defaults."""
    ended: list[Ended] = []
    async with (
        serving({"a": _GOOD, "b": _GOOD}, process=process) as site,
        async_client(site.url, retries=_SDK_RETRIES) as client,
        asyncio.TaskGroup() as tasks,
    ):
        for _ in range(count):
            for replica in site.replicas.values():
                replica.configure(faults=["500 always"])
            call = tasks.create_task(_call(client))
            await asyncio.sleep(BLIP_S)
            for replica in site.replicas.values():
                replica.configure(faults=[])
            ended.append(await call)
    return ended
