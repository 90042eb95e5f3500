r"""Recognises the usual events of OpenAI-compatible streams by their bytes.

Most answers begin with an event of one form, with the role or with text, which `usual_first` recognises. Most content
events equal the last one but for their text. Such a run is not decoded:

    learned event  data: {"id":"c1","choices":[{"delta":{"content":"Hel"}}]}\n\n
    prefix         data: {"id":"c1","choices":[{"delta":{"content":"
    suffix         "}}]}\n\n
    separator      "}}]}\n\ndata: {"id":"c1","choices":[{"delta":{"content":"     (suffix + prefix)
    bytes read     <prefix>lo<separator>, wor<separator>ld<suffix>data: [DONE]\n\n
    run            3 events: "lo", ", wor", "ld" are plain text and none is empty; `data: [DONE]` is read next

The events of one answer also begin alike, and end like the events of the upstream's last answer, which had another id
and date. So the first event, which has the role, is decoded, and the other events are derived from it:

    first event    data: {"id":"c2","choices":[{"delta":{"role":"assistant"}}]}\n\n
    envelope       data: {"id":"c2","choices":[{"delta":{
    its end        "role":"assistant"}}]}\n\n         the same as in an answer before, where events ended thus:
    content        "content":" ... "}}]}\n\n          (head and suffix)
    finish         },"finish_reason":"stop"}]}\n\n

Units: bytes.
"""

import re
from io import BytesIO
from operator import itemgetter
from typing import Final

from ttft_gateway.apis.base import Phase

# A member of an event that decides nothing: null, or a plain value under a key that no reader reads.
_UNREAD: Final = (
    rb'"(?:(?!choices")\w+": ?null'
    rb'|(?!(?:choices|error|usage|x_groq)")\w+": ?(?:"[ !#-\[\]-~]*+"|(?:0|[1-9]\d*+)(?:\.\d++)?|true|false))'
)
_OF_CHOICE: Final = rb'"(?:index": ?\d|(?!delta")\w+": ?null)'  # the same of its only choice
usual_first: Final = re.compile(
    rb'data: \{(?:%b, ?)*+"choices": ?\[\{(?:%b, ?)*+"delta": ?\{(?:'
    % (_UNREAD, _OF_CHOICE)
    + rb'"role": ?"assistant"(?:, ?"\w+": ?(?:""|null))*+'
    rb'|(?:"role": ?"assistant", ?)?"content": ?"([ !#-\[\]-~]++)"(?:, ?"(?!content")\w+": ?(?:""|null))*+'
    rb")\}(?:, ?%b)*+\}\](?:, ?%b)*+\}\n\n" % (_OF_CHOICE, _UNREAD)
).fullmatch
"""Matches an event with the role alone, and one with plain text, which is the group; both are valid JSON."""

_DELTA: Final = re.compile(rb'"choices": ?\[\{[^][{}]*"delta": ?\{').search
# Bytes that are the text of a JSON string as they are, without escapes and outside ASCII.
_PLAIN: Final = re.compile(rb"[ !#-\[\]-\x7f]+").fullmatch
_QUOTE: Final = 34
_FIRST_ENDS_MAX: Final = 8  # of an upstream; more differ because something follows `delta` that is new in each answer
_FIRST_END_BYTES_MAX: Final = 1024


class TextRun:
    """The `apis.base.ContentRun` of events that equal a content event but for the text between prefix and suffix.

    Such an event is the same JSON with another string in one place, which is not empty either: content again.

    Attributes:
        phase: phase of the content event.
    """

    __slots__ = ("_prefix", "_suffix", "_text_at", "_text_of_line", "phase")

    def __init__(self, prefix: bytes, suffix: bytes, phase: Phase | None = None) -> None:
        start = len(prefix)
        self.phase = phase
        self._prefix = prefix
        self._suffix = suffix
        self._text_at = slice(start, -len(suffix))
        self._text_of_line = itemgetter(slice(start, -suffix.index(b"\n") - 1))

    def has(self, event: bytes) -> bool:
        """Return True if one event is the learned one with another text."""
        return (
            event.startswith(self._prefix) and event.endswith(self._suffix) and _PLAIN(event[self._text_at]) is not None
        )

    def take(self, data: bytes) -> tuple[bytes, bytes, int]:
        """See `ContentRun.take`, and the example at the top of this file."""
        prefix, suffix = self._prefix, self._suffix
        if not data.startswith(prefix):
            return b"", data, 0
        if _PLAIN(data[self._text_at]) and data.endswith(suffix):  # a token that arrives alone
            return data, b"", 1
        if _QUOTE not in data[self._text_at]:  # not even one event: a separator begins with a quote
            return b"", data, 0
        size = data.rfind(suffix) + len(suffix)
        run = data[:size]
        lines = BytesIO(run).readlines()  # in half the time of `split`; each second line is blank
        texts = list(map(self._text_of_line, lines[::2]))
        equal = prefix + (suffix + prefix).join(texts) + suffix
        if equal != run or b"" in texts or not _PLAIN(b"".join(texts)):
            return b"", data, 0
        return run, data[size:], len(texts)


class UsualEnds:
    """The ends of events, for all answers with one end of the first event; they follow the envelope, and have text.

    An envelope ends in `delta` of the first of `choices`, and the same first end closes as many objects: another end
    gives the same event with it as with the envelope after which it was learned.

    Attributes:
        head, suffix: the bytes before and after the text of a content event; empty if unknown.
        finish: a finish_reason without content; empty if unknown.
    """

    __slots__ = ("finish", "head", "suffix")

    def __init__(self) -> None:
        self.head = self.suffix = self.finish = b""


class LearnedEnds:
    """The ends of events that one upstream's answers share."""

    __slots__ = ("_of_first",)

    def __init__(self) -> None:
        self._of_first: dict[bytes, UsualEnds] = {}

    def after(self, first: bytes) -> tuple[bytes, UsualEnds | None]:
        """Return the envelope of an answer's first event, and the ends of its events; None if it has no `delta`."""
        found = _DELTA(first)
        if found is None:
            return b"", None
        envelope, end = first[: found.end()], first[found.end() :]
        ends = self._of_first.get(end)
        if ends is None:
            ends = UsualEnds()
            if len(end) <= _FIRST_END_BYTES_MAX:
                if len(self._of_first) >= _FIRST_ENDS_MAX:
                    self._of_first.clear()
                self._of_first[end] = ends
        return envelope, ends
