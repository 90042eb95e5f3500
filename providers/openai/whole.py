"""The wire protocol of APIs whose answers are passed through as they are: rerank, moderations, tokenize.

A 200 is an answer if it is a JSON object or array without an error; its fields differ between servers. A server
without the path, or whose model has no such API, is reported as unsupported rather than as failed. Sans-I/O.
"""

from collections.abc import Mapping

from providers.openai.embeddings import NOT_SERVED, WholeReader
from providers.openai.outlines import read_outline
from providers.openai.request import build
from ttft_gateway.apis.base import Api, Body, Call, Frame, FrameKind, Headers
from ttft_gateway.apis.errors import Unsupported, UpstreamError
from ttft_gateway.apis.openai.errors import Problem, bad_status, problem_of
from ttft_gateway.apis.openai.events import usage_of
from ttft_gateway.apis.tolerant_json import loads


class WholeAnswers:
    """The `ttft_gateway.apis.base.WireProtocol` of one such API."""

    def path(self, api: Api) -> str:
        """See `WireProtocol.path`."""
        return "/" + api.value

    def build(self, call: Call, model: str, *, stream: bool) -> Body:
        """See `WireProtocol.build`; there is no stream."""
        assert not stream
        return build(call, model, stream=False, ask_usage=False)

    def reader(self, _call: Call) -> WholeReader:
        """See `WireProtocol.reader`."""
        return WholeReader()

    def whole(self, _call: Call, body: bytes) -> Frame:
        """See `WireProtocol.whole`."""
        answer = loads(body)
        if answer and isinstance(answer, list):
            return Frame(FrameKind.CONTENT, body)
        if answer and isinstance(answer, Mapping) and not answer.get("error"):
            return Frame(FrameKind.CONTENT, body, usage_of(answer.get("usage")))
        problem = problem_of(answer) or Problem("the upstream answered 200 with neither an answer nor an error")
        return Frame(FrameKind.ERROR, b"", None, problem.frame())

    def outlined(self, outline: bytes) -> Frame:
        """See `WireProtocol.outlined`."""
        return read_outline(outline, None, usage_of)

    def error(self, status: int, headers: Headers, body: bytes) -> UpstreamError:
        """See `WireProtocol.error`."""
        failed = bad_status(status, headers, body)
        if status in NOT_SERVED:
            return Unsupported(f"this API is not supported by the upstream's model: {failed.message}")
        return failed
