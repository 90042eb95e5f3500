"""The base of every mapping in the configuration file. No setting is named here. No units."""

from pydantic import BaseModel, ConfigDict


def _key_without_unit(field: str) -> str:
    return field.removesuffix("_s").removesuffix("_bytes")


class Section(BaseModel):
    """A mapping in the file: frozen; unknown keys are errors."""

    model_config = ConfigDict(
        defer_build=True,  # each is built once, as a part of the whole
        frozen=True,
        extra="forbid",
        alias_generator=_key_without_unit,
        hide_input_in_errors=True,  # inputs can be secrets
    )
