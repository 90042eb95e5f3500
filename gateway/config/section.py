"""The base of every mapping in the configuration file. No units."""

from typing import TypeVar

from pydantic import BaseModel, ConfigDict

SectionT = TypeVar("SectionT", bound="Section")


class Section(BaseModel):
    """A mapping in the file: frozen; unknown keys are errors."""

    model_config = ConfigDict(
        defer_build=True,  # each is built once, as a part of the whole
        frozen=True,
        extra="forbid",
        alias_generator=lambda field: field.removesuffix("_s").removesuffix("_bytes"),  # no unit in the file
        hide_input_in_errors=True,  # inputs can be secrets
    )


def overlaid(base: SectionT, own: Section) -> SectionT:
    """Return settings with the values that another section sets, section by section, in place of the base's."""
    update: dict[str, object] = {}
    for name in own.model_fields_set:
        value, below = getattr(own, name), getattr(base, name)
        update[name] = overlaid(below, value) if isinstance(value, Section) else value
    return base.model_copy(update=update)
