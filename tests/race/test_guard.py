"""Guards beside streams that are silent or slow, in virtual time: one answer, by whichever attempt goes on first."""

import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from defaults import default_hedging, default_timeouts
from gateway.events import RecoveryKind, RecoveryResult, Role
from gateway.race.context import RecoveryMode
from gateway.race.race import Race
from recovering import WEATHER, Profile, Told, ask, run
from scripted import RecordingClient
from stalling import GAP_S, LAWS, Law, run_law
from ttft_gateway.hedging.charges import Disposition
from ttft_gateway.hedging.outcomes import Denial, GuardCause, Outcome
from ttft_gateway.hedging.parameters import GuardMode, HedgeParameters

STEADY: Profile = {"ttft": "20ms", "gap": "10ms"}
SILENT: Profile = {**STEADY, "faults": ["stall:9,19s once"]}
GUARDED = default_hedging(budget=1.0)
UNGUARDED = default_hedging(budget=1.0, guard=GuardMode.OFF)
TIMEOUTS = default_timeouts(stall_s=30.0, ttft_failover_s=4.0, total_s=90.0)


def guards(told: Told) -> list[tuple[GuardCause | None, RecoveryResult]]:
    """Causes and results of the guards."""
    return [(each.guard, each.result) for each in told.report.recoveries]


def roles(told: Told) -> list[tuple[Role, Outcome]]:
    """Roles and outcomes of the attempts."""
    return [(attempt.role, attempt.outcome) for attempt in told.report.attempts]


@pytest.mark.parametrize("prefills", [False, True], ids=["replay", "continue"])
def test_a_guard_goes_on_beside_a_silent_stream(prefills: bool) -> None:
    """The answer is whole 5 s after the silence began, not 19, and the silent replica is not blamed."""
    whole = run(ask(), STEADY)
    told = run(ask(), SILENT, STEADY, hedge=GUARDED, prefills=prefills)
    assert told.read.said == whole.read.said
    assert told.read.valid
    assert guards(told) == [(GuardCause.SILENT, RecoveryResult.RECOVERED)]
    assert roles(told) == [(Role.PRIMARY, Outcome.SILENT), (Role.GUARD, Outcome.FINISHED)]
    assert told.report.total_s < 6.0
    assert told.report.recoveries[0].gap_s < 5.5


@pytest.mark.parametrize("alike", [True, False])
def test_a_fallback_continues_beside_a_primary_that_is_alone(alike: bool) -> None:
    """A pool of one replica earns the credits for it; a model with other answers only repeats what is deterministic."""
    told = run(ask(), SILENT, fallback=STEADY, hedge=GUARDED, prefills=[False, True], alike=alike)
    assert told.read.said == run(ask(), STEADY).read.said
    assert guards(told) == [(GuardCause.SILENT, RecoveryResult.RECOVERED)]
    assert told.report.recoveries[0].kind is (RecoveryKind.CONTINUE if alike else RecoveryKind.REPLAY)


def test_a_stream_that_goes_on_first_ends_its_guard() -> None:
    """The client gets the rest of the same stream, and the guard is cancelled before its first token."""
    told = run(ask(), {**STEADY, "faults": ["stall:9,5.5s once"]}, {**STEADY, "ttft": "2s"}, hedge=GUARDED)
    assert told.read.said == run(ask(), STEADY).read.said
    assert guards(told) == [(GuardCause.SILENT, RecoveryResult.LOST)]
    assert roles(told) == [(Role.PRIMARY, Outcome.FINISHED), (Role.GUARD, Outcome.LOST)]
    assert told.report.attempts[1].charge.disposition is Disposition.LOSER


