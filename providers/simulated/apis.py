"""The simulated replica's other APIs on top of the two it thinks in: responses as chat, embeddings as completions.

A request is put into words that `ask.py` reads; what `render.py` makes of the answer is told in the caller's API. Pure.
"""

import base64
import struct
import zlib
from collections.abc import Sequence

import msgspec

from providers.base import Api, Call, Frame, FrameKind
from providers.errors import Unsupported
from providers.simulated.render import Event
from providers.simulated.request import RequestError
from providers.tolerant_json import dumps, loads
from providers.translation.responses_to_chat.request import ResponsesOverChat

SERVED_APIS = (Api.CHAT, Api.COMPLETIONS, Api.RESPONSES, Api.MESSAGES, Api.EMBEDDINGS)
DIMENSIONS, DIMENSIONS_MAX = 8, 4096

_RESPONSES = ResponsesOverChat()
_USAGE = {"include_usage": True}


def to_chat_request(api: Api, body: bytes) -> tuple[Api, bytes]:
    """The same request as a chat completion or completion.

    Raises:
        AskError: it cannot be answered.
    """
    if api is Api.RESPONSES:
        given = _given(body)
        try:
            fields = _RESPONSES.request(_call(body)).fields
        except Unsupported:  # it answers to anything
            fields = {"messages": [{"role": "user", "content": dumps(given.get("input")).decode()}]}
        stream = {"stream": True, "stream_options": _USAGE} if given.get("stream") is True else {}
        return Api.CHAT, dumps({**fields, "model": given.get("model"), **stream})
    if api is Api.EMBEDDINGS:
        given = _given(body)
        if not given.get("input"):
            raise RequestError("'input' is missing or not what it should be", "input")
        return Api.COMPLETIONS, dumps({"model": given.get("model"), "prompt": given["input"], "max_tokens": 1})
    return api, body


def from_chat_events(api: Api, body: bytes, events: Sequence[Event]) -> list[Event]:
    """The events of an answer in the caller's API."""
    if api is not Api.RESPONSES:
        return list(events)
    translator = _RESPONSES.translator(_call(body))
    said = [(tick, msgspec.structs.replace(frame, raw=translator.read(frame.raw))) for tick, frame in events]
    return [(tick, frame) for tick, frame in said if frame.raw]


def from_chat_document(api: Api, body: bytes, events: Sequence[Event], whole: Frame) -> Frame:
    """The answer as one JSON document in the caller's API.

    Args:
        api: the caller's.
        body: its request.
        events: the same answer as a stream, in the API that the replica thinks in.
        whole: and as a document.
    """
    if api is Api.RESPONSES:
        assembler = _RESPONSES.assembler(_call(body))
        for _, frame in from_chat_events(api, body, events):
            assembler.add(frame.raw)
        return Frame(FrameKind.CONTENT, assembler.body(), whole.usage)
    return Frame(FrameKind.CONTENT, _embeddings(_given(body), whole), whole.usage) if api is Api.EMBEDDINGS else whole


def _embeddings(given: dict[str, object], whole: Frame) -> bytes:
    asked = given["input"]
    several = isinstance(asked, list) and not all(isinstance(token, int) for token in asked)
    texts = asked if several and isinstance(asked, list) else [asked]
    asked_size = given.get("dimensions")
    size = asked_size if isinstance(asked_size, int) and 0 < asked_size <= DIMENSIONS_MAX else DIMENSIONS
    data = []
    for index, text in enumerate(texts):
        seed = zlib.crc32(dumps(text))
        vector = [zlib.crc32(b"%d" % place, seed) / 2**31 - 1 for place in range(size)]
        packed = base64.b64encode(struct.pack(f"<{len(vector)}f", *vector)).decode()
        base = given.get("encoding_format") == "base64"
        data.append({"object": "embedding", "index": index, "embedding": packed if base else vector})
    tokens = whole.usage.prompt_tokens if whole.usage is not None else 0
    usage = {"prompt_tokens": tokens, "total_tokens": tokens}
    return dumps({"object": "list", "data": data, "model": given.get("model"), "usage": usage})


def _call(body: bytes) -> Call:
    return Call(Api.RESPONSES, body, {}, 1, "", streaming=False)


def _given(body: bytes) -> dict[str, object]:
    given = loads(body)
    if not isinstance(given, dict):
        raise RequestError("the body is not a JSON object")
    return given
