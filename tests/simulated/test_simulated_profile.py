"""Profiles of simulated replicas: the text form is parsed to itself, and mistakes are explained."""

import re

import pytest

from checkout import DOCS
from gateway.simulated.faults import FAULTS
from gateway.simulated.profile import KEYS, Episode, Profile, ProfileError, parse_profile, show_profile
from sentences import Sentences

EVERYTHING: dict[str, object] = {
    "ttft": "lognormal:15ms,3ms | 20% lognormal:200ms,25ms",
    "stall": "4%:1s",
    "prefill_per_1k": "62ms",
    "gap": "uniform:10ms,20ms",
    "headers": "with_first_content",
    "headers_delay": "1.3ms",
    "role": "with",
    "first_comment": "OPENROUTER PROCESSING",
    "tokens": 60,
    "tokens_max": 1000,
    "per_event": 2,
    "reasoning_tokens": 5,
    "reasoning_key": "reasoning",
    "slots": 8,
    "queue_max": 16,
    "cache_tokens": 110000,
    "episodes": ["x5 from 60s for 20s every 140s", "x2.5 from 1s for 500ms"],
    "provider": "azure",
    "requests_per_min": 60,
    "tokens_per_min": 10_000,
    "extra_headers": ["set-cookie: a=b"],
    "models": ["llama", "qwen"],
    "continues": False,
    "tiers": ["flex: 20ms | 10% pareto:1s,1.2, 3% refused", "priority: 5ms, served as default", "default: 10ms"],
    "faults": ["429:azure,2s once", "crlf+split:7 5%", "cut_fin:40 first 3"],
}


def test_every_key_reads_back_as_itself() -> None:
    """Every key of a profile is the same after showing and parsing."""
    profile = parse_profile(EVERYTHING)
    assert set(EVERYTHING) == set(KEYS)
    assert show_profile(profile) == EVERYTHING
    assert parse_profile(show_profile(profile)) == profile


def test_default_reads_back_as_itself() -> None:
    """The default profile is the same after showing and parsing."""
    assert parse_profile(show_profile(Profile())) == Profile()


def test_partial_change_keeps_the_rest() -> None:
    """Keys that are not given keep their values."""
    profile = parse_profile({"stall": "off", "slots": "2"}, parse_profile(EVERYTHING))
    assert show_profile(profile) == {**EVERYTHING, "stall": "off", "slots": 2}


MISTAKES: list[dict[str, object]] = [  # each has one wrong key
    {"tfft": "1s"},
    {"ttft": "20"},
    {"ttft": 20},
    {"headers": "late"},
    {"tokens": -1},
    {"tokens": 10**9},
    {"slots": 1.5},
    {"stall": "4%"},
    {"episodes": ["x5 at 60s"]},
    {"episodes": ["x5 from 1s for 1s every 0s"]},
    {"episodes": "x5 from 60s for 20s"},
    {"extra_headers": ["a: b\r\nc: d"]},
    {"extra_headers": ["Set-Cookie=x"]},
    {"continues": 2},
    {"tiers": ["flex 20ms"]},
    {"tiers": ["flex: 20"]},
    {"faults": ["sulk"]},
    {"faults": ["500 sometimes"]},
    {"faults": ["500:azure"]},
    {"faults": ["stall:x"]},
    {"faults": ["500"] * 101},
]


def _message(changes: dict[str, object]) -> str:
    with pytest.raises(ProfileError) as caught:
        parse_profile(changes)
    return str(caught.value)


@pytest.mark.parametrize("changes", MISTAKES, ids=repr)
def test_a_mistake_names_its_key(changes: dict[str, object]) -> None:
    """The message of a mistake names the key."""
    [key] = changes
    assert key in _message(changes)


def test_sentences(sentences: Sentences) -> None:
    """The message of each mistake is the one in the snapshot."""
    sentences.check("simulated_profile", {repr(changes)[:100]: _message(changes) for changes in MISTAKES})


@pytest.mark.parametrize(
    ("since_s", "on"), [(0.0, False), (60.0, True), (79.9, True), (80.0, False), (200.0, True), (220.0, False)]
)
def test_episode_returns(since_s: float, on: object) -> None:
    """An episode covers its length from its start on, again after each period."""
    assert Episode("", 5.0, 60.0, 20.0, 140.0).covers(since_s) is on


def test_the_page_has_every_key_and_fault() -> None:
    """docs/simulated-replica.md has a row for each key with its default and text, and one for each fault."""
    page = (DOCS / "simulated-replica.md").read_text(encoding="utf-8").replace("\\|", "|")
    assert set(re.findall(r"^\| `(\w+)` \|", page, re.MULTILINE)) == {*KEYS, *FAULTS}
    defaults = show_profile(Profile())
    for name, key in KEYS.items():
        value = defaults[name]
        text = ", ".join(value) if isinstance(value, list) else str(value).lower()
        assert f"| `{name}` | {f'`{text}`' if text else 'none'} | {key.text} |" in page
    for name, fault in FAULTS.items():
        assert re.search(rf"^\| `{name}` \|.*\| {re.escape(fault.text)} \|$", page, re.MULTILINE)