@pytest.mark.parametrize(
    ("profile", "result", "outcome"),
    [
        ({**STEADY, "continues": False}, RecoveryResult.FAILED, Outcome.CLIENT_ERROR),
        ({**STEADY, "faults": ["500 always"]}, RecoveryResult.FAILED, Outcome.FAILED),
        ({**STEADY, "faults": ["empty always"]}, RecoveryResult.FAILED, Outcome.FAILED),
        ({**STEADY, "ttft": "300s"}, RecoveryResult.FAILED, Outcome.LOST),
    ],
)
def test_a_guard_that_fails_costs_the_answer_nothing(
    profile: Profile, result: RecoveryResult, outcome: Outcome
) -> None:
    """The silent stream goes on as if there had been no guard."""
    told = run(ask(), SILENT, profile, hedge=GUARDED, prefills=True, timeouts=TIMEOUTS)
    assert told.read.said == run(ask(), STEADY).read.said
    assert told.report.status == 200
    assert guards(told)[0] == (GuardCause.SILENT, result)
    assert roles(told)[:2] == [(Role.PRIMARY, Outcome.FINISHED), (Role.GUARD, outcome)]


def test_a_guard_with_another_answer_is_dropped() -> None:
    """Nothing of it reaches the client, and no second replay is tried."""
    told = run(ask(), SILENT, STEADY, seeds=[0, 5], hedge=GUARDED)
    assert told.read.said == run(ask(), STEADY).read.said
    assert guards(told) == [(GuardCause.SILENT, RecoveryResult.DIVERGED)]


def test_a_sampled_answer_is_not_replayed_beside_its_stream() -> None:
    """A replay that is a guess is for broken streams."""
    request = {key: value for key, value in ask().items() if key != "temperature"}
    assert roles(run(request, SILENT, STEADY, hedge=GUARDED)) == [(Role.PRIMARY, Outcome.FINISHED)]


@pytest.mark.parametrize("prefills", [False, True], ids=["replay", "continue"])
def test_a_guard_takes_over_when_the_stream_beside_it_breaks(prefills: bool) -> None:
    """The running guard is the recovery: no third attempt is sent."""
    timeouts = default_timeouts(stall_s=5.5, stall_tool_call_s=5.5)
    slow = {**STEADY, "ttft": "800ms"} if prefills else {**STEADY, "gap": "80ms"}
    told = run(ask(), SILENT, slow, hedge=GUARDED, prefills=prefills, timeouts=timeouts)
    assert told.read.said == run(ask(), STEADY).read.said
    assert told.read.valid
    assert guards(told) == [(GuardCause.SILENT, RecoveryResult.RECOVERED)]
    assert roles(told) == [(Role.PRIMARY, Outcome.CUT), (Role.GUARD, Outcome.FINISHED)]


@pytest.mark.parametrize(
    ("hedge", "mode"),
    [
        (UNGUARDED, RecoveryMode.AUTO),
        (default_hedging(budget=0.0), RecoveryMode.AUTO),
        (GUARDED, RecoveryMode.OFF),
    ],
)
def test_no_guard_is_sent_where_it_is_off(hedge: HedgeParameters, mode: RecoveryMode) -> None:
    """The setting, a budget of 0 and `recovery: off` each leave the silent stream alone."""
    told = run(ask(), SILENT, STEADY, prefills=True, hedge=hedge, mode=mode)
    assert roles(told) == [(Role.PRIMARY, Outcome.FINISHED)]


def test_a_request_that_is_never_hedged_has_no_guard() -> None:
    """`n` above 1 may not run twice beside an open stream, although a broken one is replayed."""
    told = run(ask(n=2), {**STEADY, "faults": ["stall:18,19s once"]}, STEADY, hedge=GUARDED)
    assert roles(told) == [(Role.PRIMARY, Outcome.FINISHED)]
    assert told.report.never_hedged is Denial.OFF


def test_a_slow_client_ends_a_guard() -> None:
    """While the client reads nothing, silence means nothing."""

    def during(race: Race, _client: RecordingClient) -> None:
        loop = race._runtime.loop
        loop.call_later(5.15, race.pause)
        loop.call_later(30.0, race.resume)

    told = run(ask(), SILENT, {**STEADY, "ttft": "2s"}, hedge=GUARDED, prefills=True, during=during)
    assert guards(told)[0] == (GuardCause.SILENT, RecoveryResult.LOST)
    assert told.read.said == run(ask(), STEADY).read.said


