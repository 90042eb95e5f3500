"""The script of a simulated replica: what frames at what times, decided by request, profile and seed alone."""

import json
import random
import zlib
from collections.abc import Sequence
from typing import Any

import pytest

from openai_calls import call_of
from providers.base import Api, FrameKind, WireProtocol
from providers.openai_chat import OpenAIChat
from providers.openai_completions import OpenAICompletions
from providers.simulated import Asked, Replica, served_models
from providers.simulated_faults import faults
from providers.simulated_profile import parse_profile
from providers.simulated_script import End, Framing, Script

PROTOCOLS: dict[Api, WireProtocol] = {Api.CHAT: OpenAIChat(), Api.COMPLETIONS: OpenAICompletions()}
HELLO = [{"role": "user", "content": "hello"}]


def body_of(**fields: Any) -> bytes:
    prompt = {} if "prompt" in fields else {"messages": HELLO}
    return json.dumps({"model": "m", "temperature": 0, **prompt, **fields}).encode()


def replica_of(seed: int = 1, name: str = "a", **profile: object) -> Replica:
    return Replica(parse_profile(profile), random.Random(seed), seed, name)


def play(replica: Replica, now_s: float = 0.0, api: Api = Api.CHAT, fault: str = "", **fields: Any) -> Script:
    wanted = faults(fault) if fault else ()
    return replica.script(Asked(api, body_of(**{"stream": True, **fields})), wanted, now_s, 1e9)


def contents(script: Script) -> list[float]:
    return [step.at_s for step in script.steps if step.frame.kind is FrameKind.CONTENT]


def text_of(script: Script) -> str:
    said = ""
    for step in script.steps:
        if step.frame.kind in (FrameKind.CONTENT, FrameKind.REFUSAL):
            for choice in json.loads(step.frame.raw[6:])["choices"]:
                said += choice["delta"].get("content") or choice["delta"].get("refusal") or ""
    return said


def answer_of(script: Script) -> Any:
    assert script.json
    return json.loads(script.steps[0].frame.raw)


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
def test_head_and_preamble_stand_where_the_profile_puts_them(  # one column for each thing that varies
    headers: str, role: str, comment: str, head_s: float | None, prelude: list[str], first: str
) -> None:
    """Headers at once take role chunk and comment along; held headers bring them with the first content."""
    replica = replica_of(ttft="50ms", headers=headers, headers_delay="1ms", role=role, first_comment=comment)
    script = play(replica, max_tokens=1)
    assert script.head_s == head_s
    assert [frame.kind.value for frame in script.prelude] == prelude
    assert (script.steps[0].frame.kind.value, script.steps[0].at_s) == (first, 0.05)


def test_role_with_content_stands_in_every_chunk() -> None:
    """TGI and Ollama put the role into every chunk."""
    script = play(replica_of(role="with"), max_tokens=2)
    assert script.steps[1].frame.raw.count(b'"role":"assistant"') == 1


def test_azure_begins_with_filter_results() -> None:
    """Azure's first chunk has no choices."""
    script = play(replica_of(provider="azure"), max_tokens=1)
    assert json.loads(script.prelude[0].raw[6:])["choices"] == []


def test_stall_replaces_ttft_with_its_probability() -> None:
    """Over many requests the share of stalls is the stated one, and nothing lies between."""
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
    """The usage of a repeated prompt says how much of it was cached."""
    replica = replica_of(cache_tokens=10_000)
    fields = {"messages": [{"role": "user", "content": "x" * 4000}], "stream": False}
    cached = [answer_of(play(replica, **fields))["usage"]["prompt_tokens_details"]["cached_tokens"] for _ in range(2)]
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
    pair = [replica_of(ttft="lognormal:20ms,5ms", stall="10%:1s", gap="uniform:1ms,9ms", faults=["500 20%"])] * 0 + [
        replica_of(ttft="lognormal:20ms,5ms", stall="10%:1s", gap="uniform:1ms,9ms") for _ in range(2)
    ]
    for _ in range(20):
        first, second = (play(replica, temperature=1) for replica in pair)
        assert first == second


