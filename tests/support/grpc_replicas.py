"""A gRPC server on loopback with scripted RPCs, and bytes as messages."""

import asyncio
import threading
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from typing import Any

import grpc
import grpc.aio

UNARY, STREAM = "/test.Service/Unary", "/test.Service/Stream"


class Seen:
    """One RPC that a server received.

    Attributes:
        metadata: its metadata.
        cancelled: set when the client has cancelled it.
        gone: the same for threads.
    """

    def __init__(self, metadata: dict[str, Any]) -> None:
        self.metadata = metadata
        self.cancelled = asyncio.Event()
        self.gone = threading.Event()


class GrpcReplica:
    """The server.

    Behaviours, one for each RPC in the order of arrival:

        quick       answers
        silent      never answers
        opened      sends its initial metadata, then nothing
        late        answers when another RPC has arrived
        last        answers when another RPC has ended
        empty       a stream without a message
        held        a stream with one message, and then nothing
        CODE        fails with this status code
        late:CODE   the same, when another RPC has arrived

    Attributes:
        seen: RPCs in the order of arrival; the last 100 if the behaviours repeat.
        open: number of RPCs that have not ended.

    Args:
        repeats: True if the behaviours repeat; else later RPCs are answered.
    """

    def __init__(self, *behaviours: str, repeats: bool = False) -> None:
        self.seen: list[Seen] = []
        self.open = 0
        self._behaviours = list(behaviours)
        self._repeats = repeats
        self._arrived = asyncio.Event()
        self._ended = asyncio.Event()
        self.address = ""

    async def unary(self, request: bytes, context: Any) -> bytes:
        """Answer an RPC with one response."""
        return b"".join([piece async for piece in self._answer(request, context)])

    async def stream(self, request: bytes, context: Any) -> AsyncIterator[bytes]:
        """Answer an RPC with a stream."""
        async for piece in self._answer(request, context):
            yield piece

    async def _answer(self, request: bytes, context: Any) -> AsyncIterator[bytes]:
        behaviour = self._behaviours.pop(0) if self._behaviours else "quick"
        seen = Seen(dict(context.invocation_metadata()))
        self.seen.append(seen)
        if self._repeats:
            self._behaviours.append(behaviour)
            del self.seen[:-100]
        if len(self.seen) > 1:
            self._arrived.set()
        self.open += 1
        try:
            await self._wait(behaviour, context)
            kind = behaviour.rpartition(":")[2]
            if kind.isupper():
                if len(self.seen) > 1:
                    self._ended.set()
                await context.abort(grpc.StatusCode[kind], "scripted")
            if kind != "empty":
                yield request
                if kind == "held":
                    await asyncio.Event().wait()
                yield b" " + str(len(self.seen)).encode()
        except asyncio.CancelledError:
            seen.cancelled.set()
            seen.gone.set()
            raise
        finally:
            self.open -= 1
        self._ended.set()

    async def _wait(self, behaviour: str, context: Any) -> None:
        if behaviour == "opened":
            await context.send_initial_metadata((("opened", "1"),))
        if behaviour in ("silent", "opened"):
            await asyncio.Event().wait()
        if behaviour.startswith("late"):
            await self._arrived.wait()
        if behaviour == "last":
            await self._ended.wait()


class _Handler(grpc.GenericRpcHandler):
    """Finds the handler of a method: of a stream, or of one response."""

    def __init__(self, replica: GrpcReplica) -> None:
        self._unary: Any = grpc.unary_unary_rpc_method_handler(replica.unary)
        self._stream: Any = grpc.unary_stream_rpc_method_handler(replica.stream)

    def service(self, handler_call_details: Any) -> Any:
        return self._stream if handler_call_details.method.startswith(STREAM) else self._unary


@asynccontextmanager
async def grpc_replica(*behaviours: str, replica: GrpcReplica | None = None) -> AsyncIterator[GrpcReplica]:
    """Run a server."""
    replica = replica or GrpcReplica(*behaviours)
    server = grpc.aio.server()
    server.add_generic_rpc_handlers((_Handler(replica),))
    replica.address = f"127.0.0.1:{server.add_insecure_port('127.0.0.1:0')}"
    await server.start()
    try:
        yield replica
    finally:
        await server.stop(None)


@contextmanager
def grpc_site(*behaviours: str, repeats: bool = False) -> Iterator[GrpcReplica]:
    """Run a server in a thread of its own."""
    replica, started, done = GrpcReplica(*behaviours, repeats=repeats), threading.Event(), threading.Event()

    async def main() -> None:
        async with grpc_replica(*behaviours, replica=replica):
            started.set()
            while not done.is_set():
                await asyncio.sleep(0.01)

    thread = threading.Thread(target=lambda: asyncio.run(main()))
    thread.start()
    started.wait()
    try:
        yield replica
    finally:
        done.set()
        thread.join()
