"""The head of a request, as the HTTP parser read it. No units."""

from collections.abc import Mapping
from urllib.parse import unquote

import httptools
import msgspec

from providers.base import Headers


class RequestHead(msgspec.Struct, frozen=True, gc=False):
    """The head of a request.

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

    @property
    def path(self) -> str:
        """Path of the target, without escapes; raises an error of httptools for a target that is none."""
        path = httptools.parse_url(self.target).path.decode("ascii")
        return unquote(path) if "%" in path else path
