"""Whatever JSON stands where another was meant: what a client mistypes, and what a broken server says.

Every place of the requests in requests/, which hold the fields that translations know, and of the events in
docs/first-token-vectors.json; at each of them one value of each kind that code tells apart, and nothing at all.
"""

import json
from collections.abc import Iterable, Iterator
from contextlib import suppress
from itertools import product
from pathlib import Path
from typing import Any, Final

import pytest

from checkout import DOCS
from fuzz import answers
from openai_calls import in_one_piece
from providers.translation.base import TranslatedProtocol
from ttft_gateway.apis.base import Api
from ttft_gateway.apis.errors import Unsupported
from ttft_gateway.requests.errors import InvalidRequest
from ttft_gateway.requests.parsed import NumberLimits
from ttft_gateway.requests.request import parse

Place = tuple[str | int, ...]

_REQUESTS: Final = Path(__file__).parent / "requests"
_VECTORS: Final = DOCS / "first-token-vectors.json"
_GONE: Final = object()
_OTHERS: Final[tuple[object, ...]] = (None, 1, "x", [], {}, {"\ud83d": 1}, _GONE)
_FILES: Final = {
    Api.CHAT: "chat",
    Api.COMPLETIONS: "completions",
    Api.EMBEDDINGS: "embeddings",
    Api.MESSAGES: "messages",
    Api.RESPONSES: "responses",
}
_NEEDED: Final = {"model", "stream", "messages", "prompt", "input", "max_tokens"}
_BOUNDS: Final = NumberLimits(n_max=16, max_tokens_max=100_000)


@pytest.mark.parametrize("api", _FILES)
def test_any_request_is_sent_or_refused_in_words(api: Api) -> None:
    """Whatever stands in a field, the parser and every translation take it or say what is wrong with it."""
    asked = json.loads((_REQUESTS / f"{_FILES[api]}.json").read_bytes())
    for field, body in _bodies(asked):
        for place, other in product(_places(body[field], (field,)), _OTHERS):
            changed = _with(body, place, other)
            try:
                call = parse(api, json.dumps(changed).encode(), (), _BOUNDS, frozenset()).call
                for protocol in answers.WAYS[api]:
                    with suppress(Unsupported):
                        json.loads(in_one_piece(protocol.build(call, "up", stream=api is not Api.EMBEDDINGS)))
            except InvalidRequest:
                continue
            except Exception as error:
                raise AssertionError(f"{place} is {other!r} in {body}") from error


@pytest.mark.parametrize("way", range(len(answers.ALL)))
def test_any_event_is_read_or_refused(way: int) -> None:
    """Whatever stands in an event, reader, translation and assembler take it or say that it is none.

    Of another API's events, fields of one name count once.
    """
    seen = set[object]()
    api, protocol = answers.ALL[way]
    own = _FILES[protocol._translation.upstream_api if isinstance(protocol, TranslatedProtocol) else api]
    for vector in json.loads(_VECTORS.read_bytes()):
        name, _, data = vector["event"].rpartition("data: ")
        event = _object(data)
        for place, other in product(_places(event), _OTHERS):
            kind = str(event.get("type")) if vector.get("api", "chat") == own else ""
            shape = (kind, *("*" if isinstance(key, int) else key for key in place), str(other))
            if shape in seen:
                continue
            seen.add(shape)
            changed = f"{name}data: {json.dumps(_with(event, place, other))}\n\n"
            try:
                answers.check(bytes([way]) + changed.encode())
            except Exception as error:
                raise AssertionError(f"{place} is {other!r} in {data}") from error


def _bodies(asked: dict[str, Any]) -> Iterator[tuple[str, dict[str, Any]]]:
    """The request in parts, since the first field that is refused hides those behind it: a field and what it needs."""
    needed = {key: value for key, value in asked.items() if key in _NEEDED}
    said = next((key for key in ("messages", "input") if isinstance(asked.get(key), list)), None)
    if said is not None:
        for message in asked[said]:
            parts = message.get("content") if isinstance(message, dict) else None
            for part in parts if isinstance(parts, list) else ():
                yield said, {**needed, said: [{**message, "content": [part]}]}
        for count in range(1, len(asked[said]) + 1):
            yield said, {**needed, said: asked[said][:count]}
        needed[said] = asked[said][:1]
    for key, value in asked.items():
        if key not in ("model", "stream"):
            yield key, {**needed, key: value}


def _object(data: str) -> dict[str, Any]:
    """An event's fields, none where its data are none."""
    with suppress(ValueError, RecursionError):
        value = json.loads(data)
        if isinstance(value, dict):
            return value
    return {}


def _places(document: object, at: Place = ()) -> Iterator[Place]:
    """Where a value stands, the document itself left out."""
    inside: Iterable[tuple[str | int, object]] = ()
    if isinstance(document, dict):
        inside = document.items()
    elif isinstance(document, list):
        inside = enumerate(document)
    for key, value in inside:
        yield (*at, key)
        yield from _places(value, (*at, key))


def _with(document: Any, place: Place, other: object) -> Any:
    """A copy of the document with something else there."""
    copy: Any = dict(document) if isinstance(document, dict) else list(document)
    if len(place) > 1:
        copy[place[0]] = _with(copy[place[0]], place[1:], other)
    elif other is _GONE:
        del copy[place[0]]
    else:
        copy[place[0]] = other
    return copy
