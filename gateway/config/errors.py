"""Errors in a configuration: the value found, its position, and the correction.

Owns `ConfigError` and the wording of pydantic's errors (missing, unknown, wrong type, out of range). Values are quoted
only where they cannot be secret and did not come from the environment.
"""

import re
from difflib import get_close_matches

import msgspec
from pydantic_core import ErrorDetails

from gateway.config.document import Loc
from gateway.config.section import Section
from gateway.config.settings import sections

_QUOTED_MAX = 80  # characters of a value that a message quotes
SECRET_SETTINGS = frozenset({"key", "previous_key", "admin_key", "api_key", "password", "proxy", "headers"})
_MAY_HOLD_SECRET = re.compile("[@?#]")  # the user, query or fragment of a URL

_WORDS = {  # pydantic's type of error -> problem, correction
    "string_type": ("text is expected", "it in quotes"),
    "int_type": ("a whole number is expected", ""),
    "int_parsing": ("a whole number is expected", ""),
    "int_parsing_size": ("this number is too large", ""),
    "int_from_float": ("a whole number is expected", ""),
    "float_type": ("a number is expected", ""),
    "float_parsing": ("a number is expected", ""),
    "finite_number": ("a number is expected", ""),
    "greater_than": ("it must be more than {gt:g}", ""),
    "greater_than_equal": ("it must be at least {ge:g}", ""),
    "less_than": ("it must be less than {lt:g}", ""),
    "less_than_equal": ("it must be at most {le:g}", ""),
    "string_too_short": ("it must not be empty", ""),
    "string_too_long": ("it may have at most {max_length} characters", ""),
    "too_short": ("at least one is needed", ""),
    "tuple_type": ("a list is expected", ""),
    "model_type": ("a mapping (`name: value`) is expected", ""),
    "mapping_type": ("a mapping (`name: value`) is expected", ""),
    "dict_type": ("a mapping (`name: value`) is expected", ""),
}


class ConfigProblem(msgspec.Struct, frozen=True):
    """One problem of a configuration.

    Attributes:
        source: name of the file, of the command-line option or of the environment variable.
        line, column: position in the file, from 1; None when the problem is not in a file.
        path: setting, as `models[0].replicas[1].base_url`; "" for the file as a whole.
        message: problem and correction.
    """

    source: str
    line: int | None
    column: int | None
    path: str
    message: str

    def __str__(self) -> str:
        where = self.source if self.line is None else f"{self.source}:{self.line}:{self.column}"
        return ": ".join(part for part in (where, self.path, self.message) if part)


class ConfigError(Exception):
    """A configuration is invalid; the text has a line for each problem."""

    def __init__(self, problems: tuple[ConfigProblem, ...]) -> None:
        super().__init__("\n".join(str(problem) for problem in problems))
        self.problems = problems


def finding(error: ErrorDetails, reference: str | None) -> tuple[Loc, str]:
    """Return an error of pydantic as a path and a sentence.

    Args:
        error: one of `ValidationError.errors()`.
        reference: original text of the value if it contains a variable, else None.
    """
    loc: Loc = tuple(part for part in error["loc"] if part != "[key]")
    kind = error["type"]
    if kind == "extra_forbidden":
        return loc, _unknown(loc)
    example = _example(loc)
    if kind == "missing":
        return loc, f"this setting is missing; write `{loc[-1]}: {example}`"
    context = error.get("ctx", {})
    if kind == "setting":
        what, write = context["what"], "" if reference else context["write"]
    elif kind == "literal_error":
        what, write = "it is not one of the choices", context["expected"].replace("'", "")
    else:
        what, write = _WORDS.get(kind, (error["msg"], ""))
        what = what.format(**context)
    if kind in ("tuple_type", "model_type", "mapping_type", "dict_type", "too_short"):
        is_item = isinstance(loc[-1] if loc else None, int)
        example = _example(loc[:-1] if is_item else loc)
        write = f"`{loc[-2 if is_item else -1]}: {example}`" if example else write
    text = f"found {_found(loc, error['input'], reference)}, but {what}"
    return loc, f"{text}; write {write}" if write else text


def _found(loc: Loc, value: object, reference: str | None) -> str:
    if isinstance(value, dict):
        return "a mapping" if value else "an empty mapping"
    if isinstance(value, list):
        return "a list" if value else "an empty list"
    kind = "true or false" if isinstance(value, bool) else "a number" if isinstance(value, int | float) else "text"
    if SECRET_SETTINGS.intersection(loc) or _section(loc) is not None or not isinstance(loc[-1], str):
        return f"{kind} (not shown)"
    if reference:
        return f"the value of {reference}"
    if isinstance(value, str) and _MAY_HOLD_SECRET.search(value):
        return "text (not shown)"
    if isinstance(value, str):
        return f'"{value[:_QUOTED_MAX]}..."' if len(value) > _QUOTED_MAX else f'"{value}"'
    return str(value).lower() if isinstance(value, bool) else f"the number {value}"


def _names(loc: Loc) -> tuple[str, ...]:
    return tuple(part for part in loc if isinstance(part, str))


def _section(loc: Loc) -> type[Section] | None:
    return sections().get(_names(loc))


def _example(loc: Loc) -> str:
    parent = sections().get(_names(loc)[:-1])
    fields = parent.model_fields.values() if parent else ()
    examples = next((field.examples for field in fields if loc and field.alias == loc[-1]), None)
    return str(examples[0]) if examples else ""


def _unknown(loc: Loc) -> str:
    name = str(loc[-1])
    known = _keys(_section(loc[:-1]))
    near = get_close_matches(name.lower().replace("-", "_"), known, n=1, cutoff=0.5)
    elsewhere = [parent for parent, section in sections().items() if name in _keys(section)]
    if elsewhere:
        path = _names(loc)
        nearest = max(elsewhere, key=lambda parent: (path[: len(parent)] == parent and len(parent), -len(parent)))
        move = f"move it to {_section_name(nearest)}"
        return f"this setting does not exist here; {f'did you mean `{near[0]}`? Otherwise {move}' if near else move}"
    if near:
        return f"this setting does not exist; did you mean `{near[0]}`?"
    return f"this setting does not exist; write one of {', '.join(known)}"


def _keys(section: type[Section] | None) -> list[str]:
    return [str(field.alias) for field in section.model_fields.values()] if section else []


def _section_name(names: tuple[str, ...]) -> str:
    lists = {"keys", "models", "replicas", "fallbacks", "quotas"}
    return ".".join(f"{name}[]" if name in lists else name for name in names) or "the top level of the file"
