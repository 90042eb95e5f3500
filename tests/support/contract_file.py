"""openapi.yaml as tests read it: the document, its parts, and validators of its schemas.

Knows nothing of the gateway. No units.
"""

from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

import jsonschema_rs
import yaml

from checkout import ROOT

PATH = ROOT / "openapi.yaml"
CONTRACT: dict[str, Any] = yaml.load(PATH.read_text(encoding="utf-8"), yaml.CSafeLoader)

_OF_NO_OPERATION = {"UnknownRoute": 404, "MethodNotAllowed": 405, "UnsupportedUpgrade": 426}


def resolved(part: dict[str, Any]) -> dict[str, Any]:
    """The part itself, or what its reference leads to."""
    while "$ref" in part:
        found: Any = CONTRACT
        for name in part["$ref"].removeprefix("#/").split("/"):
            found = found[name]
        part = found
    return part


def operations() -> Iterator[tuple[str, str, dict[str, Any]]]:
    """Every operation: path, method in upper case, and the operation itself."""
    for path, item in CONTRACT["paths"].items():
        for method, operation in item.items():
            yield path, method.upper(), operation


class NamedError(NamedTuple):
    """An error that the contract names, with its example."""

    status: int
    code: str
    component: str
    response: dict[str, Any]
    example: dict[str, Any]


def errors() -> Iterator[NamedError]:
    """Every error that is named, once for each response that names it."""
    statuses = dict(_OF_NO_OPERATION)
    for _, _, operation in operations():
        for status, response in operation["responses"].items():
            if status.isdigit() and "$ref" in response:
                statuses[response["$ref"].rpartition("/")[2]] = int(status)
    for name, response in CONTRACT["components"]["responses"].items():
        for code, example in response["content"]["application/json"].get("examples", {}).items():
            yield NamedError(statuses[name], code, name, response, example["value"])


def check(schema: Mapping[str, Any], value: object) -> None:
    """Assert that a value is as a schema of the contract says."""
    validator = jsonschema_rs.Draft202012Validator({**schema, "components": CONTRACT["components"]})
    faults = [f"{error.message} at {list(error.instance_path)}" for error in validator.iter_errors(value)]
    assert faults == [], value
