"""The clients that report usage and cost: one note, in its place, and nothing else changed."""

import asyncio
from dataclasses import dataclass, field
from typing import Any

import pytest

from gateway.api.dialects.base import ClientApi, is_last
from gateway.api.outbox import Outbox
from gateway.api.response import JsonAnswer, TellingAnswer, TellingStream
from gateway.errors import GatewayError
from providers.base import Api, Burst, Call
from running import run_virtual

NOTE = b': x-ttft-usage {"attempts":[]}\n\n'
DONE = b"data: [DONE]\n\n"


class Race:
    """The methods of a race that clients call."""

    def usage(self) -> tuple[bytes, bytes]:
        return b"x-ttft-usage", b'{"attempts":[]}'

    def client_gone(self) -> None: ...

    def give_up(self, error: GatewayError) -> None: ...

    def pause(self) -> None: ...

    def resume(self) -> None: ...


@dataclass
class Sent:
    """The bytes that reach the server."""

    headers: dict[bytes, bytes] = field(default_factory=dict)
    body: bytes = b""
    ended: bool = False

    async def send(self, message: Any) -> None:
        if message["type"] == "http.response.start":
            self.headers = dict(message["headers"])
        else:
            self.body += message["body"]
            self.ended = not message["more_body"]


def streamed(*events: bytes, keep_alive: bool = False) -> bytes:
    """The body of a complete stream."""

    async def run() -> bytes:
        sent = Sent()
        async with asyncio.TaskGroup() as tasks:
            outbox = Outbox(sent.send, asyncio.get_running_loop(), tasks, Burst())
            outbox.race = Race()
            client = TellingStream(outbox, "req", ClientApi(None))
            if keep_alive:
                client.keep_alive()
            client.begin([])
            for event in events:
                client.write(event)
            client.finish()
            await asyncio.sleep(0.1)
        assert sent.ended
        return sent.body

    return run_virtual(run())


TEXT = b'data: {"choices":[{"delta":{"content":"data: [DONE]\\n\\nevent: message_stop"}}]}\n\n'


@pytest.mark.parametrize(
    "last",
    [
        DONE,
        b"data:[DONE]\n\n",
        b"data: [DONE]\r\n\r\n",
        b"event: done\ndata: [DONE]\n\n",
        b'event: message_stop\ndata: {"type":"message_stop"}\n\n',
        b'event: response.completed\ndata: {"type":"response.completed"}\n\n',
    ],
)
def test_the_note_stands_before_the_last_event(last: bytes) -> None:
    """For each API and spelling, the bytes are the winner's with one note before the event that ends it."""
    assert streamed(TEXT, TEXT, last) == TEXT + TEXT + NOTE + last


def test_a_stream_without_a_closing_event_ends_with_the_note() -> None:
    """A complete answer without `[DONE]` still has its note."""
    assert streamed(TEXT) == TEXT + NOTE
    assert streamed(TEXT, DONE, keep_alive=True) == b": keep-alive\n\n" + TEXT + NOTE + DONE


def test_no_text_of_an_answer_is_taken_for_the_end() -> None:
    """Text of a model about streams does not end one."""
    assert not is_last(TEXT)
    assert not is_last(b": data: [DONE]\n\n")


def test_a_json_answer_has_the_note_in_a_header() -> None:
    """The body is the same with and without the report."""

    async def run(kind: type[JsonAnswer]) -> Sent:
        sent = Sent()
        async with asyncio.TaskGroup() as tasks:
            outbox = Outbox(sent.send, asyncio.get_running_loop(), tasks, Burst())
            outbox.race = Race()
            client = kind(outbox, "req", ClientApi(None), Call(Api.CHAT, b"{}", {}, 1, "m", streaming=False))
            client.begin([(b"x-ttft-replica", b"a")])
            client.write(b'{"id": 1}')
            client.finish()
            await asyncio.sleep(0.1)
        return sent

    plain, telling = run_virtual(run(JsonAnswer)), run_virtual(run(TellingAnswer))
    assert telling.body == plain.body == b'{"id": 1}'
    assert telling.headers == {**plain.headers, b"x-ttft-usage": b'{"attempts":[]}'}
