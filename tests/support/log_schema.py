"""The JSON schema of a log line, for docs/log.schema.json, which scripts/generate writes."""

import json
from typing import Any

import msgspec

from gateway.observe.logs import RequestLine


def log_schema() -> dict[str, Any]:
    """Return the schema: a request's line in full, other lines with the fields that all have."""
    schema = msgspec.json.schema(RequestLine, ref_template="#/$defs/{name}")
    for each in schema["$defs"].values():
        each["description"] = each["description"].partition("\n")[0]
    schema["$defs"]["Denial"] = {
        "type": "string",
        "description": "Reason of a denial (docs/hedging.md).",
    }
    request = schema["$defs"]["RequestLine"]
    request["properties"]["event"] = {"const": "request"}
    rare = {
        "title": "RareLine",
        "type": "object",
        "properties": {
            "time": {"type": "string", "format": "date-time"},
            "level": {"enum": ["error", "info", "warning"]},
            "event": {"type": "string", "not": {"const": "request"}},
        },
        "required": ["time", "level", "event"],
    }
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "title": "A line of the gateway's log; docs/logs.md describes the fields",
        "anyOf": [{"$ref": "#/$defs/RequestLine"}, {"$ref": "#/$defs/RareLine"}],
        "$defs": {**schema["$defs"], "RareLine": rare},
    }


def as_text() -> str:
    """Return the text of the file."""
    return json.dumps(log_schema(), indent=2, sort_keys=True) + "\n"