def test_text_at_temperature_0_is_that_of_seed_and_prompt() -> None:
    """Replicas with one seed agree at temperature 0; another seed or prompt, or another temperature, says otherwise."""
    text = text_of(play(replica_of(seed=1, name="a")))
    assert text_of(play(replica_of(seed=1, name="b"))) == text
    assert text_of(play(replica_of(seed=2))) != text
    assert text_of(play(replica_of(), messages=[{"role": "user", "content": "bye"}])) != text
    replica = replica_of()
    assert text_of(play(replica, temperature=1)) != text_of(play(replica, temperature=1))
    assert text_of(play(replica, temperature=1, seed=5)) == text_of(play(replica, temperature=1, seed=5))


def test_ids_differ_between_replicas() -> None:
    """Two replicas never give an answer the same id, even if they say the same."""
    first, second = (play(replica_of(name=name), stream=False) for name in ("a", "b"))
    assert answer_of(first)["id"] != answer_of(second)["id"]


def test_remembered_answer_is_the_answer() -> None:
    """A repeated prompt at temperature 0 is answered with the same events, and another request never with them."""
    replica = replica_of()
    first, again, other = play(replica), play(replica), play(replica, max_tokens=5)
    assert [step.frame for step in first.steps] == [step.frame for step in again.steps]
    assert len(contents(other)) == 5
    replica.profile = parse_profile({"tokens": 3})
    assert len(contents(play(replica))) == 3


# answers

REQUESTS: dict[str, dict[str, Any]] = {
    "plain": {},
    "short": {"max_tokens": 2},
    "usage": {"stream_options": {"include_usage": True}},
    "several": {"n": 3},
    "logprobs": {"logprobs": True, "top_logprobs": 2, "max_tokens": 4},
    "tool": {
        "tools": [{"type": "function", "function": {"name": "look", "parameters": {"type": "object", "properties": {
            "city": {"type": "string"}, "days": {"type": "integer"}}}}}],
        "tool_choice": "required",
    },
    "json": {"response_format": {"type": "json_schema", "json_schema": {"name": "x", "schema": {
        "type": "object", "properties": {"ok": {"type": "boolean"}, "of": {"enum": ["a", "b"]}}}}}},
}  # fmt: skip


@pytest.mark.parametrize("fields", REQUESTS.values(), ids=REQUESTS)
@pytest.mark.parametrize("profile", [{}, {"role": "with"}, {"reasoning_tokens": 3}, {"provider": "azure"}], ids=repr)
def test_events_are_what_our_own_reader_says(fields: dict[str, Any], profile: dict[str, object]) -> None:
    """Each frame's kind and usage are those that the gateway's reader finds in its bytes."""
    script = play(replica_of(**profile), **fields)
    call = call_of(json.loads(body_of(stream=True, **fields)), include_usage=True)
    reader = PROTOCOLS[Api.CHAT].reader(call)
    frames = [*script.prelude, *(step.frame for step in script.steps)]
    assert [reader.read(frame.raw) for frame in frames] == frames
    assert reader.complete


@pytest.mark.parametrize("fields", REQUESTS.values(), ids=REQUESTS)
@pytest.mark.parametrize("profile", [{}, {"reasoning_tokens": 3, "role": "none"}, {"role": "with"}], ids=repr)
def test_streamed_answer_is_the_json_answer(fields: dict[str, Any], profile: dict[str, object]) -> None:
    """A stream put together by the gateway's assembler is the JSON answer, ids aside."""
    fields = {**fields, "stream_options": {"include_usage": True}}
    assert_assembled(Api.CHAT, profile, fields)


@pytest.mark.parametrize("fields", [{}, {"n": 2, "logprobs": 1}, {"prompt": ["a", "b"]}], ids=repr)
def test_streamed_completion_is_the_json_completion(fields: dict[str, Any]) -> None:
    """The same for the completions API."""
    fields = {"prompt": "once upon", "stream_options": {"include_usage": True}, **fields}
    assert_assembled(Api.COMPLETIONS, {}, fields)


def assert_assembled(api: Api, profile: dict[str, object], fields: dict[str, Any]) -> None:
    streamed = play(replica_of(**profile), api=api, **fields)
    whole = answer_of(play(replica_of(**profile), api=api, stream=False, **fields))
    assembler = PROTOCOLS[api].assembler(call_of(json.loads(body_of(stream=True, **fields)), api))
    for frame in [*streamed.prelude, *(step.frame for step in streamed.steps)]:
        assembler.add(frame.raw)
    assembled = json.loads(assembler.body())
    assert without_nulls(assembled) == without_nulls({**whole, "id": assembled["id"]})


