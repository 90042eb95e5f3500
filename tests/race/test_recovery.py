"""Streams that break after their first content, in virtual time: one valid answer, or the honest error."""

import math

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from defaults import default_timeouts
from gateway.events import RecoveryKind, RecoveryResult, Role
from gateway.race import recovery, sent_events
from gateway.race.context import RecoveryMode
from gateway.race.race import Race
from gateway.race.sent_events import SentEvents
from recovering import WEATHER, Told, ask, run
from scripted import HEDGED, RecordingClient
from ttft_gateway.apis.base import Api
from ttft_gateway.hedging.outcomes import Outcome

STEADY = {"ttft": "20ms", "gap": "10ms"}
CHUNKY = {**STEADY, "per_event": 3}
AT_RANDOM: dict[str, object] = {"temperature": None}
BREAKS = (
    "cut_rst:{} once",
    "cut_chunked:{} once",
    "short:{} once",
    "stall:{},30s once",
    "error_frame:{} once",
    "error_event:{} once",
    "malformed:{}+malformed:{} once",
)
TOOLS: dict[str, object] = {"tools": [WEATHER], "tool_choice": "required"}
REQUESTS: dict[str, dict[str, object]] = {
    "text": ask(),
    "choices": ask(n=2),
    "tools": ask(**TOOLS),
    "tools twice": ask(**TOOLS, n=2),
    "logprobs": ask(logprobs=True, top_logprobs=2),
    "json": ask(response_format={"type": "json_object"}),
}
PLAIN = {key: value for key, value in ask().items() if key != "messages"}


def broken(fault: str, **profile: object) -> dict[str, object]:
    """A replica that fails so."""
    return {**STEADY, "faults": [fault], **profile}


def results(told: Told) -> list[tuple[RecoveryKind, RecoveryResult]]:
    """The results of the recoveries."""
    return [(each.kind, each.result) for each in told.report.recoveries]


REPLAYED = [(RecoveryKind.REPLAY, RecoveryResult.RECOVERED)]
CONTINUED = [(RecoveryKind.CONTINUE, RecoveryResult.RECOVERED)]
DIVERGED = [(RecoveryKind.REPLAY, RecoveryResult.DIVERGED)]


@pytest.mark.parametrize("name", REQUESTS)
@given(fault=st.sampled_from(BREAKS), at=st.integers(1, 12), sizes=st.tuples(st.integers(1, 4), st.integers(1, 4)))
@settings(max_examples=12)
def test_a_replay_makes_one_answer(name: str, fault: str, at: int, sizes: tuple[int, int]) -> None:
    """However a stream breaks, wherever, and however two replicas cut it into events: the client reads one answer."""
    request = REQUESTS[name]
    whole = run(request, {**STEADY, "reasoning_tokens": 3})
    first, second = ({**STEADY, "reasoning_tokens": 3, "per_event": size} for size in sizes)
    told = run(request, {**first, "faults": [fault.replace("{}", str(at))]}, second)
    assert told.read.said == whole.read.said
    assert told.read.valid
    assert told.read.usages == whole.read.usages
    assert results(told) in ([], REPLAYED)  # a short answer may be over before it breaks
    assert told.report.status == 200


@given(
    fault=st.sampled_from(BREAKS),
    at=st.integers(1, 19),
    size=st.integers(1, 4),
    limit=st.sampled_from([None, 20, 20.0]),
)
@settings(max_examples=40)
def test_a_continuation_makes_one_answer(fault: str, at: int, size: int, limit: float | None) -> None:
    """A replica that continues is asked for the rest only, and the limit on tokens holds for the whole."""
    request = ask(max_tokens=limit)
    whole = run(request, STEADY)
    told = run(request, broken(fault.replace("{}", str(at))), {**STEADY, "per_event": size}, prefills=True)
    assert told.read.said == whole.read.said
    assert told.read.valid
    assert results(told) == CONTINUED
    (usage,) = told.read.usages
    assert usage["completion_tokens"] == 20
    assert usage["prompt_tokens"] + usage["completion_tokens"] == usage["total_tokens"]
    assert told.report.usage is not None
    assert told.report.usage.completion_tokens == 20
    assert told.report.events >= at


