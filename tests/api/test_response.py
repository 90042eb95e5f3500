"""The bytes of a response, their writes and their order; the test controls the client's speed."""

import asyncio
from collections.abc import Callable
from typing import Any

import httptools
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.api.request_head import RequestHead
from gateway.api.response import JOINED_BYTES_MAX, ResponseWriter, respond
from gateway.errors import GatewayError
from gateway.race.context import Runtime
from gateway.race.deadlines import TimerQueue
from pretended_client import PretendedTransport
from running import run_virtual
from ttft_gateway.apis.base import Burst, Headers

HEAD = b"HTTP/1.1 200 OK\r\ndate: now\r\ntransfer-encoding: chunked\r\n\r\n"


class Race:
    """Records the calls of a writer; `fail` sends an error, as the client of a race does."""

    def __init__(self) -> None:
        self.said: list[str] = []
        self.fail: Callable[[], None] | None = None

    def give_up(self, error: GatewayError) -> None:
        """Fail with this error."""
        self.said.append(error.code or "")
        if self.fail is not None:
            self.fail()

    def pause(self) -> None:
        """The client is slow."""
        self.said.append("pause")

    def resume(self) -> None:
        """It has caught up."""
        self.said.append("resume")

    def usage(self) -> None:
        """Return no usage."""


class Writer(ResponseWriter):
    """Counts the calls after a whole response."""

    completed = 0

    def _completed(self) -> None:
        self.completed += 1


class Play:
    """A response and everything around it."""

    def __init__(self, method: str = "POST", version: str = "1.1", *, keep_alive: bool = True) -> None:
        loop = asyncio.get_running_loop()
        runtime = Runtime(loop, lambda _event: None, lambda: 0.0, TimerQueue(loop))
        self.burst = runtime.burst
        self.transport = PretendedTransport()
        self.race = Race()
        head = RequestHead(method, b"/", version, (), {}, keep_alive)
        own: Headers = [(b"date", b"now")]
        self.response = Writer(self.transport, head, own, runtime)
        self.response.race = self.race

    @property
    def body(self) -> bytes:
        """The content of the response, whole or not."""
        reader = _Body()
        httptools.HttpResponseParser(reader).feed_data(b"".join(self.transport.written))
        return reader.body


class _Body:
    body = b""

    def on_body(self, body: bytes) -> None:
        self.body += body


def played(play: Callable[[Play], Any], method: str = "POST", version: str = "1.1", *, keep_alive: bool = True) -> Play:
    """Play a scenario."""

    async def run() -> Play:
        scene = Play(method, version, keep_alive=keep_alive)
        await play(scene)
        await asyncio.sleep(1)
        return scene

    return run_virtual(run())


def end_read(burst: Burst) -> None:
    """End a read of an upstream."""
    burst.is_open = burst.is_last = False
    at_end, burst.at_end = burst.at_end, []
    for send in at_end:
        send()


def test_what_a_read_brings_is_sent_at_its_end() -> None:
    """Head and events of a read are one write at the end of the read, before the loop does anything else."""

    async def play(scene: Play) -> None:
        scene.burst.is_open = True
        scene.response.start(200, [])
        scene.response.write(b"a")
        scene.response.write(b"b")
        assert scene.transport.written == []
        end_read(scene.burst)
        assert scene.transport.written == [HEAD + b"2\r\nab\r\n"]

    scene = played(play)
    assert len(scene.transport.written) == 1
    assert not scene.race.said


def test_the_last_piece_of_a_read_is_sent_at_once_if_it_is_alone() -> None:
    """After the first content, a piece with nothing before or after it in its read does not wait for the read's end."""

    async def play(scene: Play) -> None:
        response, burst, written = scene.response, scene.burst, scene.transport.written
        burst.is_open = burst.is_last = True
        response.start(200, [])
        response.write(b"first")
        assert written == []
        end_read(burst)
        burst.is_open = burst.is_last = True
        response.write(b"alone")
        assert written[1:] == [b"5\r\nalone\r\n"]
        burst.is_last = False
        response.write(b"a")
        burst.is_last = True
        response.write(b"b")
        end_read(burst)
        assert written[2:] == [b"2\r\nab\r\n"]

    played(play)


def test_a_lone_event_is_one_write() -> None:
    """After the head every read of the upstream is one chunk, and the end of the stream is in the last one."""

    async def play(scene: Play) -> None:
        scene.response.start(200, [])
        for event in (b"one", b"two", b"three"):
            scene.response.write(event)
            await asyncio.sleep(0)
        scene.response.write(b"end")
        scene.response.end()

    scene = played(play)
    chunks = [HEAD + b"3\r\none\r\n", b"3\r\ntwo\r\n", b"5\r\nthree\r\n", b"3\r\nend\r\n0\r\n\r\n"]
    assert scene.transport.written == chunks
    assert (scene.response.completed, scene.transport.closed) == (1, False)


