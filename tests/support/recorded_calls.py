"""Calls that a client made, a JSON line for each: the shape of the request, without the client's own texts.

Descriptions and texts of more than 30 characters are replaced by their length. Units: characters.
"""

import json
import re
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import NamedTuple

import httptools

Json = dict[str, object]

TEXT_MAX = 30
_TOOLS_MAX = 2  # ordinary tools of a request or of a group; all others than functions are recorded
_UUID = re.compile(r"\b[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}\b")
_KEPT = frozenset({"anthropic-beta", "anthropic-version", "accept", "user-agent", "content-type"})
_OMITTED = frozenset({"authorization", "x-api-key", "host", "content-length", "connection"})


class Recorded(NamedTuple):
    """A call.

    Attributes:
        method: its method.
        path: path and query.
        headers: headers, without credentials and headers of the connection.
        body: the body; None for none.
    """

    method: str
    path: str
    headers: Mapping[str, str]
    body: Json | None


class Reader:
    """Reads the calls of one connection.

    Args:
        calls: receives the complete calls.
    """

    def __init__(self, calls: list[Recorded]) -> None:
        self._calls = calls
        self._parser = httptools.HttpRequestParser(self)

    def feed(self, data: bytes) -> None:
        """Read bytes of the client; an upgrade ends the reading."""
        try:
            self._parser.feed_data(data)
        except httptools.HttpParserUpgrade:
            self._parser = httptools.HttpRequestParser(self)

    def on_message_begin(self) -> None:
        self._url, self._headers, self._body = b"", dict[str, str](), b""

    def on_url(self, url: bytes) -> None:
        self._url += url

    def on_header(self, name: bytes, value: bytes) -> None:
        self._headers[name.decode("latin-1").lower()] = value.decode("latin-1")

    def on_body(self, body: bytes) -> None:
        self._body += body

    def on_message_complete(self) -> None:
        body = json.loads(self._body) if self._body else None
        method = self._parser.get_method().decode()
        self._calls.append(Recorded(method, self._url.decode("latin-1"), self._headers, body))


def shape(call: Recorded, folder: str) -> Json:
    """Return a call for a file: short, without credentials, texts and paths of the machine.

    Args:
        call: the call.
        folder: the client's folder, which becomes `/project`.
    """
    body: object = None
    if call.body is not None:
        body = _shape({**call.body, **_few_tools(call.body)}, folder)
    headers = {
        name: value if name in _KEPT else str(_shape(value, folder))
        for name, value in call.headers.items()
        if name not in _OMITTED
    }
    return {"method": call.method, "path": call.path, "headers": headers, "body": body}


def save_calls(file: Path, calls: Iterable[Recorded], folder: str) -> None:
    """Write the shapes of calls to a file."""
    lines = [json.dumps(shape(call, folder), ensure_ascii=False, separators=(",", ":")) for call in calls]
    file.write_text("\n".join(lines) + "\n", encoding="utf-8")


def load_calls(file: Path) -> list[Recorded]:
    """Return the calls of a file."""
    return [Recorded(**json.loads(line)) for line in file.read_text(encoding="utf-8").splitlines()]


def _few_tools(body: Json) -> Json:
    tools = body.get("tools")
    if not isinstance(tools, list):
        return {}
    ordinary = [tool for tool in tools if tool.get("type") in (None, "function", "custom")]
    readers = [tool for tool in ordinary if str(tool.get("function", tool).get("name")).lower() == "read"]
    kept = [*[tool for tool in ordinary if tool not in readers][: _TOOLS_MAX - len(readers)], *readers]
    return {"tools": [{**tool, **_few_tools(tool)} for tool in tools if tool in kept or tool not in ordinary]}


def _shape(value: object, folder: str) -> object:
    if isinstance(value, dict):
        return {
            key: "" if key == "description" and isinstance(inner, str) else _shape(inner, folder)
            for key, inner in value.items()
        }
    if isinstance(value, list):
        return [_shape(inner, folder) for inner in value]
    if not isinstance(value, str):
        return value
    text = _UUID.sub("00000000-0000-0000-0000-000000000000", value.replace(folder, "/project"))
    word = re.search(r"lantern-\d+", text)
    if len(text) <= TEXT_MAX or text.startswith(("call_", "toolu_")) or ("/project" in text and len(text) <= 160):
        return text
    return f"({len(text)} characters)" + (f" {word[0]}" if word else "")
