"""Writes data as YAML with comments, in the subset that gateway/config/document.py reads. No units."""

import json
import re
from collections.abc import Iterator, Mapping

COMMENT = "#"
"""Key of a mapping whose value is a list of comment lines in front of the mapping."""

_PLAIN = re.compile(
    r"(?!(?:true|false|null|True|False|TRUE|FALSE|Null|NULL)$)[A-Za-z_$/][A-Za-z0-9_./$}{+-]*(?::[A-Za-z0-9_./$}{+-]+)*"
)

_DURATION = re.compile(r"[0-9]+(\.[0-9]+)?s")


def yaml_lines(value: Mapping[str, object], indent: str = "") -> Iterator[str]:
    """Yield the lines of a mapping."""
    yield from _comments(value, indent)
    for key, item in value.items():
        if key != COMMENT:
            yield from _entry(f"{indent}{_scalar(key)}:", item, indent)


def _entry(start: str, item: object, indent: str) -> Iterator[str]:
    if isinstance(item, dict):
        yield start
        yield from yaml_lines(item, f"{indent}  ")
    elif isinstance(item, list) and any(isinstance(each, dict) for each in item):
        yield start
        for each in item:
            yield from _comments(each, f"{indent}  ")
            lines = yaml_lines({key: part for key, part in each.items() if key != COMMENT}, f"{indent}    ")
            yield f"{indent}  - {next(lines).strip()}"
            yield from lines
    elif isinstance(item, list):
        yield f"{start} [{', '.join(_scalar(each) for each in item)}]"
    else:
        yield f"{start} {_scalar(item)}"


def _comments(value: Mapping[str, object], indent: str) -> Iterator[str]:
    comments = value.get(COMMENT)
    for line in comments if isinstance(comments, list) else ():
        yield f"{indent}# {line}".rstrip()


def _scalar(value: object) -> str:
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, int | float):
        return f"{value}"
    text = str(value)
    return text if _PLAIN.fullmatch(text) or _DURATION.fullmatch(text) else json.dumps(text, ensure_ascii=False)
