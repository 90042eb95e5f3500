"""What a client gave, field by field: each is taken once, and whatever nobody took is lost by name.

So a translation cannot forget a field: it says it in other words, leaves it out for a reason, or it counts as lost.
What makes no sense without a field that cannot be said is refused at once. Paths are written as OpenAI writes them in
`param`: `messages[2].content[0].type`. No units.
"""

from collections.abc import Mapping
from typing import TypeVar

from providers.errors import Unsupported

_T = TypeVar("_T")
_SHOWN = 40  # characters of a value that a message shows
_ADVICE = "leave it out, or let the gateway drop it (drop_params: true)"


class FieldReader:
    """The fields of one object of a request; null counts as absent.

    Args:
        value: the object; anything else is refused.
        path: where it stands, empty at the top.
        target: the API that has no words for what is lost, as a message names it.
        lost: path -> why, of what cannot be said; added to.
    """

    def __init__(self, value: object, path: str, *, target: str, unsupported: dict[str, str]) -> None:
        if not isinstance(value, dict):
            raise invalid_type(path or "the body", "an object", value)
        self._unread: dict[str, object] = {key: each for key, each in value.items() if each is not None}
        self._path = path
        self._target = target
        self._unsupported = unsupported

    def nested(self, value: object, path: str) -> "FieldReader":
        """An object inside this one; the path is relative to this one's."""
        return FieldReader(value, self.path_of(path), target=self._target, unsupported=self._unsupported)

    def path_of(self, key: str) -> str:
        """The path of one of its fields."""
        return f"{self._path}.{key}" if self._path else key

    def take(self, key: str) -> object:
        """The field's value, None when absent."""
        return self._unread.pop(key, None)

    def take_as(self, key: str, kind: type[_T]) -> _T | None:
        """The same for a field of one type."""
        value = self.take(key)
        if value is None:
            return None
        if not isinstance(value, kind) or (isinstance(value, bool) and kind is not bool):
            raise invalid_type(self.path_of(key), _KINDS[kind], value)
        return value

    def require(self, key: str, kind: type[_T]) -> _T:
        """The same for a field that must be there."""
        value = self.take_as(key, kind)
        if value is None:
            raise Unsupported(
                f"{self.path_of(key)} is missing", param=self.path_of(key), code="missing_required_parameter"
            )
        return value

    def take_number(self, key: str) -> float | int | None:
        """The same for a number."""
        value = self.take(key)
        if value is not None and (isinstance(value, bool) or not isinstance(value, (int, float))):
            raise invalid_type(self.path_of(key), "a number", value)
        return value

    def ignore(self, *keys: str) -> None:
        """Leave out what has no effect on the answer."""
        for key in keys:
            self._unread.pop(key, None)

    def accept_only(self, key: str, *values: object) -> None:
        """Leave out a field that asks for what happens anyway; any other value is lost."""
        value = self.take(key)
        if value is not None and not any(value == each and type(value) is type(each) for each in values):
            self.mark_unsupported(key, f"with the value {preview(value)}")

    def mark_unsupported(self, key: str, why: str = "") -> None:
        """Note that a field cannot be said."""
        path = self.path_of(key)
        detail = f" {why}" if why else ""
        self._unsupported[path] = f"{path}: {self._target} cannot honour it{detail}; {_ADVICE}"

    def close(self) -> None:
        """Whatever nobody took is lost."""
        for key in self._unread:
            self.mark_unsupported(key)
        self._unread.clear()


def unsupported_field(path: str, why: str) -> Unsupported:
    """A refusal that names the field and what to do."""
    return Unsupported(f"{path}: {why}", param=path)


def invalid_type(path: str, expected: str, value: object) -> Unsupported:
    """A refusal of a value of the wrong type."""
    return Unsupported(f"{path} must be {expected}, not {preview(value)}", param=path, code="invalid_type")


def as_list(value: object, path: str) -> list[object]:
    """The value, if it is a list."""
    if not isinstance(value, list):
        raise invalid_type(path, "a list", value)
    return value


def preview(value: object) -> str:
    """The beginning of a value as a message may show it."""
    if isinstance(value, (dict, list)):
        return "an object" if isinstance(value, dict) else "a list"
    text = repr(value)
    return text if len(text) <= _SHOWN else text[:_SHOWN] + "..."


def compact(blocks: list[dict[str, object]]) -> object:
    """Content blocks or parts in their short form: a single text without anything else beside it is a string."""
    if len(blocks) == 1 and blocks[0].keys() == {"type", "text"} and blocks[0]["type"] == "text":
        return blocks[0]["text"]
    return blocks


def as_mapping(value: object) -> Mapping[str, object]:
    """The value if it is an object, else an empty one: for what upstreams send."""
    return value if isinstance(value, dict) else {}


_KINDS: dict[type, str] = {
    str: "a string",
    bool: "true or false",
    int: "a whole number",
    list: "a list",
    dict: "an object",
}
