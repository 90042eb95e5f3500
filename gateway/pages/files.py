"""The web pages of the gateway as routes: files beside this module, without a build step and without other hosts.

The pages contain no secret and no state; their scripts read the public routes of their address. The policy in their
headers lets a browser load parts from the same address only.
"""

from collections.abc import Callable, Mapping, Sequence
from functools import cache
from importlib.resources import files
from typing import Final

from fastapi import FastAPI, Response, params

_TYPES: Final = {".html": "text/html", ".css": "text/css", ".js": "text/javascript"}
_HEADERS: Final = {
    "cache-control": "no-cache",
    "content-security-policy": (
        "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; img-src data:; "
        "base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
    ),
    "referrer-policy": "no-referrer",
    "x-content-type-options": "nosniff",
}

LIVE: Final = {
    "/": "live.html",
    **{f"/{name}": name for name in ("page.css", "live.js", "admin.js", "dom.js", "plots.js")},
}
"""Paths and files of the live page of the admin address."""

REFERENCE: Final = {
    "/docs": "reference.html",
    **{f"/docs/{name}": name for name in ("page.css", "reference.js", "dom.js")},
}
"""Paths and files of the API reference of the public address."""


def add_pages(app: FastAPI, paths: Mapping[str, str], dependencies: Sequence[params.Depends] = ()) -> None:
    """Add a route per path.

    Args:
        paths: file name of each path.
        dependencies: checks of every request.
    """
    for path, name in paths.items():
        app.add_api_route(path, _route(name), methods=["GET", "HEAD"], dependencies=dependencies)


def load_pages() -> None:
    """Read every file, so that none is left to open."""
    for name in {*LIVE.values(), *REFERENCE.values()}:
        _content(name)


def _route(name: str) -> Callable[[], Response]:
    def file() -> Response:  # not async, hence on a thread: the first time it reads the file
        return Response(_content(name), media_type=_TYPES[name[name.rindex(".") :]], headers=_HEADERS)

    return file


@cache
def _content(name: str) -> bytes:
    return files(__package__).joinpath("static", name).read_bytes()