@pytest.mark.parametrize("prefills", [False, True], ids=["replay", "continue"])
@given(at=st.integers(1, 19), size=st.integers(1, 3))
@settings(max_examples=10)
def test_completions_are_recovered(prefills: bool, at: int, size: int) -> None:
    """Legacy completions are recovered like chat, continued by a longer prompt."""
    request = {**PLAIN, "prompt": "Once \\u00fcpon"}
    whole = run(request, STEADY, api=Api.COMPLETIONS)
    profiles = broken(f"cut_rst:{at} once"), {**STEADY, "per_event": size}
    told = run(request, *profiles, api=Api.COMPLETIONS, prefills=prefills, mode=RecoveryMode.CONTINUE)
    if prefills:  # the simulated text differs after another prompt
        assert told.read.texts["0.text"].startswith(" ".join(whole.read.texts["0.text"].split(" ")[: at - 1]))
        assert results(told) == CONTINUED
    else:
        assert told.read.said == whole.read.said
        assert results(told) == REPLAYED
    assert told.read.dones == 1


@given(at=st.integers(3, 19), seed=st.integers(1, 1000), n=st.integers(1, 2))
@settings(max_examples=30)
def test_texts_of_two_answers_are_never_put_together(at: int, seed: int, n: int) -> None:
    """If the replicas' answers differ the client gets the beginning of one answer, and the error."""
    request = ask(n=n)
    whole = run(request, STEADY)
    told = run(request, broken(f"cut_rst:{at * n} once"), CHUNKY, seeds=[0, seed])
    assert told.read.error == "upstream_cut"
    assert told.read.dones == 0
    assert told.read.finishes == {}
    for place, text in told.read.texts.items():
        assert whole.read.texts[place].startswith(text)
    assert results(told) == DIVERGED
    assert [attempt.outcome for attempt in told.report.attempts] == [Outcome.CUT, Outcome.LOST]
    assert told.report.attempts[1].error == "diverged"
    assert told.report.status == 502


@pytest.mark.parametrize(
    ("mode", "fields", "at", "prefills", "expected"),
    [
        (RecoveryMode.AUTO, {}, 15, False, REPLAYED),
        (RecoveryMode.AUTO, {}, 15, True, CONTINUED),
        (RecoveryMode.AUTO, {"temperature": None, "seed": 7}, 15, False, REPLAYED),
        (RecoveryMode.AUTO, {"temperature": None}, 15, True, CONTINUED),
        (RecoveryMode.AUTO, {"temperature": None}, 15, False, REPLAYED),
        (RecoveryMode.AUTO, {"temperature": None}, 8, False, REPLAYED),
        (RecoveryMode.REPLAY, {"temperature": None}, 15, True, REPLAYED),
        (RecoveryMode.CONTINUE, {"temperature": None}, 15, False, REPLAYED),
        (RecoveryMode.OFF, {}, 3, True, []),
        (RecoveryMode.AUTO, {"store": True}, 3, True, []),
        (RecoveryMode.CONTINUE, TOOLS, 2, True, REPLAYED),
        (RecoveryMode.CONTINUE, {"n": 2}, 2, True, REPLAYED),
        (RecoveryMode.CONTINUE, {"response_format": {"type": "json_object"}}, 2, True, REPLAYED),
        (RecoveryMode.CONTINUE, {"response_format": {"type": "text"}}, 2, True, CONTINUED),
        (RecoveryMode.CONTINUE, {"max_tokens": 15}, 15, True, REPLAYED),
    ],
)
def test_what_is_tried(
    mode: RecoveryMode,
    fields: dict[str, object],
    at: int,
    prefills: bool,
    expected: list[tuple[RecoveryKind, RecoveryResult]],
) -> None:
    """The kind of recovery follows from the mode, the request, the client's part and what the replicas support."""
    request = {key: value for key, value in ask(**fields).items() if value is not None}
    told = run(request, broken(f"cut_rst:{at} once"), STEADY, mode=mode, prefills=prefills)
    assert results(told) == expected
    assert told.asked == ([1, 1] if expected else [1, 0])
    assert told.read.error == (None if expected else "upstream_cut")


