"""Boundaries in a race: the replicas used, the client's answer, and the log."""

from collections.abc import Callable

import pytest
from msgspec.structs import replace

from defaults import default_hedging
from recovering import ask, run
from scripted import HEDGED, Scripted, Step, answer, run_race, status, text
from ttft_gateway.apis.errors import ConnectionCut
from ttft_gateway.hedging.plan import Policy
from ttft_gateway.pool.picker import Picker
from ttft_gateway.pool.pool import Pool
from ttft_gateway.routing.strategies import Crossing, Routing

LATE = answer(5.0)
DOWN = status(0.01, 503)
QUICK = answer(0.02)


def _sides(*sides: str) -> Callable[[list[Pool]], None]:
    """Gives the replicas of all pools these boundaries, in order; `.` for none."""

    def prepare(pools: list[Pool]) -> None:
        replicas = [replica for pool in pools for replica in pool.replicas]
        for replica, side in zip(replicas, sides, strict=True):
            replica.boundary = None if side == "." else side

    return prepare


@pytest.mark.parametrize(
    ("crossing", "sides", "primary", "asked", "code"),
    [
        ("never", "eu us eu us", LATE, "a c", None),  # b would be the quicker backup
        ("never", "eu us us us", LATE, "a", None),
        ("never", "eu us us eu", LATE, "a", None),  # slowness leads to no fallback, on whichever side
        ("never", "eu us us us", DOWN, "a", 503),
        ("never", "eu us eu us", DOWN, "a c", None),
        ("never", "eu us us eu", DOWN, "a d", None),  # the fallback on this side
        ("never", ". us us .", DOWN, "a d", None),
        ("failover", "eu us us us", LATE, "a", None),
        ("failover", "eu us us us", DOWN, "a b", None),
        ("always", "eu us us us", LATE, "a b", None),
        ("always", "eu us us us", DOWN, "a b", None),
    ],
)
def test_who_is_asked(crossing: str, sides: str, primary: list[Step], asked: str, code: int | None) -> None:
    """Hedges, failovers and fallbacks go where the model lets them and nowhere else."""
    hedge = replace(HEDGED, crossing=Crossing(crossing))
    outcome = run_race(
        *(Scripted(script) for script in (primary, QUICK, QUICK)),
        fallbacks=[Scripted(QUICK)],
        hedge=hedge,
        prepare=_sides(*sides.split()),
    )
    assert [name for name, replica in zip("abcd", outcome.replicas, strict=True) if replica.streams] == asked.split()
    assert (outcome.client.error.status if outcome.client.error else None) == code
    assert outcome.client.finished == (code is None)


def test_the_last_error_on_this_side_is_the_answer() -> None:
    """If only the other side remains, the client gets this side's error, and the log names the replicas not tried."""
    outcome = run_race(
        Scripted(status(0.01, 500)),
        Scripted(status(0.01, 502, retry_after_s=7.0)),
        Scripted(QUICK),
        fallbacks=[Scripted(QUICK)],
        prepare=_sides("eu", "eu", "us", "us"),
    )
    assert outcome.client.error is not None
    assert (outcome.client.error.status, outcome.client.error.retry_after_s) == (502, 7.0)
    assert outcome.report.beyond_boundary == ("c", "d")


def test_nothing_is_told_where_no_boundary_was_in_the_way() -> None:
    """A race that used up every replica has none beyond a boundary."""
    outcome = run_race(Scripted(DOWN), Scripted(DOWN), prepare=_sides("eu", "eu"))
    assert outcome.report.beyond_boundary == ()


def test_an_overdue_request_stays_on_its_side() -> None:
    """A time-out before the first token is a failover like any other."""
    outcome = run_race(Scripted(answer(30.0)), Scripted(QUICK), prepare=_sides("eu", "us"))
    assert outcome.client.finished
    assert outcome.replicas[1].streams == []


def test_a_cut_is_not_continued_elsewhere() -> None:
    """An answer that breaks off before anything was sent is asked for again on this side only."""
    cut: list[Step] = [(0.01, "headers"), (0.02, text("a")), (0.03, ConnectionCut("cut"))]
    outcome = run_race(Scripted(cut), Scripted(QUICK), streaming=False, prepare=_sides("eu", "us"))
    assert outcome.client.error is not None
    assert outcome.replicas[1].streams == []


@pytest.mark.parametrize("prefills", [True, False], ids=["continued", "replayed"])
@pytest.mark.parametrize(
    ("crossing", "asked"), [("never", ["r0", "r2"]), ("failover", ["r0", "r1"]), ("always", ["r0", "r1"])]
)
def test_a_broken_stream_is_carried_on_inside(crossing: str, asked: list[str], *, prefills: bool) -> None:
    """A recovery crosses a boundary only if a failover may."""
    told = run(
        ask(),
        {"ttft": "20ms", "faults": ["cut_rst:5 once"]},
        {"ttft": "20ms"},
        {"ttft": "900ms"},
        prefills=prefills,
        hedge=default_hedging(policy=Policy.OFF, routing=Routing.ROUND_ROBIN, crossing=Crossing(crossing)),
        sides=["eu", "us", "eu"],
    )
    assert [attempt.replica for attempt in told.report.attempts] == asked
    assert told.read.valid


def test_a_broken_router_does_not_cross_either(monkeypatch: pytest.MonkeyPatch) -> None:
    """The replica that is taken when routing raises is on this side, too."""

    def broken(*_: object) -> None:
        raise RuntimeError

    monkeypatch.setattr(Picker, "pick", broken)
    outcome = run_race(Scripted(DOWN), Scripted(QUICK), Scripted(QUICK), prepare=_sides("eu", "us", "eu"))
    assert outcome.client.finished
    assert [len(replica.streams) for replica in outcome.replicas] == [1, 0, 1]
