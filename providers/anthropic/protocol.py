"""The wire protocol of POST /v1/messages on upstreams that have the API.

The client's bytes are sent with `model` and `stream` replaced, and the answer's events are forwarded unchanged.
Independent of HTTP and keys. Sans-I/O. Units: tokens.
"""

import msgspec

from providers.openai.outlines import read_outline
from providers.openai.request import build
from ttft_gateway.apis.anthropic.assembler import MessageAssembler
from ttft_gateway.apis.anthropic.events import MessageReader
from ttft_gateway.apis.anthropic.usage import counted
from ttft_gateway.apis.base import MAX_TOKENS_DEFAULT, Api, Body, Call, FirstToken, Frame, FrameKind
from ttft_gateway.apis.endings import frames_of_body
from ttft_gateway.apis.json_fields import dict_or_empty
from ttft_gateway.apis.openai.errors import bad_status
from ttft_gateway.apis.tolerant_json import dumps, loads


class AnthropicMessages:
    """The `ttft_gateway.apis.base.WireProtocol` of POST messages.

    Args:
        first_token: with "answer", thinking does not count as content.
        max_tokens: the bound on an answer if the client sends none: the API requires one.
    """

    def __init__(self, *, first_token: FirstToken = "any", max_tokens: int = MAX_TOKENS_DEFAULT) -> None:
        self._first_token = first_token
        self._max_tokens = max_tokens

    def path(self, _api: Api) -> str:
        """See `WireProtocol.path`."""
        return "/messages"

    def build(self, call: Call, model: str, *, stream: bool) -> Body:
        """See `WireProtocol.build`."""
        return build(_bounded(call, self._max_tokens), model, stream=stream, ask_usage=False)

    def reader(self, _call: Call) -> MessageReader:
        """See `WireProtocol.reader`."""
        return MessageReader(self._first_token)

    def assembler(self, _call: Call) -> MessageAssembler:
        """See `WireProtocol.assembler`."""
        return MessageAssembler()

    def whole(self, call: Call, body: bytes) -> Frame:
        """See `WireProtocol.whole`."""
        frames = frames_of_body(self.reader(call), body)
        if frames[0].kind is FrameKind.ERROR:
            return frames[0]
        return Frame(FrameKind.CONTENT, body, counted(dict_or_empty(loads(body)).get("usage")))

    def outlined(self, outline: bytes) -> Frame:
        """See `WireProtocol.outlined`."""
        return read_outline(outline, "content", counted)

    error = staticmethod(bad_status)


def _bounded(call: Call, max_tokens: int) -> Call:
    if "max_tokens" in call.spans:
        return call
    bound = b'"max_tokens":' + dumps(max_tokens) + (b"," if call.spans else b"")
    at = call.insert_at
    body = call.body[:at] + bound + call.body[at:]
    spans = {key: (start + len(bound), end + len(bound)) for key, (start, end) in call.spans.items()}
    spans["max_tokens"] = (at + len(b'"max_tokens":'), at + len(b'"max_tokens":') + len(dumps(max_tokens)))
    return msgspec.structs.replace(call, body=body, spans=spans)
