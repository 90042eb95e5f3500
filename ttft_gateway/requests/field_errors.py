"""Builds the error for a request's invalid fields: what was found, where, and what to write instead. Pure.

Used after `ttft_gateway.requests.request` has rejected a request: it decodes each field again and checks it piece by
piece. Of a field over `DECODED_MAX` only the beginning is decoded, and the typed decoder's own error has the path: a
rejected request must not hold the event loop for longer than a good one. A message shows at most some 60 characters of
the client's data; codes are OpenAI's where OpenAI has one. Units: bytes.
"""

import json
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from difflib import get_close_matches
from typing import Final

import msgspec

from ttft_gateway.apis.base import Api
from ttft_gateway.requests.errors import InvalidRequest, cut, too_deep

MESSAGES_MAX: Final = 100_000
TOOLS_MAX: Final = 10_000  # OpenAI accepts 128
PROMPTS_MAX: Final = 2_048  # prompts of one completions call; each gets its own answer

_STRING_MAX: Final = 60  # characters that are escaped for a message, before it is cut
_DIGITS_MAX: Final = 99  # longer numbers are cut: they are over every limit anyway
DECODED_MAX: Final = 64 * 1024  # bytes of a field that are decoded for a message
_MESSAGE: Final = '{"role": "user", "content": "..."}'


def wrong_field(api: Api, raws: Mapping[str, msgspec.Raw], maxima: Mapping[str, int], reason: str) -> InvalidRequest:
    """Build the error for the first invalid field of a body.

    Args:
        raws: the values of the top level.
        maxima: largest allowed value of each whole number.
        reason: the typed decoder's error, for the message if no invalid field is found here.
    """
    try:
        return next(_wrong_fields(api, raws, maxima), None) or _decoder_error(reason)
    except RecursionError:
        return too_deep()


def check_length(name: str, items: Sequence[object] | None, maximum: int) -> None:
    """Check the number of items of an array that has been decoded.

    Raises:
        InvalidRequest: there are more than `maximum`.
    """
    if items is not None and len(items) > maximum:
        raise too_long(name, maximum, len(items))


def too_long(name: str, maximum: int, count: int | None = None) -> InvalidRequest:
    """Build the error for an array with too many items.

    Args:
        name: key of the array.
        maximum: allowed number of items.
        count: number of items, None if the count ended at the maximum.
    """
    items = f"over {maximum}" if count is None else count
    return InvalidRequest(
        f"`{name}` has {items} items; send at most {maximum}", param=name, code="array_above_max_length"
    )


def check_size(name: str, raws: Mapping[str, msgspec.Raw]) -> None:
    """Check the size of a field that is decoded again for each upstream request.

    Raises:
        InvalidRequest: it is over `DECODED_MAX`.
    """
    size = len(raws.get(name, b""))
    if size > DECODED_MAX:
        raise InvalidRequest(f"`{name}` is {size} bytes; send at most {DECODED_MAX}", param=name, code="invalid_value")


def _decoder_error(reason: str) -> InvalidRequest:
    if found := _WRONG_TYPE.match(reason):
        expected = " or ".join(_WORD.get(word, word) for word in found[1].split(" | "))
        return _found("invalid_type", found[3], f"is {_WORD.get(found[2], found[2])}; write {expected}")
    if found := _NO_FIELD.match(reason):
        return _found("missing_required_parameter", f"{found[2]}.{found[1]}", "is missing; write it")
    return InvalidRequest(f"the body is invalid: {reason}")


def _found(code: str, path: str, rest: str) -> InvalidRequest:
    return InvalidRequest(f"`{path}` {rest}", param=path, code=code)


def wrong_model(raws: Mapping[str, msgspec.Raw]) -> InvalidRequest:
    """Build the error for a body with a missing or invalid `model`."""
    return next(_model(raws), InvalidRequest("`model` is invalid; write a model name", param="model"))


def _model(raws: Mapping[str, msgspec.Raw]) -> Iterator[InvalidRequest]:
    model = _value(raws, "model")
    if model is None:
        yield _missing("model", raws, "a model name from GET /v1/models")
    elif not isinstance(model, str):
        yield _wrong_type("model", model, "a model name as a string")
    elif not model:
        yield InvalidRequest("`model` is empty; write a model name", param="model", code="empty_string")


