"""Sets and caps top-level values of the bodies sent to one upstream. Sans-I/O.

Only the spans of the changed values are replaced; a body that needs no change is sent as the client wrote it. The
values belong to the upstream's own API: a translated request is edited after its translation.
"""

from collections.abc import Mapping, Sequence
from typing import Final

import msgspec

from providers.openai.request import edited
from ttft_gateway.apis.base import Api, Body, Call, EventReader, Frame, Headers, WireProtocol
from ttft_gateway.apis.errors import UpstreamError
from ttft_gateway.apis.tolerant_json import dumps

_MAX_TOKENS: Final = ("max_tokens", "max_completion_tokens", "max_output_tokens")  # one bound, named by API and age
_number = msgspec.json.Decoder(int | float).decode


class BodyEdits(msgspec.Struct, frozen=True):
    """The changes to every body.

    Attributes:
        values: JSON by key, instead of the client's or in addition to it.
        maxima: largest number by key; a key that the client did not send stays absent. `max_tokens` is the bound on the
            answer under its name in any API.
    """

    values: Mapping[str, bytes]
    maxima: Mapping[str, float]

    def apply(self, call: Call) -> Call:
        """Return the call with the changes that its body needs."""
        changes = {key: value for key, value in self.values.items() if _value(call, key) != value}
        for key, most in self.maxima.items():
            for name in _names(key):
                if _is_over(_value(call, name), most):
                    changes[name] = dumps(int(most) if most.is_integer() else most)
        return edited(call, changes) if changes else call


def _names(key: str) -> Sequence[str]:
    return _MAX_TOKENS if key == "max_tokens" else (key,)


def _value(call: Call, key: str) -> bytes | None:
    span = call.spans.get(key)
    return None if span is None else call.body[slice(*span)]


def _is_over(value: bytes | None, most: float) -> bool:
    """Return True for a number above the maximum; the upstream judges values that are no numbers."""
    try:
        return value is not None and _number(value) > most
    except msgspec.DecodeError:
        return False


class EditedProtocol:
    """A `ttft_gateway.apis.base.WireProtocol` that edits the bodies of requests.

    Args:
        inner: the wire protocol of the upstream's API.
        edits: the changes to each body.
    """

    def __init__(self, inner: WireProtocol, edits: BodyEdits) -> None:
        self._inner = inner
        self._edits = edits

    def path(self, api: Api, model: str, *, stream: bool) -> str:
        return self._inner.path(api, model, stream=stream)

    def build(self, call: Call, model: str, *, stream: bool) -> Body:
        return self._inner.build(self._edits.apply(call), model, stream=stream)

    def reader(self, call: Call) -> EventReader:
        return self._inner.reader(call)

    def whole(self, call: Call, body: bytes) -> Frame:
        return self._inner.whole(call, body)

    def outlined(self, outline: bytes) -> Frame | None:
        return self._inner.outlined(outline)

    def error(self, status: int, headers: Headers, body: bytes) -> UpstreamError:
        return self._inner.error(status, headers, body)
