"""The head of a request, as the HTTP parser read it. No units."""

from collections.abc import Mapping
from urllib.parse import unquote

import httptools
import msgspec

from providers.base import Headers


class RequestHead(msgspec.Struct, gc=False):
    """The head of a request; never changed.

    Attributes:
        method: method as sent.
        target: target as sent.
        version: "1.1" or "1.0".
        headers: headers, with names in lower case.
        by_name: the same; of a repeated header, the last one.
        keep_alive: True if another request may follow on the connection.
        expects_continue: True if the client waits for a 100 before it sends the body.
    """

    method: str
    target: bytes
    version: str
    headers: Headers
    by_name: Mapping[bytes, bytes]
    keep_alive: bool = True
    expects_continue: bool = False
    _path: str | None = None  # once it has been read

    @property
    def path(self) -> str:
        """Path of the target, without escapes; raises an error of httptools for a target that is none."""
        if self._path is None:
            path = httptools.parse_url(self.target).path.decode("ascii")
            self._path = unquote(path) if "%" in path else path
        return self._path
