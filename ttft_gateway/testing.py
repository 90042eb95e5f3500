"""Fakes for tests of programs that hedge: a script of answers in the place of a server, without sockets.

    script = Script(late(), answer(b"hello"))
    with httpx.Client(transport=HedgingTransport(AT_ONCE, transport=script.transport(httpx))) as client:
        assert client.get("http://any").text == "hello"      # from the backup
    assert len(script.requests) == 2

Each attempt gets the next answer, in the order of arrival; the last one repeats. A late attempt waits until a later one
has answered, so that no test waits for a clock.
"""

import asyncio
import threading
from collections.abc import AsyncIterator, Iterator
from dataclasses import dataclass, field, replace
from types import ModuleType
from typing import Any, Final

import msgspec

from ttft_gateway.client.config import HedgeConfig

AT_ONCE: Final = HedgeConfig(warmup_delay=0.0, warmup_requests=100_000, min_delay=0.0, budget_percent=100.0)
"""Settings by which a request that is not answered immediately gets a backup."""
_WAIT_S_MAX: Final = 10.0  # of a late attempt in a thread, for an answer of another one that never comes


@dataclass(frozen=True, slots=True)
class ScriptedAnswer:
    """One answer.

    Attributes:
        status: status code.
        headers: headers.
        pieces: pieces of the body.
        error: exception instead of a response; None for none.
        is_late: True if a later attempt answers first.
    """

    status: int = 200
    headers: tuple[tuple[str, str], ...] = ()
    pieces: tuple[bytes, ...] = ()
    error: Exception | None = None
    is_late: bool = False


def answer(body: bytes = b"", status: int = 200, **headers: str) -> ScriptedAnswer:
    """Return an answer with a whole body; `_` in the names of headers stands for `-`."""
    named = tuple((name.replace("_", "-"), value) for name, value in headers.items())
    return ScriptedAnswer(status, (("content-length", str(len(body))), *named), (body,))


def chat(*words: str) -> ScriptedAnswer:
    """Return a stream of chat completion with these words."""
    events = [{"index": 0, "delta": {"role": "assistant", "content": ""}, "finish_reason": None}]
    events += [{"index": 0, "delta": {"content": word}, "finish_reason": None} for word in words]
    events.append({"index": 0, "delta": {}, "finish_reason": "stop"})
    head = {"id": "c", "object": "chat.completion.chunk", "created": 1, "model": "m"}
    pieces = [b"data: %b\n\n" % msgspec.json.encode({**head, "choices": [each]}) for each in events]
    return ScriptedAnswer(200, (("content-type", "text/event-stream"),), (*pieces, b"data: [DONE]\n\n"))


def failure(error: Exception) -> ScriptedAnswer:
    """Return an answer that raises an exception instead of a response."""
    return ScriptedAnswer(error=error)


def late(then: ScriptedAnswer | None = None) -> ScriptedAnswer:
    """Return an answer that comes after the answer of a later attempt; None: an empty one."""
    return replace(then or ScriptedAnswer(), is_late=True)


@dataclass(slots=True)
class Script:
    """Answers of a server that does not exist.

    Attributes:
        answers: answers in the order of attempts.
        requests: requests received, of httpx or httpx2.
    """

    answers: tuple[ScriptedAnswer, ...]
    requests: list[Any]
    _lock: threading.Lock = field(repr=False)
    _answered: threading.Event = field(repr=False)

    def __init__(self, *answers: ScriptedAnswer) -> None:
        if not answers:
            raise ValueError("no answers are given; use Script(late(), answer(b'hello'))")
        self.answers = answers
        self.requests = []
        self._lock = threading.Lock()
        self._answered = threading.Event()

    def transport(self, library: ModuleType) -> Any:
        """Return a transport of `httpx` or `httpx2`, for synchronous and asynchronous clients."""
        names = {"handle_request": self._handle, "handle_async_request": self._handle_async}
        script, kinds = self, (library.BaseTransport, library.AsyncBaseTransport)
        members = {name: lambda _, request, handle=handle: handle(library, request) for name, handle in names.items()}
        made = type("ScriptedTransport", kinds, members)()
        made.script = script
        return made

    def _next(self, request: Any) -> ScriptedAnswer:
        with self._lock:
            self.requests.append(request)
            return self.answers[min(len(self.requests), len(self.answers)) - 1]

    def _handle(self, library: ModuleType, request: Any) -> Any:
        found = self._next(request)
        if found.is_late and not self._answered.wait(_WAIT_S_MAX):
            raise library.ReadTimeout(f"no later attempt has answered within {_WAIT_S_MAX:g} s")
        return _response(library, found, self._answered)

    async def _handle_async(self, library: ModuleType, request: Any) -> Any:
        found = self._next(request)
        if found.is_late:
            await asyncio.Event().wait()  # it is cancelled when a later attempt has won
        return _response(library, found, self._answered)


def _response(library: ModuleType, found: ScriptedAnswer, answered: threading.Event) -> Any:
    """Return a response; `answered` is set when it has been read or closed, by which time its race is decided."""
    if found.error is not None:
        answered.set()
        raise found.error

    class Body(library.SyncByteStream, library.AsyncByteStream):  # type: ignore[misc, name-defined]
        def __iter__(self) -> Iterator[bytes]:
            yield from found.pieces
            answered.set()

        async def __aiter__(self) -> AsyncIterator[bytes]:
            for piece in found.pieces:
                yield piece
            answered.set()

        def close(self) -> None:
            answered.set()

        async def aclose(self) -> None:
            answered.set()

    return library.Response(found.status, headers=list(found.headers), stream=Body())