def test_a_refused_prefill_is_replayed() -> None:
    """A replica that does not take the beginning of an answer is asked the same again, if that may be."""
    told = run(ask(), broken("cut_rst:12 once"), {**STEADY, "continues": False}, prefills=True)
    assert results(told) == [(RecoveryKind.CONTINUE, RecoveryResult.FAILED), *REPLAYED]
    assert told.read.valid
    assert [attempt.outcome for attempt in told.report.attempts] == [
        Outcome.CUT,
        Outcome.CLIENT_ERROR,
        Outcome.FINISHED,
    ]


def test_a_replica_without_sibling_and_fallback_carries_on_itself() -> None:
    """The replica of the broken stream is asked again where there is no other."""
    told = run(ask(), broken("cut_rst:5 once"))
    assert results(told) == REPLAYED
    assert told.asked == [2]
    assert told.read.valid


@pytest.mark.parametrize("fault", ["cut_rst:12 always", "stall:12,600s always"])
@pytest.mark.parametrize(
    ("fields", "fallback", "alike", "prefills", "expected"),
    [
        ({}, STEADY, True, False, REPLAYED),
        ({}, STEADY, True, True, CONTINUED),
        ({}, STEADY, False, True, REPLAYED),  # a text is continued by the same model only
        ({}, {**STEADY, "continues": False}, True, True, [(RecoveryKind.CONTINUE, RecoveryResult.FAILED), *REPLAYED]),
        (AT_RANDOM, STEADY, True, False, REPLAYED),  # the simulated text is the same
        (AT_RANDOM, STEADY, True, True, CONTINUED),
        (AT_RANDOM, STEADY, False, True, []),  # another model does not repeat a sampled answer
    ],
)
def test_a_fallback_carries_a_stream_on_where_it_answers_alike(
    fault: str,
    fields: dict[str, object],
    fallback: dict[str, object],
    alike: bool,
    prefills: bool,
    expected: list[tuple[RecoveryKind, RecoveryResult]],
) -> None:
    """With defaults and a primary alone in its pool, the answer is whole, or the error comes within one stall."""
    request = {key: value for key, value in ask(**fields).items() if value is not None}
    whole = run(request, STEADY)
    told = run(request, broken(fault), fallback=fallback, alike=alike, prefills=[False, prefills])
    assert results(told) == expected
    if expected:
        assert told.read.said == whole.read.said
        assert told.read.valid
    else:
        assert told.read.error in ("upstream_cut", "upstream_timeout")
        assert told.asked[1] == 0
    broken_s = told.report.attempts[0].end_s
    assert broken_s is not None
    assert told.report.total_s - broken_s < default_timeouts().stall_s


def test_a_sampled_answer_is_replayed_once_and_within_the_retry_budget() -> None:
    """The replay that differs is cancelled at the first difference; without budget there is none."""
    request = {key: value for key, value in ask(temperature=None).items() if value is not None}
    other = {**STEADY, "tokens": 200}
    told = run(request, broken("cut_rst:15 once"), other, other, seeds=[0, 0, 0], draws=[7, 8, 9])
    assert results(told) == DIVERGED
    assert told.asked == [1, 1, 0]
    assert told.read.error == "upstream_cut"
    assert told.client.error is not None
    assert told.client.error.message.endswith("because another replica gave another answer")

    def spend(race: Race, _client: RecordingClient) -> None:
        while race._model.retries.take(race._runtime.loop.time()):
            pass

    spent = run(request, broken("cut_rst:15 once"), STEADY, during=spend)
    assert results(spent) == []
    assert spent.asked == [1, 0]


