"""Request bodies that are cheap to send and expensive to read, for tests and `scripts/attack`. Units: bytes."""

from collections.abc import Callable, Mapping
from typing import Final

from ttft_gateway.apis.base import Api

_HELLO: Final = b'[{"role":"user","content":"hello"}]'


def _chat(**fields: bytes) -> bytes:
    members = {"model": b'"m"', "messages": _HELLO, **fields}
    return b"{%b}" % b",".join(b'"%b":%b' % (key.encode(), value) for key, value in members.items())


def _object(size: int) -> bytes:
    return b"{%b}" % b",".join(b'"%07d":1' % number for number in range(size // 12))


def _array(item: bytes, size: int) -> bytes:
    return b"[%b]" % b",".join([item] * (size // (len(item) + 1)))


def _user(content: bytes) -> bytes:
    return b'[{"role":"user","content":%b}]' % content


SHAPES: Final[Mapping[str, tuple[Api, int, Callable[[int], bytes]]]] = {
    "n: object of many keys": (Api.CHAT, 400, lambda size: _chat(n=_object(size))),
    "stream_options: object of many keys": (
        Api.CHAT,
        400,
        lambda size: _chat(stream=b"true", stream_options=_object(size)),
    ),
    "messages: numbers": (Api.CHAT, 400, lambda size: _chat(messages=_array(b"1", size))),
    "messages: empty objects": (Api.CHAT, 400, lambda size: _chat(messages=_array(b"{}", size))),
    "content: numbers": (Api.CHAT, 200, lambda size: _chat(messages=_user(_array(b"1", size)))),
    "content: deep nesting": (
        Api.CHAT,
        400,
        lambda size: _chat(messages=_user(b"[" * (size // 2) + b"]" * (size // 2))),
    ),
    "content: one string of escapes": (
        Api.CHAT,
        200,
        lambda size: _chat(messages=_user(b'"%b"' % (b"\\u00e9" * (size // 6)))),
    ),
    "many keys at the top level": (Api.CHAT, 400, lambda size: b'{"model":"m",' + _object(size)[1:]),
    "tools: empty objects": (Api.CHAT, 400, lambda size: _chat(tools=_array(b"{}", size))),
    "a body cut in a string": (Api.CHAT, 400, lambda size: _chat(messages=_user(b'"' + b"x" * size))[:-4]),
    "prompt: arrays of one number": (
        Api.COMPLETIONS,
        400,
        lambda size: b'{"model":"m","prompt":%b}' % _array(b"[1]", size),
    ),
    "prompt: numbers, and a text": (
        Api.COMPLETIONS,
        400,
        lambda size: b'{"model":"m","prompt":%b,"x"]}' % _array(b"1", size)[:-1],
    ),
    "prompt: whole numbers with a fraction": (
        Api.COMPLETIONS,
        200,
        lambda size: b'{"model":"m","prompt":%b}' % _array(b"1.0", size),
    ),
    "prompt: numbers with exponents": (
        Api.COMPLETIONS,
        400,
        lambda size: b'{"model":"m","prompt":%b}' % _array(b"1e300", size),
    ),
    "input: empty texts": (
        Api.EMBEDDINGS,
        400,
        lambda size: b'{"model":"m","input":%b}' % _array(b'""', size),
    ),
    "one key of escapes at the top level": (
        Api.CHAT,
        400,
        lambda size: _chat()[:-1] + b',"%b":1}' % (b"\\n" * (size // 2)),
    ),
    "input: empty objects": (Api.RESPONSES, 400, lambda size: b'{"model":"m","input":%b}' % _array(b"{}", size)),
}
"""API, status of the response, and the body of a given size, by description.

A status may be 400 for a size over a limit only, which all sizes of 1 MB and more are.
"""
