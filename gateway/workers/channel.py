"""The messages between the processes of a gateway, over connected sockets.

`Channel`, between the supervisor and a worker, carries notices, and calls that get one answer, whole or in parts: a
large answer in one piece would hold the loops of both ends. Frames are a length and a msgspec message; those that have
arrived together are handled in several turns of the loop, some kilobytes in each. Everything is bounded: the bytes of a
frame and of an answer, the unsent bytes, the calls without an answer, and the time of each call, or of each of its
parts. A channel ends as soon as the process at its other end does. It is independent of the methods, which each side
registers by name.

A channel of a worker outlives its supervisor: it is connected again to the next one.

`Control`, between the top process and each other one, carries one message in a packet, and descriptors.

Units: seconds, bytes.
"""

import asyncio
import itertools
import logging
import signal
import socket
from collections.abc import AsyncIterator, Callable, Coroutine, Mapping, Sequence
from typing import Final, Generic, Literal, TypeVar, cast

import msgspec

from gateway.server.hot_restart import READY_S_MAX

FRAME_BYTES_MAX: Final = 64_000_000  # the last message of a worker with thousands of models
ANSWER_BYTES_MAX: Final = 256_000_000  # of all parts; the counts of 10,000 models have 20 MB
UNSENT_BYTES_MAX: Final = 16_000_000  # notices above it are dropped, and calls fail
CALLS_MAX: Final = 10_000  # without an answer
SLICE_BYTES: Final = 4_000  # of frames that are handled in one turn of the loop, before the last of them: some 0.5 ms
_LENGTH_BYTES: Final = 4
_PACKET_BYTES_MAX: Final = 4096
_DESCRIPTORS_MAX: Final = 1  # with a packet
_LOOK_S: Final = 0.1  # between two looks for the next gateway

Reply = Callable[[bytes | None], object]
"""Receives the answer of a call; None if there is none: the deadline is over, the method failed, the channel ended."""

Handler = Callable[[bytes], object]
"""Takes the encoded payload of a notice or a call; returns an answer that msgspec can encode, a coroutine of it, or an
asynchronous iterator of its parts."""

_Kind = Literal["notice", "call", "part", "answer", "failure"]


class _Frame(msgspec.Struct, array_like=True, frozen=True, gc=False):
    """One frame.

    Attributes:
        kind: notice, call, part of an answer, answer (the last part), or failed call.
        number: number of the call; 0 for a notice.
        method: name of the method; "" for an answer.
        payload: argument or answer, encoded.
    """

    kind: _Kind
    number: int
    method: str
    payload: msgspec.Raw


_encode = msgspec.msgpack.Encoder().encode
_decode_frame = msgspec.msgpack.Decoder(_Frame).decode

_M = TypeVar("_M")


class _Call:
    """A call without its answer.

    Attributes:
        on_reply: receives the answer.
        deadline_s: maximum time to each part.
        timer: fires at the end of this time.
        parts: parts so far.
        bytes: their length.
    """

    __slots__ = ("bytes", "deadline_s", "on_reply", "parts", "timer")

    def __init__(self, on_reply: Reply, deadline_s: float, timer: asyncio.TimerHandle) -> None:
        self.on_reply = on_reply
        self.deadline_s = deadline_s
        self.timer = timer
        self.parts: list[bytes] = []
        self.bytes = 0


