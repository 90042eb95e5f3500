"""Servers that ignore the beginning of an answer and answer anew: the client never gets a text twice."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gateway.events import RecoveryKind, RecoveryResult
from providers.comparison import Continued, Differs
from recovering import ask, run
from ttft_gateway.apis.base import Api

STEADY: dict[str, object] = {"ttft": "20ms", "gap": "10ms"}
ANEW: dict[str, object] = {**STEADY, "faults": ["ignores_prefix always"]}
TEXT = "The quick brown fox jumps over the lazy dog, and then sleeps until the next morning comes."


def fed(text: str, continuation: str, size: int, rest: str = "", *, is_whole: bool = True) -> tuple[str, bool]:
    """The new text of a continuation that arrives in pieces, and True if it ends with nothing withheld."""
    joined = Continued(text, rest, is_whole=is_whole)
    pieces = [continuation[at : at + size] for at in range(0, len(continuation), size)]
    return "".join(map(joined.take, pieces)), joined.done


@given(size=st.integers(1, 12), at=st.integers(2, len(TEXT) - 1))
def test_a_repetition_of_the_whole_text_is_skipped(size: int, at: int) -> None:
    """However the pieces are cut, the client gets what follows its text, with its own white space."""
    sent = TEXT[:at].rstrip()
    assert fed(sent, TEXT, size, TEXT[len(sent) : at]) == (TEXT[at:], True)


@given(size=st.integers(1, 12), text=st.text("ab "))
def test_other_continuations_are_passed_on(size: int, text: str) -> None:
    """A continuation that does not repeat the text arrives whole, also where it begins with the same few words."""
    for continuation in (f"The quick {text}", f" {text}x", "morning comes. Then."):
        assert fed(TEXT, f"{continuation}!", size) == (f"{continuation}!", True)


@pytest.mark.parametrize(
    ("continuation", "is_whole"),
    [
        (f"{TEXT[:40]} sat", True),  # it begins anew, and goes on in another way
        (f"{TEXT[45:]} Then", True),  # it repeats the end
        (f"{TEXT} Then", False),  # the client has other blocks
    ],
)
@given(size=st.integers(1, 12))
def test_other_repetitions_are_no_continuation(continuation: str, is_whole: bool, size: int) -> None:
    """A continuation that repeats a long part of the text ends the joining before the client gets any of it."""
    with pytest.raises(Differs):
        fed(TEXT, continuation, size, is_whole=is_whole)


@given(size=st.integers(1, 12), word=st.sampled_from(["ha ", "0, ", "| --- "]))
def test_a_text_that_repeats_itself_may_do_so_again(size: int, word: str) -> None:
    """Nothing of a periodic text is skipped."""
    assert fed((20 * word).rstrip(), 5 * word, size) == (5 * word, True)


@pytest.mark.parametrize("api", [Api.CHAT])
@given(at=st.integers(1, 19), size=st.integers(1, 4))
@settings(max_examples=12)
def test_a_server_that_answers_anew_makes_one_answer(api: Api, at: int, size: int) -> None:
    """A broken stream that such a server is asked to continue ends as one whole answer."""
    whole = run(ask(), STEADY, api=api)
    broken = {**STEADY, "faults": [f"cut_rst:{at} once"]}
    told = run(ask(), broken, {**ANEW, "per_event": size}, prefills=True, api=api)
    assert told.read.said == whole.read.said
    assert told.read.valid
    (recovery,) = told.report.recoveries
    assert (recovery.kind, recovery.result) == (RecoveryKind.CONTINUE, RecoveryResult.RECOVERED)
