"""docs/log.schema.json: what the gateway writes, and what a log shipper may rely on."""

import importlib
import json
from typing import Any

import pytest

from log_lines import log_lines
from log_schema import log_schema
from sample_events import EVENTS

jsonschema: Any = importlib.import_module("jsonschema")  # it has no types

VALIDATOR = jsonschema.Draft202012Validator(log_schema())


def test_the_schema_is_one() -> None:
    """The schema is valid under the draft that it names."""
    jsonschema.Draft202012Validator.check_schema(log_schema())


def test_every_line_is_valid() -> None:
    """Each line of each event fits the schema."""
    lines = log_lines(*EVENTS)
    assert len(lines) > len(EVENTS) / 2
    assert [error.message for line in lines for error in VALIDATOR.iter_errors(json.loads(line))] == []


@pytest.mark.parametrize(
    "change", [{"status": "200"}, {"attempts": [{}]}, {"result": "won"}, {"time": 1}, {"level": "fatal"}]
)
def test_another_line_is_not(change: dict[str, object]) -> None:
    """A request's line with a field of another type is no valid line."""
    line = json.loads(log_lines(EVENTS[0])[0])
    assert VALIDATOR.is_valid(line)
    assert not VALIDATOR.is_valid({**line, **change})