def without_nulls(value: Any) -> Any:
    """A value without its null members: some servers write them, some leave them out."""
    if isinstance(value, dict):
        return {key: without_nulls(inner) for key, inner in value.items() if inner is not None}
    return [without_nulls(inner) for inner in value] if isinstance(value, list) else value


def test_token_counts_are_bounded() -> None:
    """max_tokens decides the length, never beyond tokens_max; without it the profile does."""
    replica = replica_of(tokens=7, tokens_max=50)
    lengths = [len(contents(play(replica, **fields))) for fields in ({}, {"max_tokens": 3}, {"max_tokens": 10**9})]
    assert lengths == [7, 3, 50]


def test_forced_tool_is_called_with_arguments_its_schema_allows() -> None:
    """A tool that must be called is called; `auto` is answered with text."""
    forced = answer_of(play(replica_of(), stream=False, **REQUESTS["tool"]))["choices"][0]
    assert forced["finish_reason"] == "tool_calls"
    function = forced["message"]["tool_calls"][0]["function"]
    assert (function["name"], json.loads(function["arguments"])) == ("look", {"city": "word", "days": 7})
    named = {**REQUESTS["tool"], "tool_choice": {"type": "function", "function": {"name": "look"}}}
    assert answer_of(play(replica_of(), stream=False, **named))["choices"][0]["message"]["tool_calls"]
    auto = {**REQUESTS["tool"], "tool_choice": "auto"}
    assert answer_of(play(replica_of(), stream=False, **auto))["choices"][0]["message"]["content"]


def test_json_schema_is_answered_with_json() -> None:
    """The content is a document that the schema allows."""
    message = answer_of(play(replica_of(), stream=False, **REQUESTS["json"]))["choices"][0]["message"]
    assert json.loads(message["content"]) == {"ok": True, "of": "a"}


def test_continued_answer_continues() -> None:
    """An answer continued from any prefix of it, cut between or inside tokens, is the rest of it."""
    whole = text_of(play(replica_of(tokens=12)))
    for cut in (0, 1, 4, 9, len(whole) - 1, len(whole)):
        messages = [*HELLO, {"role": "assistant", "content": whole[:cut]}]
        rest = play(replica_of(tokens=12), messages=messages, continue_final_message=True)
        assert whole[:cut] + text_of(rest) == whole
    limited = play(
        replica_of(tokens=12),
        messages=[*HELLO, {"role": "assistant", "content": text_of(play(replica_of(), max_tokens=4))}],
        continue_final_message=True,
        max_tokens=2,
    )
    assert text_of(play(replica_of(), max_tokens=6)).endswith(text_of(limited))
    assert len(contents(limited)) == 2


def test_prefix_of_another_answer_is_not_spliced() -> None:
    """A prefix the replica would not have said is followed by another text, not by the rest of its own."""
    whole = text_of(play(replica_of(tokens=12)))
    messages = [*HELLO, {"role": "assistant", "content": "Certainly not"}]
    other = text_of(play(replica_of(tokens=12), messages=messages, continue_final_message=True))
    assert other
    assert other not in whole


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"messages": None}, "messages"),
        ({"messages": "hello"}, "messages"),
        ({"n": 0}, "n"),
        ({"n": 10**9}, "n"),
        ({"max_tokens": 0}, "max_tokens"),
        ({"top_logprobs": 10**9, "logprobs": True}, "top_logprobs"),
        ({"max_tokens": "many"}, None),
        ({"continue_final_message": True}, "messages"),
        ({"response_format": {"type": "json_schema", "json_schema": {"schema": {"enum": 3}}}}, None),
    ],
    ids=repr,
)
def test_unacceptable_request_is_a_400(fields: dict[str, Any], param: str | None) -> None:
    """What cannot be answered is refused with the field at fault, and takes no slot."""
    script = play(replica_of(), **fields)
    assert (script.status, script.slot) == (400, False)
    assert json.loads(script.steps[0].frame.raw)["error"]["param"] == param


def test_replica_may_refuse_to_continue() -> None:
    """With `continues` off a prefix is a 400 that names the parameter."""
    messages = [*HELLO, {"role": "assistant", "content": "the"}]
    script = play(replica_of(continues=False), messages=messages, continue_final_message=True)
    assert json.loads(script.steps[0].frame.raw)["error"]["param"] == "continue_final_message"


def test_full_queue_is_a_503() -> None:
    """When no slot is free and nobody more may wait, the answer is a 503 at once."""
    replica = replica_of(slots=1, queue_max=0)
    replica.slots.enter(lambda: None)
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


