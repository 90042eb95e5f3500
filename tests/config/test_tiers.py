"""Tiers of a replica: one row for each, their prices and bodies, and the settings that they need."""

from pathlib import Path

import pytest

from gateway.config.errors import ConfigError
from gateway.config.loader import load, masked
from gateway.config.settings import Settings
from gateway.server.upstreams import prices_of, tier_prices_of

FILE = """
models:
- name: m
  prices: {{prompt: 2, cached_prompt: 1, completion: 8}}
  hedge: {{prefer: cost, ttft_target: 3s}}
  replicas:
  - name: a
    kind: {kind}
    base_url: https://api.example/v1
    body: {{set: {{user: u}}}}
    tiers: {tiers}
"""


def loaded(folder: Path, text: str) -> Settings:
    """The settings of a file with this text."""
    file = folder / "gateway.yaml"
    file.write_text(text)
    return load(file, {})


def test_each_tier_is_a_row(tmp_path: Path) -> None:
    """Names, bodies and prices of three tiers; the prices of all tiers are known to each."""
    settings = loaded(tmp_path, FILE.format(kind="openai", tiers="[flex, default, {name: priority, price: 2.5}]"))
    rows = settings.models[0].replicas
    assert [row.name for row in rows] == ["a/flex", "a/default", "a/priority"]
    assert [row.body.set for row in rows] == [
        {"user": "u", "service_tier": name} for name in ("flex", "default", "priority")
    ]
    usual = prices_of(settings.models[0].prices)
    assert usual is not None
    prices = tier_prices_of(rows[2], usual)
    assert prices is not None
    assert [prices.billed(name).completion for name in (None, "flex", "default", "standard", "new")] == [
        20.0,
        4.0,
        8.0,
        8.0,
        20.0,
    ]
    assert prices.usual is usual


def test_an_engine_has_fields_of_its_own(tmp_path: Path) -> None:
    """Tiers of an own engine are asked for with values of the body or headers, which are merged with the replica's."""
    tiers = "[{name: low, price: 0.5, body: {priority: 100}}, {name: default, headers: {x-lane: fast}}]"
    rows = loaded(tmp_path, FILE.format(kind="vllm", tiers=tiers)).models[0].replicas
    assert [row.body.set for row in rows] == [{"user": "u", "priority": 100}, {"user": "u"}]
    assert list(rows[1].headers) == ["x-lane"]


def test_what_is_shown_can_be_loaded(tmp_path: Path) -> None:
    """`print-config` shows a row for each tier, from which the same settings follow."""
    settings = loaded(tmp_path, FILE.format(kind="openai", tiers="[flex, default]"))
    again = loaded(tmp_path, masked(settings))
    assert again.models[0].replicas == settings.models[0].replicas


@pytest.mark.parametrize(
    ("change", "to", "message"),
    [
        ("[flex, default]", "[flex, flex]", 'found "flex" twice; give each tier its own name'),
        ("[flex, default]", "[Flex, default]", "write `flex`, or `{name: Flex, price: 1.5}`"),
        (
            "  replicas:",
            "  replicas:\n  - {name: a/flex, kind: openai, base_url: 'https://api.example/v1'}",
            'the name of this tier is "a/flex", but models[0].replicas[0] already has this name',
        ),
        ("[flex, default]", "[flex, slow]", "the price of slow is unknown; write `{name: slow, price: 1.5}`"),
        ("openai", "vllm", "kind vllm has no field for a tier; write what asks for flex"),
        ("ttft_target: 3s", "budget: 5%", "`prefer: cost` needs a target; add `ttft_target: 3s`"),
        ("prefer: cost", "prefer: answer", "tiers are used where a low bill is preferred; add `hedge: {prefer: cost"),
        ("prefer: cost", "prefer: cost, policy: quantile", "only policy adaptive can prefer cost"),
        (
            "  prices: {prompt: 2, cached_prompt: 1, completion: 8}\n",
            "",
            "needs prices, but models[0].replicas[0] has none",
        ),
        ("    tiers:", "    tier: slow\n    tiers:", 'found "slow", but it is not one of `tiers`'),
        ("    tiers: [flex, default]", "    tier: flex", "`tier` names one of `tiers`; add them, or remove this line"),
    ],
)
def test_mistakes_have_a_correction(tmp_path: Path, change: str, to: str, message: str) -> None:
    """A file with tiers that cannot be used is rejected with the setting and the correction."""
    text = FILE.format(kind="openai", tiers="[flex, default]")
    assert change in text
    with pytest.raises(ConfigError) as caught:
        loaded(tmp_path, text.replace(change, to))
    assert any(message in problem.message for problem in caught.value.problems), caught.value.problems
