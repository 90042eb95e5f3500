"""Loaded by schemathesis in its own process: what JSON Schema cannot say of the contract. No units."""

from typing import Any

import schemathesis


@schemathesis.hook
def map_body(_context: schemathesis.HookContext, body: Any) -> Any:
    """Write whole numbers without a point: to JSON Schema 2.0 is an integer, to the gateway it is not."""
    if isinstance(body, dict):
        return {key: _whole(value) if key not in ("prompt", "input") else _wholes(value) for key, value in body.items()}
    return body


def _wholes(prompt: Any) -> Any:
    return [_wholes(item) for item in prompt] if isinstance(prompt, list) else _whole(prompt)


def _whole(value: Any) -> Any:
    return int(value) if isinstance(value, float) and value.is_integer() else value
