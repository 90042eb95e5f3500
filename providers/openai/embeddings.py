"""Embeddings as every OpenAI-compatible server serves them: the wire protocol.

An answer comes as one body and goes on byte for byte, numbers and base64 alike: nothing is decoded but what tells an
answer from an error. A server that does not know the path, or the model not as one that embeds, is unsuited rather
than broken: otherwise a caller who asks a chat model for embeddings could shut its breakers. Sans-I/O.
"""

from collections.abc import Sequence

import msgspec

from providers.base import Api, Call, Frame, FrameKind, Headers
from providers.errors import ErrorFrame, Unsupported, UpstreamError
from providers.openai.errors import Problem, bad_status, problem_of
from providers.openai.events import usage_of
from providers.openai.request import build
from providers.tolerant_json import loads

_NOT_SERVED = frozenset({403, 404, 405, 501})


class _Answer(msgspec.Struct, gc=False):
    data: list[msgspec.Raw]
    usage: object = None
    error: object = None


_decode = msgspec.json.Decoder(_Answer).decode


class OpenAIEmbeddings:
    """The `providers.base.WireProtocol` of POST embeddings."""

    def path(self, api: Api) -> str:
        """See `WireProtocol.path`."""
        return "/" + api.value

    def build(self, call: Call, model: str, *, stream: bool) -> bytes:
        """See `WireProtocol.build`; there is no stream of embeddings."""
        assert not stream
        return build(call, model, stream=False, ask_usage=False)

    def reader(self, _call: Call) -> "WholeReader":
        """See `WireProtocol.reader`."""
        return WholeReader()

    def whole(self, _call: Call, body: bytes) -> Frame:
        """See `WireProtocol.whole`."""
        try:
            answer = _decode(body)
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
            answer = None
        if answer is None or answer.error or not answer.data:
            problem = problem_of(loads(body)) or Problem(
                "the upstream answered 200 with neither embeddings nor an error"
            )
            return Frame(FrameKind.ERROR, b"", None, problem.frame())
        return Frame(FrameKind.CONTENT, body, usage_of(answer.usage))

    def error(self, status: int, headers: Headers, body: bytes) -> UpstreamError:
        """See `WireProtocol.error`."""
        failed = bad_status(status, headers, body)
        if status in _NOT_SERVED:
            return Unsupported(f"the upstream does not embed with this model: {failed.message}")
        return failed


class WholeReader:
    """The reader of an API that has no events: whatever comes as a stream is an error."""

    complete = closed = False

    def read(self, event: bytes) -> Frame:
        """See `EventReader.read`."""
        return Frame(
            FrameKind.ERROR, b"", None, ErrorFrame("the upstream sent events where it was asked for one answer")
        )

    def content_run(self, data: bytes) -> tuple[int, int]:
        """Every event is looked at; see `EventReader.content_run`."""
        return 0, 0

    def close(self) -> None:
        """Nothing closes it."""

    def read_body(self, body: bytes) -> Sequence[Frame]:
        """See `EventReader.read_body`."""
        return (self.read(body),)
