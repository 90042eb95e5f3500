"""Parallel tool calls through the OpenAI Python SDK, from a stream in which their pieces come in turn."""

import asyncio
import contextlib
import json
from collections.abc import AsyncIterator

from gateway_fixture import fronting
from running import run_real
from sdk_clients import HELLO, async_client

_CALLS = [("call_1", "weather", '{"town": "Bern"}'), ("call_2", "time", '{"zone": "CET", "note": "é🙂"}')]


def _pieces() -> list[dict[str, object]]:
    """Deltas: each call is opened, then the arguments of both come in turn."""
    deltas: list[dict[str, object]] = [{"role": "assistant", "content": None}]
    for index, (ident, name, _) in enumerate(_CALLS):
        function = {"name": name, "arguments": ""}
        deltas.append({"tool_calls": [{"index": index, "id": ident, "type": "function", "function": function}]})
    for start in range(0, 40, 5):
        for index, (_, _, arguments) in enumerate(_CALLS):
            if piece := arguments[start : start + 5]:
                deltas.append({"tool_calls": [{"index": index, "function": {"arguments": piece}}]})
    return deltas


def _events() -> bytes:
    choices: list[dict[str, object]] = [{"index": 0, "delta": delta, "finish_reason": None} for delta in _pieces()]
    choices.append({"index": 0, "delta": {}, "finish_reason": "tool_calls"})
    chunk = {"id": "chatcmpl-1", "object": "chat.completion.chunk", "created": 1, "model": "m"}
    lines = [json.dumps({**chunk, "choices": [choice]}) for choice in choices]
    return "".join(f"data: {line}\n\n" for line in [*lines, "[DONE]"]).encode()


@contextlib.asynccontextmanager
async def _upstream() -> AsyncIterator[str]:
    """A server that gives every request the same stream; its base URL."""
    answering: set[asyncio.Task[None] | None] = set()

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        answering.add(asyncio.current_task())
        with contextlib.suppress(asyncio.IncompleteReadError):  # a spare that nobody needed
            await reader.readuntil(b"\r\n\r\n")
            head = b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\nconnection: close\r\n\r\n"
            writer.write(head + _events())
        writer.close()
        await writer.wait_closed()

    server = await asyncio.start_server(answer, "127.0.0.1", 0)
    async with server:
        yield f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}/v1"
        await asyncio.wait([task for task in answering if task is not None])


def test_parallel_tool_calls_stay_apart() -> None:
    """Two calls with interleaved arguments are two calls, streamed and assembled, in their order."""

    async def main() -> None:
        async with _upstream() as url, fronting({"a": url}) as site, async_client(site.url) as client:
            whole = await client.chat.completions.create(model="m", messages=HELLO)
            async with client.chat.completions.stream(model="m", messages=HELLO) as stream:
                streamed = await stream.get_final_completion()
        for completion in (whole, streamed):
            choice = completion.choices[0]
            assert choice.finish_reason == "tool_calls"
            calls = choice.message.tool_calls or []
            assert [(c.id, c.function.name, c.function.arguments) for c in calls if c.type == "function"] == _CALLS

    run_real(main())
