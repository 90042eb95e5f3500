"""Types of the tables and values in a scenario file, and their error messages.

Owns the conversion of TOML values to typed sections, and the wording of errors: file, table, key, value found and what
to write instead. It must not depend on what a section means. Units: seconds; shares as fractions of 1.
"""

import random
import re
import tomllib
from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import Annotated, Any, Final, Literal, Self, TypeVar, get_args, get_origin

import msgspec

from gateway.simulated.quantities import distribution, duration, share

_S = TypeVar("_S", bound="Section")

Count = Annotated[int, msgspec.Meta(ge=1)]
Positive = Annotated[float, msgspec.Meta(gt=0)]

_WANTED: Final = {
    "int": "a whole number, at least 1",
    "float": "a number above 0",
    "str": "a text in quotes",
    "object": "a table",
}


class ScenarioError(ValueError):
    """A scenario cannot be read; the message names the place, the value found and the value to write."""


def _key(name: str) -> str:
    """Return the key in the file: without the unit, which the value carries."""
    return f"{name.removesuffix('_per_s')}_per_second" if name.endswith("_per_s") else name.removesuffix("_s")


class Section(msgspec.Struct, frozen=True, forbid_unknown_fields=True, rename=_key):
    """Base of every table of a scenario file."""


class Quantity(ABC):
    """Base of every value that is not a plain TOML number or text."""

    @classmethod
    @abstractmethod
    def parse(cls, value: object) -> Self:
        """Return the quantity, or raise ValueError with the value found and what to write."""


class Duration(Quantity, float):
    """Seconds, written with a unit: "250ms"."""

    @classmethod
    def parse(cls, value: object) -> Self:
        return cls(duration(value))


class Share(Quantity, float):
    """Fraction from 0 to 1, written as "4%" or 0.04."""

    @classmethod
    def parse(cls, value: object) -> Self:
        return cls(share(value))


class RandomDuration(Quantity):
    """Distribution of durations, written as in `gateway.simulated.quantities`: "lognormal:5ms,2ms"."""

    def __init__(self, value: object) -> None:
        self._distribution = distribution(value)

    @classmethod
    def parse(cls, value: object) -> Self:
        return cls(value)

    def draw(self, rng: random.Random, request: int) -> float:
        """Draw seconds for the request with this number."""
        return self._distribution.draw(rng, request)


def parse(raw: bytes, file: str) -> dict[str, Any]:
    """Return the values of a scenario file.

    Raises:
        ScenarioError: The content is not TOML.
    """
    try:
        return tomllib.loads(raw.decode())
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise ScenarioError(f"{file}: not a TOML file: {error}") from error


def decode(values: dict[str, Any], file: str, kind: type[_S]) -> _S:
    """Convert the values of a scenario file to a section of the type `kind`.

    Args:
        values: values of the file.
        file: its name, for messages.
        kind: type of the outermost section.

    Raises:
        ScenarioError: A key is missing, unknown or has a wrong value.
    """
    try:
        return msgspec.convert(values, kind, dec_hook=_parse)
    except msgspec.ValidationError as error:
        raise ScenarioError(f"{file}{_explain(str(error), values, kind)}") from error


def _parse(kind: type, value: object) -> object:
    assert issubclass(kind, Quantity)
    return kind.parse(value)


def _explain(message: str, values: object, kind: type[Section]) -> str:
    """Reword an error of msgspec: `Expected `int`, got `str` - at `$.drawn.rare.replicas``."""
    text, _, path = message.partition(" - at `$")
    keys = re.findall(r"\w+", path)
    expected = _type_at(kind, keys)
    quoted = re.findall(r"`(\w+)", text)
    if text.startswith("Object missing"):
        return f"{_table(keys)}: {quoted[0]} is missing; add it"
    if text.startswith("Object contains unknown"):
        assert isinstance(expected, type)
        known = ", ".join(field.encode_name for field in msgspec.structs.fields(expected))
        return f"{_table(keys)}: there is no key {quoted[0]!r}; known here: {known}"
    if text.startswith(("Expected", "Invalid")):
        for key in keys:
            assert isinstance(values, dict)
            values = values[key]
        is_choice = get_origin(expected) is Literal
        wanted = " or ".join(map(repr, get_args(expected))) if is_choice else _WANTED[quoted[0]]
        text = f"{values!r} is not valid; write {wanted}"
    elif isinstance(expected, type) and issubclass(expected, Section):
        return f"{_table(keys)}: {text}"  # raised by the section, about its keys as a whole
    return f"{_table(keys[:-1])}: {keys[-1]}: {text}"


def _table(keys: Sequence[str]) -> str:
    return f" [{'.'.join(keys)}]" if keys else ""


def _type_at(kind: type[Section], keys: Sequence[str]) -> object:
    """Return the declared type at a path of keys; of an optional section, the section."""
    found: object = kind
    for key in keys:
        assert isinstance(found, type)
        declared = next(field.type for field in msgspec.structs.fields(found) if field.encode_name == key)
        sections = [part for part in get_args(declared) if isinstance(part, type) and issubclass(part, Section)]
        found = sections[0] if sections else declared
    return found
