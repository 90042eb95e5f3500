"""The judge of the streams under faults: each way in which a stream can be wrong is found."""

import json

import pytest

from fault_judge import judged
from fault_requests import FAULTS
from gateway.simulated.faults import parse_rule
from recovering import read

WORDS = ("one ", "two ", "three ", "four ")
OTHER = ("five ", "six ", "seven ", "eight ")
ERROR = b'data: {"error":{"message":"broken","type":"upstream_error","param":null,"code":"upstream_cut"}}\n\n'
DONE = b"data: [DONE]\n\n"


def stream(*words: str, finish: str | None = "stop", last: bytes = DONE, ident: str = "a") -> bytes:
    """Return the bytes of a stream with these texts."""
    deltas = [{"role": "assistant", "content": ""}, *({"content": word} for word in words)]
    choices: list[dict[str, object]] = [{"index": 0, "delta": delta, "finish_reason": None} for delta in deltas]
    choices += [{"index": 0, "delta": {}, "finish_reason": finish}] if finish else []
    chunks = [{"id": ident, "created": 1, "model": "m", "choices": [choice]} for choice in choices]
    return b"".join(b"data: " + json.dumps(chunk).encode() + b"\n\n" for chunk in chunks) + last


RIGHT = [read(stream(*WORDS)), read(stream(*OTHER))]
REFUSED = [read(stream(*WORDS[:2], finish="content_filter"))]


@pytest.mark.parametrize(
    ("body", "result"),
    [
        (stream(*WORDS), "whole"),
        (stream(*OTHER), "whole"),
        (stream(*WORDS, last=b""), "whole"),  # nothing is missing after the finish_reason
        (stream(*WORDS[:2], finish="content_filter"), "refused"),
        (stream(*WORDS[:2], finish=None, last=ERROR), "error"),
        (stream(*WORDS[:2], finish=None, last=b"\n" + ERROR), "error"),
        (stream(*WORDS[:2], *OTHER[2:]), "mixed"),
        (stream(*WORDS[:2], *OTHER[:1], finish=None, last=ERROR), "mixed"),
        (stream(*WORDS[:2], finish=None, last=stream(*WORDS[2:], ident="b")), "doubled"),  # a second role
        (stream(*WORDS[:2], finish=None, last=b"") + stream(*WORDS[2:], ident="b").partition(b"\n\n")[2], "mixed"),
        (stream(*WORDS[:2], *WORDS[1:]), "doubled"),
        (stream(*WORDS, last=DONE + DONE), "doubled"),
        (stream(*WORDS[:1], *WORDS[2:]), "lost"),
        (stream(*WORDS[:2]), "silently cut"),
        (stream(*WORDS[:2], finish=None), "silently cut"),
        (stream(*WORDS[:2], finish=None, last=b""), "silently cut"),
        (stream(*WORDS[:2], finish=None, last=ERROR + DONE), "silently cut"),
    ],
)
def test_each_wrong_stream_is_found(body: bytes, result: str) -> None:
    """A stream is right as a whole answer of one replica, its refusal, or its beginning and an error."""
    assert judged(read(body), RIGHT, REFUSED, ended=True) == result


def test_a_stream_without_its_end_is_lost() -> None:
    """A connection that ends before the body does loses the answer, and one without an error is never whole."""
    for body in (stream(*WORDS), stream(*WORDS[:2], finish=None, last=b"")):
        assert judged(read(body), RIGHT, REFUSED, ended=False) == "lost"


def test_there_are_24_kinds_of_faults() -> None:
    """The kinds that breaking, failing and refusing replicas show, each with rules that the replicas accept."""
    assert len([parse_rule(rule) for rules in FAULTS.values() for rule in rules]) > len(FAULTS) == 24