def _wrong_fields(api: Api, raws: Mapping[str, msgspec.Raw], maxima: Mapping[str, int]) -> Iterator[InvalidRequest]:
    yield from _model(raws)
    yield from _PROMPTS[api](raws)
    if api is not Api.EMBEDDINGS:
        yield from _stream(raws)
    for name, maximum in maxima.items():
        yield from _whole_number(name, _value(raws, name), maximum)
    tools = _value(raws, "tools")
    if tools is not None and not isinstance(tools, list):
        yield _wrong_type("tools", tools, "an array of objects")
    for index, tool in enumerate(tools if isinstance(tools, list) else ()):
        if not isinstance(tool, dict):
            yield _wrong_type(f"tools[{index}]", tool, 'an object like {"type": "function", "function": {...}}')
        elif not isinstance(tool.get("type"), str | None):
            yield _wrong_type(f"tools[{index}].type", tool["type"], 'a string like "function"')


def _messages(raws: Mapping[str, msgspec.Raw]) -> Iterator[InvalidRequest]:
    messages = _value(raws, "messages")
    if messages is None:
        if "prompt" in raws:
            yield _other_api_field(
                "messages", "prompt", f"send the request to /v1/completions, or write an array like [{_MESSAGE}]"
            )
        if "input" in raws:
            yield _other_api_field(
                "messages", "input", f"send the request to /v1/responses, or write an array like [{_MESSAGE}]"
            )
        yield _missing("messages", raws, f"an array like [{_MESSAGE}]")
    elif isinstance(messages, dict):
        yield _wrong_type("messages", messages, "an array: put [ ] around the object")
    elif not isinstance(messages, list):
        yield _wrong_type("messages", messages, f"an array like [{_MESSAGE}]")
    else:
        yield from _length("messages", messages, MESSAGES_MAX, "at least one message")
        for index, message in enumerate(messages):
            yield from _message(f"messages[{index}]", message)


def _message(path: str, message: object) -> Iterator[InvalidRequest]:
    if not isinstance(message, dict):
        yield _wrong_type(path, message, f"an object like {_MESSAGE}")
        return
    role, content = message.get("role"), message.get("content")
    if role is None:
        yield InvalidRequest(
            f'`{path}.role` is missing; write "system", "user", "assistant" or "tool"',
            param=f"{path}.role",
            code="missing_required_parameter",
        )
    elif not isinstance(role, str):
        yield _wrong_type(f"{path}.role", role, 'a string: "system", "user", "assistant" or "tool"')
    if isinstance(content, dict):
        yield _wrong_type(f"{path}.content", content, "a string, or an array of parts: put [ ] around the object")
    elif not isinstance(content, str | list | None):
        yield _wrong_type(f"{path}.content", content, "a string or an array of parts")


def _prompts(raws: Mapping[str, msgspec.Raw]) -> Iterator[InvalidRequest]:
    prompt = _value(raws, "prompt")
    if prompt is None:
        if "messages" in raws:
            yield _other_api_field("prompt", "messages", "send the request to /v1/chat/completions, or write a string")
        yield _missing("prompt", raws, "a string, an array of strings, or token numbers")
    elif not isinstance(prompt, str | list):
        yield _wrong_type("prompt", prompt, "a string, an array of strings, or token numbers")
    elif isinstance(prompt, list):
        yield from _uniform_items("prompt", prompt)


def _input(raws: Mapping[str, msgspec.Raw]) -> Iterator[InvalidRequest]:
    items = _value(raws, "input")
    if items is None and "prompt" not in raws:
        if "messages" in raws:
            yield _other_api_field(
                "input", "messages", "send the request to /v1/chat/completions, or rename `messages` to `input`"
            )
        yield _missing("input", raws, f"a string, or an array like [{_MESSAGE}]")
    elif not isinstance(items, str | list | None):
        yield _wrong_type("input", items, f"a string, or an array like [{_MESSAGE}]")
    elif isinstance(items, list):
        yield from _length("input", items, MESSAGES_MAX, "at least one item")
        for index, item in enumerate(items):
            if not isinstance(item, dict):
                yield _wrong_type(f"input[{index}]", item, f"an object like {_MESSAGE}")
            elif not isinstance(item.get("type"), str | None):
                yield _wrong_type(f"input[{index}].type", item["type"], 'a string like "message"')
    yield from _storage_fields(raws)