FAULTS = ("stall:{at},{long}s", "stall:{at},{long}s+cut_rst:{then}", "cut_rst:{at}", "short:{at}")
REQUESTS = (
    ask(),
    ask(),
    ask(tools=[WEATHER], tool_choice="required"),
    ask(max_tokens=19),
    ask(logprobs=True),
)


def _profile(chance: random.Random, per_event_max: int) -> Profile:
    speed = {"ttft": chance.choice(["20ms", "500ms", "2s"]), "gap": chance.choice(["1ms", "300ms", "900ms"])}
    made: dict[str, object] = {
        **speed,
        "per_event": chance.randint(1, per_event_max),
        "continues": chance.random() < 0.8,
    }
    if chance.random() < 0.8:
        at, length = chance.randint(1, 14), chance.uniform(4.5, 12)
        fault = chance.choice(FAULTS).format(at=at, long=f"{length:.3f}", then=at + chance.randint(1, 5))
        made["faults"] = [f"{fault} {chance.choice(['once', 'always'])}"]
    return made


@given(seed=st.integers(0, 2**32))
@settings(max_examples=40)
def test_any_interleaving_is_one_answer(seed: int) -> None:
    """However streams stall, return and break, and clients pause and leave, the client reads one answer or an error."""
    check_interleaving(seed)


def check_interleaving(seed: int) -> None:
    """Run one random race with guards and check its end."""
    chance = random.Random(seed)
    request = chance.choice(REQUESTS)
    per_event_max = 1 if "max_tokens" in request else 3  # generated tokens can be counted, as an event is a token
    replicas = [_profile(chance, per_event_max) for _ in range(chance.randint(2, 3))]
    seeds = [0, *(chance.choice([0, 0, 5]) for _ in replicas[1:])]
    prefills = [chance.random() < 0.6 and not any(seeds) for _ in replicas]
    pauses_s, leaves_s = chance.choice([None, None, 3.0, 5.3]), chance.choice([None, None, None, 5.2, 6.0])

    def during(race: Race, _client: RecordingClient) -> None:
        loop = race._runtime.loop
        if pauses_s is not None:
            loop.call_later(pauses_s, race.pause)
            loop.call_later(pauses_s + chance.choice([0.5, 10.0]), race.resume)
        if leaves_s is not None:
            loop.call_later(leaves_s, race.client_gone)

    wholes = [run(request, {}, seeds=[each]).read for each in sorted(set(seeds))]
    hedge = default_hedging(budget=1.0, saved_hedges=20.0)
    told = run(request, *replicas, seeds=seeds, prefills=prefills, timeouts=TIMEOUTS, hedge=hedge, during=during)
    got, report = told.read, told.report
    matching = [
        whole
        for whole in wholes
        if all(whole.texts.get(place, "").startswith(text) for place, text in got.texts.items() if ".id" not in place)
    ]
    assert matching
    if report.status == 200:
        assert got.error is None
        assert any((got.texts, got.finishes) == (whole.texts, whole.finishes) for whole in matching)
        assert len(got.heads) == 1
        assert got.dones == 1
        assert all(count == 1 for count in got.roles.values())
    else:
        assert got.dones == 0
    assert len(report.attempts) == sum(told.asked) <= 4


def test_short_gaps_under_every_law_where_a_second_replica_is_well() -> None:
    """No answer has a gap of 3 s, all are whole, and guards cost less than the budget of 10 %."""
    figures = run_law(Law(0.01, 0.02, 0.05), count=300, words=60)
    assert figures.gap_p999_s <= 3.0
    assert (figures.errors, figures.wrong) == (0, 0)
    assert 0.0 < figures.tokens <= 0.1
    assert figures.total_p99_s <= 0.7 * (0.4 + 6 * 60 * GAP_S)


@pytest.mark.parametrize("shared", ["request", "time"])
def test_few_guards_where_replicas_share_the_cause(shared: str) -> None:
    """Two guards may lose for each cause, and some that are beaten early, whatever the law."""
    law = LAWS["all three"] if shared == "request" else Law(0.05, 0.1, 0.2)
    figures = run_law(law, count=150, words=60, shared=shared)
    assert figures.guards * 150 <= 8
    assert figures.wrong == 0
