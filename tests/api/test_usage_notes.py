"""The clients that report usage and cost: one note, in its place, and nothing else changed."""

import asyncio
from collections.abc import Callable

import pytest

from gateway.api.dialects.base import ClientApi, is_last
from gateway.api.request_head import RequestHead
from gateway.api.response import JsonAnswer, ResponseWriter, TellingAnswer, TellingStream
from gateway.errors import GatewayError
from gateway.race.context import Runtime
from gateway.race.deadlines import TimerQueue
from pretended_client import PretendedClient, Response
from running import run_virtual
from ttft_gateway.apis.base import Api, Call

NOTE = b': x-ttft-usage {"attempts":[]}\n\n'
DONE = b"data: [DONE]\n\n"


class Race:
    """The methods of a race that clients call."""

    def usage(self) -> tuple[bytes, bytes]:
        return b"x-ttft-usage", b'{"attempts":[]}'

    def give_up(self, error: GatewayError) -> None: ...

    def pause(self) -> None: ...

    def resume(self) -> None: ...


class Writer(ResponseWriter):
    """A response after which nothing follows."""

    def _completed(self) -> None: ...


def sent(play: Callable[[ResponseWriter], None]) -> Response:
    """The response that a client writes."""

    async def run() -> Response:
        loop = asyncio.get_running_loop()
        client = PretendedClient()
        head = RequestHead("POST", b"/", "1.1", (), {})
        runtime = Runtime(loop, lambda _event: None, lambda: 0.0, TimerQueue(loop))
        response = Writer(client.transport, head, (), runtime)
        response.race = Race()
        play(response)
        return await client.receive()

    return run_virtual(run())


def streamed(*events: bytes, keep_alive: bool = False) -> bytes:
    """The body of a complete stream."""

    def play(response: ResponseWriter) -> None:
        client = TellingStream(response, "req", ClientApi(None))
        if keep_alive:
            client.keep_alive()
        client.begin([])
        for event in events:
            client.write(event)
        client.finish()

    return sent(play).body


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

    def answer(kind: type[JsonAnswer]) -> Response:
        def play(response: ResponseWriter) -> None:
            client = kind(response, "req", ClientApi(None), Call(Api.CHAT, b"{}", {}, 1, "m", streaming=False))
            client.begin([(b"x-ttft-replica", b"a")])
            client.write(b'{"id": 1}')
            client.finish()

        return sent(play)

    plain, telling = answer(JsonAnswer), answer(TellingAnswer)
    assert telling.body == plain.body == b'{"id": 1}'
    assert telling.headers == {**plain.headers, "x-ttft-usage": '{"attempts":[]}'}
