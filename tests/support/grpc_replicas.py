"""A gRPC server on loopback whose RPCs behave as scripted, with bytes as messages."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import grpc
import grpc.aio

UNARY, STREAM = "/test.Service/Unary", "/test.Service/Stream"


class Seen:
    """One RPC that a server received.

    Attributes:
        metadata: its metadata.
        cancelled: set when the client has cancelled it.
    """

    def __init__(self, metadata: dict[str, Any]) -> None:
        self.metadata = metadata
        self.cancelled = asyncio.Event()


class GrpcReplica:
    """The server.

    Behaviours, one for each RPC in the order of arrival:

        quick       answers
        silent      never answers
        opened      sends its initial metadata, then nothing
        late        answers when another RPC has arrived
        last        answers when another RPC has ended
        empty       a stream without a message
        CODE        fails with this status code
        late:CODE   the same, when another RPC has arrived

    Attributes:
        seen: RPCs in the order of arrival.
    """

    def __init__(self, *behaviours: str) -> None:
        self.seen: list[Seen] = []
        self._behaviours = list(behaviours)
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
        if len(self.seen) > 1:
            self._arrived.set()
        try:
            await self._wait(behaviour, context)
            kind = behaviour.rpartition(":")[2]
            if kind.isupper():
                if len(self.seen) > 1:
                    self._ended.set()
                await context.abort(grpc.StatusCode[kind], "scripted")
            if kind != "empty":
                yield request
                yield b" " + str(len(self.seen)).encode()
        except asyncio.CancelledError:
            seen.cancelled.set()
            raise
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


@asynccontextmanager
async def grpc_replica(*behaviours: str) -> AsyncIterator[GrpcReplica]:
    """Run a server."""
    replica = GrpcReplica(*behaviours)
    handlers: dict[str, Any] = {
        "Unary": grpc.unary_unary_rpc_method_handler(replica.unary),
        "Stream": grpc.unary_stream_rpc_method_handler(replica.stream),
    }
    server = grpc.aio.server()
    server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler("test.Service", handlers),))
    replica.address = f"127.0.0.1:{server.add_insecure_port('127.0.0.1:0')}"
    await server.start()
    try:
        yield replica
    finally:
        await server.stop(None)
