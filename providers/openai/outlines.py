"""Reads heavy answers, which are forwarded as they are, by their outline; whole_answer.py explains both. Pure.

Only the top level and the finish of each choice are read, so that no objects are built for values that are not needed.
Choices that the outline leaves out, some of very many, are not looked at.
"""

from collections.abc import Callable
from typing import Final

import msgspec

from ttft_gateway.apis.base import Frame, FrameKind, Usage
from ttft_gateway.apis.endings import unfinished_body
from ttft_gateway.apis.openai.errors import Problem, problem_of
from ttft_gateway.apis.openai.events import is_finish
from ttft_gateway.apis.tolerant_json import loads

_READ_MAX: Final = 64 * 1024  # bytes of a value that is decoded
_NULL: Final = msgspec.Raw(b"null")
_EMPTY: Final = frozenset({b"null", b"false", b'""', b"{}", b"[]", b"0"})
_BRACKET: Final = ord("[")
_FAILED: Final = frozenset({b'"failed"', b'"cancelled"'})
_ENDED: Final = frozenset({b'"completed"', b'"incomplete"'})


class _Top(msgspec.Struct, gc=False):
    choices: msgspec.Raw = _NULL
    content: msgspec.Raw = _NULL
    output: msgspec.Raw = _NULL
    data: msgspec.Raw = _NULL
    error: msgspec.Raw = _NULL
    status: msgspec.Raw = _NULL
    stop_reason: msgspec.Raw = _NULL
    usage: msgspec.Raw = _NULL
    service_tier: object = None


class _Choice(msgspec.Struct, gc=False):
    finish_reason: object = None


_decode = msgspec.json.Decoder(_Top).decode
_decode_choices = msgspec.json.Decoder(list[_Choice | int]).decode  # a number stands for choices that are left out
_skip = msgspec.json.Decoder(msgspec.Raw).decode


def read_outline(outline: bytes, items: str | None, usage_of: Callable[[object, object], Usage | None]) -> Frame:
    """Read a heavy answer; see `ttft_gateway.apis.base.WireProtocol.outlined`.

    Args:
        outline: its outline.
        items: key of the array that every answer of the API has; None if any object or array is an answer.
        usage_of: reads the token counts, given the tier of the answer.
    """
    failed = Problem("the upstream answered 200 with neither an answer nor an error")
    try:
        if items is None and outline.lstrip().startswith(b"["):
            _skip(outline)
            return Frame(FrameKind.CONTENT, b"")
        top = _decode(outline)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return Frame(FrameKind.ERROR, b"", None, failed.frame())
    error = bytes(top.error)
    if error not in _EMPTY or bytes(top.status) in _FAILED:
        found = problem_of({"error": loads(error)}) if len(error) <= _READ_MAX else None
        return Frame(FrameKind.ERROR, b"", None, (found or Problem(None)).frame())
    if items is not None and memoryview(getattr(top, items))[0] != _BRACKET:
        return Frame(FrameKind.ERROR, b"", None, failed.frame())
    if not _has_finish(top, items):
        return unfinished_body()
    usage = loads(bytes(top.usage)) if len(top.usage) <= _READ_MAX else None
    return Frame(FrameKind.CONTENT, b"", usage_of(usage, top.service_tier))


def _has_finish(top: _Top, items: str | None) -> bool:
    """Return True if an answer has the finish of its API (endings.py); answers of other APIs need none."""
    if items == "content":
        return bytes(top.stop_reason) not in _EMPTY
    if items == "output":
        return bytes(top.status) in _ENDED
    if items != "choices":
        return True
    try:
        choices = _decode_choices(top.choices)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return False
    return bool(choices) and all(isinstance(choice, int) or is_finish(choice.finish_reason) for choice in choices)
