"""The base of every mapping in the configuration file. No units."""

from pydantic import BaseModel, ConfigDict


class Section(BaseModel):
    """A mapping in the file: frozen; unknown keys are errors."""

    model_config = ConfigDict(
        defer_build=True,  # each is built once, as a part of the whole
        frozen=True,
        extra="forbid",
        alias_generator=lambda field: field.removesuffix("_s").removesuffix("_bytes"),  # no unit in the file
        hide_input_in_errors=True,  # inputs can be secrets
    )
