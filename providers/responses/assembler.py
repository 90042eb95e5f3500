"""Assembles an answer of the Responses API from its events: the terminal event has it whole. Pure."""

from ttft_gateway.apis.errors import ProtocolError
from ttft_gateway.apis.json_values import ITEMS_MAX
from ttft_gateway.apis.responses.events import TERMINAL
from ttft_gateway.apis.sse import data_of, events_of
from ttft_gateway.apis.tolerant_json import dumps, loads


class ResponseAssembler:
    """The `ttft_gateway.apis.base.Assembler` of the Responses API.

    Some servers omit the output from the terminal event; then the output is the finished items.
    """

    def __init__(self) -> None:
        self._answer: dict[str, object] = {}
        self._items: list[tuple[int, object]] = []

    def add(self, raw: bytes) -> None:
        """Take events; only finished items and the terminal one are kept."""
        for event in events_of(raw):
            data = data_of(event) or b""
            if b"output_item.done" not in data and b'"response"' not in data:
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
            LookupError: the stream had no terminal event.
        """
        if not self._answer:
            raise LookupError("no terminal event")
        items = [item for _, item in sorted(self._items, key=lambda numbered: numbered[0])]
        return dumps(self._answer if self._answer.get("output") or not items else {**self._answer, "output": items})
