"""The base of every mapping in the configuration file. No units."""

from typing import Any, Self, TypeVar

from pydantic import BaseModel, ConfigDict

SectionT = TypeVar("SectionT", bound="Section")


def is_same(one: object, other: object) -> bool:
    """Return True if settings are equal, with the same ones set: a value that is set may hide another section's."""
    if isinstance(one, Section):
        return (
            isinstance(other, Section)
            and type(one) is type(other)
            and one.model_fields_set == other.model_fields_set
            and all(is_same(value, other.__dict__[name]) for name, value in one.__dict__.items())
        )
    if isinstance(one, tuple) and isinstance(other, tuple):
        return len(one) == len(other) and all(map(is_same, one, other))
    return one == other


class Section(BaseModel):
    """A mapping in the file: frozen; unknown keys are errors."""

    model_config = ConfigDict(
        defer_build=True,  # each is built once, as a part of the whole
        frozen=True,
        extra="forbid",
        alias_generator=lambda field: field.removesuffix("_s").removesuffix("_bytes"),  # no unit in the file
        hide_input_in_errors=True,  # inputs can be secrets
    )

    def __deepcopy__(self, memo: dict[int, Any] | None = None) -> Self:
        """Return the section itself, which is frozen: many have the same default."""
        return self


def overlaid(base: SectionT, own: Section) -> SectionT:
    """Return settings with the values that another section sets, section by section, in place of the base's."""
    update: dict[str, object] = {}
    for name in own.model_fields_set:
        value, below = getattr(own, name), getattr(base, name)
        update[name] = overlaid(below, value) if isinstance(value, Section) else value
    return base.model_copy(update=update)
