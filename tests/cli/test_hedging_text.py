"""`check-config` and the start line state whether requests can be hedged, and why not."""

import json
import sys
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from types import FrameType

import pytest

from gateway.__main__ import main
from gateway.cli.hedging import hedging_summary
from gateway.cli.parser import ExitCode
from gateway.cli.serve import _introduction
from gateway.config.settings import Settings
from gateway.config.values import Address
from gateway.server.process import Addresses

KEYS = [{"name": "team-a", "key": "sk-very-secret"}]
CURE = "set cancel_stops_billing or allow_billed_hedges"
ADVICE = (
    "    write `cancel_stops_billing: true` at a replica whose provider does not bill cancelled requests, "
    "or `allow_billed_hedges: true` to accept the bill"
)


def replicas(*kinds: str, **more: object) -> list[dict[str, object]]:
    """Replicas a, b, ... of these kinds."""
    url = "http://10.0.0.1:8000/v1"
    return [
        {"name": name, "kind": kind, "base_url": url, **more} for name, kind in zip("abcdefgh", kinds, strict=False)
    ]


def settings(model: dict[str, object]) -> Settings:
    """A configuration with one model."""
    return Settings.model_validate({"keys": KEYS, "models": [{"name": "m", **model}]})


CASES: dict[str, tuple[dict[str, object], str]] = {
    "shadow": (
        {"replicas": replicas("vllm", "sglang"), "hedge": {"policy": "shadow"}},
        "hedging shadow (decided, not sent), budget 10%",
    ),
    "engines": ({"replicas": replicas("vllm", "sglang")}, "hedging adaptive, budget 10%"),
    "policy": ({"replicas": replicas("groq"), "hedge": {"policy": "off"}}, "hedging off"),
    "budget": (
        {"replicas": replicas("vllm", "vllm"), "hedge": {"budget": "0%"}},
        "hedging off, because its budget is 0%",
    ),
    "one": (
        {"replicas": replicas("vllm")},
        "hedging cannot happen: a is the only replica; add another one to `replicas`",
    ),
    "billed": (
        {"replicas": replicas("groq", "gemini")},
        f"hedging cannot happen: a and b bill cancelled requests; {CURE}",
    ),
    "unknown": (
        {"replicas": replicas("openrouter", "compatible", "cerebras")},
        f"hedging cannot happen: a, b and c may bill cancelled requests; {CURE}",
    ),
    "both": (
        {"replicas": replicas("openrouter", "mistral")},
        f"hedging cannot happen: b bills cancelled requests, and a may bill them; {CURE}",
    ),
    "many": (
        {"replicas": replicas(*["groq"] * 8)},
        f"hedging cannot happen: a, b, c, d, e and 3 more bill cancelled requests; {CURE}",
    ),
    "sides": (
        {"replicas": [*replicas("vllm", boundary="eu"), {**replicas("vllm", "vllm")[1], "boundary": "us"}]},
        "hedging cannot happen: no two replicas have the same boundary; add one, or set cross_boundary: always",
    ),
    "one direction": (
        {"replicas": replicas("openai", "groq")},
        "hedging adaptive, budget 10%, except for requests to a",
    ),
    "corrected": (
        {"replicas": replicas("compatible", "compatible", cancel_stops_billing=True)},
        "hedging adaptive, budget 10%",
    ),
    "accepted": ({"replicas": replicas("groq", "groq", allow_billed_hedges=True)}, "hedging adaptive, budget 10%"),
    "worse than listed": (
        {"replicas": replicas("openai", "openai", cancel_stops_billing=False)},
        f"hedging cannot happen: a and b bill cancelled requests; {CURE}",
    ),
    "backup only": (
        {"replicas": [*replicas("vllm"), {**replicas("vllm", "vllm")[1], "backup_only": True}]},
        "hedging adaptive, budget 10%",
    ),
    "found later": (
        {"discover": {"file": "replicas.yaml"}},
        "hedging adaptive, budget 10%, if the replicas that are found permit it",
    ),
    "fallbacks": (
        {
            "replicas": replicas("vllm"),
            "fallbacks": [{"replicas": [{**each, "name": f"f{each['name']}"} for each in replicas("vllm", "vllm")]}],
        },
        "hedging happens in fallbacks only: a is the only replica; add another one to `replicas`",
    ),
}


@pytest.mark.parametrize("case", CASES)
def test_the_summary_has_the_reason_and_the_cure(case: str) -> None:
    """One line states whether the model's requests can be hedged, and if not, why and what to set."""
    model, expected = CASES[case]
    checked = settings(model)
    assert hedging_summary(checked, checked.models[0]) == expected


