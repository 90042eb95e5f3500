"""The lifecycle of a request: its table is complete and sound, races follow it, and the docs draw it."""

from collections import Counter
from collections.abc import Callable

import pytest
from test_race_fuzz import check_race
from test_recovery import STEADY, broken
from test_recovery_fuzz import check_stream
from test_signs_of_work import WORK, learned, thinks

from checkout import DOCS
from defaults import default_hedging, default_timeouts
from gateway.errors import Internal
from gateway.race.race import Race
from gateway.race.states import ENDS, TRANSITIONS, State, Trigger
from recovering import ask, run
from scripted import FINISH, ROLE, Scripted, Step, answer, run_race, status, text
from ttft_gateway.hedging.measure import MeasureShares
from ttft_gateway.hedging.plan import Policy

Row = tuple[State, Trigger, State]
ROWS: list[Row] = [(state, trigger, after) for (state, trigger), follow in TRANSITIONS.items() for after in follow]
_SEEDS = 100  # of each fuzzer
_STREAM: list[Step] = [(0.01, ROLE), *((0.02 + n, text("a")) for n in range(900))]
_EMPTY: list[Step] = [(0.01, ROLE), (0.02, FINISH), (0.03, None)]
_HELD = default_timeouts(total_s=8.0)
_SLOW: dict[str, object] = {**STEADY, "ttft": "300s"}


def mermaid() -> str:
    """Return the table as a Mermaid state diagram; triggers that end every state are drawn once."""
    lines = ["stateDiagram-v2", f"    [*] --> {State.RACING.value}"]
    for (state, trigger), following in TRANSITIONS.items():
        drawn = [after for after in following if trigger not in ENDS or after is not State.OVER]
        lines += [f"    {state.value} --> {after.value}: {trigger.value}" for after in drawn]
    ends = ", ".join(end.value for end in ENDS)
    lines += [f"    note right of {State.OVER.value}: from every state before an answer's end by {ends}"]
    return "\n".join([*lines, f"    {State.OVER.value} --> [*]"])


def rare_races() -> None:
    """Run the races that random ones are unlikely to be."""
    run_race(Scripted(status(0.01, 400)))  # the failure is the answer
    run_race(Scripted(_EMPTY))
    run_race(Scripted(_STREAM), timeouts=_HELD)
    unusable = Internal("the answer cannot be assembled")
    for script in (_STREAM, answer(5.0)):
        run_race(Scripted(script), during=lambda race, *_: after(race, 1.0, lambda: race.give_up(unusable)))
    for script in (thinks(0.1), [(0.01, WORK), *_EMPTY[1:]], [(0.01, WORK), *status(0.02, 500)]):
        run_race(Scripted(script), prepare=learned())
    run_race(Scripted(thinks(0.1)), prepare=learned(), timeouts=_HELD)
    for end in (lambda race: race.give_up(unusable), Race.client_gone, Race.shut_down):
        run_race(Scripted(thinks(0.1)), prepare=learned(), during=lambda race, *_, end=end: after(race, 1.0, end, race))
    run(ask(), broken("cut_rst:9 once"), {**STEADY, "faults": ["cut_rst:0 once"]})
    run(ask(), broken("cut_rst:9 once"), STEADY, seeds=(1, 2))  # it says something else
    run(ask(), broken("cut_rst:9 once"), {**STEADY, "tokens": 0})
    run(ask(), broken("cut_rst:9 once"), _SLOW, timeouts=_HELD)
    run(ask(), broken("stall:9,19s once"), STEADY, hedge=default_hedging(budget=1.0))  # a guard overtakes it
    run(ask(), broken("cut_rst:9 once"), _SLOW, during=lambda race, _: after(race, 3.0, race.shut_down))
    run(ask(), broken("cut_rst:9 once"), _SLOW, during=lambda race, _: after(race, 3.0, lambda: race.give_up(unusable)))


def measured_races() -> None:
    """Run races and read the loser to its first token."""
    hedge = default_hedging(policy=Policy.STATIC, static_delay_s=0.2, budget=1.0, measure=MeasureShares(losers=1.0))
    for leaves_s in (99.0, 0.5):
        run_race(
            Scripted(answer(2.0)),
            Scripted(_STREAM if leaves_s < 1 else answer(0.1)),
            hedge=hedge,
            during=lambda race, *_, at_s=leaves_s: after(race, at_s, race.client_gone),
        )


def after(race: Race, delay_s: float, call: Callable[..., None], *arguments: Race) -> None:
    """Call a function of a race later."""
    race._runtime.loop.call_later(delay_s, call, *arguments)


@pytest.fixture
def taken(monkeypatch: pytest.MonkeyPatch) -> Counter[Row]:
    """Count the transitions of all races."""
    rows: Counter[Row] = Counter()
    enter = Race._enter

    def counted(race: Race, trigger: Trigger, state: State) -> None:
        rows[race._state, trigger, state] += 1
        enter(race, trigger, state)

    monkeypatch.setattr(Race, "_enter", counted)
    return rows


def test_a_request_that_is_over_stays_over() -> None:
    """OVER has no rows; every other state can be ended from outside, unless the client has its answer."""
    assert all(state is not State.OVER for state, _ in TRANSITIONS)
    for state in set(State) - {State.OVER, State.MEASURING}:
        for trigger in (Trigger.CLIENT_GONE, Trigger.DRAINED, Trigger.TIMED_OUT, Trigger.UNUSABLE):
            assert TRANSITIONS[state, trigger][0] is State.OVER
    assert [key for key in TRANSITIONS if key[0] is State.MEASURING] == [(State.MEASURING, Trigger.MEASURED)]


def test_every_state_can_be_reached() -> None:
    """From RACING, with any number of transitions."""
    reached = {State.RACING}
    for _ in State:
        reached |= {after for state, _, after in ROWS if state in reached}
    assert reached == set(State)


def test_races_take_every_row_of_the_table_and_no_other(taken: Counter[Row]) -> None:
    """Whatever replicas, clients and clocks do, each transition is in the table, and each row happens."""
    for seed in range(_SEEDS):
        check_race(seed)
        check_stream(seed)
    rare_races()
    measured_races()
    assert set(taken) == set(ROWS)


def test_the_page_draws_the_table() -> None:
    """docs/lifecycle.md has the drawing that the table gives; print `mermaid()` after a change."""
    assert f"```mermaid\n{mermaid()}\n```" in (DOCS / "lifecycle.md").read_text(encoding="utf-8")
