"""Endings of HTTP responses: the bytes that a server sends of them. Knows no client library."""

import asyncio
import gzip
import zlib

from client_replicas import FINISH, ROLE, Answer, chunk, delta, event

_TEXT, _EVENTS = b"content-type: text/plain\r\n", b"content-type: text/event-stream\r\n"
_CHUNKED = b"transfer-encoding: chunked\r\n"
_CONTENT = (ROLE, delta(content="Hel"), delta(content="lo"), FINISH)
_ERROR = event({"error": {"message": "overloaded", "type": "server_error"}})


def _head(status: bytes, *headers: bytes) -> bytes:
    return b"HTTP/1.1 " + status + b"\r\n" + b"".join(headers) + b"\r\n"


def sized(status: bytes, body: bytes, *headers: bytes) -> bytes:
    """Return a response with a length; each header ends with its line."""
    return _head(status, b"content-length: %d\r\n" % len(body), *headers) + body


def stream(*pieces: bytes, headers: bytes = _EVENTS, end: bytes = b"0\r\n\r\n") -> bytes:
    """Return a response in chunks."""
    return _head(b"200 OK", headers, _CHUNKED) + b"".join(map(chunk, pieces)) + end


def _packed(kind: int, name: bytes) -> bytes:
    pack = zlib.compressobj(wbits=kind)
    data = b"".join(pack.compress(piece) + pack.flush(zlib.Z_SYNC_FLUSH) for piece in _CONTENT) + pack.flush()
    return stream(data[:50], data[50:], headers=_EVENTS + b"content-encoding: %b\r\n" % name)


ENDINGS: dict[str, bytes] = {
    "content": stream(*_CONTENT),
    "content in one piece": stream(b"".join(_CONTENT)),
    "content in bytes": stream(*(b"".join(_CONTENT)[at : at + 1] for at in range(40)), b"".join(_CONTENT)[40:]),
    "CR LF": stream(*(piece.replace(b"\n", b"\r\n") for piece in _CONTENT)),
    "no last blank line": stream(ROLE, delta(content="Hello").rstrip(b"\n")),
    "large": stream(ROLE, delta(content="x" * 300_000), FINISH),
    "large without content": stream(*[b": " + b"p" * 10_000 + b"\n\n"] * 40),
    "error event": stream(_ERROR, b"data: [DONE]\n\n"),
    "error event after the role": stream(ROLE, _ERROR),
    "no content": stream(ROLE, FINISH),
    "empty stream": stream(),
    "pings": stream(b": ping\n\n", b": ping\n\n"),
    "plain text": sized(b"200 OK", b"hello", _TEXT),
    "empty body": sized(b"200 OK", b"", _TEXT),
    "json": sized(b"200 OK", b'{"a": 1}', b"content-type: application/json\r\n"),
    "gzip": _packed(31, b"gzip"),
    "zlib": _packed(15, b"deflate"),
    "raw deflate": _packed(-15, b"deflate"),
    "gzip of text": sized(b"200 OK", gzip.compress(b"hello"), _TEXT, b"content-encoding: gzip\r\n"),
    "no gzip": sized(b"200 OK", b"hello", _TEXT, b"content-encoding: gzip\r\n"),
    "unknown coding": stream(*_CONTENT, headers=_EVENTS + b"content-encoding: x-odd\r\n"),
    "redirect": sized(b"302 Found", b"moved", b"location: /v1/there\r\n"),
    "307": sized(b"307 Temporary Redirect", b"moved", b"location: /v1/there\r\n"),
    "redirect to nowhere": sized(b"302 Found", b"moved", _TEXT),
    "early hints": _head(b"103 Early Hints", b"link: </a>\r\n") + stream(*_CONTENT),
    "continue": _head(b"100 Continue") + sized(b"200 OK", b"hello", _TEXT),
    "204": _head(b"204 No Content"),
    "304": _head(b"304 Not Modified", b'etag: "1"\r\n'),
    "400": sized(b"400 Bad Request", b'{"error": {"message": "wrong"}}', b"content-type: application/json\r\n"),
    "404": sized(b"404 Not Found", b"none", _TEXT),
    "429": sized(b"429 Too Many Requests", b"slow down", b"retry-after: 1\r\n"),
    "500": sized(b"500 Internal Server Error", b"broken", _TEXT),
    "503 in chunks": _head(b"503 Service Unavailable", _CHUNKED) + chunk(b"broken") + b"0\r\n\r\n",
    "trailers": stream(*_CONTENT, end=b"0\r\nx-sum: 1\r\n\r\n"),
    "same header twice": sized(b"200 OK", b"hello", b"set-cookie: a=1\r\n", b"Set-Cookie: b=2\r\n"),
    "until close": _head(b"200 OK", _EVENTS, b"connection: close\r\n") + b"".join(_CONTENT) + b"!",
    "cut before an event": stream(end=b""),
    "cut before content": stream(ROLE, end=b""),
    "cut after content": stream(ROLE, delta(content="Hel"), end=b""),
    "cut in a chunk": _head(b"200 OK", _EVENTS, _CHUNKED) + chunk(ROLE) + b"400\r\ndata: {",
    "too short": _head(b"200 OK", b"content-length: 10\r\n", _TEXT) + b"hel",
    "broken chunk": _head(b"200 OK", _EVENTS, _CHUNKED) + chunk(ROLE) + b"zz\r\n",
    "no response": b"",
    "no HTTP": b"SSH-2.0-server\r\n\r\n",
    "half a head": b"HTTP/1.1 200 OK\r\ncontent-le",
}
"""Bytes of a response. The connection is closed after some (`is_open`)."""


def is_open(name: str) -> bool:
    """Return True if the server keeps the connection open after an ending."""
    return not name.startswith(("cut", "too", "broken", "no response", "no HTTP", "half", "until"))


def answering(name: str, response: bytes) -> Answer:
    """Return an answer with the bytes of an ending."""

    async def answer(_reader: asyncio.StreamReader, writer: asyncio.StreamWriter, _headers: bytes) -> None:
        writer.write(response)
        if not is_open(name):
            await writer.drain()
            raise ConnectionError

    return answer


ANSWERS = {name: answering(name, response) for name, response in ENDINGS.items()}
