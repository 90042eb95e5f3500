"""Detection of WebSocket handshakes, so that they can be rejected. No units."""

from gateway.api.request_head import RequestHead


def is_handshake(head: RequestHead) -> bool:
    """Return true for the opening request of a WebSocket.

    A proxy that does not support upgrades removes `Upgrade` and may send HTTP/1.0, but forwards `Sec-WebSocket-Key`:
    nginx does so by default. `Upgrade` in HTTP/1.0 is ignored (RFC 9110, 7.8).
    """
    if head.method != "GET":
        return False
    return any(
        name == b"sec-websocket-key" or (name == b"upgrade" and head.version != "1.0" and b"websocket" in value.lower())
        for name, value in head.headers
    )