class Channel(asyncio.Protocol):
    """One end of a channel.

    Args:
        tasks: owner of the tasks of methods that wait.
        handlers: methods for the other side; the answer to a call of an unknown method is a failure.
        on_end: called when the channel has ended.
    """

    def __init__(
        self, tasks: asyncio.TaskGroup, handlers: Mapping[str, Handler], on_end: Callable[[], object] = bool
    ) -> None:
        self._tasks = tasks
        self._handlers = handlers
        self._on_end = on_end
        self._loop = asyncio.get_running_loop()
        self._transport: asyncio.Transport | None = None
        self._is_closed = False
        self._received = bytearray()
        self._is_paused = False  # while received frames wait for a turn of the loop
        self._numbers = itertools.count(1)
        self._calls: dict[int, _Call] = {}
        self._writable = asyncio.Event()
        self._writable.set()
        self._answering: set[asyncio.Task[None]] = set()

    @property
    def is_open(self) -> bool:
        """True while the other side can be reached."""
        return self._transport is not None and not self._transport.is_closing()

    def send(self, method: str, payload: object = None) -> bool:
        """Send a notice; return False if it is dropped, because the channel has ended or is full."""
        return self._write("notice", 0, method, _encode(payload))

    def call(self, method: str, payload: object, on_reply: Reply, deadline_s: float) -> None:
        """Call a method of the other side; `on_reply` is called exactly once, and never before this returns."""
        self._call(method, payload, on_reply, deadline_s)

    def _call(self, method: str, payload: object, on_reply: Reply, deadline_s: float) -> _Call | None:
        number = next(self._numbers)
        if len(self._calls) >= CALLS_MAX or not self._write("call", number, method, _encode(payload)):
            self._loop.call_soon(on_reply, None)
            return None
        timer = self._loop.call_later(deadline_s, self._answered, number, None)
        call = self._calls[number] = _Call(on_reply, deadline_s, timer)
        return call

    async def ask(self, method: str, payload: object = None, deadline_s: float = 5.0) -> bytes | None:
        """Call a method, and wait for its answer."""
        parts = await self.ask_parts(method, payload, deadline_s)
        return None if parts is None else parts[-1]

    async def ask_parts(self, method: str, payload: object = None, deadline_s: float = 5.0) -> list[bytes] | None:
        """Do the same for an answer in parts; return all parts of an answer that is complete.

        Args:
            deadline_s: maximum time to the first part, and from each part to the next one.
        """
        answer: asyncio.Future[bytes | None] = self._loop.create_future()

        def on_reply(payload: bytes | None) -> None:
            if not answer.done():
                answer.set_result(payload)

        call = self._call(method, payload, on_reply, deadline_s)
        last = await answer
        return None if last is None or call is None else [*call.parts, last]

    def close(self) -> None:
        """End the channel after everything was sent."""
        self._is_closed = True
        if self._transport is not None:
            self._transport.close()

    def abort(self) -> None:
        """End the channel immediately."""
        if self._transport is not None:
            self._transport.abort()

    # callbacks of the transport

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast("asyncio.Transport", transport)
        if self._is_closed:
            self._transport.close()

    def data_received(self, data: bytes) -> None:
        self._received += data
        if not self._is_paused:
            self._take_slice()

    def _take_slice(self) -> None:
        """Handle received frames; if more is left than one turn of the loop may take, read nothing until the rest."""
        left_bytes = SLICE_BYTES
        while left_bytes > 0 and (size_bytes := self._take_frame()):
            left_bytes -= size_bytes
        if (left_bytes <= 0) != self._is_paused and self.is_open:
            self._is_paused = not self._is_paused
            transport = cast("asyncio.Transport", self._transport)
            (transport.pause_reading if self._is_paused else transport.resume_reading)()
        if left_bytes <= 0:
            self._loop.call_soon(self._take_slice)

    def _take_frame(self) -> int:
        """Handle the first received frame; return its length, 0 if none is complete."""
        received = self._received
        size = int.from_bytes(received[:_LENGTH_BYTES], "little")
        end = _LENGTH_BYTES + size
        if size > FRAME_BYTES_MAX:
            self._fail(ValueError(f"a frame of {size} bytes"))
            return 0
        if len(received) < end:
            return 0
        content = bytes(received[_LENGTH_BYTES:end])
        del received[:end]
        try:
            frame = _decode_frame(content)
        except (ValueError, RecursionError) as error:
            self._fail(error)
            return 0
        self._on_frame(frame)
        return end

    def pause_writing(self) -> None:
        self._writable.clear()

    def resume_writing(self) -> None:
        self._writable.set()

    def connection_lost(self, exc: Exception | None) -> None:
        self._transport, self._is_paused = None, False
        while self._take_frame():
            pass
        self._writable.set()
        self._received.clear()
        for number in tuple(self._calls):
            self._answered(number, None)
        for answering in tuple(self._answering):
            answering.cancel()
        self._on_end()

    # frames

    def _on_frame(self, frame: _Frame) -> None:
        payload = bytes(frame.payload)
        if frame.kind == "part":
            self._take_part(frame.number, payload)
        elif frame.kind == "answer":
            self._answered(frame.number, payload)
        elif frame.kind == "failure":
            self._answered(frame.number, None)
        else:
            self._handle(frame.method, frame.number, payload)

    def _take_part(self, number: int, payload: bytes) -> None:
        call = self._calls.get(number)
        if call is None:
            return
        call.bytes += len(payload)
        if call.bytes > ANSWER_BYTES_MAX:
            self._answered(number, None)
            return
        call.parts.append(payload)
        call.timer.cancel()
        call.timer = self._loop.call_later(call.deadline_s, self._answered, number, None)

    def _handle(self, method: str, number: int, payload: bytes) -> None:
        handler = self._handlers.get(method)
        if handler is None:
            self._answer_failure(number)
            return
        try:
            result = handler(payload)
            if isinstance(result, AsyncIterator):
                result = self._send_parts(number, result)
            elif not isinstance(result, Coroutine):
                self._answer(number, result)
                return
        except Exception as error:
            self._on_failure(method, number, error)
            return
        answering = self._tasks.create_task(self._answer_later(method, number, result))
        self._answering.add(answering)
        answering.add_done_callback(self._answering.discard)

    async def _answer_later(self, method: str, number: int, result: Coroutine[object, object, object]) -> None:
        try:
            self._answer(number, await result)
        except Exception as error:
            if self.is_open:  # else the other side has ended, and waits for no answer
                self._on_failure(method, number, error)

    async def _send_parts(self, number: int, parts: AsyncIterator[object]) -> object:
        """Send all parts but the last, which is returned, each in another turn of the loop.

        Raises:
            ConnectionError: a part cannot be sent.
        """
        before: object = None
        is_first = True
        async for part in parts:
            if not is_first:
                await self._writable.wait()
                if not self._write("part", number, "", _encode(before)):
                    raise ConnectionError("a part of an answer cannot be sent")
            before, is_first = part, False
            await asyncio.sleep(0)
        return before

    def _on_failure(self, method: str, number: int, error: Exception) -> None:
        logging.getLogger(__name__).error("the method %s of a worker channel failed", method, exc_info=error)
        self._answer_failure(number)

    def _answer(self, number: int, result: object) -> None:
        if number and not self._write("answer", number, "", _encode(result)):
            self._answer_failure(number)

    def _answer_failure(self, number: int) -> None:
        if number:
            self._write("failure", number, "", _encode(None))

    def _answered(self, number: int, payload: bytes | None) -> None:
        call = self._calls.pop(number, None)
        if call is not None:
            call.timer.cancel()
            try:
                call.on_reply(payload)
            except Exception:  # a damaged answer must not end the channel
                logging.getLogger(__name__).exception("an answer of a worker channel was not used")

    def _write(self, kind: _Kind, number: int, method: str, payload: bytes) -> bool:
        transport = self._transport
        if transport is None or transport.is_closing():
            return False
        frame = _encode(_Frame(kind, number, method, msgspec.Raw(payload)))
        unsent = transport.get_write_buffer_size()
        if len(frame) > FRAME_BYTES_MAX or (unsent and unsent + len(frame) > UNSENT_BYTES_MAX):
            return False
        transport.write(len(frame).to_bytes(_LENGTH_BYTES, "little") + frame)
        return True

    def _fail(self, error: Exception) -> None:
        logging.getLogger(__name__).error("a worker channel has received an invalid frame (%s)", error)
        self._received.clear()
        self.abort()