def _storage_fields(raws: Mapping[str, msgspec.Raw]) -> Iterator[InvalidRequest]:
    for name, expected in (("instructions", "a string"), ("previous_response_id", "the id of an answer as a string")):
        value = _value(raws, name)
        if not isinstance(value, str | None):
            yield _wrong_type(name, value, expected)
    prompt = _value(raws, "prompt")
    if not isinstance(prompt, dict | None):
        yield _wrong_type("prompt", prompt, 'an object like {"id": "pmpt_..."}')
    for name in ("store", "background"):
        value = _value(raws, name)
        if not isinstance(value, bool | None):
            yield _wrong_literal(name, value, "true or false")
    if _value(raws, "background") is True:
        yield InvalidRequest(
            "`background` is true, but an answer ends with its connection; remove it, and stream long answers",
            param="background",
            code="invalid_value",
        )


def _embeddings_input(raws: Mapping[str, msgspec.Raw]) -> Iterator[InvalidRequest]:
    value = _value(raws, "input")
    expected = "a string, an array of strings, or token numbers"
    if value is None:
        yield _missing("input", raws, expected)
    elif value == "":
        yield InvalidRequest("`input` is empty; write the text to embed", param="input", code="empty_string")
    elif not isinstance(value, str | list):
        yield _wrong_type("input", value, expected)
    else:
        yield from _uniform_items("input", value) if isinstance(value, list) else ()
    if _value(raws, "stream") is True:
        yield InvalidRequest(
            "`stream` is true, but embeddings are never streamed; remove it", param="stream", code="invalid_value"
        )


def _uniform_items(name: str, items: list[object]) -> Iterator[InvalidRequest]:
    """Check that all items are texts, or token numbers, or arrays of token numbers."""
    tokens = all(map(_is_whole, items))
    yield from _length(name, items, len(items) if tokens else PROMPTS_MAX, f"at least one {_ITEM[name]}")
    for index, item in enumerate(items):
        if _item_kind(item) is not _item_kind(items[0]) or _item_kind(item) not in (str, int, list):
            yield _wrong_type(
                f"{name}[{index}]", item, "items of one type: strings, token numbers, or arrays of token numbers"
            )
        if isinstance(item, list) and not all(map(_is_whole, item)):
            yield _wrong_type(f"{name}[{index}]", item, "an array of whole token numbers")


def _stream(raws: Mapping[str, msgspec.Raw]) -> Iterator[InvalidRequest]:
    stream, options = _value(raws, "stream"), _value(raws, "stream_options")
    if not isinstance(stream, bool | None):
        yield _wrong_literal("stream", stream, "true or false")
    if isinstance(options, dict):
        include_usage = options.get("include_usage")
        if not isinstance(include_usage, bool | None):
            yield _wrong_literal("stream_options.include_usage", include_usage, "true or false")
        if stream is not True:
            yield InvalidRequest(
                '`stream_options` is set but `stream` is not true; write "stream": true, or remove it',
                param="stream_options",
                code="invalid_value",
            )
    elif options is not None:
        yield _wrong_type("stream_options", options, 'an object like {"include_usage": true}')


def _whole_number(name: str, value: object, maximum: int) -> Iterator[InvalidRequest]:
    if value is None:
        return
    expected = f"a whole number from 1 to {maximum}"
    if not isinstance(value, int | float) or not _is_whole(value):
        yield _wrong_literal(name, value, expected)
    elif not 1 <= value <= maximum:
        side = "below_min" if value < 1 else "above_max"
        yield InvalidRequest(
            f"`{name}` is {_shown(value)}; write {expected}, or remove it", param=name, code=f"integer_{side}_value"
        )


def _is_whole(value: object) -> bool:
    return type(value) is int or (isinstance(value, float) and value.is_integer())


def _item_kind(item: object) -> type:
    return int if _is_whole(item) else type(item)


