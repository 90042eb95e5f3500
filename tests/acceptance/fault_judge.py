"""The judge of answers under faults: each text follows from its request, so every wrong byte is found. Pure.

An answer is right as a whole answer of one replica, as its refusal, as its beginning and an error, or as an error. The
thinking of another answer may precede it, if that answer was nothing but thinking when it broke.
"""

import contextlib
import json
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import replace
from itertools import accumulate
from typing import Final

from client_reads import error_code, read_document, read_stream
from fault_requests import REFUSED, SEEDS, Asked
from gateway.simulated.completion import Completion
from gateway.simulated.faults import parse_faults
from marked_texts import answers
from recovering import Read

WRONG: Final = ("mixed", "lost", "doubled", "silently cut", "malformed", "blamed", "bug")
"""Wrong results: texts of two answers, missing text, text twice, a part that ends like a whole answer, a body that is
none of the API, a failure of the replicas that is reported as one of the request, and an internal error."""

_UNSUPPORTED = ("unsupported_parameter", "unsupported_api")
_BUG = (b"see its log", b"see the gateway's log")  # in the message of an internal error


def result_of(asked: Asked, status: int, body: bytes, *, ended: bool) -> str:
    """Return the result of one answer; see `judged`.

    Args:
        asked: the request.
        status: HTTP status; 0: no response head.
        body: all of the body.
        ended: True if the body ended as HTTP requires.

    Raises:
        Malformed: The body is not one of the API.
    """
    if not status or (not ended and (status != 200 or not asked.stream)):
        return "lost"
    if any(message in body for message in _BUG):
        return "bug"
    if status != 200:
        code = error_code(asked.api, body)
        expected = status == 429 or status >= 500 or (asked.kind == "content_policy" and code not in _UNSUPPORTED)
        return f"error {status}" if expected else "blamed"
    right = [_read_of(completion) for completion in answers(asked.marked, SEEDS)]
    refused = list(_refusals(asked))
    got = (read_stream if asked.stream else read_document)(asked.api, body)
    results = [judged(each, right, refused, ended=ended) for each in _without_restarts(got, right, 2)]
    return next((result for result in results if result not in WRONG), results[0])


def _without_restarts(got: Read, right: Sequence[Read], count: int) -> Iterator[Read]:
    """Yield an answer, and the same without the beginnings of other answers' thinking, at most so many."""
    yield got
    place = "0.reasoning"
    thinking = got.texts.get(place, "")
    for begun in {text for each in right for text in accumulate(each.texts.get(place, "").split(" "), _spaced)}:
        for separator in ("", "\n\n"):
            if begun and count and thinking.startswith(f"{begun} {separator}"):
                texts = {**got.texts, place: thinking.removeprefix(f"{begun} {separator}")}
                shorter = replace(got, texts={name: text for name, text in texts.items() if text})
                yield from _without_restarts(shorter, right, count - 1)


def _spaced(words: str, word: str) -> str:
    return f"{words} {word}" if word else words


def _read_of(completion: Completion) -> Read:
    """Return what a client reads of a completion."""
    got = Read()
    for index, choice in enumerate(completion.choices):
        place = "content" if choice.tool is None else "tool.0.arguments"
        texts = {"reasoning": "".join(choice.reasoning), place: "".join(choice.pieces)}
        if choice.tool is not None:
            texts |= zip(("tool.0.id", "tool.0.name"), choice.tool, strict=True)
        got.texts |= {f"{index}.{place}": text for place, text in texts.items() if text}
        got.finishes[index] = [choice.finish]
    return got


def _refusals(asked: Asked) -> list[Read]:
    """Return the refusals that replicas give; some APIs report each of them as the end by a content filter."""
    reads = []
    for fault, args in parse_faults(asked.kind) if asked.kind in REFUSED else ():
        for completion in answers(asked.marked, SEEDS):
            if fault.on_completion is not None:
                read = _read_of(fault.on_completion(completion, args))
                filtered = {index: ["content_filter"] for index in read.finishes}
                reads += [read, Read(read.texts, filtered)]
    return reads


def judged(got: Read, right: Sequence[Read], refused: Sequence[Read], *, ended: bool) -> str:
    """Return the result of one answer: "whole", "refused", "error", or one of WRONG.

    Args:
        got: the client's view.
        right: the answers that replicas give without a fault.
        refused: the refusals that they give.
        ended: True if the body ended as HTTP requires.
    """
    finishes = [finish for each in got.finishes.values() for finish in each]
    heads = {head for head in got.heads if any(head)}
    if got.dones > 1 or len(finishes) > len(got.finishes) or any(count > 1 for count in got.roles.values()):
        return "doubled"
    if len(heads) > 1:
        return "mixed"
    if not _ids(got) <= {ident for each in right for ident in _ids(each)}:
        return "doubled"
    if not any(_begins(got, each) for each in (*right, *refused)):
        words, whole = _words(got), [_words(each) for each in right]
        if not any(set(words) <= set(each) for each in whole):
            return "mixed"
        return "lost" if any(words <= each for each in whole) else "doubled"
    if got.error is not None:
        return "error" if ended and not got.dones else "silently cut"
    for result, reads in (("whole", right), ("refused", refused)):
        if ended and any(_equal(got, each) for each in reads):
            return result
    return "silently cut" if ended else "lost"


def _equal(got: Read, right: Read) -> bool:
    return got.finishes == right.finishes and _values(got) == _values(right)


def _begins(got: Read, right: Read) -> bool:
    whole = _texts(right)
    return _values(got) == _values(right) or all(
        whole.get(place, "").startswith(text) for place, text in _texts(got).items()
    )


def _ids(answer: Read) -> set[str]:
    """Return the ids of tool calls: only they may come from a stream that broke before the call's arguments."""
    return {text for place, text in answer.texts.items() if place.endswith(".id")}


def _texts(answer: Read) -> dict[str, str]:
    return {place: text for place, text in answer.texts.items() if not place.endswith(".id")}


def _values(answer: Read) -> dict[str, object]:
    """Return texts with whole arguments of tools as values, because translations change their white space."""
    values: dict[str, object] = dict(_texts(answer))
    for place, text in _texts(answer).items():
        if place.endswith(".arguments"):
            with contextlib.suppress(ValueError):
                values[place] = json.loads(text)
    return values


def _words(answer: Read) -> Counter[str]:
    return Counter(word for text in _texts(answer).values() for word in text.split())
