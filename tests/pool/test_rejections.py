"""Evidence against a replica: what counts, what acquits, and who may try a replica that is out."""

from ttft_gateway.pool.rejections import Rejections
from ttft_gateway.routing.replicas import OPEN_S, Breaker, BreakerState

CLOSED, OPEN = BreakerState.CLOSED, BreakerState.OPEN


def rejected(*judges: Rejections, numbers: range = range(3), key: str = "a", disproved: bool = False) -> None:
    """Let requests be rejected by these replicas at time 0."""
    for number in numbers:
        for judge in judges:
            judge.on_rejected(number, key, judges, 0.0, disproved=disproved)


def pair() -> tuple[Rejections, Rejections]:
    """Return two replicas without a history."""
    return Rejections(Breaker()), Rejections(Breaker())


def test_three_different_requests_open_a_breaker_and_a_repeated_one_does_not() -> None:
    """The third different one returns the new state, and no later one does."""
    judge, _ = pair()
    states = [judge.on_rejected(number, "a", (judge,), 0.0, disproved=False) for number in (0, 0, 1, 1, 0, 2, 3)]
    assert states == [None] * 5 + [OPEN, None]
    assert judge.breaker.rejecting


def test_an_answer_acquits_whoever_has_agreed() -> None:
    """Requests that a working replica has rejected were at fault, so they count against no replica."""
    one, two = pair()
    rejected(one, two, numbers=range(2))
    rejected(two, numbers=range(2, 3))
    assert two.breaker.rejecting
    one.on_content(1.0)
    assert (len(one.requests), len(two.requests)) == (0, 1)
    assert two.breaker.allows(1.0)


def test_an_answer_says_nothing_about_a_replica_that_stood_alone() -> None:
    """Requests that one replica rejects and another one answers still count."""
    one, two = pair()
    rejected(two, disproved=True)
    one.on_content(1.0)
    assert two.breaker.rejecting
    assert not two.breaker.allows(1.0)


def test_an_answer_elsewhere_acquits_unless_another_replica_has_answered_here() -> None:
    """Another gateway may have another key: what this one has seen disproved still counts."""
    one, two = pair()
    rejected(one, numbers=range(2))
    rejected(two, numbers=range(2), disproved=True)
    for judge in (one, two):
        judge.on_content_elsewhere(0.0)
    assert (len(one.requests), len(two.requests)) == (0, 2)


def test_an_answer_before_the_probe_closes_the_breaker() -> None:
    """Content for a caller that was allowed to try counts as much as content for the probe."""
    judge, _ = pair()
    rejected(judge)
    assert judge.breaker.open_until_s == OPEN_S
    judge.on_content(1.0)
    judge.breaker.on_content(1.0, 1.0)
    assert (judge.breaker.state, judge.breaker.rejecting, judge.is_trusted) == (CLOSED, False, True)


def test_callers_that_may_try() -> None:
    """At most three callers meet a dead key; a breaker that is open for another reason admits none."""
    judge, other = pair()
    rejected(judge)
    assert [judge.admits(key) for key in "ab"] == [False, True]
    for number, key in enumerate("bcd", 3):
        judge.on_rejected_again(number, key)
    assert len(judge.requests) == 5
    assert not any(judge.admits(key) for key in "abcde")
    other.breaker.trip(0.0)
    assert not other.admits("a")


def test_a_new_key_begins_anew() -> None:
    """After a breaker is closed for another reason, three requests are needed again."""
    judge, _ = pair()
    rejected(judge)
    judge.breaker.on_success(1.0, 1.0)
    rejected(judge, numbers=range(3, 5))
    assert judge.breaker.state is CLOSED
    rejected(judge, numbers=range(5, 6))
    assert judge.breaker.state is OPEN
