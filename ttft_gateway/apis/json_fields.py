"""Reads the fields of a request object. Each field may be read once; unread fields are reported as unsupported.

So a translation cannot forget a field: it translates the field, ignores it for a reason, or the field counts as
unsupported. A request that makes no sense without an unsupported field is rejected immediately. Paths have the form of
OpenAI's `param`: `messages[2].content[0].type`.
"""

import math
from collections.abc import Mapping
from typing import TypeVar

from ttft_gateway.apis.errors import Unsupported

_T = TypeVar("_T")
_PREVIEW_MAX = 40  # characters of a value in a message
_ADVICE = "remove it, or set `drop_params: true` for the model in the gateway's configuration"


class FieldReader:
    """The fields of one object of a request; null counts as absent.

    Args:
        value: the object; any other type is rejected.
        path: its path in the request, empty for the body.
        target: name of the upstream's API in messages.
        unsupported: path -> message of each unsupported field; this object adds to it.
    """

    def __init__(self, value: object, path: str, *, target: str, unsupported: dict[str, str]) -> None:
        if not isinstance(value, dict):
            raise invalid_type(path or "the body", "an object", value)
        self._unread: dict[str, object] = {key: each for key, each in value.items() if each is not None}
        self._path = path
        self._target = target
        self._unsupported = unsupported

    def nested(self, value: object, path: str) -> "FieldReader":
        """Return a reader for an object inside this one; `path` is relative."""
        return FieldReader(value, self.path_of(path), target=self._target, unsupported=self._unsupported)

    def path_of(self, key: str) -> str:
        """Return the path of a field."""
        return f"{self._path}.{key}" if self._path else key

    def take(self, key: str) -> object:
        """Return a field's value, None if absent."""
        return self._unread.pop(key, None)

    def take_as(self, key: str, kind: type[_T]) -> _T | None:
        """Return the value of a field that must have this type, None if absent; 16.0 is a whole number."""
        value = self.take(key)
        if value is None:
            return None
        if kind is int and isinstance(value, float) and value.is_integer():
            value = int(value)
        if not isinstance(value, kind) or (isinstance(value, bool) and kind is not bool):
            raise invalid_type(self.path_of(key), _KINDS[kind], value)
        return value

    def require(self, key: str, kind: type[_T]) -> _T:
        """Return the value of a required field of this type."""
        value = self.take_as(key, kind)
        if value is None:
            raise Unsupported(
                f"{self.path_of(key)} is missing", param=self.path_of(key), code="missing_required_parameter"
            )
        return value

    def take_number(self, key: str) -> float | int | None:
        """Return the value of a field that must be a number, None if absent."""
        value = self.take(key)
        if value is not None and (isinstance(value, bool) or not isinstance(value, (int, float))):
            raise invalid_type(self.path_of(key), "a number", value)
        return value

    def take_mapped(self, key: str, counterparts: Mapping[str, str]) -> str | None:
        """Return the counterpart of a field's text, None if absent; a text that has none is unsupported."""
        text = self.take_as(key, str)
        if text is not None and text not in counterparts:
            self.mark_unsupported(key, f"value {text[:20]!r}")
        return None if text is None else counterparts.get(text)

    def ignore(self, *keys: str) -> None:
        """Drop fields that have no effect on the answer."""
        for key in keys:
            self._unread.pop(key, None)

    def accept_only(self, key: str, *values: object) -> None:
        """Drop a field that requests the default behaviour; any other value is unsupported."""
        value = self.take(key)
        if value is not None and not any(value == each and type(value) is type(each) for each in values):
            self.mark_unsupported(key, f"value {preview(value)}")

    def mark_unsupported(self, key: str, detail: str = "") -> None:
        """Report a field as unsupported."""
        path = self.path_of(key)
        note = f" ({detail})" if detail else ""
        self._unsupported[path] = f"{path}{note} is not supported by {self._target}; {_ADVICE}"

    def close(self) -> None:
        """Report all unread fields as unsupported."""
        for key in self._unread:
            self.mark_unsupported(key)
        self._unread.clear()


def unsupported_field(path: str, why: str) -> Unsupported:
    """Make the error for an unsupported field; `why` completes the sentence that starts with the path."""
    return Unsupported(f"{path} {why}", param=path)


def invalid_type(path: str, expected: str, value: object) -> Unsupported:
    """Make the error for a value of the wrong type."""
    return Unsupported(f"{path} must be {expected}, not {preview(value)}", param=path, code="invalid_type")


def infinite_path(value: object, path: str = "") -> str | None:
    """Return the path of a number that is too large for a float, in a value without too many values; None if none is.

    JSON has such numbers, such as 1e999, but no infinity, which a copy of the value would have in their place.
    """
    if isinstance(value, dict):
        within = ((f"{path}.{key}" if path else key, each) for key, each in value.items())
    elif isinstance(value, list):
        within = ((f"{path}[{index}]", each) for index, each in enumerate(value))
    else:
        return path if isinstance(value, float) and math.isinf(value) else None
    return next(filter(None, (infinite_path(each, at) for at, each in within)), None)


def require_list(value: object, path: str) -> list[object]:
    """Return the value if it is a list, else reject it."""
    if not isinstance(value, list):
        raise invalid_type(path, "a list", value)
    return value


def preview(value: object) -> str:
    """Return the beginning of a value for a message."""
    if isinstance(value, (dict, list)):
        return "an object" if isinstance(value, dict) else "a list"
    text = repr(value)
    return text if len(text) <= _PREVIEW_MAX else text[:_PREVIEW_MAX] + "..."


def compact(blocks: list[dict[str, object]]) -> object:
    """Return content blocks or parts in their short form: a single text without other fields is a string."""
    if len(blocks) == 1 and blocks[0].keys() == {"type", "text"} and blocks[0]["type"] == "text":
        return blocks[0]["text"]
    return blocks


def dict_or_empty(value: object) -> dict[str, object]:
    """Return the value if it is an object, else an empty one; for data that need not be valid."""
    return value if isinstance(value, dict) else {}


def list_or_empty(value: object) -> list[object]:
    """Return the value if it is a list, else an empty one; for data that need not be valid."""
    return value if isinstance(value, list) else []


_KINDS: dict[type, str] = {
    str: "a string",
    bool: "true or false",
    int: "a whole number",
    list: "a list",
    dict: "an object",
}
