"""The choice of the event that is timed as the first token."""

from itertools import repeat

import pytest

from ttft_gateway.apis.base import Api, FirstToken
from ttft_gateway.estimation.first_token import FirstTokenChoice, Signs

TOGETHER_S, APART_S = 0.001, 0.3
RESPONSES, CHAT = Api.RESPONSES, Api.CHAT


def _choice(setting: FirstToken, *, after_s: float, hidden: bool, signs: int = 3) -> FirstTokenChoice:
    choice = FirstTokenChoice(setting)
    for _ in range(signs):
        choice.add_sign("a", RESPONSES, after_s)
        choice.add_answer(hidden=hidden)
    return choice


@pytest.mark.parametrize(
    ("setting", "after_s", "hidden", "by_work"),
    [
        ("any", APART_S, True, True),
        ("any", APART_S, False, False),  # reasoning is shown, or there is none: content, as ever
        ("any", TOGETHER_S, True, False),  # an echo shows nothing
        ("work", APART_S, False, True),
        ("work", TOGETHER_S, False, False),
        ("answer", APART_S, True, False),
    ],
)
def test_signs_are_timed_where_they_are_wanted_and_informative(
    setting: FirstToken, after_s: float, *, hidden: bool, by_work: bool
) -> None:
    """The setting asks, the times of headers and signs decide."""
    choice = _choice(setting, after_s=after_s, hidden=hidden)
    assert choice.by_work("a", RESPONSES) is by_work
    assert choice.is_sometimes_by_work("a") is by_work
    assert not choice.by_work("a", CHAT)  # the same replica shows no signs there
    assert not choice.by_work("b", RESPONSES)


def test_two_signs_are_not_trusted() -> None:
    """The first signs of a replica may be apart from the headers by accident."""
    assert not _choice("work", after_s=APART_S, hidden=True, signs=2).by_work("a", RESPONSES)


def test_either_order_of_evidence_is_enough() -> None:
    """Signs may be informative long before an answer reports hidden reasoning."""
    choice = FirstTokenChoice("any")
    assert [choice.add_sign("a", RESPONSES, APART_S) for _ in range(5)] == [False] * 5
    assert choice.add_answer(hidden=True)
    assert not choice.add_answer(hidden=True)


def test_a_replica_that_begins_to_echo_is_no_longer_believed() -> None:
    """After an update of the server the signs come with the headers."""
    choice = _choice("any", after_s=APART_S, hidden=True)
    changes = [choice.add_sign("a", RESPONSES, TOGETHER_S) for _ in range(40)]
    assert changes.count(True) == 1
    assert not choice.by_work("a", RESPONSES)


def test_a_share_near_the_limit_does_not_switch_to_and_fro() -> None:
    """Half of the signs apart, or a fifth of the answers with hidden reasoning: one change, no more."""
    signs = Signs()
    switches = []
    for apart_s in [APART_S] * 3 + [TOGETHER_S, APART_S] * 50:
        before = signs.informative
        signs.add(apart_s)
        switches.append(signs.informative is not before)
    assert switches.count(True) == 1
    choice = _choice("any", after_s=APART_S, hidden=True)
    assert not any(choice.add_answer(hidden=number % 5 == 0) for number in range(200))


@pytest.mark.parametrize(("setting", "by_work"), [("any", True), ("answer", False)])
def test_a_reload_keeps_what_was_found_out(setting: FirstToken, *, by_work: bool) -> None:
    """Replicas that stay keep their signs; a setting that excludes signs is obeyed immediately."""
    old = _choice("any", after_s=APART_S, hidden=True)
    list(map(old.add_sign, "bbb", repeat(RESPONSES), repeat(APART_S)))
    new = FirstTokenChoice(setting)
    assert new.adopt_state(old, ["a"]) is not by_work
    assert new.by_work("a", RESPONSES) is by_work
    assert not new.by_work("b", RESPONSES)


def test_a_reload_with_attempts_under_way_loses_no_change() -> None:
    """The replaced choice still adds the signs of its attempts to the shared ones; the new choice takes note."""
    old, new = _choice("any", after_s=APART_S, hidden=True), FirstTokenChoice("any")
    new.adopt_state(old, ["a"])
    for _ in range(40):
        old.add_sign("a", RESPONSES, TOGETHER_S)
    assert new.add_sign("a", RESPONSES, TOGETHER_S)
    assert not new.times_work
