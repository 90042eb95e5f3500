"""The web pages of the gateway: files in the folder `static`, without a build step and without other hosts.

The pages contain no secret and no state; their scripts read the public routes of their address. The policy in their
headers lets a browser load parts from the same address only.
"""

from functools import cache
from importlib.resources import files
from typing import Final

_TYPES: Final = {".html": "text/html", ".css": "text/css", ".js": "text/javascript"}

HEADERS: Final = {
    "cache-control": "no-cache",
    "content-security-policy": (
        "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; img-src data:; "
        "base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
    ),
    "referrer-policy": "no-referrer",
    "x-content-type-options": "nosniff",
}
"""Headers of each file."""

LIVE: Final = {
    "/": "live.html",
    **{
        f"/{name}": name
        for name in ("page.css", "live.js", "admin.js", "dom.js", "history.js", "plots.js", "verdict.js")
    },
}
"""Paths and files of the live page of the admin address."""

REFERENCE: Final = {
    "/docs": "reference.html",
    **{f"/docs/{name}": name for name in ("page.css", "reference.js", "dom.js")},
}
"""Paths and files of the API reference of the public address."""


@cache
def page(name: str) -> tuple[str, bytes]:
    """Return the content type and the content of a file."""
    kind = _TYPES[name[name.rindex(".") :]]
    return f"{kind}; charset=utf-8", files(__package__).joinpath("static", name).read_bytes()


def load_pages() -> None:
    """Read every file, so that none is left to open."""
    for name in {*LIVE.values(), *REFERENCE.values()}:
        page(name)