# misbehaviour


def kinds(script: Script) -> list[str]:
    return [step.frame.kind.value for step in script.steps]


@pytest.mark.parametrize(
    ("fault", "expected", "end"),
    [
        ("error_frame", ["error"], End.COMPLETE),
        ("error_frame:2", ["content", "content", "error"], End.COMPLETE),
        ("error_event:1", ["content", "error"], End.COMPLETE),
        ("finish_error:1", ["content", "error"], End.COMPLETE),
        ("empty", [], End.COMPLETE),
        ("done", ["done"], End.COMPLETE),
        ("json_error", ["error"], End.COMPLETE),
        ("cut_rst:2", ["content", "content"], End.RST),
        ("cut_fin:99", ["content"] * 4, End.FIN),
        ("cut_chunked:0", [], End.FIN),
        ("cut_mid:1", ["content", "preamble"], End.FIN),
        ("short:1", ["content"], End.COMPLETE),
        ("reset", [], End.RST),
        ("silence", [], End.SILENCE),
        ("headers_silence", [], End.SILENCE),
        ("malformed:2", ["content", "content", "malformed", "content", "content", "finish", "done"], End.COMPLETE),
        ("no_done", ["content"] * 4 + ["finish"], End.COMPLETE),
        ("content_filter", ["refusal", "done"], End.COMPLETE),
        ("content_filter:1", ["content", "refusal", "done"], End.COMPLETE),
        ("refusal", ["refusal"] * 5 + ["finish", "done"], End.COMPLETE),
        ("pings", ["comment", "content"] * 4 + ["comment", "finish", "comment", "done"], End.COMPLETE),
        ("coalesce:3", ["content", "content"], End.COMPLETE),
    ],
)
def test_fault_changes_the_events(fault: str, expected: list[str], end: End) -> None:
    """Each fault leaves exactly these events of an answer of four tokens, and this end."""
    script = play(replica_of(), fault=fault, max_tokens=4)
    assert (kinds(script), script.end) == (expected, end)


@pytest.mark.parametrize(
    ("fault", "status", "code"),
    [
        ("429", 429, "rate_limit_exceeded"),
        ("500", 500, None),
        ("503", 503, None),
        ("401", 401, "invalid_api_key"),
        ("404", 404, "model_not_found"),
        ("status:418", 418, None),
        ("context_length", 400, "context_length_exceeded"),
        ("content_policy", 400, "content_policy_violation"),
        ("early_413", 413, "request_too_large"),
    ],
)
def test_error_status_comes_at_once(fault: str, status: int, code: str | None) -> None:
    """An error status takes no slot and no time, and its body has the right code."""
    script = play(replica_of(ttft="1s"), fault=fault)
    assert (script.status, script.slot, script.head_s, script.steps[0].at_s) == (status, False, None, 0.0)
    assert json.loads(script.steps[0].frame.raw)["error"]["code"] == code
    assert script.length == len(script.steps[0].frame.raw)


def test_retry_after_of_a_503_is_optional() -> None:
    """A 503 has a Retry-After when seconds are given."""
    assert (b"retry-after", b"2") in play(replica_of(), fault="503:2s").headers
    assert all(name != b"retry-after" for name, _ in play(replica_of(), fault="503").headers)


def test_stall_delays_what_follows() -> None:
    """After its events a stall moves the rest by its seconds."""
    script = play(replica_of(ttft="100ms", gap="10ms"), fault="stall:2,5s", max_tokens=3)
    assert contents(script) == pytest.approx([0.1, 0.11, 5.12])


BYTES_AS_THEY_WERE = ["split:7", "utf8", "coalesce:3", "length", "close", "chunk_extensions", "informational", "stall"]


@pytest.mark.parametrize("fault", BYTES_AS_THEY_WERE)
def test_faults_of_the_wire_keep_the_bytes(fault: str) -> None:
    """However oddly they are written, the bytes are those of the healthy answer (with an accented first token)."""
    script = play(replica_of(), fault=fault)
    plain = play(replica_of(), fault="utf8+split:9999" if fault == "utf8" else "")
    assert b"".join(step.frame.raw for step in script.steps) == b"".join(step.frame.raw for step in plain.steps)


def test_split_cuts_at_many_places() -> None:
    """Splitting cuts each event into pieces of at most the size, in order of time; content is counted once."""
    script = play(replica_of(), fault="split:7", max_tokens=2)
    pieces = [step.frame.raw for step in script.steps]
    assert max(map(len, pieces)) <= 7
    assert len(set(map(len, pieces))) == 7
    assert len(contents(script)) == 2