def test_keep_alives_do_not_commit_the_answer() -> None:
    """They are sent immediately, the first with the head, and with content that waits; none after the end."""

    async def play(scene: Play) -> None:
        response, written = scene.response, scene.transport.written
        response.start(200, [])
        response.write_keep_alive(b":")
        response.write_keep_alive(b":")
        assert (written, response.body_sent) == ([HEAD + b"1\r\n:\r\n", b"1\r\n:\r\n"], False)
        response.write(b"a")
        response.write_keep_alive(b":")
        assert (len(written), response.body_sent) == (2, True)
        response.end()
        response.write_keep_alive(b":")

    assert played(play).transport.written[2:] == [b"2\r\na:\r\n0\r\n\r\n"]


@pytest.mark.parametrize(
    ("arguments", "keep_alive", "fields", "content", "closed"),
    [
        (("POST", "1.1"), False, b"connection: close\r\ntransfer-encoding: chunked\r\n", b"2\r\nab\r\n0\r\n\r\n", True),
        (("POST", "1.0"), False, b"connection: close\r\n", b"ab", True),
    ],
    ids=["connection: close", "HTTP/1.0"],
)
def test_a_stream_on_a_connection_that_ends(
    arguments: tuple[str, str], fields: bytes, content: bytes, *, keep_alive: bool, closed: bool
) -> None:
    """The end of the connection is announced; HTTP/1.0 has no chunks."""

    async def play(scene: Play) -> None:
        scene.response.start(200, [])
        scene.response.write(b"ab")
        scene.response.end()

    scene = played(play, *arguments, keep_alive=keep_alive)
    written = b"".join(scene.transport.written)
    assert written == b"HTTP/1.1 200 OK\r\ndate: now\r\n" + fields + b"\r\n" + content
    assert (scene.response.completed, scene.transport.closed) == (1, closed)


@pytest.mark.parametrize(("method", "content"), [("POST", b"body"), ("HEAD", b"")])
def test_a_whole_response_has_a_length(method: str, content: bytes) -> None:
    """Its length is in the head, and a response to HEAD has no body; an error may announce the end by itself."""

    async def play(scene: Play) -> None:
        scene.response.headers = ((b"x-limit", b"1"),)
        respond(scene.response, 529, [(b"connection", b"close")], b"body")

    scene = played(play, method)
    head = b"HTTP/1.1 529 \r\ndate: now\r\nconnection: close\r\nx-limit: 1\r\ncontent-length: 4\r\n\r\n"
    assert scene.transport.written == [head + content]
    assert scene.transport.closed


def test_a_large_body_is_not_copied_behind_its_head() -> None:
    """Head and body are two writes if the body is large."""

    async def play(scene: Play) -> None:
        respond(scene.response, 200, [], b"x" * (JOINED_BYTES_MAX + 1))

    scene = played(play)
    assert [len(data) for data in scene.transport.written][1:] == [JOINED_BYTES_MAX + 1]