def test_a_loser_may_carry_on() -> None:
    """A replica that lost the race may be used."""
    slow = {**STEADY, "ttft": "20ms", "stall": "off"}
    told = run(ask(), broken("cut_rst:5 once", ttft="150ms"), {**slow, "ttft": "1s"}, hedge=HEDGED)
    assert [attempt.role for attempt in told.report.attempts] == [Role.PRIMARY, Role.BACKUP, Role.RECOVERY]
    assert [attempt.replica for attempt in told.report.attempts] == ["r0", "r1", "r1"]
    assert told.read.valid
    assert told.report.ttft_s == pytest.approx(0.15)


def test_two_breaks_are_recovered_and_not_a_third() -> None:
    """A request is recovered twice at most, whatever broke, and then gets its error."""
    cuts = [broken(f"cut_rst:{at} once") for at in (3, 8, 13)]
    whole = run(ask(), STEADY)
    twice = run(ask(), *cuts[:2], STEADY, timeouts=default_timeouts())
    assert twice.read.said == whole.read.said
    assert results(twice) == [*REPLAYED, *REPLAYED]
    thrice = run(ask(), *cuts, STEADY)
    assert thrice.read.error == "upstream_cut"
    assert len(thrice.report.attempts) == 3


def test_a_replay_that_is_cut_while_catching_up_is_tried_again() -> None:
    """A second break before anything new came has cost a recovery, and the answer is still made whole."""
    whole = run(ask(), STEADY)
    told = run(ask(), broken("cut_rst:10 once"), broken("cut_rst:4 once"), STEADY)
    assert told.read.said == whole.read.said
    assert results(told) == [(RecoveryKind.REPLAY, RecoveryResult.FAILED), *REPLAYED]


def test_attempts_are_bounded() -> None:
    """At most four upstream attempts a request, three of them in 3 s; the error comes from the stream that broke."""
    down = {**STEADY, "faults": ["503 always"]}
    told = run(ask(), broken("cut_rst:10 once"), down, down, down, down)
    assert [attempt.outcome for attempt in told.report.attempts] == [Outcome.CUT, *[Outcome.FAILED] * 3]
    assert told.report.attempts[3].start_s == pytest.approx(3.0)
    assert told.read.error == "upstream_cut"
    assert told.report.status == 502


def test_a_waiting_client_gets_signs_of_life() -> None:
    """While nothing new comes, before or after the recovery's first token, there is a comment each interval."""
    timeouts = default_timeouts(keepalive_interval_s=2.0)
    slow = {**STEADY, "ttft": "5s", "gap": "1s"}
    told = run(ask(), broken("cut_rst:10 once"), slow, timeouts=timeouts)
    assert told.read.valid
    broke_s = 0.02 + 9 * 0.01
    assert told.client.alive_s == pytest.approx([broke_s + 2.0 * number for number in range(1, 8)])
    assert told.report.recoveries[0].gap_s == pytest.approx(15.0)


def test_a_client_that_leaves_cancels_the_recovery() -> None:
    """Nothing is asked for any more once the client is gone."""

    def leave(race: Race, _client: RecordingClient) -> None:
        race._runtime.loop.call_at(1.0, race.client_gone)

    told = run(ask(), broken("cut_rst:10 once"), {**STEADY, "ttft": "5s"}, during=leave)
    assert results(told) == [(RecoveryKind.REPLAY, RecoveryResult.ABANDONED)]
    assert [attempt.outcome for attempt in told.report.attempts] == [Outcome.CUT, Outcome.CLIENT_GONE]
    assert told.report.total_s == pytest.approx(1.0)


def test_a_client_that_is_slow_when_the_stream_breaks_stays_so() -> None:
    """The replica that carries on is not read while the client does not read."""

    def slow(race: Race, _client: RecordingClient) -> None:
        race._runtime.loop.call_at(0.05, race.pause)
        race._runtime.loop.call_at(9.0, race.resume)

    told = run(ask(), broken("error_frame:2 once"), STEADY, during=slow)
    assert told.read.valid
    assert told.report.total_s >= 9.0


