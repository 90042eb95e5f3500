"""The script of a simulated replica: its frames and times follow from request, profile and seed alone."""

import json

import pytest

from gateway.simulated.profile import parse_profile
from gateway.simulated.replica import RawRequest, SimulatedReplica, served_models
from simulated_calls import answer_of, body_of, contents, play, replica_of, text_of
from ttft_gateway.apis.base import Api, FrameKind

# times


def test_times_follow_the_profile() -> None:
    """The first content comes after TTFT, each further token a gap later, the finish with the last token."""
    script = play(replica_of(ttft="100ms", gap="10ms"), max_tokens=3)
    assert contents(script) == pytest.approx([0.1, 0.11, 0.12])
    assert [step.at_s for step in script.steps[3:]] == pytest.approx([0.12, 0.12])
    assert [step.frame.kind for step in script.steps[3:]] == [FrameKind.FINISH, FrameKind.DONE]


def test_json_answer_is_ready_when_its_stream_would_end() -> None:
    """An answer that is not streamed takes TTFT and all gaps."""
    script = play(replica_of(ttft="100ms", gap="10ms"), stream=False, max_tokens=3)
    assert [step.at_s for step in script.steps] == pytest.approx([0.12])


@pytest.mark.parametrize(
    ("headers", "role", "comment", "head_s", "prelude", "first"),
    [
        ("at_once", "early", "", 0.001, ["preamble"], "content"),
        ("at_once", "early", "waiting", 0.001, ["comment", "preamble"], "content"),
        ("at_once", "with", "", 0.001, [], "content"),
        ("at_once", "none", "", 0.001, [], "content"),
        ("with_first_content", "early", "", None, [], "preamble"),
        ("with_first_content", "none", "waiting", None, [], "comment"),
    ],
)
def test_head_and_preamble_follow_the_profile(  # one column for each thing that varies
    headers: str, role: str, comment: str, head_s: float | None, prelude: list[str], first: str
) -> None:
    """The role chunk and the comment come with the head, immediately or with the first content."""
    replica = replica_of(ttft="50ms", headers=headers, headers_delay="1ms", role=role, first_comment=comment)
    script = play(replica, max_tokens=1)
    assert script.head_s == head_s
    assert [frame.kind.value for frame in script.prelude] == prelude
    assert (script.steps[0].frame.kind.value, script.steps[0].at_s) == (first, 0.05)


def test_role_with_content_is_in_every_chunk() -> None:
    """TGI and Ollama put the role into every chunk."""
    script = play(replica_of(role="with"), max_tokens=2)
    assert script.steps[1].frame.raw.count(b'"role":"assistant"') == 1


def test_azure_begins_with_filter_results() -> None:
    """Azure's first chunk has no choices."""
    script = play(replica_of(provider="azure"), max_tokens=1)
    assert json.loads(script.prelude[0].raw[6:])["choices"] == []


def test_stall_replaces_ttft_with_its_probability() -> None:
    """Over many requests the share of stalls is the stated one, and TTFT has no third value."""
    replica = replica_of(ttft="20ms", stall="4%:1s")
    firsts = [contents(play(replica, max_tokens=1))[0] for _ in range(2000)]
    assert set(firsts) == {0.02, 1.0}
    assert firsts.count(1.0) == pytest.approx(80, abs=25)


def test_long_prompts_take_longer_unless_cached() -> None:
    """Each 1,000 uncached tokens add their time; a prompt seen before adds next to nothing."""
    replica = replica_of(ttft="100ms", prefill_per_1k="1s", cache_tokens=10_000)
    prompt = [{"role": "user", "content": "x" * 4000}]
    first, again = (play(replica, messages=prompt, max_tokens=1) for _ in range(2))
    assert contents(first)[0] == pytest.approx(0.1 + 1.0, rel=0.02)
    assert contents(again)[0] == pytest.approx(0.1 + 0.05, abs=0.05)


def test_cached_tokens_are_reported() -> None:
    """The usage of a repeated prompt has its cached tokens."""
    replica = replica_of(cache_tokens=10_000)
    prompt = [{"role": "user", "content": "x" * 4000}]
    answers = [answer_of(play(replica, messages=prompt, stream=False)) for _ in range(2)]
    cached = [answer["usage"]["prompt_tokens_details"]["cached_tokens"] for answer in answers]
    assert cached[0] == 0
    assert cached[1] == 1008 // 64 * 64


