"""Thinking models over real sockets: a queue is hedged until the sign of work, and an echoed sign decides nothing."""

import asyncio
import contextlib
import json
from collections.abc import AsyncIterator
from dataclasses import dataclass

import pytest

from gateway.events import AttemptReport, RequestEnded
from gateway_fixture import Site, fronting, until
from raw_http import answer, request_bytes
from running import run_real
from scripted_http import serving
from ttft_gateway.hedging.outcomes import Denial, Outcome

MESSAGES, RESPONSES = "/v1/messages", "/v1/responses"
BODIES: dict[str, dict[str, object]] = {
    MESSAGES: {"messages": [{"role": "user", "content": "hello"}], "max_tokens": 64},
    RESPONSES: {"input": "hello", "store": False},
}
ENDS = {MESSAGES: b'"message_stop"', RESPONSES: b'"response.completed"'}
HEDGE: dict[str, object] = {"cold_start_delay": "120ms", "budget": "50%", "routing": "round_robin"}
QUEUE_S, PROMPT_S, THOUGHT_S = 60.0, 0.03, 0.3


@dataclass
class Thinker:
    """A server of a model that reasons unseen; it serves both APIs.

    Attributes:
        queue_s: time before it begins to work.
        echoes: it sends its sign of work with the headers.
        asked: requests so far.
    """

    queue_s: float = 0.0
    echoes: bool = False
    asked: int = 0

    async def __call__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Serve one connection, one request."""
        try:
            head = await reader.readuntil(b"\r\n\r\n")
        except asyncio.IncompleteReadError:  # a spare connection
            return
        self.asked += 1
        opening, sign, rest = EVENTS[MESSAGES if b"/messages" in head else RESPONSES]
        writer.write(b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\nconnection: close\r\n\r\n" + opening)
        if self.echoes:
            writer.write(sign)
        with contextlib.suppress(asyncio.IncompleteReadError):
            await self._pause(reader, self.queue_s + PROMPT_S)
            writer.write(b"" if self.echoes else sign)
            await self._pause(reader, THOUGHT_S)
            writer.write(rest)

    async def _pause(self, reader: asyncio.StreamReader, wait_s: float) -> None:
        """Wait, or raise if the gateway closes the connection first."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(wait_s):
                await reader.readuntil(b"never")


def _events(*events: dict[str, object]) -> bytes:
    return b"".join(b"event: %b\ndata: %b\n\n" % (str(e["type"]).encode(), json.dumps(e).encode()) for e in events)


_REASONED = {"input_tokens": 9, "output_tokens": 50, "output_tokens_details": {"reasoning_tokens": 40}}
_MESSAGE: dict[str, object] = {
    "id": "m",
    "type": "message",
    "role": "assistant",
    "model": "m",
    "content": [],
    "stop_reason": None,
}
EVENTS: dict[str, tuple[bytes, bytes, bytes]] = {
    RESPONSES: (
        _events({"type": "response.created", "response": {"id": "r", "object": "response", "status": "in_progress"}}),
        _events({"type": "response.output_item.added", "output_index": 0, "item": {"type": "reasoning", "id": "i"}}),
        _events(
            {"type": "response.output_text.delta", "output_index": 1, "item_id": "t", "delta": "hi"},
            {
                "type": "response.completed",
                "response": {"id": "r", "object": "response", "status": "completed", "output": [], "usage": _REASONED},
            },
        ),
    ),
    MESSAGES: (
        _events({"type": "message_start", "message": {**_MESSAGE, "usage": {"input_tokens": 9, "output_tokens": 0}}}),
        _events({"type": "content_block_start", "index": 0, "content_block": {"type": "thinking", "thinking": ""}}),
        _events(
            {"type": "content_block_delta", "index": 0, "delta": {"type": "signature_delta", "signature": "x"}},
            {"type": "content_block_stop", "index": 0},
            {"type": "content_block_start", "index": 1, "content_block": {"type": "text", "text": ""}},
            {"type": "content_block_delta", "index": 1, "delta": {"type": "text_delta", "text": "hi"}},
            {"type": "content_block_stop", "index": 1},
            {"type": "message_delta", "delta": {"stop_reason": "end_turn"}, "usage": {"output_tokens": 50}},
            {"type": "message_stop"},
        ),
    ),
}


@contextlib.asynccontextmanager
async def _site(*thinkers: Thinker) -> AsyncIterator[Site]:
    async with contextlib.AsyncExitStack() as opened:
        urls = {}
        for name, thinker in zip("ab", thinkers, strict=True):
            server = await opened.enter_async_context(serving(thinker))
            urls[name] = f"http://127.0.0.1:{server.port}/v1"
        own: dict[str, dict[str, object]] = {name: {"apis": ["responses", "messages"]} for name in urls}
        yield await opened.enter_async_context(fronting(urls, kind="vllm", own=own, hedge=HEDGE))


async def _ask(site: Site, path: str) -> RequestEnded:
    """Send one request, check that its answer is whole, and return its report."""
    payload = json.dumps({"model": "m", "stream": True, **BODIES[path]}).encode()
    ended = [event for event in site.events if isinstance(event, RequestEnded)]
    async with answer(site.port, request_bytes(payload, path)) as got:
        assert ENDS[path] in await got.body()
    await until(lambda: any(isinstance(event, RequestEnded) and event not in ended for event in site.events))
    return next(event for event in reversed(site.events) if isinstance(event, RequestEnded))


async def _learn(site: Site, path: str) -> None:
    """Send the requests from which the gateway learns the signs of both replicas."""
    for _ in range(6):
        await _ask(site, path)


@pytest.mark.parametrize("path", BODIES)
def test_a_queue_is_hedged_and_a_thought_is_not(path: str) -> None:
    """One replica's queue grows: its requests are answered by the other one, after one sign and one whole thought."""

    async def main() -> None:
        slow, quick = Thinker(), Thinker()
        async with _site(slow, quick) as site:
            await _learn(site, path)
            usual = [await _ask(site, path) for _ in range(2)]
            slow.queue_s = QUEUE_S
            late = [await _ask(site, path) for _ in range(2)]
            for report in (*usual, *late):  # a thought of 300 ms, hedges after 120
                worked_s = min(each.start_s + each.work_s for each in report.attempts if each.work_s is not None)
                assert all(each.start_s <= worked_s for each in report.attempts)
            hedged = next(report for report in late if report.attempts[0].replica == "a")
            assert [attempt.outcome for attempt in hedged.attempts] == [Outcome.LOST, Outcome.FINISHED]
            assert _timed(hedged.attempts) == ["content", "work"]

    run_real(main())


def test_an_echoed_sign_decides_nothing() -> None:
    """Replicas that send the sign with their headers are not hedged, for a reason that is named."""

    async def main() -> None:
        thinkers = Thinker(echoes=True), Thinker(echoes=True)
        async with _site(*thinkers) as site:
            await _learn(site, RESPONSES)
            before = sum(thinker.asked for thinker in thinkers)
            report = await _ask(site, RESPONSES)
            assert sum(thinker.asked for thinker in thinkers) == before + 1
            assert (report.never_hedged, _timed(report.attempts)) == (Denial.HIDDEN_REASONING, ["content"])

    run_real(main())


def _timed(attempts: tuple[AttemptReport, ...]) -> list[str]:
    return ["content" if attempt.work_s is None else "work" for attempt in attempts]
