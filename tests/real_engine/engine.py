"""Real llama-servers behind a gateway: is what simulated replicas show so on an engine? For scripts/real-engine.

The OpenAI SDK's checks, time to first token against prompt length, when a slot is free again, and hedging while one
replica is kept busy. All share this machine's cores, so the figures compare with each other only. Units: seconds; the
tables have milliseconds.
"""

import argparse
import asyncio
import os
import random
import statistics
import sys
import tempfile
from collections.abc import AsyncIterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import openai

from engine_build import CACHE, VERSION, built
from engine_hedging import POLICIES, compared
from engine_replicas import SLOTS, busy_slots, prompt, running
from engine_site import Site, properties, serving, until
from engine_switchback import MODEL, POLICY, switched

REPLICAS = 3
LENGTHS = (100, 500, 1000, 2000, 4000)  # tokens
REPEATS = 5
LONG_TOKENS = 6000
AT_ONCE: Mapping[str, object] = {"policy": "static", "delay": "100ms", "budget": "100%"}
TOWNS = {
    "type": "object",
    "properties": {"town": {"enum": ["Bern", "Oslo"]}, "sunny": {"type": "boolean"}},
    "required": ["town", "sunny"],
    "additionalProperties": False,
}
FORMAT: Any = {"type": "json_schema", "json_schema": {"name": "town", "schema": TOWNS, "strict": True}}


class Line(NamedTuple):
    """One line of the table of checks."""

    what: str
    holds: bool
    said: str


async def checks(site: Site) -> AsyncIterator[Line]:
    """What a user of the SDK sees of answers and errors."""
    told = await site.chat("Say something.", "at_once")
    yield Line("answer", told.usage.completion_tokens == 8, f"finish_reason {told.choices[0].finish_reason}")
    chunks = [chunk async for chunk in await site.chat("Say something.", "at_once", stream=True)]
    ended = [choice.finish_reason for chunk in chunks for choice in chunk.choices][-1]
    yield Line("stream", ended == "length", f"{len(chunks)} events, finish_reason {ended}")
    for how in ("", ", streamed"):
        message = await _message(site, stream=bool(how), response_format=FORMAT, max_tokens=200)
        said = " ".join(str(message.content).split())
        yield Line("structured output" + how, said.startswith("{") and said.endswith("}"), said)
    yield await _raises("a prompt over the context", openai.BadRequestError, site, prompt(60_000, random.Random(1)))
    yield await _raises("a wrong value", openai.BadRequestError, site, "x", temperature="hot")


async def _message(site: Site, *, stream: bool, **more: Any) -> Any:
    """The message of an answer, put together by the SDK where it is streamed."""
    messages: Any = [{"role": "user", "content": "Where is it sunny?"}]
    if not stream:
        told = await site.client.chat.completions.create(model="at_once", messages=messages, **more)
        return told.choices[0].message
    async with site.client.chat.completions.stream(model="at_once", messages=messages, **more) as events:
        return (await events.get_final_completion()).choices[0].message


async def _raises(what: str, kind: type[Exception], site: Site, text: str, **more: Any) -> Line:
    try:
        await site.chat(text, "at_once", **more)
    except openai.APIError as error:
        return Line(what, type(error) is kind, f"{type(error).__name__}, {error.code}: {error.message}"[:160])
    return Line(what, holds=False, said="no error")