@given(
    steps=st.lists(st.sampled_from(["write", "read", "alone", "large", "slow", "on", "turn"]), max_size=30),
    ended=st.booleans(),
)
def test_everything_is_sent_once_and_in_order(steps: list[str], *, ended: bool) -> None:
    """A client that is slow at any time gets all bytes in order, and a paused race is resumed."""
    given_ = bytearray()

    async def play(scene: Play) -> None:
        response, burst = scene.response, scene.burst
        response.start(200, [])
        for number, step in enumerate(steps):
            data = b"<%d>" % number * (JOINED_BYTES_MAX // 3 if step == "large" else 1)
            if step in ("write", "large"):
                given_.extend(data)
                response.write(data)
            elif step == "read":
                burst.is_open = True
                given_.extend(data + data)
                response.write(data)
                response.write(data)
                end_read(burst)
            elif step == "alone":
                burst.is_open = burst.is_last = True
                given_.extend(data)
                response.write(data)
                end_read(burst)
            elif step == "slow":
                response.stall()
            elif step == "on":
                response.go_on()
            else:
                await asyncio.sleep(0)
        if ended:
            response.end()
        await asyncio.sleep(0)
        response.go_on()

    scene = played(play)
    assert scene.body == bytes(given_)
    assert scene.response.completed == ended
    assert scene.race.said[-1:] in ([], ["resume"], ["pause"])
    assert (scene.race.said[-1:] == ["pause"]) <= ended  # the race of a complete response needs nothing
    assert scene.race.said[: 2 * (len(scene.race.said) // 2)] == ["pause", "resume"] * (len(scene.race.said) // 2)


def test_a_transport_that_is_full_pauses_the_upstream() -> None:
    """The race pauses when the transport asks for that, also within a write, and not while a response awaits one."""

    async def play(scene: Play) -> None:
        scene.response.stall()
        assert scene.race.said == []
        scene.response.start(200, [])
        assert scene.race.said == ["pause"]
        scene.response.go_on()
        scene.transport.on_write = scene.response.stall
        scene.response.write(b"a")
        await asyncio.sleep(0)
        assert scene.race.said == ["pause", "resume", "pause"]
        scene.response.go_on()

    assert played(play).race.said == ["pause", "resume"] * 2


BAD: list[Headers] = [
    [(b"x-a", b"a\r\nx-evil: 1")],
    [(b"x-a", b"a\nb")],
    [(b"x-a", b"a\r")],
    [(b"x-a", b"\x00")],
    [(b"x-a", b"\x7f")],
    [(b"x-a", b"\r\n")],
]


@pytest.mark.parametrize("headers", BAD)
def test_a_status_that_is_rejected_becomes_an_error(headers: Headers, caplog: pytest.LogCaptureFixture) -> None:
    """A head that HTTP does not allow is not sent; the error that is sent instead is whole and alone."""

    async def play(scene: Play) -> None:
        def fail() -> None:
            scene.response.start(500, [], 5)
            scene.response.write(b"error")
            scene.response.end()

        scene.race.fail = fail
        scene.response.headers = ((b"x-limit", b"1"),)
        scene.response.start(200, headers)
        scene.response.write(b"answer")
        scene.response.end()

    scene = played(play)
    expected = b"HTTP/1.1 500 Internal Server Error\r\ndate: now\r\ncontent-length: 5\r\n\r\nerror"
    assert scene.transport.written == [expected]
    assert (scene.race.said, scene.response.completed) == (["internal_error"], 1)
    assert [record.levelname for record in caplog.records] == ["ERROR"]
    assert "evil" not in caplog.text


@pytest.mark.parametrize("stalled", [False, True])
@pytest.mark.parametrize("has_race", [False, True])
def test_a_response_that_is_rejected_ends_its_connection(
    caplog: pytest.LogCaptureFixture, *, stalled: bool, has_race: bool
) -> None:
    """If the error cannot be sent either, nothing is: the connection is closed, and the race ends with an error."""

    async def play(scene: Play) -> None:
        if stalled:
            scene.response.stall()
        if not has_race:
            scene.response.race = None

        def answer() -> None:
            if not scene.response.started:
                scene.response.start(200, BAD[0])
            scene.response.write(b"answer")
            scene.response.end()

        scene.race.fail = answer
        answer()

    scene = played(play)
    assert scene.transport.written == []
    assert (scene.transport.closed, scene.response.completed) == (True, 0)
    assert set(scene.race.said) == ({"internal_error"} if has_race else set())
    assert caplog.records


def test_nothing_is_written_after_the_client_has_gone() -> None:
    """A dropped response sends neither what waits nor what comes later."""

    async def play(scene: Play) -> None:
        scene.response.start(200, [])
        scene.response.write(b"a")
        scene.response.drop()
        scene.response.write(b"b")
        scene.response.end()

    scene = played(play)
    assert (scene.transport.written, scene.response.completed) == ([], 0)


@pytest.mark.parametrize("pieces", [[b"x" * 3_000_000], [b"x" * 200_000] * 15], ids=["one", "many"])
def test_a_long_body_is_written_as_fast_as_the_client_reads(pieces: list[bytes]) -> None:
    """A long body of known length leaves in pieces, one in each turn of the loop, and none while the client is slow."""
    whole = b"".join(pieces)

    async def play(scene: Play) -> None:
        response = scene.response
        response.start(200, [], len(whole))
        for piece in pieces:
            response.write(piece)
        response.end()

        def fill() -> None:
            if len(scene.transport.written) == 4:
                response.stall()

        scene.transport.on_write = fill
        await asyncio.sleep(1)
        assert (len(scene.transport.written), response.is_over) == (4, False)
        response.go_on()
        assert not response.is_over

    scene = played(play)
    assert scene.body == whole
    assert max(map(len, scene.transport.written)) <= 256 * 1024
    assert (scene.response.is_over, scene.response.completed) == (True, 1)


def test_a_client_that_leaves_in_a_long_body_gets_no_more() -> None:
    """Nothing is written, and the response is not completed, after the connection is lost."""

    async def play(scene: Play) -> None:
        scene.response.start(200, [], 3_000_000)
        scene.response.write(b"x" * 3_000_000)
        scene.response.end()
        scene.transport.on_write = scene.response.drop

    scene = played(play)
    assert len(scene.transport.written) == 2  # the head, and the first piece
    assert scene.response.completed == 0
