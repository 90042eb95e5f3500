"""Serves a client API from an upstream that has another one: request and answer translated by one `WireProtocol`.

A `Translation` translates the client's request and makes a `Translator`, which makes the client's events of the
upstream's, one by one. Events are classified (content, error, usage, end) once, by the reader of the upstream's own
protocol; a translation only replaces the bytes of its frames. Translations therefore compose: a translated protocol
can be translated again.

The rule: complete or rejected. A request field is translated, or `Unsupported` names it, or it is dropped if the
configuration allows that, and the drop is reported. Nothing is changed silently.
"""

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Final, Protocol

import msgspec

from providers.openai.request import written
from ttft_gateway.apis.base import Api, Assembler, Body, Call, EventReader, Frame, FrameKind, Headers, WireProtocol
from ttft_gateway.apis.endings import frames_of_body
from ttft_gateway.apis.errors import Unsupported, UpstreamError
from ttft_gateway.apis.json_fields import infinite_path
from ttft_gateway.apis.json_values import is_light, values_max
from ttft_gateway.apis.sse import events_of
from ttft_gateway.apis.tolerant_json import dumps, loads

REASONING: Final = ("reasoning_content", "reasoning")
"""Fields of a chunk with reasoning; some servers send both, with the same text."""
UNSUPPORTED: Final = "`{}` is not supported by this upstream; remove it"
_MAYBE_INFINITE: Final = re.compile(rb"\d[eE]\+?\d{3}|\d{309}").search  # of a number, or in a text
_NO_EFFECT: Final[tuple[object, ...]] = (None, False, [], "auto", ["direct"])  # of fields that name an exception
OnDropped = Callable[[Sequence[str]], None]
"""Receives the names of the fields of a request that were dropped because the upstream does not support them."""


CONTINUED: Final[Mapping[str, object]] = {"continue_final_message": True, "add_generation_prompt": False}
"""Fields of a chat completion that continues the text of its last message, the assistant's (vLLM, SGLang)."""


class TranslatedRequest(msgspec.Struct, frozen=True, gc=False):
    """A request in the form of another API.

    Attributes:
        fields: the body, except for `model`, `stream` and `stream_options`, which the upstream's protocol adds.
        unsupported: name -> message of each field that the other API does not support.
    """

    fields: Mapping[str, object]
    unsupported: Mapping[str, str] = {}


class Translator(Protocol):
    """Translates one answer's events to the client's; stateful, sans-I/O."""

    def read(self, event: bytes) -> bytes:
        """Return the client's events for one event of the upstream (blank line included), empty for none.

        An event that ends the answer ends it here, too; later events return nothing.
        """

    def close(self) -> bytes:
        """Return the closing events for an upstream's answer that ended without a closing event.

        Called once, after the last event of a complete answer; empty if `read` has ended the answer.
        """


class Translation(Protocol):
    """One client API over another API.

    Attributes:
        client_api: the API of the client's request.
        upstream_api: the API of the translated request.
    """

    client_api: Api
    upstream_api: Api

    def request(self, call: Call) -> TranslatedRequest:
        """Translate a request.

        Raises:
            Unsupported: the request makes no sense without a field that has no counterpart, or a field is invalid.
        """

    def translator(self, call: Call) -> Translator:
        """Make a translator for the answer to this call."""

    def assembler(self, call: Call) -> Assembler:
        """Make an assembler that builds a JSON body of the client's API from the client's events."""


