"""The wire protocol of embeddings on OpenAI-compatible servers.

An answer is one body and is forwarded byte for byte, numbers and base64 alike: only the fields that distinguish an
answer from an error are decoded. A server without the path, or whose model does not embed, is reported as unsupported
rather than as failed: otherwise a client that requests embeddings from a chat model could open its breakers. Sans-I/O.
"""

from collections.abc import Sequence

import msgspec

from providers.openai.outlines import read_outline
from providers.openai.request import build
from ttft_gateway.apis.base import Api, Body, Call, Frame, FrameKind, Headers
from ttft_gateway.apis.errors import ErrorFrame, Unsupported, UpstreamError
from ttft_gateway.apis.openai.errors import Problem, bad_status, problem_of
from ttft_gateway.apis.openai.events import usage_of
from ttft_gateway.apis.tolerant_json import loads

NOT_SERVED = frozenset({403, 404, 405, 501})


class _Answer(msgspec.Struct, gc=False):
    data: list[msgspec.Raw]
    usage: object = None
    error: object = None


_decode = msgspec.json.Decoder(_Answer).decode


class OpenAIEmbeddings:
    """The `ttft_gateway.apis.base.WireProtocol` of POST embeddings."""

    def path(self, api: Api) -> str:
        """See `WireProtocol.path`."""
        return "/" + api.value

    def build(self, call: Call, model: str, *, stream: bool) -> Body:
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

    def outlined(self, outline: bytes) -> Frame:
        """See `WireProtocol.outlined`."""
        return read_outline(outline, "data", usage_of)

    def error(self, status: int, headers: Headers, body: bytes) -> UpstreamError:
        """See `WireProtocol.error`."""
        failed = bad_status(status, headers, body)
        if status in NOT_SERVED:
            return Unsupported(f"embeddings are not supported by the upstream's model: {failed.message}")
        return failed


class WholeReader:
    """The reader of an API without events: a stream is an error."""

    complete = closed = False
    run = None

    def read(self, event: bytes) -> Frame:
        """See `EventReader.read`."""
        return Frame(FrameKind.ERROR, b"", None, ErrorFrame("the upstream sent events instead of one answer"))

    def close(self) -> None:
        """See `EventReader.close`: there is no closing event."""

    def read_body(self, body: bytes) -> Sequence[Frame]:
        """See `EventReader.read_body`."""
        return (self.read(body),)
