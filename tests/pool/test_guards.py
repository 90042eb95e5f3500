"""When a stream is silent or slow for its replica, by hand-fed streams."""

import math
from itertools import product

import pytest

from pooled import Seen
from scripted import Scripted
from ttft_gateway.apis.base import Phase
from ttft_gateway.hedging.contract import StreamWatch
from ttft_gateway.hedging.outcomes import GuardCause
from ttft_gateway.pool.guards import Guards
from ttft_gateway.routing.replicas import Replica

A, B = Replica("a", Scripted()), Replica("b", Scripted())


def stream(replica: Replica = A, at_s: float = 0.0, events: int = 1, phase: Phase | None = None) -> Seen:
    """A stream with its last output at a time."""
    seen = Seen(replica, 0.0)
    seen.content_s, seen.events, seen.phase = 0.0, events, phase
    seen.output_s = seen.generated_s = at_s
    return seen


def guards() -> Guards:
    """Guards of a pool of two replicas."""
    return Guards(["a", "b"], is_on=True)


def look(made: Guards, seen: Seen, now_s: float) -> GuardCause | None:
    """Look at a stream."""
    seen.watch = seen.watch or StreamWatch(0.0, 1)
    return made.look(seen, seen.watch, now_s)


def learn(made: Guards, gaps_s: list[float], phase: Phase | None = None, replica: Replica = A) -> None:
    """Feed streams of a replica with these longest gaps."""
    for gap_s in gaps_s:
        seen = stream(replica, phase=phase)
        assert look(made, seen, 0.1) is None
        assert seen.watch is not None
        if gap_s:
            seen.watch.gaps_s[phase or Phase.TEXT] = gap_s
        made.end(seen, seen.watch, 0.1)


@pytest.mark.parametrize(
    ("gaps_s", "phase", "limit_s"),
    [
        ([], None, 5.0),  # unknown
        ([], Phase.THINKING, math.inf),
        ([], Phase.TOOL_CALL, math.inf),
        ([0.0] * 100, None, 1.0),
        ([0.0] * 98 + [30.0] * 2, None, 1.0),  # two of a hundred stall
        ([0.8] * 100, None, 1.5),
        ([4.1] * 100, Phase.TOOL_CALL, 1.5 * 0.5 * 2**3.5),
        ([200.0] * 100, Phase.THINKING, math.inf),
    ],
)
def test_a_silence_is_long_by_the_streams_of_its_replica(
    gaps_s: list[float], phase: Phase | None, limit_s: float
) -> None:
    """The limit follows from the longest gaps of nine of ten streams in the phase, and is at least 1 s."""
    made = guards()
    learn(made, gaps_s, phase)
    for share, expected in ((0.99, None), (1.01, GuardCause.SILENT)):
        if limit_s < math.inf:
            assert look(made, stream(phase=phase), share * limit_s) is expected
        else:
            assert look(made, stream(phase=phase), 1000.0) is None


def test_a_replica_without_streams_has_the_limits_of_its_pool() -> None:
    """Another replica's streams count until a replica has its own."""
    made = guards()
    learn(made, [0.0] * 30, replica=B)
    assert look(made, stream(A), 1.1) is GuardCause.SILENT
    learn(made, [3.0] * 30, replica=A)
    assert look(made, stream(A), 1.1) is None
    assert look(made, stream(B), 1.1) is GuardCause.SILENT


def paced(made: Guards, gap_s: float, looks: int, replica: Replica = A) -> list[GuardCause | None]:
    """The causes that the looks at one stream find."""
    seen, found = stream(replica), []
    for number in range(1, looks + 1):
        seen.events += round(1.0 / gap_s)
        seen.output_s = seen.generated_s = float(number)
        found.append(look(made, seen, float(number)))
    return found


def test_a_stream_is_slow_by_the_usual_gap_of_its_replica() -> None:
    """It is slow at the second look with three times the usual gap, and not before the usual gap is known."""
    made = guards()
    assert paced(made, 0.2, 5) == [None] * 5
    made = guards()
    assert set(paced(made, 0.02, 30)) == {None}
    assert paced(made, 0.05, 5) == [None] * 5
    assert paced(made, 0.12, 3) == [None, GuardCause.SLOW, GuardCause.SLOW]


def test_a_replica_that_is_slow_for_all_its_streams_is_not_slow() -> None:
    """The usual gap follows within some 30 looks, so a busy replica is not guarded for its load."""
    made = guards()
    paced(made, 0.02, 30)
    causes = [paced(made, 0.12, 2)[1] for _ in range(40)]
    assert causes[0] is GuardCause.SLOW
    assert set(causes[20:]) == {None}


def test_a_guard_goes_to_a_replica_without_the_same_fault() -> None:
    """A replica of which the streams are all silent since then is not well, nor for a slow stream a replica as slow."""
    made, late, other = guards(), stream(A, at_s=10.0), stream(B, at_s=9.5)
    look(made, late, 10.5)
    assert late.watch is not None
    assert made.is_well(B, late, late.watch, GuardCause.SILENT)
    look(made, other, 10.4)
    assert not made.is_well(B, late, late.watch, GuardCause.SILENT)
    other.output_s = 10.6
    assert made.is_well(B, late, late.watch, GuardCause.SILENT)
    late.watch.gap_s = 0.12
    assert not made.is_well(B, late, late.watch, GuardCause.SLOW)  # its gap is unknown
    paced(made, 0.1, 3, B)
    assert not made.is_well(B, late, late.watch, GuardCause.SLOW)
    paced(made, 0.02, 60, B)
    assert made.is_well(B, late, late.watch, GuardCause.SLOW)


def test_guards_end_where_they_lose_and_go_on_where_they_win() -> None:
    """Two may lose, then one in 3,000 answers; guards that win are not limited, and no cause limits the other."""
    made, won, cause = guards(), StreamWatch(0.0, 1), GuardCause.SILENT
    for _ in range(50):
        assert made.allows(cause, 0)
        made.on_sent(cause)
        made.on_won(won, won, cause)
    for _ in range(16):
        assert made.allows(cause, 0)
        made.on_sent(cause)
    assert [made.allows(cause, answers) for answers in (0, 2990, 3010)] == [False, False, True]
    for _ in range(2):
        assert made.allows(GuardCause.SLOW, 0)
        made.on_sent(GuardCause.SLOW)
    assert not made.allows(GuardCause.SLOW, 0)


def test_a_guard_of_a_slow_stream_wins_by_its_own_speed() -> None:
    """It is counted as won after its first measured gap or its end, if that is shorter by a third."""
    for (gap_s, credit), ends in product(((0.02, 5.0), (0.1, 1.0)), (False, True)):
        made, guard = guards(), stream(B)
        guard.watch = StreamWatch(0.0, 1)
        made.on_sent(GuardCause.SLOW)
        made.on_won(guard.watch, StreamWatch(0.0, 1, gap_s=0.12), GuardCause.SLOW)
        guard.events += round(1 / gap_s)
        guard.output_s = guard.generated_s = 1.0
        if ends:
            made.end(guard, guard.watch, 1.0)
        else:
            look(made, guard, 1.0)
        assert made.credits[GuardCause.SLOW] == credit
