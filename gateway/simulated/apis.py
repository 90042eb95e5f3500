"""Adapts the Responses and Embeddings APIs to the two that a simulated replica implements: chat and completions.

Translates requests for request.py, and the events and documents of render.py for the client's API. Pure.
"""

import base64
import struct
import zlib
from collections.abc import Sequence

import msgspec

from gateway.simulated.render import Event
from gateway.simulated.request import RequestError
from providers.translation.responses_to_chat.stream import ResponseEventsFromChat
from providers.translation.responses_to_chat.translation import ResponsesToChat
from ttft_gateway.apis.base import Api, Call, Frame, FrameKind
from ttft_gateway.apis.errors import Unsupported
from ttft_gateway.apis.tolerant_json import dumps, loads

SERVED_APIS = tuple(Api)
DIMENSIONS, DIMENSIONS_MAX = 8, 4096

_RESPONSES = ResponsesToChat(prefills=True)
_USAGE = {"include_usage": True}


def to_chat_request(api: Api, body: bytes) -> tuple[Api, bytes]:
    """Translate a request to a chat completion or completion request.

    Raises:
        RequestError: The body is not a JSON object, or has no input.
    """
    values = _fields(body) if api in _ADAPTED else {}
    if api is Api.RESPONSES:
        try:
            fields = _RESPONSES.request(_call(body)).fields
        except Unsupported:  # the replica accepts any input
            fields = {"messages": [{"role": "user", "content": dumps(values.get("input")).decode()}]}
        stream = {"stream": True, "stream_options": _USAGE} if values.get("stream") is True else {}
        return Api.CHAT, dumps({**fields, "model": values.get("model"), **stream})
    if api is Api.EMBEDDINGS:
        if not values.get("input"):
            raise RequestError("input is missing; send a text or a list", "input")
        return Api.COMPLETIONS, dumps({"model": values.get("model"), "prompt": values["input"], "max_tokens": 1})
    if api in _INPUTS:
        prompt = dumps([values.get(name) for name in _INPUTS[api]]).decode()
        return Api.COMPLETIONS, dumps({"model": values.get("model"), "prompt": prompt, "max_tokens": 1})
    return api, body


def from_chat_events(api: Api, body: bytes, events: Sequence[Event]) -> list[Event]:
    """Translate the events of a stream to the client's API."""
    if api is not Api.RESPONSES:
        return list(events)
    translator = ResponseEventsFromChat(_fields(body))
    translated = [(tick, msgspec.structs.replace(frame, raw=translator.read(frame.raw))) for tick, frame in events]
    return [(tick, frame) for tick, frame in translated if frame.raw]


def from_chat_document(api: Api, body: bytes, events: Sequence[Event], whole: Frame) -> Frame:
    """Translate a JSON response to the client's API.

    Args:
        api: the client's API.
        body: the client's request.
        events: the response as a stream, in the replica's API.
        whole: the response as a document, in the replica's API.
    """
    if api is Api.RESPONSES:
        assembler = _RESPONSES.assembler(_call(body))
        for _, frame in from_chat_events(api, body, events):
            assembler.add(frame.raw)
        return Frame(FrameKind.CONTENT, assembler.body(), whole.usage)
    write = _DOCUMENTS.get(api)
    return whole if write is None else Frame(FrameKind.CONTENT, write(_fields(body), whole), whole.usage)


def _embeddings(fields: dict[str, object], whole: Frame) -> bytes:
    inputs = fields["input"]
    several = isinstance(inputs, list) and not all(isinstance(token, int | float) for token in inputs)
    texts = inputs if several and isinstance(inputs, list) else [inputs]
    requested_size = fields.get("dimensions")
    size = requested_size if isinstance(requested_size, int) and 0 < requested_size <= DIMENSIONS_MAX else DIMENSIONS
    data = []
    for index, text in enumerate(texts):
        seed = zlib.crc32(dumps(text))
        vector = [zlib.crc32(b"%d" % position, seed) / 2**31 - 1 for position in range(size)]
        packed = base64.b64encode(struct.pack(f"<{len(vector)}f", *vector)).decode()
        base64_encoded = fields.get("encoding_format") == "base64"
        data.append({"object": "embedding", "index": index, "embedding": packed if base64_encoded else vector})
    usage = dict.fromkeys(("prompt_tokens", "total_tokens"), _prompt_tokens(whole))
    return dumps({"object": "list", "data": data, "model": fields.get("model"), "usage": usage})


def _rerank(fields: dict[str, object], whole: Frame) -> bytes:
    documents = fields.get("documents")
    texts = documents if isinstance(documents, list) else [documents]
    scores = [zlib.crc32(dumps([fields.get("query"), text])) / 2**32 for text in texts]
    ranked = sorted(range(len(scores)), key=lambda index: -scores[index])
    results = [{"index": index, "relevance_score": scores[index]} for index in ranked]
    return dumps({"model": fields.get("model"), "results": results, "usage": {"total_tokens": _prompt_tokens(whole)}})


def _moderation(fields: dict[str, object], _whole: Frame) -> bytes:
    inputs = fields.get("input")
    count = len(inputs) if isinstance(inputs, list) else 1
    verdict = {"flagged": False, "categories": {"violence": False}, "category_scores": {"violence": 0.01}}
    return dumps({"id": "modr-1", "model": fields.get("model"), "results": [verdict] * count})


def _tokens(_fields: dict[str, object], whole: Frame) -> bytes:
    count = _prompt_tokens(whole)
    return dumps({"count": count, "max_model_len": 32_768, "tokens": list(range(count))})


def _prompt_tokens(whole: Frame) -> int:
    return 0 if whole.usage is None else whole.usage.prompt_tokens or 0


_INPUTS = {Api.RERANK: ("query", "documents"), Api.MODERATIONS: ("input",), Api.TOKENIZE: ("prompt",)}
_DOCUMENTS = {
    Api.EMBEDDINGS: _embeddings,
    Api.RERANK: _rerank,
    Api.MODERATIONS: _moderation,
    Api.TOKENIZE: _tokens,
}
_ADAPTED = (Api.RESPONSES, *_DOCUMENTS)


def _call(body: bytes) -> Call:
    return Call(Api.RESPONSES, body, {}, 1, "", streaming=False)


def _fields(body: bytes) -> dict[str, object]:
    fields = loads(body)
    if not isinstance(fields, dict):
        raise RequestError("the request body is not a JSON object; send an object")
    return fields
