"""Cross-origin resource sharing: browsers show responses to the web pages of listed origins only.

Follows the Fetch standard (fetch.spec.whatwg.org, "CORS protocol"). A page sends its key as a header, so requests with
the browser's credentials (cookies) are not allowed, and `*` exposes every response header. Units: seconds.
"""

from collections.abc import Iterable
from typing import Final

from gateway.api.asgi import Message, Scope, Send
from providers.base import Headers

_PREFLIGHT_S: Final = 7200  # for which browsers keep the answer of a preflight request; Chromium's maximum
_VARY: Final = (b"vary", b"origin")


class CrossOrigin:
    """Adds the headers of CORS to responses, and answers preflight requests.

    Args:
        origins: origins of pages that may read responses, as browsers send them in `Origin`.
    """

    def __init__(self, origins: Iterable[str]) -> None:
        self._origins = {origin.encode() for origin in origins}

    def is_preflight(self, method: str, headers: Headers) -> bool:
        """Return True for a preflight request of a listed origin."""
        if method != "OPTIONS":
            return False
        given = dict(headers)
        return given.get(b"origin") in self._origins and b"access-control-request-method" in given

    async def answer(self, scope: Scope, send: Send) -> None:
        """Answer a preflight request, and allow the headers that it lists: `*` would exclude `authorization`."""
        given = dict(scope["headers"])
        headers = [
            _VARY,
            (b"access-control-allow-origin", given[b"origin"]),
            (b"access-control-allow-methods", b"GET, POST"),
            (b"access-control-max-age", b"%d" % _PREFLIGHT_S),
        ]
        if b"access-control-request-headers" in given:
            headers.append((b"access-control-allow-headers", given[b"access-control-request-headers"]))
        await send({"type": "http.response.start", "status": 204, "headers": headers})
        await send({"type": "http.response.body", "body": b""})

    def added(self, headers: Headers) -> Headers:
        """Return the headers of CORS for the response to a request with these headers."""
        origin = dict(headers).get(b"origin")
        if origin in self._origins:
            return (_VARY, (b"access-control-allow-origin", origin), (b"access-control-expose-headers", b"*"))
        return (_VARY,)

    def adding(self, scope: Scope, send: Send) -> Send:
        """Return a `send` that adds the headers of CORS to the response of a request."""
        added = self.added(scope["headers"])

        async def send_added(message: Message) -> None:
            if message["type"] == "http.response.start":
                message["headers"] = [*message["headers"], *added]
            await send(message)

        return send_added