def test_episode_slows_everything_while_it_lasts() -> None:
    """During an episode TTFT and gaps are its factor as long, counted from the first request on."""
    replica = replica_of(ttft="10ms", gap="10ms", episodes=["x5 from 60s for 20s"])
    times = [contents(play(replica, now_s=now_s, max_tokens=2)) for now_s in (1000.0, 1060.0, 1081.0)]
    assert times == [pytest.approx([0.01, 0.02]), pytest.approx([0.05, 0.1]), pytest.approx([0.01, 0.02])]


# determinism


def test_same_seed_gives_the_same_scripts() -> None:
    """Two replicas with the same seed and name answer the same requests with the same bytes at the same times."""
    pair = [replica_of(ttft="lognormal:20ms,5ms", stall="10%:1s", gap="uniform:1ms,9ms") for _ in range(2)]
    for _ in range(20):
        first, second = (play(replica, temperature=1) for replica in pair)
        assert first == second


def test_text_at_temperature_0_is_that_of_seed_and_prompt() -> None:
    """At temperature 0 replicas with one seed give the same text; another seed or prompt gives another text."""
    text = text_of(play(replica_of(seed=1, name="a")))
    assert text_of(play(replica_of(seed=1, name="b"))) == text
    assert text_of(play(replica_of(seed=2))) != text
    assert text_of(play(replica_of(), messages=[{"role": "user", "content": "bye"}])) != text
    replica = replica_of()
    assert text_of(play(replica, temperature=1)) != text_of(play(replica, temperature=1))
    assert text_of(play(replica, temperature=1, seed=5)) == text_of(play(replica, temperature=1, seed=5))


def test_ids_differ_between_replicas() -> None:
    """Two replicas give different ids to the same text."""
    first, second = (play(replica_of(name=name), stream=False) for name in ("a", "b"))
    assert answer_of(first)["id"] != answer_of(second)["id"]


def test_cached_response_is_the_response() -> None:
    """A repeated prompt at temperature 0 gets the same events; another request gets its own."""
    replica = replica_of()
    first, again, other = play(replica), play(replica), play(replica, max_tokens=5)
    assert [step.frame for step in first.steps] == [step.frame for step in again.steps]
    assert len(contents(other)) == 5
    replica.profile = parse_profile({"tokens": 3})
    assert len(contents(play(replica))) == 3


def test_full_queue_is_a_503() -> None:
    """A request gets a 503 immediately when all slots and all places in the queue are taken."""
    replica = replica_of(slots=1, queue_max=0)
    replica.slots.acquire(lambda: None)
    assert play(replica).status == 503


def test_every_answer_has_the_extra_headers() -> None:
    """Extra headers go with answers and errors alike; a provider's limits with answers."""
    replica = replica_of(extra_headers=["set-cookie: a=b"], provider="groq")
    for fault in ("", "500"):
        assert (b"set-cookie", b"a=b") in play(replica, fault=fault).headers
    assert (b"x-ratelimit-remaining-requests", b"900") in play(replica).headers


def test_served_models_are_those_of_the_profile() -> None:
    """GET /v1/models lists what the profile names."""
    assert [model["id"] for model in served_models(parse_profile({"models": ["a", "b"]}))] == ["a", "b"]


def test_rules_count_and_draw() -> None:
    """`first 3` happens three times, `once` once, a share in its part of the requests; a new profile counts from 0."""

    def statuses(replica: SimulatedReplica, times: int) -> list[int]:
        return [replica.script(RawRequest(Api.CHAT, body_of()), chosen, 0.0, 0.0).status
                for chosen in (replica.choose_faults(accepting=False) for _ in range(times))]  # fmt: skip

    replica = replica_of(faults=["500 first 3", "503 once"])
    assert statuses(replica, 5) == [503, 500, 500, 200, 200]
    replica.profile = parse_profile({"faults": ["500 once"]})
    assert statuses(replica, 2) == [500, 200]
    assert statuses(replica_of(faults=["500 20%"]), 500).count(500) == pytest.approx(100, abs=35)


def test_faults_of_accepting_are_kept_apart() -> None:
    """A reset at accept is decided when the connection is made, everything else with the request."""
    replica = replica_of(faults=["reset_accept once", "500"])
    assert [len(replica.choose_faults(accepting=accepting)) for accepting in (True, True, False)] == [1, 0, 1]
