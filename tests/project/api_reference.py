"""Turns openapi.yaml into a page of Markdown: operations with parameters, bodies and responses, then schemas."""

import json
from collections.abc import Iterator, Mapping
from typing import Any

Node = Mapping[str, Any]
METHODS = ("get", "post", "put", "delete", "patch", "head", "options")


def reference(contract: Node) -> str:
    """Return the page of a contract."""
    return "\n".join(_page(contract)) + "\n"


def _page(contract: Node) -> Iterator[str]:
    info = contract["info"]
    yield f"# API reference\n\n{info['summary']}\n\n{info['description']}"
    for path, operations in contract["paths"].items():
        for method, operation in operations.items():
            if method in METHODS:
                yield from _operation(contract, f"{method.upper()} {path}", operation)
    yield "## Schemas\n"
    for name, schema in contract["components"]["schemas"].items():
        yield f"### {name}\n\n{_prose(schema)}\n"
        yield from _fields(schema)


def _operation(contract: Node, title: str, operation: Node) -> Iterator[str]:
    yield f"## `{title}`\n\n{operation.get('summary', '')}\n\n{operation.get('description', '')}"
    parameters = [_found(contract, each) for each in operation.get("parameters", ())]
    if parameters:
        yield "| parameter | in | type | meaning |\n|---|---|---|---|"
        for each in parameters:
            yield f"| `{each['name']}` | {each['in']} | {_type(each['schema'])} | {_cell(each)} |"
        yield ""
    for media, content in _found(contract, operation.get("requestBody", {})).get("content", {}).items():
        yield f"Request body, `{media}`: {_type(content.get('schema', {}))}\n"
        yield from _examples(content)
    yield "| status | meaning | body |\n|---|---|---|"
    for status, response in operation["responses"].items():
        given = _found(contract, response)
        bodies = [f"`{media}`: {_type(each.get('schema', {}))}" for media, each in given.get("content", {}).items()]
        yield f"| {status} | {_cell(given)} | {'<br>'.join(bodies) or 'none'} |"
    yield ""
    names: dict[str, Node] = {}
    for response in operation["responses"].values():
        for name, header in _found(contract, response).get("headers", {}).items():
            names.setdefault(name, _found(contract, header))
    if names:
        yield "| response header | type | meaning |\n|---|---|---|"
        for name, header in names.items():
            yield f"| `{name}` | {_type(header.get('schema', {}))} | {_cell(header)} |"
        yield ""


def _examples(content: Node) -> Iterator[str]:
    for name, example in content.get("examples", {}).items():
        yield f"{example.get('summary', name)}:\n\n```json\n{json.dumps(example.get('value'), indent=2)}\n```\n"


def _fields(schema: Node) -> Iterator[str]:
    """Yield a table of the fields of a schema, and a link to each schema that it extends."""
    extended = [_type(part) for part in schema.get("allOf", ()) if "$ref" in part]
    parts = [part for part in (schema, *schema.get("allOf", ())) if "properties" in part]
    if not parts:
        yield f"{_type(schema, own=True)}\n"
        return
    if extended:
        yield f"The fields of {' and '.join(extended)}, and:\n"
    yield "| field | type | meaning |\n|---|---|---|"
    for part in parts:
        for name, each in part["properties"].items():
            needed = ", required" if name in part.get("required", ()) else ""
            yield f"| `{name}` | {_type(each)}{needed} | {_cell(each)} |"
    yield ""


def _type(schema: Any, *, own: bool = False) -> str:
    """Return the type of a schema in a few words, with a link to each schema that has a name."""
    if not isinstance(schema, Mapping):
        return "any"
    if "$ref" in schema:
        name = schema["$ref"].rpartition("/")[2]
        return f"[{name}](#{name.lower()})"
    if "const" in schema:
        return f"`{json.dumps(schema['const'])}`"
    if "enum" in schema:
        return ", ".join(f"`{json.dumps(each)}`" for each in schema["enum"])
    for key in ("oneOf", "anyOf", "allOf"):
        if key in schema:
            return (" and " if key == "allOf" else " or ").join(dict.fromkeys(map(_type, schema[key])))
    kinds = schema.get("type", "any")
    named = " or ".join([kinds] if isinstance(kinds, str) else kinds)
    if "items" in schema:
        return f"{named} of {_type(schema['items'])}"
    if "properties" in schema and not own:
        return f"{named} with {', '.join(f'`{name}`' for name in schema['properties'])}"
    bounds = (
        f"{word} {schema[key]}" for key, word in (("minimum", "at least"), ("maximum", "at most")) if key in schema
    )
    return ", ".join([named, *bounds])


def _found(contract: Node, node: Node) -> Node:
    """Return a node, or the one that it refers to."""
    found: Any = node
    while "$ref" in found:
        path, found = found["$ref"].removeprefix("#/").split("/"), contract
        for key in path:
            found = found[key]
    result: Node = found
    return result


def _prose(node: Node) -> str:
    return str(node.get("description", "")).strip()


def _cell(node: Node) -> str:
    return " ".join(_prose(node).split()).replace("|", "\\|")