def _length(name: str, items: list[object], maximum: int, minimum: str) -> Iterator[InvalidRequest]:
    if isinstance(items, _LargeArray):
        return
    if not items:
        yield InvalidRequest(f"`{name}` is an empty array; write {minimum}", param=name, code="empty_array")
    elif len(items) > maximum:
        yield too_long(name, maximum, len(items))


def _missing(name: str, raws: Mapping[str, msgspec.Raw], expected: str) -> InvalidRequest:
    near = get_close_matches(name, [key for key in raws if key != name and len(key) < 2 * len(name)], 1, 0.75)
    hint = f" (is `{near[0]}` a misspelling of it?)" if near else ""
    return InvalidRequest(f"`{name}` is missing{hint}; write {expected}", param=name, code="missing_required_parameter")


def _other_api_field(name: str, other: str, advice: str) -> InvalidRequest:
    return InvalidRequest(
        f"`{name}` is missing but `{other}` is present; {advice}", param=name, code="missing_required_parameter"
    )


def _wrong_type(name: str, value: object, expected: str) -> InvalidRequest:
    return InvalidRequest(f"`{name}` is {_shown(value)}; write {expected}", param=name, code="invalid_type")


def _wrong_literal(name: str, value: object, expected: str) -> InvalidRequest:
    """Build the error for a value that should be a number or a literal, which people often quote."""
    return _wrong_type(name, value, f"{expected}, without quotes" if isinstance(value, str) else expected)


def _value(raws: Mapping[str, msgspec.Raw], name: str) -> object:
    """Decode a field with the standard library, which accepts any number; None if it is absent or null."""
    raw = raws.get(name)
    if raw is None:
        return None
    if len(raw) > DECODED_MAX:
        return _beginning(bytes(memoryview(raw)[:_SHOWN_BYTES]))
    return json.loads(bytes(raw), parse_int=lambda digits: int(digits[:_DIGITS_MAX]))


def _beginning(raw: bytes) -> object:
    """Return a value of the type of a large value, from its first bytes; an array or an object has no items."""
    if raw.startswith(b"{"):
        return {}
    if raw.startswith(b"["):
        return _LargeArray()
    if raw.startswith(b'"'):
        whole = _WHOLE_CHARACTERS.match(raw)
        return json.loads(f'"{whole[1].decode(errors="ignore")}"') if whole else ""
    digits = _DIGITS.match(raw)
    return int(digits[0]) if digits else 0


class _LargeArray(list[object]):
    """An array that is too large to be decoded for a message; the typed decoder's error names its invalid item."""


def _shown(value: object) -> str:
    if isinstance(value, list):
        return "an array"
    if isinstance(value, dict):
        return "an object"
    if isinstance(value, str):
        return f"the string {cut(json.dumps(value[:_STRING_MAX], ensure_ascii=False))}"
    return cut(json.dumps(value))


_SHOWN_BYTES: Final = 12 * _STRING_MAX  # a character is at most two escapes of six bytes
_WHOLE_CHARACTERS: Final = re.compile(rb'"((?:[^"\\]|\\u[dD][89abAB]..\\u....|\\u(?![dD][89a-fA-F])....|\\[^u])*)')
_DIGITS: Final = re.compile(rb"-?\d{1,%d}" % _DIGITS_MAX)
_WRONG_TYPE: Final = re.compile(r"Expected `([^`]+)`, got `([^`]+)` - at `\$\.?([^`]+)`\Z")
_NO_FIELD: Final = re.compile(r"Object missing required field `([^`]+)` - at `\$\.?([^`]+)`\Z")
_WORD: Final = {
    "str": "a string",
    "int": "a whole number",
    "float": "a number",
    "bool": "true or false",
    "array": "an array",
    "object": "an object",
}
_ITEM: Final = {"prompt": "prompt", "input": "text"}
_PROMPTS: Final[Mapping[Api, Callable[[Mapping[str, msgspec.Raw]], Iterator[InvalidRequest]]]] = {
    Api.CHAT: _messages,
    Api.COMPLETIONS: _prompts,
    Api.RESPONSES: _input,
    Api.MESSAGES: _messages,
    Api.EMBEDDINGS: _embeddings_input,
}