def checked(tmp_path: Path, capsys: pytest.CaptureFixture[str], *models: Mapping[str, object]) -> list[str]:
    """Lines that check-config prints after its first."""
    file = tmp_path / "gateway.yaml"
    file.write_text(json.dumps({"keys": KEYS, "models": list(models)}), encoding="utf-8")
    assert main(["check-config", str(file)]) == ExitCode.OK
    out, err = capsys.readouterr()
    assert err == ""
    return out.splitlines()[1:]


def test_check_config_lists_replicas_with_restrictions(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """check-config has a line for each model, and below it one for each replica with a restriction."""
    fine = {"name": "fine", "replicas": replicas("vllm", "vllm")}
    off = {"name": "off", "replicas": replicas("groq"), "hedge": {"policy": "off"}}
    mixed = {"name": "mixed", "replicas": replicas("openai", "openrouter")}
    alone = {"name": "alone", "replicas": replicas("vllm")}
    assert checked(tmp_path, capsys, fine, off, mixed, alone) == [
        "  fine: hedging adaptive, budget 10%",
        "  off: hedging off",
        "  mixed: hedging adaptive, budget 10%, except for requests to a",
        "    a (openai): never hedged: every other replica bills cancelled requests, or may (billing_unknown)",
        "    b (openrouter): takes no hedges: it may bill cancelled requests",
        ADVICE,
        "  alone: hedging cannot happen: a is the only replica; add another one to `replicas`",
        "    a (vllm): never hedged: no other replica is configured in its pool and boundary (one_replica)",
    ]


def test_check_config_names_backup_only_replicas(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The uses of a backup-only replica are in its line, with hedging off, too."""

    def pair(kind: str) -> list[dict[str, object]]:
        first, second = replicas("openai", kind)
        return [first, {**second, "backup_only": True}]

    off = {"name": "off", "replicas": pair("openai"), "hedge": {"policy": "off"}}
    billed = {"name": "billed", "replicas": pair("groq")}
    assert checked(tmp_path, capsys, {"name": "on", "replicas": pair("openai")}, off, billed) == [
        "  on: hedging adaptive, budget 10%",
        "    b (openai): backup_only: used for hedges and failovers",
        "  off: hedging off",
        "    b (openai): backup_only: used for failovers",
        "  billed: hedging adaptive, budget 10%, except for requests to a",
        "    a (openai): never hedged: every other replica bills cancelled requests (billed)",
        "    b (groq): backup_only: used for failovers; takes no hedges: it bills cancelled requests",
        ADVICE,
    ]


def test_the_start_line_has_the_reason() -> None:
    """`serve` names models that are not hedged, and counts those among the models that it does not list."""
    models = [{"name": f"m{number}", "replicas": replicas("groq", "groq")} for number in range(22)]
    models.append({"name": "fine", "replicas": replicas("vllm", "vllm")})
    made = Settings.model_validate({"keys": KEYS, "models": models})
    reserve = settings({"replicas": [replicas("vllm")[0], {**replicas("vllm", "vllm")[1], "backup_only": True}]})
    lines = list(_introduction(made, Addresses(Address("127.0.0.1", 1), None), None))
    assert list(_introduction(reserve, Addresses(Address("127.0.0.1", 1), None), None))[1] == (
        "  m: a, b (backup_only); hedging adaptive, budget 10%"
    )
    assert lines[1] == f"  m0: a, b; hedging cannot happen: a and b bill cancelled requests; {CURE}"
    assert lines[21] == "  and 3 more models, 2 of them without hedging"


def calls(function: Callable[[], object]) -> int:
    """The number of calls of Python functions in a call."""
    count = 0

    def on_event(_frame: FrameType, event: str, _arg: object) -> None:
        nonlocal count
        count += event == "call"

    before = sys.getprofile()
    sys.setprofile(on_event)
    try:
        function()
    finally:
        sys.setprofile(before)
    return count


def test_each_model_costs_the_start_the_same() -> None:
    """Further models are described in calls that grow with their number, not with its square."""
    at = Addresses(Address("127.0.0.1", 1), None)
    counts = []
    for number in (50, 100, 150):
        models = [{"name": f"m{index}", "replicas": replicas("vllm", "vllm")} for index in range(number)]
        made = Settings.model_validate({"keys": KEYS, "models": models})
        counts.append(calls(partial(lambda made: list(_introduction(made, at, None)), made)))
    assert counts[2] - counts[1] < 1.2 * (counts[1] - counts[0])  # with the square of the number: 1.67 times
