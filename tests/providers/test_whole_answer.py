"""Whole answers are collected within bounds on memory and on each step, whatever they contain."""

import contextlib
import tracemalloc

import msgspec
import pytest

import providers.whole_answer
from hostile_answers import DOCUMENTS
from providers.whole_answer import WholeAnswer
from ttft_gateway.apis.errors import ProtocolError
from ttft_gateway.apis.json_values import thinned

_SIZE = 6_000_000
_READ = 256 * 1024
_MB = 2**20


@pytest.mark.parametrize("name", DOCUMENTS)
def test_an_answer_takes_its_bytes_and_a_few_mb(name: str) -> None:
    """At its peak, an answer and its outline take at most three times its bytes and 1 MB."""
    document = DOCUMENTS[name].make(_SIZE)
    tracemalloc.start()
    try:
        answer = WholeAnswer(64 * _MB)
        with contextlib.suppress(ProtocolError):  # some shapes have too many values
            for at in range(0, len(document), _READ):
                answer.add(document[at : at + _READ])
            assert answer.light() is None
            answer.outline()
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert peak < 3 * len(document) + _MB


def test_the_outline_grows_in_steps(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each step reads at most the bytes of one read and 128 kB; the last one reads no more."""
    steps: list[int] = []

    def counted(piece: bytes) -> bytes:
        steps.append(len(piece))
        return thinned(piece)

    monkeypatch.setattr(providers.whole_answer, "thinned", counted)
    document = DOCUMENTS["embeddings"].make(_SIZE)
    answer = WholeAnswer(64 * _MB)
    for at in range(0, len(document), 16 * 1024):
        answer.add(document[at : at + 16 * 1024])
    assert b"".join(answer.pieces()) == document
    answer.outline()
    assert sum(steps) == len(document)
    assert max(steps) <= 144 * 1024


@pytest.mark.parametrize("read", [1_000, 7_919, 100_000])
def test_numbers_of_python_are_numbers(read: int) -> None:
    """An answer with NaN and Infinity is JSON as its outline has it, wherever the reads end."""
    document = b'{"data":[%b],"usage":{}}' % b",".join(
        [b'{"logprob":-Infinity,"x":[NaN, Infinity],"text":"NaN"}'] * 30_000
    )
    answer = WholeAnswer(64 * _MB)
    for at in range(0, len(document), read):
        answer.add(document[at : at + read])
    assert list(msgspec.json.decode(answer.outline())) == ["data", "usage"]


def test_bytes_and_values_have_limits() -> None:
    """An answer over its limits fails as soon as the limit is passed."""
    with pytest.raises(ProtocolError, match="over the limit of 10 bytes"):
        WholeAnswer(10).add(b"x" * 11)
    keys = b",".join(b'"%07d":1' % number for number in range(20_000))
    answer = WholeAnswer(64 * _MB)
    for _ in range(75):
        answer.add(keys)
    with pytest.raises(ProtocolError, match="over 1500000 values"):
        answer.add(keys)


def test_what_has_to_be_decoded_must_be_light() -> None:
    """An answer that becomes events may have 4 MB, and few values."""
    for document, why in (
        (b'"%b"' % (b"x" * 5 * _MB), "over 4194304 cannot"),
        (b"[%b]" % (b"1," * 99_999), "too many values"),
    ):
        answer = WholeAnswer(64 * _MB)
        answer.add(document)
        with pytest.raises(ProtocolError, match=why):
            answer.converted()
