"""The wire protocol of OpenAI's Responses API, and the assembling of an answer from its events.

Token counts come with every answer without an option, and the last event of a stream has the body of the unstreamed
answer. A server without the path is reported as unsupported rather than as failed. Sans-I/O.
"""

from providers.openai.outlines import read_outline
from providers.openai.request import build
from ttft_gateway.apis.base import Api, Body, Call, FirstToken, Frame, Headers, OnAnswerId
from ttft_gateway.apis.errors import ProtocolError, Unsupported, UpstreamError
from ttft_gateway.apis.json_values import ITEMS_MAX
from ttft_gateway.apis.openai.errors import bad_status
from ttft_gateway.apis.responses.events import TERMINAL, ResponsesReader, usage_of, whole_answer
from ttft_gateway.apis.sse import data_of, events_of
from ttft_gateway.apis.tolerant_json import dumps, loads

_NO_PATH = frozenset({405, 501})


class OpenAIResponses:
    """The `ttft_gateway.apis.base.WireProtocol` of POST responses.

    Args:
        first_token: with "answer", reasoning does not count as content.
        on_answer_id: receives the owner and the id of every response, so that the owner's requests that continue it
            reach the same replica.
    """

    def __init__(self, *, first_token: FirstToken = "any", on_answer_id: OnAnswerId | None = None) -> None:
        self._first_token = first_token
        self._on_answer_id = on_answer_id

    def path(self, api: Api, _model: str, *, stream: bool) -> str:
        return "/" + api.value

    def build(self, call: Call, model: str, *, stream: bool) -> Body:
        return build(call, model, stream=stream, ask_usage=False)

    def reader(self, call: Call) -> ResponsesReader:
        return ResponsesReader(self._first_token, self._on_answer_id, call.owner)

    def assembler(self, _call: Call) -> "ResponseAssembler":
        return ResponseAssembler()

    def whole(self, _call: Call, body: bytes) -> Frame:
        return whole_answer(body)

    def outlined(self, outline: bytes) -> Frame:
        return read_outline(outline, "output", usage_of)

    def error(self, status: int, headers: Headers, body: bytes) -> UpstreamError:
        failed = bad_status(status, headers, body)
        if status in _NO_PATH or (status == 404 and failed.code is None and failed.param is None):
            return Unsupported(f"the Responses API is not supported by the upstream: {failed.message}")
        return failed


class ResponseAssembler:
    """The `ttft_gateway.apis.base.Assembler` of the Responses API.

    Some servers omit the output from the terminal event; then the output is the finished items. An answer without both
    is lost if there were pieces of it.
    """

    def __init__(self) -> None:
        self._answer: dict[str, object] = {}
        self._items: list[tuple[int, object]] = []
        self._has_pieces = False  # an event with generated text was seen

    def add(self, raw: bytes) -> None:
        """Take events; only finished items and the terminal event are stored."""
        for event in events_of(raw):
            data = data_of(event) or b""
            if b"output_item.done" not in data and b'"response"' not in data:
                self._has_pieces = self._has_pieces or b'.delta"' in data
                continue
            value = loads(data)
            if not isinstance(value, dict):
                continue
            kind = str(value.get("type"))
            if kind == "response.output_item.done":
                if len(self._items) == ITEMS_MAX:
                    raise ProtocolError(f"the upstream's answer has over {ITEMS_MAX} output items")
                index = value.get("output_index")
                self._items.append((index if isinstance(index, int) else len(self._items), value.get("item")))
            elif kind in TERMINAL and isinstance(value.get("response"), dict):
                self._answer = value["response"]

    def body(self) -> bytes:
        """The response object.

        Raises:
            LookupError: the stream had no terminal event, or the output is lost.
        """
        if not self._answer:
            raise LookupError("no terminal event")
        if self._answer.get("output"):
            return dumps(self._answer)
        if self._has_pieces and not self._items:
            raise LookupError("the output is neither in the terminal event nor in finished items")
        items = [item for _, item in sorted(self._items, key=lambda numbered: numbered[0])]
        return dumps({**self._answer, "output": items} if items else self._answer)