def test_utf8_is_cut_inside_a_character() -> None:
    """No half of a cut event is valid UTF-8."""
    script = play(replica_of(), fault="utf8", max_tokens=1)
    with pytest.raises(UnicodeDecodeError):
        script.steps[0].frame.raw.decode()
    assert script.steps[1].at_s > script.steps[0].at_s


def test_big_event_has_the_size() -> None:
    """The first token can be a megabyte long."""
    script = play(replica_of(), fault="big", max_tokens=2)
    assert 2**20 < len(script.steps[0].frame.raw) < 2**20 + 500
    assert len(script.steps[1].frame.raw) < 500


def test_crlf_ends_every_line() -> None:
    """With CRLF framing no line ends otherwise, the prelude's neither."""
    script = play(replica_of(), fault="crlf")
    for frame in [*script.prelude, *(step.frame for step in script.steps)]:
        assert frame.raw.count(b"\n") == frame.raw.count(b"\r\n") == 2


def test_fields_add_id_and_retry_and_events_without_data() -> None:
    """Each event has the fields that break the OpenAI SDK."""
    raw = play(replica_of(), fault="fields").steps[0].frame.raw
    assert raw.startswith(b"retry: 2000\n\nid: 7\nretry: 3000\ndata: {")


def test_json_answer_to_a_stream() -> None:
    """A full JSON answer can come where a stream was asked for."""
    assert answer_of(play(replica_of(), fault="json_answer"))["choices"][0]["finish_reason"] == "stop"


@pytest.mark.parametrize(("fault", "framing"), [("cut_fin", Framing.CLOSE), ("cut_chunked", Framing.CHUNKED)])
def test_cut_by_fin_looks_complete_only_without_chunks(fault: str, framing: Framing) -> None:
    """The end of the connection is the body's end in one case, and a missing last chunk in the other."""
    assert play(replica_of(), fault=fault).framing is framing


@pytest.mark.parametrize("fault", ["cut_rst", "cut_fin", "cut_chunked", "cut_mid"])
def test_cut_json_answer_is_half(fault: str) -> None:
    """Of a JSON answer half is sent, while its length says all."""
    whole = play(replica_of(), stream=False)
    half = play(replica_of(), stream=False, fault=fault)
    assert 2 * len(half.steps[0].frame.raw) <= half.length == whole.length
    assert half.end is not End.COMPLETE


@pytest.mark.parametrize("fault", ["error_frame", "error_event", "finish_error", "json_error", "malformed", "empty", "done"])
def test_faults_of_events_have_a_meaning_for_json(fault: str) -> None:
    """On an answer that is not streamed these faults give a body that is no answer, and the length is right."""
    script = play(replica_of(), stream=False, fault=fault)
    raw = b"".join(step.frame.raw for step in script.steps)
    assert len(raw) == script.length
    assert b'"error"' in raw or raw[:1] != b"{"


def test_rules_count_and_draw() -> None:
    """`first 3` happens three times, `once` once, a share in its part of the requests; a new profile counts anew."""

    def statuses(replica: Replica, times: int) -> list[int]:
        return [replica.script(Asked(Api.CHAT, body_of()), chosen, 0.0, 0.0).status
                for chosen in (replica.choose(accepting=False) for _ in range(times))]  # fmt: skip

    replica = replica_of(faults=["500 first 3", "503 once"])
    assert statuses(replica, 5) == [503, 500, 500, 200, 200]
    replica.profile = parse_profile({"faults": ["500 once"]})
    assert statuses(replica, 2) == [500, 200]
    assert statuses(replica_of(faults=["500 20%"]), 500).count(500) == pytest.approx(100, abs=35)


def test_faults_of_accepting_are_kept_apart() -> None:
    """A reset at accept is decided when the connection is made, everything else with the request."""
    replica = replica_of(faults=["reset_accept once", "500"])
    assert [len(replica.choose(accepting=accepting)) for accepting in (True, True, False)] == [1, 0, 1]


def test_seed_of_a_text_is_stable() -> None:
    """A text never changes from release to release: others may have recorded it."""
    assert zlib.crc32(text_of(play(replica_of(seed=1), max_tokens=50)).encode()) == 0


def frames_of(scripts: Sequence[Script]) -> int:
    return sum(len(script.steps) for script in scripts)
