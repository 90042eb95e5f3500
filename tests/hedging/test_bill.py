"""The cheapest course that keeps a target: a table of ways, the delay of the backup, and the bill."""

import random

import pytest

from ttft_gateway.estimation.waits import WaitCurve
from ttft_gateway.hedging.bill import Course, Way, cheapest, course_with, courses, is_hopeless, rescue

TARGET_S, MISSED_MAX, DELAY_S_MIN = 3.0, 0.007, 0.02


def curve(median_s: float, sigma: float, slow: float = 0.0, slow_s: float = 10.0) -> WaitCurve:
    """A law of waits, of which a share takes much longer."""
    rng = random.Random(median_s)
    return WaitCurve(
        [
            (slow_s if index < slow * 1_000 else median_s * rng.lognormvariate(0.0, sigma), True)
            for index in range(1_000)
        ]
    )


def way(name: str, price: float, law: WaitCurve, *, refused: float = 0.0, is_backup: bool = True) -> Way:
    """A way at a multiple of the usual price; a prompt is 60 % of a request's bill."""
    return Way(name, 0.6 * price, 0.4 * price, law, law, refused, is_backup)


CALM, USUAL, BUSY = curve(0.7, 0.62, 0.03), curve(1.2, 0.7, 0.1), curve(3.0, 0.7, 0.3)
STANDARD, DEAR, BROWN = curve(0.4, 0.32, 0.02, 2.5), curve(0.18, 0.3), curve(4.0, 0.4)
DEAD = curve(60.0, 0.1)


@pytest.mark.parametrize(
    ("flex", "standard", "first", "backup"),
    [
        (CALM, STANDARD, "flex", "default"),
        (USUAL, STANDARD, "flex", "default"),
        (BUSY, STANDARD, "default", "priority"),
        (DEAD, BROWN, "priority", None),
        (CALM, BROWN, "flex", "priority"),
    ],
)
def test_the_cheapest_course_that_keeps_the_target(
    flex: WaitCurve, standard: WaitCurve, first: str, backup: str | None
) -> None:
    """Cheap while that pays, usual when the cheap way is busy, dear when the usual way is slow as well."""
    ways = [way("flex", 0.5, flex), way("default", 1.0, standard), way("priority", 2.0, DEAR)]
    best = cheapest(list(courses(ways, TARGET_S, MISSED_MAX, DELAY_S_MIN).values()), MISSED_MAX)
    assert best.first == first
    assert backup is None or best.backup == backup
    assert best.missed <= MISSED_MAX


def test_the_bill_is_that_of_the_published_study() -> None:
    """The usual law of the cheap tier costs less than three quarters, and the calm law a little over a half."""
    for law, refused, bill in ((USUAL, 0.03, 0.72), (CALM, 0.0, 0.56)):
        course = course_with(
            way("flex", 0.5, law, refused=refused), way("default", 1.0, STANDARD), TARGET_S, MISSED_MAX, DELAY_S_MIN
        )
        assert course.bill == pytest.approx(bill, abs=0.03)
        assert 1.5 < course.delay_s < 2.9
        assert course.in_time


def test_a_backup_begins_as_late_as_it_can() -> None:
    """A quicker backup begins later, and one that is always too late is not called in time."""
    first = way("flex", 0.5, USUAL)
    slow = course_with(first, way("default", 1.0, STANDARD), TARGET_S, MISSED_MAX, DELAY_S_MIN)
    quick = course_with(first, way("priority", 2.0, DEAR), TARGET_S, MISSED_MAX, DELAY_S_MIN)
    assert slow.delay_s < quick.delay_s
    assert quick.bill > slow.bill
    assert not course_with(first, way("brown", 1.0, BROWN), TARGET_S, MISSED_MAX, DELAY_S_MIN).in_time


def test_a_way_that_takes_no_backups_gets_none() -> None:
    """Where no other way may be a backup, the course is one way alone."""
    ways = [way("flex", 0.5, USUAL), way("default", 1.0, STANDARD, is_backup=False)]
    assert courses(ways, TARGET_S, MISSED_MAX, DELAY_S_MIN)["flex"].backup is None


def test_a_provider_that_bills_the_whole_answer_is_dearer() -> None:
    """The loser's answer is in the bill where cancelling does not stop it."""
    ways = [Way("flex", 0.3, 0.2, USUAL, USUAL, is_billed_whole=whole) for whole in (False, True)]
    bills = [course_with(each, way("default", 1.0, STANDARD), TARGET_S, MISSED_MAX, DELAY_S_MIN).bill for each in ways]
    assert bills[1] > bills[0] + 0.04


def test_a_late_request_is_saved_by_the_cheapest_way_in_time() -> None:
    """With a second left the usual way is enough, with little time only the dear one, and then the quickest."""
    ways = [way("flex", 0.5, USUAL), way("default", 1.0, STANDARD), way("priority", 2.0, DEAR)]
    assert [rescue(ways, left_s).name for left_s in (9.0, 1.0, 0.4, -1.0)] == [
        "default",
        "default",
        "priority",
        "priority",
    ]


def test_a_target_that_nothing_keeps_is_hopeless() -> None:
    """If most requests miss the target on every course, no money is spent on it."""
    missed = Course("a", None, 1.0, 1.0, 0.9)
    assert is_hopeless([missed])
    assert not is_hopeless([missed, Course("b", None, 1.0, 2.0, 0.1)])
