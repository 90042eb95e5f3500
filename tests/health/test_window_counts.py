"""Counts in slots, and the day that is made of them."""

import pytest
from msgspec.structs import replace

from gateway.events import AttemptFailed, Event, HedgeFired, Result
from gateway.health.history import History, SwitchUse, quantiles
from gateway.health.windows import SLOT_S, CountSlot, ModelSlot, ReplicaSlot, WindowCounts, bin_of, seconds_of
from running import run_virtual
from sample_events import HEDGED, LOSER, PASSED, REJECTED, REQUEST
from ttft_gateway.hedging.outcomes import Denial, Outcome

_EPOCH_S = 1_795_845_600.0


class _Clock:
    def __init__(self) -> None:
        self.now_s = 0.0

    def __call__(self) -> float:
        return self.now_s


def _counted(*events: Event) -> CountSlot:
    clock = _Clock()
    counts = WindowCounts(lambda: _EPOCH_S, clock)
    counts.on_events(replace(event, at_s=1.0) for event in events)
    clock.now_s = SLOT_S
    (slot,) = counts.closed_after(0)
    return slot


def test_a_hedged_request() -> None:
    """The request counts for its model, its attempts for their replicas, and the wait of the loser is a lower bound."""
    slot = _counted(HedgeFired(0.0, "r-1", "llama", "a", "b", 0.25), HEDGED)
    model = slot.models["llama"]
    assert (slot.requests, slot.keys) == (1, {"team-a": 1})
    assert (model.requests, model.answered, model.hedged, model.won, model.late) == (1, 1, 1, 1, 0)
    assert (model.ttft, model.given_up, model.primary) == ({bin_of(0.3): 1}, {bin_of(0.3): 1}, {})
    assert (model.winner_tokens, model.loser_tokens) == (111, 90)
    assert model.replicas["a"] == ReplicaSlot(attempts=1, cancelled=1, hedged=1, cancelled_s=0.3)
    assert model.replicas["b"] == ReplicaSlot(attempts=1, answered=1, answered_s=0.05)


@pytest.mark.parametrize(
    ("event", "expected"),
    [
        (REQUEST, ModelSlot(requests=1, answered=1, winner_tokens=111)),
        (replace(REQUEST, ttft_s=6.0), ModelSlot(requests=1, answered=1, late=1, winner_tokens=111)),
        (
            replace(REQUEST, status=502, error="upstream_cut", attempts=()),
            ModelSlot(requests=1, answered=1, failed=1, errors={"upstream_cut": 1}),
        ),
        (
            replace(REQUEST, status=429, error="rate_limit_exceeded", limit="provider", attempts=(), ttft_s=None),
            ModelSlot(requests=1, limited=1, limits={"provider": 1}),
        ),
        (replace(REQUEST, status=400, attempts=(), ttft_s=None), ModelSlot(requests=1)),
        (
            replace(REQUEST, result=Result.DENIED, denials=(Denial.BUDGET,), attempts=(), ttft_s=None),
            ModelSlot(requests=1, denials={"budget": 1}),
        ),
    ],
)
def test_a_request_by_its_end(event: Event, expected: ModelSlot) -> None:
    """A failure, a limit, a late first token and a denial are counted each by its cause."""
    found = _counted(event).models["llama"]
    assert replace(found, ttft={}, primary={}, replicas={}) == expected


@pytest.mark.parametrize(
    ("outcome", "field"),
    [
        (Outcome.FAILED, "failed"),
        (Outcome.CUT, "failed"),
        (Outcome.RATE_LIMITED, "limited"),
        (Outcome.MISCONFIGURED, "misconfigured"),
        (Outcome.CLIENT_GONE, ""),
    ],
)
def test_an_attempt_by_its_outcome(outcome: Outcome, field: str) -> None:
    """Only failures of the replica count as such."""
    failed = replace(REQUEST, attempts=(replace(LOSER, outcome=outcome),))
    counts = _counted(failed).models["llama"].replicas["a"]
    assert counts == ReplicaSlot(attempts=1, **({field: 1} if field else {}))


def test_rejections_and_passed_requests_count_for_keys() -> None:
    """A key is counted for whatever it sends."""
    slot = _counted(REJECTED, PASSED, replace(REJECTED, key_name=None, code="invalid_api_key"))
    assert (slot.keys, slot.rejected) == ({"team-a": 2}, {"overloaded": 1, "invalid_api_key": 1})


def test_the_last_failure_and_the_run_of_late_attempts() -> None:
    """A failure is kept with its time; a first token in time ends the run of late attempts, a late one does not."""
    counts = WindowCounts(lambda: _EPOCH_S, lambda: 0.0)
    failure = AttemptFailed(2.0, "r-1", "llama", "a", Outcome.MISCONFIGURED, "upstream_misconfigured", 401)
    counts.on_events([HEDGED, HEDGED, failure])
    (last,) = [each for each in counts.last_attempts() if each.replica == "a"]
    assert (last.failed_s, last.outcome, last.status, last.late) == (_EPOCH_S + 2.0, "misconfigured", 401, 2)
    counts.on_events([replace(REQUEST, attempts=(replace(REQUEST.attempts[0], content_s=4.0),))])
    assert [each.late for each in counts.last_attempts() if each.replica == "a"] == [3]
    counts.on_events([REQUEST])
    (last,) = [each for each in counts.last_attempts() if each.replica == "a"]
    assert (last.answered_s, last.late) == (_EPOCH_S + REQUEST.at_s, 0)
    counts.forget("llama", "a")
    assert [each.replica for each in counts.last_attempts()] == ["b"]