async def connect(channel: Channel, sock: socket.socket) -> None:
    """Give a channel its connected socket, which it closes at its end; a channel that has ended can be used again."""
    sock.setblocking(False)
    await asyncio.get_running_loop().create_connection(lambda: channel, sock=sock)


class Control(Generic[_M]):
    """The end of a socket to the top process.

    Args:
        sock: connected to the top process.
        kind: class of the messages.
        on_message: receives each message, with the descriptors that came with it.
        on_end: called after the end of the top process, with SIGUSR2 if the next gateway is ready, else with None.
        has_next: returns True once the next gateway is ready, for which that call waits, for a time; None for no wait.
    """

    def __init__(
        self,
        sock: socket.socket,
        kind: type[_M],
        on_message: Callable[[_M, list[int]], object],
        on_end: Callable[[signal.Signals | None], object],
        has_next: Callable[[], bool] | None,
    ) -> None:
        self._loop = asyncio.get_running_loop()
        self._has_next = has_next
        self._ending: asyncio.TimerHandle | None = None
        self._sock = sock
        self._decode = msgspec.msgpack.Decoder(kind).decode
        self._on_message = on_message
        self._on_end = on_end
        sock.setblocking(False)

    def start(self) -> None:
        """Receive messages from now on."""
        self._loop.add_reader(self._sock.fileno(), self._read)

    def send(self, message: object, descriptors: Sequence[int] = ()) -> bool:
        """Send a message; return False if it is not sent: the top process has ended, or has many unread ones."""
        try:
            socket.send_fds(self._sock, [_encode(message)], descriptors)
        except OSError:
            return False
        return True

    def close(self) -> None:
        """Receive nothing more."""
        if self._ending is not None:
            self._ending.cancel()
        if self._sock.fileno() >= 0:
            self._loop.remove_reader(self._sock.fileno())
            self._sock.close()

    def _read(self) -> None:
        try:
            content, descriptors, _, _ = socket.recv_fds(self._sock, _PACKET_BYTES_MAX, _DESCRIPTORS_MAX)
        except (BlockingIOError, InterruptedError):
            return
        except OSError:
            content, descriptors = b"", []
        if not content:
            self._loop.remove_reader(self._sock.fileno())
            self.outlive(self._loop.time() + READY_S_MAX)
            return
        self._on_message(self._decode(content), descriptors)

    def outlive(self, until_s: float) -> None:
        """Go on without the top process until the next gateway is ready, or is late."""
        is_replaced = self._has_next is not None and self._has_next()
        if is_replaced or self._has_next is None or self._loop.time() >= until_s:
            self._on_end(signal.SIGUSR2 if is_replaced else None)
        else:
            self._ending = self._loop.call_later(_LOOK_S, self.outlive, until_s)
