"""The wire protocols of APIs without streams on OpenAI-compatible servers: embeddings, rerank, moderations, tokenize.

An answer is one body and is forwarded byte for byte, numbers and base64 alike: only the fields that distinguish an
answer from an error are decoded. A server without the path, or with a model that does not have the API, is reported as
unsupported rather than as failed: otherwise a client that requests embeddings from a chat model could open its
breakers. Sans-I/O.
"""

from collections.abc import Mapping, Sequence
from typing import Final

import msgspec

from providers.openai.outlines import read_outline
from providers.openai.request import build
from ttft_gateway.apis.base import Api, Body, Call, Frame, FrameKind, Headers
from ttft_gateway.apis.errors import ErrorFrame, Unsupported, UpstreamError
from ttft_gateway.apis.openai.errors import Problem, bad_status, problem_of
from ttft_gateway.apis.openai.events import usage_of
from ttft_gateway.apis.tolerant_json import loads

_NOT_SERVED: Final = frozenset({403, 404, 405, 501})


class WholeAnswers:
    """The `ttft_gateway.apis.base.WireProtocol` of one such API: a 200 is an answer if it is JSON without an error.

    The fields of answers differ between servers.
    """

    _items: str | None = None  # key of the array that every answer has
    _unsupported = "this API is not supported by the upstream's model"

    def path(self, api: Api, _model: str, *, stream: bool) -> str:
        return "/" + api.value

    def build(self, call: Call, model: str, *, stream: bool) -> Body:
        assert not stream
        return build(call, model, stream=False, ask_usage=False)

    def reader(self, _call: Call) -> "WholeReader":
        return WholeReader()

    def whole(self, _call: Call, body: bytes) -> Frame:
        answer = loads(body)
        if answer and isinstance(answer, list):
            return Frame(FrameKind.CONTENT, body)
        if answer and isinstance(answer, Mapping) and not answer.get("error"):
            return Frame(FrameKind.CONTENT, body, usage_of(answer.get("usage")))
        return _failed(answer, "an answer")

    def outlined(self, outline: bytes) -> Frame:
        return read_outline(outline, self._items, usage_of)

    def error(self, status: int, headers: Headers, body: bytes) -> UpstreamError:
        failed = bad_status(status, headers, body)
        return Unsupported(f"{self._unsupported}: {failed.message}") if status in _NOT_SERVED else failed


class OpenAIEmbeddings(WholeAnswers):
    """The `ttft_gateway.apis.base.WireProtocol` of POST embeddings, of which the vectors are not decoded."""

    _items = "data"
    _unsupported = "embeddings are not supported by the upstream's model"

    def whole(self, _call: Call, body: bytes) -> Frame:
        try:
            answer = _decode(body)
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
            answer = None
        if answer is None or answer.error or not answer.data:
            return _failed(loads(body), "embeddings")
        return Frame(FrameKind.CONTENT, body, usage_of(answer.usage))


class WholeReader:
    """The reader of an API without events: a stream is an error."""

    complete = resumed = closed = False
    run = None

    def read(self, event: bytes) -> Frame:
        return Frame(FrameKind.ERROR, b"", None, ErrorFrame("the upstream sent events instead of one answer"))

    def close(self) -> None:
        """See `EventReader.close`: there is no closing event."""

    def read_body(self, body: bytes) -> Sequence[Frame]:
        return (self.read(body),)


class _Embeddings(msgspec.Struct, gc=False):
    data: list[msgspec.Raw]
    usage: object = None
    error: object = None


_decode = msgspec.json.Decoder(_Embeddings).decode


def _failed(answer: object, expected: str) -> Frame:
    """Return the frame of a 200 without the expected answer."""
    problem = problem_of(answer) or Problem(f"the upstream answered 200 with neither {expected} nor an error")
    return Frame(FrameKind.ERROR, b"", None, problem.frame())
