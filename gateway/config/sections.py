"""The mappings of the configuration file by path, for messages, the JSON schema and tests. No units."""

from functools import cache
from typing import get_args

from gateway.config.section import Section
from gateway.config.settings import Settings


@cache
def sections() -> dict[tuple[str, ...], type[Section]]:
    """Return every mapping in the file by its path without indices; `()` is the file itself."""
    found: dict[tuple[str, ...], type[Section]] = {}

    def visit(path: tuple[str, ...], section: type[Section]) -> None:
        found[path] = section
        for name, field in section.model_fields.items():
            for kind in (field.annotation, *get_args(field.annotation)):
                if isinstance(kind, type) and issubclass(kind, Section):
                    visit((*path, field.alias or name), kind)

    visit((), Settings)
    return found