class TranslatedProtocol:
    """The `ttft_gateway.apis.base.WireProtocol` for clients of one API on upstreams of another.

    Args:
        translation: between the two APIs.
        inner: the wire protocol of the upstream's API.
        on_dropped: receives the names of dropped fields; None: a request with unsupported fields is rejected.
    """

    def __init__(self, translation: Translation, inner: WireProtocol, on_dropped: OnDropped | None = None) -> None:
        self._translation = translation
        self._inner = inner
        self._on_dropped = on_dropped

    def path(self, _api: Api, model: str, *, stream: bool) -> str:
        return self._inner.path(self._translation.upstream_api, model, stream=stream)

    def build(self, call: Call, model: str, *, stream: bool) -> Body:
        _check_values(call.body)
        request = self._translation.request(call)
        if request.unsupported:
            if self._on_dropped is None:
                param, why = next(iter(request.unsupported.items()))
                raise Unsupported(why, param=param)
            self._on_dropped(tuple(request.unsupported))
        return self._inner.build(
            _translated_call(call, self._translation.upstream_api, request.fields), model, stream=stream
        )

    def reader(self, call: Call) -> EventReader:
        upstream_call = msgspec.structs.replace(call, api=self._translation.upstream_api, include_usage=True)
        return _TranslatingReader(self._inner.reader(upstream_call), self._translation.translator(call))

    def whole(self, call: Call, body: bytes) -> Frame:
        """See `WireProtocol.whole`: the body becomes events, and the client's body is assembled from those."""
        reader, assembler = self.reader(call), self._translation.assembler(call)
        usage = None
        for frame in frames_of_body(reader, body):
            if frame.kind is FrameKind.ERROR:
                return frame
            usage = frame.usage or usage
            assembler.add(frame.raw)
        return Frame(FrameKind.CONTENT, assembler.body(), usage)

    def outlined(self, _outline: bytes) -> None:
        """See `WireProtocol.outlined`: the answer has to be converted."""

    def error(self, status: int, headers: Headers, body: bytes) -> UpstreamError:
        return self._inner.error(status, headers, body)


class _TranslatingReader:
    """Returns the frames of the upstream's reader with the client's bytes."""

    __slots__ = ("_inner", "_translator")

    run = None  # every event is translated

    def __init__(self, inner: EventReader, translator: Translator) -> None:
        self._inner = inner
        self._translator = translator

    @property
    def complete(self) -> bool:
        return self._inner.complete

    @property
    def resumed(self) -> bool:
        return self._inner.resumed

    @property
    def closed(self) -> bool:
        return self._inner.closed

    def read(self, event: bytes) -> Frame:
        return self._translated(self._inner.read(event))

    def close(self) -> Frame | None:
        last = self._inner.close()
        closing = b"" if last is None else self._raw(last)
        raw = closing + self._translator.close()
        return Frame(FrameKind.DONE, raw, None if last is None else last.usage) if raw else None

    def read_body(self, body: bytes) -> Sequence[Frame]:
        frames = [self._translated(frame) for frame in self._inner.read_body(body)]
        if any(frame.kind is FrameKind.ERROR for frame in frames):
            return frames
        last = self._translator.close()
        return [*frames, Frame(FrameKind.DONE, last)] if last else frames

    def _translated(self, frame: Frame) -> Frame:
        return msgspec.structs.replace(frame, raw=self._raw(frame))

    def _raw(self, frame: Frame) -> bytes:
        if not frame.raw or frame.kind is FrameKind.COMMENT or frame.kind is FrameKind.ERROR:
            return b""  # the gateway writes the client's error event
        read = self._translator.read
        return b"".join(read(event) for event in events_of(frame.raw))


def _check_values(body: bytes) -> None:
    """Reject a request with too many values, each of which takes some 2 us to translate, or with too large a number.

    Raises:
        Unsupported: there are more values than a body of this size may have, or a number is too large to be written.
    """
    if not is_light(body):
        raise Unsupported(
            f"the request has over {values_max(len(body))} values, too many to be translated for the model's upstream "
            "API; send fewer, or send it to a model that supports the API of the request",
            code="array_above_max_length",
        )
    path = infinite_path(loads(body)) if _MAYBE_INFINITE(body) else None
    if path is not None:
        raise Unsupported(f"{path} is a number over 1.8e308; write a smaller one", param=path, code="invalid_value")


def _translated_call(call: Call, api: Api, fields: Mapping[str, object]) -> Call:
    body, spans = written({key: dumps(value) for key, value in fields.items()})
    return msgspec.structs.replace(
        call, api=api, body=body, spans=spans, insert_at=1, streaming=False, include_usage=False
    )


def unknown_fields(item: Mapping[str, object], at: str, known: Iterable[str]) -> dict[str, str]:
    """Return name -> message of each field at a place of a request that a translation does not know."""
    names = item.keys() - set(known)
    return {f"{at}.{n}": UNSUPPORTED.format(f"{at}.{n}") for n in sorted(names) if item[n] not in _NO_EFFECT}


def unsupported_fields(
    names: Iterable[str], request: Mapping[str, object], message: str = UNSUPPORTED
) -> dict[str, str]:
    """Return name -> message of each of these fields that a request has with an effect (null and false have none)."""
    return {name: message.format(name) for name in names if request.get(name) not in (None, False)}