async def cancels(site: Site) -> AsyncIterator[tuple[str, float]]:
    """What was cancelled, and how long its slot stayed busy."""
    draw = random.Random(2)
    stream = await site.chat("Say something.", "e0", stream=True, max_tokens=2000)
    await anext(aiter(stream))
    yield "the client leaves while tokens come", await site.free_s(0, stream.close)
    async with asyncio.TaskGroup() as group:
        call = group.create_task(site.chat(prompt(LONG_TOKENS, draw), "e0", stream=True))
        await until(lambda: busy_slots(site.engines[0]) > 0)

        async def leave() -> None:
            call.cancel()
            await asyncio.wait([call])

        yield f"the client leaves while {LONG_TOKENS} tokens of prompt are read", await site.free_s(0, leave)
    async for chunk in await site.chat(prompt(LONG_TOKENS, draw), "at_once", stream=True, max_tokens=1):
        if chunk.choices and chunk.choices[0].delta.content:
            break
    loop = asyncio.get_running_loop()
    won_s = loop.time()
    await until(lambda: sum(map(busy_slots, site.engines)) == 0)
    yield f"a race of two over {LONG_TOKENS} tokens is won: all slots free", loop.time() - won_s


async def _measure(site: Site, rounds: int) -> bool:
    """Print all tables; whether the checks hold."""
    print(f"llama-cpp-python {VERSION}, {properties(site.engines[0]).get('build_info')}, {SLOTS} slots a replica\n")
    lines = [line async for line in checks(site)]
    print("| check | holds | said |\n|---|---|---|")
    for line in lines:
        print(f"| {line.what} | {'yes' if line.holds else '**no**'} | `{line.said}` |")
    print("\n| prompt tokens | TTFT, median of 5, ms |\n|---|---|")
    draw = random.Random(4)
    for tokens in LENGTHS:
        times_s = [await site.ttft_s(tokens, "e1", draw) for _ in range(REPEATS)]
        print(f"| {tokens} | {1000 * statistics.median(times_s):.0f} |")
    print("\n| cancelled | slot busy for another, ms |\n|---|---|")
    async for what, freed_s in cancels(site):
        print(f"| {what} | {1000 * freed_s:.0f} |")
    print(
        "\n| policy | requests | p50 | p90 | p95 | p99 | max, ms | hedged | backup won | denied |\n" + "|---" * 10 + "|"
    )
    for model, row in (await compared(site, rounds)).items():
        cut = [row.quantile_s(part) for part in (0.5, 0.9, 0.95, 0.99, 1.0)]
        denied = ", ".join(f"{count} {why}" for why, count in sorted(row.denials.items())) or "-"
        count = len(row.ttfts_s)
        print(f"| {model} | {count} | {' | '.join(f'{1000 * each:.0f}' for each in cut)}", end=" | ")
        print(f"{row.hedged / count:.1%} | {row.won} | {denied} |", flush=True)
    return all(line.holds for line in lines)


async def _switch(blocks: int, block_s: float, jobs: int) -> bool:
    """Print the total and the direct effect."""
    server, model = built(jobs)
    with running(server, model, REPLICAS, CACHE) as engines, tempfile.TemporaryDirectory() as folder:
        async with serving(engines, {MODEL: POLICY}, Path(folder)) as site:
            print("\n".join(await switched(site, site.admin_url, blocks, block_s)))
    return True


async def _run(rounds: int, jobs: int) -> bool:
    server, model = built(jobs)
    with running(server, model, REPLICAS, CACHE) as engines, tempfile.TemporaryDirectory() as folder:
        async with serving(engines, {**POLICIES, "at_once": AT_ONCE}, Path(folder)) as site:
            return await _measure(site, rounds)


def main() -> int:
    """Build what is missing, measure, print; 1 when a check does not hold."""
    parser = argparse.ArgumentParser(prog="scripts/real-engine", description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=4, help="blocks under each policy")
    parser.add_argument("--jobs", type=int, default=os.cpu_count() or 1, help="compilers at a time")
    parser.add_argument("--switchback", type=int, default=0, metavar="BLOCKS", help="only the effect of hedging")
    parser.add_argument("--block-s", type=float, default=60.0, help="length of a block of --switchback")
    args = parser.parse_args()
    done = _switch(args.switchback, args.block_s, args.jobs) if args.switchback else _run(args.rounds, args.jobs)
    return 0 if asyncio.run(done) else 1


if __name__ == "__main__":
    sys.exit(main())