def test_a_recovery_is_given_up_like_an_attempt_that_could_be_replaced() -> None:
    """It gets the usual time to its first token, then the next replica is asked."""
    told = run(ask(), broken("cut_rst:10 once"), {**STEADY, "ttft": "300s"}, STEADY)
    assert told.read.valid
    assert [attempt.outcome for attempt in told.report.attempts] == [
        Outcome.CUT,
        Outcome.TTFT_TIMEOUT,
        Outcome.FINISHED,
    ]
    assert told.report.attempts[1].end_s == pytest.approx(10.0, rel=0.01)


@pytest.mark.parametrize("fault", ["refusal", "content_filter:2", "content_policy"])
def test_a_refusal_is_not_gone_round(fault: str) -> None:
    """A replica that refuses ends the recovery, and no other one is asked."""
    told = run(ask(), broken("cut_rst:10 once"), {**STEADY, "faults": [f"{fault} always"]}, STEADY)
    assert told.asked == [1, 1, 0]
    assert told.read.error == "upstream_cut"


def test_a_broken_refusal_is_not_asked_for_again() -> None:
    """A policy answer that breaks ends with the error."""
    told = run(ask(), {**STEADY, "faults": ["refusal+cut_rst:2 always"]}, STEADY)
    assert told.asked == [1, 0]
    assert told.read.error == "upstream_cut"


@pytest.mark.parametrize("fields", [{}, AT_RANDOM], ids=["deterministic", "sampled"])
def test_what_is_kept_is_bounded(monkeypatch: pytest.MonkeyPatch, fields: dict[str, object]) -> None:
    """An answer that grows over the bound is let go: it is forwarded, and not recovered."""
    request = {key: value for key, value in ask(**fields).items() if value is not None}
    monkeypatch.setattr(SentEvents, "bytes_max", 1000)
    whole = run(request, STEADY)
    stored = run(request, broken("cut_rst:15 once"), STEADY)
    assert stored.read.said == whole.read.said
    bound = "STORED_BYTES_MAX" if fields else "EVENTS_BYTES_MAX"
    monkeypatch.setattr(sent_events, bound, 2000)
    large = run(request, broken("cut_rst:15 once"), STEADY)
    assert large.read.error == "upstream_cut"
    assert large.asked == [1, 0]


def test_a_bug_in_the_joining_is_an_honest_error(monkeypatch: pytest.MonkeyPatch) -> None:
    """If joining streams raises, the client gets the error, once, and the failure is emitted."""

    def fail(*_args: object) -> None:
        raise ValueError

    monkeypatch.setattr(recovery.Recovery, "join", fail)
    told = run(ask(), broken("cut_rst:5 once"), STEADY)
    assert told.read.error == "upstream_cut"
    assert results(told) == DIVERGED
    assert not math.isnan(told.report.total_s)


def test_a_stalled_replica_is_not_asked_again() -> None:
    """With a single replica the client gets the error after one stall, not after several."""
    result = run(ask(), {**STEADY, "faults": ["stall:5,600s always"]})
    assert result.report.status != 200
    assert len(result.report.attempts) == 1
    assert result.report.total_s == pytest.approx(20.0, abs=1.0)


def test_a_stalled_stream_goes_on_at_another_replica() -> None:
    """Another replica of the pool continues after the first stall."""
    result = run(ask(), {**STEADY, "faults": ["stall:5,600s always"]}, STEADY)
    assert result.report.status == 200
    assert results(result) == REPLAYED


def test_a_stream_that_is_cut_twice_at_one_place_is_not_asked_for_a_third_time() -> None:
    """The same replica gets one more chance, and no other after the same cut."""
    result = run(ask(), {**STEADY, "faults": ["cut_rst:10 always"]})
    assert result.report.status != 200
    assert [attempt.role for attempt in result.report.attempts] == [Role.PRIMARY, Role.RECOVERY]


def test_one_rejected_continuation_leaves_other_replicas_theirs() -> None:
    """A replica that rejects a prefill says nothing of the next one."""
    broken_once, rejecting = broken("cut_rst:20 once"), {**STEADY, "faults": ["status:400 once"]}
    result = run(ask(**AT_RANDOM), broken_once, rejecting, STEADY, prefills=True)
    assert result.report.status == 200
    assert results(result)[-1] == CONTINUED[0]