def test_slots_are_kept_for_two_minutes() -> None:
    """A slot is given once it is closed; old ones are dropped."""
    clock = _Clock()
    counts = WindowCounts(lambda: _EPOCH_S, clock)
    for number in range(40):
        clock.now_s = number * SLOT_S
        counts.on_events([replace(REQUEST, at_s=clock.now_s)])
    assert len(counts.closed_after(0)) == 23  # the last one is not closed
    newest = counts.closed_after(0)[-1].number
    assert counts.closed_after(newest) == []


def test_names_are_bounded() -> None:
    """Keys above the bound are counted together."""
    slot = _counted(*(replace(REQUEST, key_name=f"k{number}") for number in range(1_010)))
    assert (len(slot.keys), slot.keys["_OTHER"]) == (1_001, 10)


@pytest.mark.parametrize("time_s", [0.0005, 0.012, 0.2, 3.0, 5000.0])
def test_a_bin_is_within_a_tenth(time_s: float) -> None:
    """The middle of the bin of a time is near it, within the range of bins."""
    assert seconds_of(bin_of(time_s)) == pytest.approx(min(910.0, max(0.00091, time_s)), rel=0.1)


def test_quantiles_with_and_without_hedges() -> None:
    """Waits that were given up move the estimate to the times that remained; too many hide it."""
    quick, slow = bin_of(0.2), bin_of(3.0)
    found = quantiles({quick: 100}, {quick: 95}, {bin_of(0.4): 4, slow: 1})
    assert (found.p50, found.p99, found.p50_without) == (195.7, 195.7, 195.7)
    assert found.hidden
    found = quantiles({quick: 100}, {quick: 95, slow: 1}, {bin_of(0.4): 4})
    assert (found.p99_without, found.hidden) == (2873.0, False)
    assert quantiles({}, {}, {}) == quantiles({}, {}, {})
    assert quantiles({}, {}, {}).p50 is None


def _slot(number: int, **keys: int) -> CountSlot:
    return CountSlot(number, 1, models={"m": ModelSlot(requests=1, winner_tokens=3, loser_tokens=1)}, keys=dict(keys))


def test_the_day_is_a_ring() -> None:
    """After a day the first window is gone, with the counts of its keys; the last minute is a sum of slots."""
    history = History(0.0)
    run_virtual(history.add([_slot(0, old=600), _slot(59, team=60)]))
    run_virtual(history.add([_slot(60 * 288, team=6)]))
    now_s = 60 * 288 * SLOT_S + SLOT_S
    day = run_virtual(history.of_model("m", now_s))
    assert (len(day.requests), sum(day.requests), day.requests[-1]) == (288, 1, 1)
    assert run_virtual(history.last(60.0, now_s)).keys == {"team": 6}
    assert history.mean_of_keys(now_s, CountSlot(0), 60.0).keys() == {"team"}


def test_two_processes_add_up() -> None:
    """Slots of the same time are one."""
    history = History(0.0)
    run_virtual(history.add([_slot(1, team=2)]))
    run_virtual(history.add([_slot(1, team=3)]))
    assert run_virtual(history.last(60.0, 10.0)).keys == {"team": 5}
    assert run_virtual(history.last(60.0, 10.0)).models["m"].requests == 2


def test_means_and_bills_need_time() -> None:
    """No mean before ten minutes, and no share of the bill before half an hour."""
    history = History(0.0)
    run_virtual(history.add([_slot(1, team=600)]))
    assert (history.mean_of_keys(500.0, CountSlot(0), 60.0), history.half_hour(1700.0)) == ({}, {})
    assert history.mean_of_keys(1260.0, CountSlot(0), 60.0) == {"team": 0.5}
    assert history.half_hour(1800.0) == {"m": (3, 1)}
    assert history.half_hour(2200.0) == {}


def test_states_and_switches() -> None:
    """A window shows the worst state of a replica, and the switches of its model."""
    history = History(0.0)
    for letter in ".b.":
        history.set_state("m", "a", letter, 301.0)
    history.set_state("m", "b", ".", 301.0)
    history.set_state("other", "c", "s", 301.0)
    for model in ("m", None, "other"):
        history.add_switch(SwitchUse(10.0, model, None, on=False))
    day = run_virtual(history.of_model("m", 301.0))
    assert {name: states[-2:] for name, states in day.states.items()} == {"a": " b", "b": " ."}
    assert [switch.model for switch in day.switches] == ["m", None]
    history.keep_replicas({("m", "b")})
    assert run_virtual(history.of_model("m", 301.0)).states.keys() == {"b"}
