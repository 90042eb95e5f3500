"""Answers health checks without the framework, which is loaded after the gateway has begun to listen. No units."""

import secrets
from typing import Final

from gateway.api.asgi import Scope, Send
from gateway.inbound.headers import caller_ids

_LIVE: Final = b'{"status":"ok"}'
_READY: Final = b'{"status":"ready"}'
_DRAINING: Final = b'{"status":"draining"}'


def is_health_check(scope: Scope) -> bool:
    """Return True for GET and HEAD of /healthz and /readyz."""
    return scope["type"] == "http" and scope["path"] in ("/healthz", "/readyz") and scope["method"] in ("GET", "HEAD")


async def answer_health(scope: Scope, send: Send, *, ready: bool) -> None:
    """Answer a health check."""
    body, status = _LIVE, 200
    if scope["path"] == "/readyz":
        body, status = (_READY, 200) if ready else (_DRAINING, 503)
    request_id = caller_ids(dict(scope["headers"])).request_id or f"req_{secrets.token_hex(10)}"
    headers = [
        (b"content-length", str(len(body)).encode()),
        (b"content-type", b"application/json"),
        (b"x-request-id", request_id.encode()),
    ]
    await send({"type": "http.response.start", "status": status, "headers": headers})
    await send({"type": "http.response.body", "body": body})
