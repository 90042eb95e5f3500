"""Silence in streams over real sockets: thinking, tool calls, and a gateway process that was stopped."""

import asyncio
import json
import os
import signal

from gateway_fixture import serving
from race_scenarios import Settings, spread
from raw_http import CHAT, answer, asking, request_bytes
from recovering import WEATHER, read
from running import run_real

OFF: Settings = {"policy": "off"}
HELLO = [{"role": "user", "content": "hello"}]
MESSAGES, RESPONSES = "/v1/messages", "/v1/responses"
BODIES: dict[str, dict[str, object]] = {
    CHAT: {"messages": HELLO},
    MESSAGES: {"messages": HELLO, "max_tokens": 64},
    RESPONSES: {"input": "hello", "store": False},
}
ENDS = {CHAT: b"data: [DONE]\n\n", MESSAGES: b'{"type":"message_stop"}', RESPONSES: b'"response.completed"'}
COMMENT = b": keep-alive\n\n"
ALIVE = {CHAT: COMMENT, MESSAGES: b'event: ping\ndata: {"type": "ping"}\n\n', RESPONSES: COMMENT}
TOOLS: dict[str, object] = {"tools": [WEATHER], "tool_choice": "required"}
STREAMS = 20


async def silent(path: str, phase: str, **more: object) -> tuple[bytes, int]:
    """Return a stream that is silent for three stalls of text in a phase, and the number of upstream requests."""
    replica: Settings = {
        "reasoning_tokens": int(phase == "stall_thinking"),
        "tokens": 5,
        "faults": ["stall:1,900ms always"],
    }
    timeouts = {"stall": "300ms", "stall_thinking": "300ms", "stall_tool_call": "300ms", "keepalive_interval": "200ms"}
    async with serving({"a": replica, "b": replica}, timeouts={**timeouts, phase: "1m"}, hedge=OFF) as site:
        payload = json.dumps({"model": "m", "stream": True, **BODIES[path], **more}).encode()
        async with answer(site.port, request_bytes(payload, path)) as got:
            return await got.body(), site.reached


def test_a_silence_of_a_thinking_model_is_no_stall() -> None:
    """After reasoning, or in a tool call, a long silence ends no stream: one upstream request, and keep-alives."""

    async def main() -> None:
        cases = [(path, "stall_thinking") for path in BODIES]
        got = await asyncio.gather(*(silent(*case) for case in cases), silent(CHAT, "stall_tool_call", **TOOLS))
        for path, (body, asked) in zip([*BODIES, CHAT], got, strict=True):
            assert ENDS[path] in body
            assert body.count(ALIVE[path]) >= 2
            assert asked == 1

    run_real(main())


def test_a_pause_of_the_process_ends_no_stream() -> None:
    """A gateway stopped for longer than `stall` ends no healthy stream afterwards, and blames no replica."""
    steady: Settings = {"ttft": "1ms", "gap": "50ms", "tokens": 40}  # 2 s

    async def main() -> None:
        async with serving({"a": steady, "b": steady}, process=True, timeouts={"stall": "700ms"}, hedge=OFF) as site:
            begun, have_begun = 0, asyncio.Event()

            async def one(_number: int) -> None:
                nonlocal begun
                async with answer(site.port, asking()) as got:
                    assert got.status == 200
                    begun += 1
                    if begun == STREAMS:
                        have_begun.set()
                    told = read(await got.body())
                assert (told.dones, told.error) == (1, None)

            async def pause() -> None:
                await have_begun.wait()
                os.kill(site.pid, signal.SIGSTOP)
                try:
                    await asyncio.sleep(2)
                finally:
                    os.kill(site.pid, signal.SIGCONT)

            await asyncio.gather(spread(STREAMS, STREAMS, one), pause())
            for server in site.replicas.values():
                server.configure(gap="0ms")
            await spread(STREAMS, STREAMS, one)
            assert site.reached == 2 * STREAMS

    run_real(main())
