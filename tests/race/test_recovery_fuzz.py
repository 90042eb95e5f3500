"""Random broken streams in virtual time: one whole answer, or the beginning of it and the error; nothing else."""

import random

from hypothesis import given
from hypothesis import strategies as st

from defaults import default_timeouts
from gateway.race.context import RecoveryMode
from gateway.race.race import Race
from recovering import WEATHER, Profile, ask, run
from scripted import HEDGED, RecordingClient

REQUESTS = (
    ask(),
    ask(n=2),
    ask(tools=[WEATHER], tool_choice="required"),
    ask(max_tokens=19),
    ask(logprobs=True),
)
FAULTS = ("cut_rst:{}", "cut_chunked:{}", "short:{}", "stall:{},30s", "error_frame:{}", "malformed:{}+malformed:{}")
EARLY = ("500", "reset", "empty", "done", "no_done", "refusal", "content_filter:2", "429")
_CLIENT_GONE = 499
TIMEOUTS = default_timeouts(ttft_failover_s=2.0, ttft_max_s=20.0, stall_s=4.0, total_s=60.0, keepalive_interval_s=1.0)


def profile(chance: random.Random, per_event_max: int) -> Profile:
    """A replica that breaks once, always or never, and talks in its own pieces."""
    speed = {"ttft": chance.choice(["20ms", "500ms", "5s"]), "gap": chance.choice(["1ms", "300ms"])}
    made: dict[str, object] = {**speed, "per_event": chance.randint(1, per_event_max)}
    if chance.random() < 0.8:
        fault = chance.choice(FAULTS).replace("{}", str(chance.randint(1, 30)))
        if chance.random() < 0.2:
            fault = chance.choice(EARLY)
        made["faults"] = [f"{fault} {chance.choice(['once', 'always'])}"]
    return made


@given(seed=st.integers(0, 2**32))
def test_any_broken_stream(seed: int) -> None:
    """The client's bytes are one answer's, whole if its stream ends well; attempts and time stay within limits."""
    check_stream(seed)


def check_stream(seed: int) -> None:
    """Run one random race with breaking streams and check its end."""
    chance = random.Random(seed)
    request = chance.choice(REQUESTS)
    per_event_max = 1 if "max_tokens" in request else 3  # generated tokens can be counted, as an event is a token
    replicas = [profile(chance, per_event_max) for _ in range(chance.randint(1, 4))]
    mode, prefills = chance.choice(list(RecoveryMode)), [chance.random() < 0.5 for _ in replicas]
    times_s = [chance.choice([None, None, 0.1, 1.0, 3.0]) for _ in range(2)]

    def during(race: Race, _client: RecordingClient) -> None:
        loop, (leaves_s, pauses_s) = race._runtime.loop, times_s
        if leaves_s is not None and chance.random() < 0.5:
            loop.call_later(leaves_s, race.client_gone)
        if pauses_s is not None:
            loop.call_later(pauses_s, race.pause)
            loop.call_later(pauses_s + chance.choice([0.5, 10.0]), race.resume)

    whole = run(request, {}).read
    told = run(request, *replicas, mode=mode, prefills=prefills, timeouts=TIMEOUTS, hedge=HEDGED, during=during)
    got, report = told.read, told.report
    refused = any("refusal" in place for place in got.texts) or ["content_filter"] in got.finishes.values()
    refused |= report.status == _CLIENT_GONE and any("content_filter" in str(replica) for replica in replicas)
    if not refused:
        assert set(got.texts) <= set(whole.texts)
        assert all(whole.texts[place].startswith(text) for place, text in got.texts.items() if ".id" not in place)
    if report.status == 200 and not refused:
        assert got.error is None
        assert (got.texts, got.finishes) == (whole.texts, whole.finishes)
        assert len(got.heads) == 1
        assert got.dones <= 1
        assert all(told == 1 for told in got.roles.values())
    if report.status != 200:
        assert got.dones == 0
        assert told.client.ends == (0 if report.error == "client_gone" else 1)
    sent = report.attempts
    assert len(sent) == sum(told.asked) <= 4
    is_again = len(sent) == 4 and sent[3].replica in {attempt.replica for attempt in sent[:3]}  # after a pause
    assert len(sent) < 4 or is_again or sent[3].start_s - sent[0].start_s >= 3.0 - 1e-6
    assert report.total_s <= TIMEOUTS.total_s + 0.001
