"""Reads events that equal each other but for one text as one event, because a long answer has many thousands. Pure."""

import re
from collections.abc import Callable, Iterator
from typing import Final

from ttft_gateway.apis.sse import events_of

FindText = Callable[[bytes], "re.Match[bytes] | None"]
"""Finds the text of an event, as its first group: a JSON string without escapes."""

_STRING: Final = re.compile(rb'[^"\\\x00-\x1f]*+(?:\\.[^"\\\x00-\x1f]*+)*+').fullmatch


def runs_of(raw: bytes, find_text: FindText) -> Iterator[tuple[bytes, int]]:
    """Yield the events in these bytes, those that are equal but for the text as one event with all of their texts.

    Yields:
        An event, and the number of events of which it was made.
    """
    texts: list[bytes] = []
    prefix = suffix = b""
    for event in events_of(raw):
        if texts and event.startswith(prefix) and event.endswith(suffix):
            text = event[len(prefix) : -len(suffix)]
            if text and _STRING(text):
                texts.append(text)
                continue
        if texts:
            yield prefix + b"".join(texts) + suffix, len(texts)
            texts = []
        found = find_text(event)
        if found is None:
            yield event, 1
        else:
            prefix, texts, suffix = event[: found.start(1)], [found[1]], event[found.end(1) :]
    if texts:
        yield prefix + b"".join(texts) + suffix, len(texts)
