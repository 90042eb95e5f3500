"""docs/evaluation/sdks.md and the guide for agents have what scripts/sdk-matrix checks; it needs package registries."""

import json
import re

import pytest

from agents import AGENTS, GUIDES, MODEL, Agent
from checkout import ROOT
from checks import ANSWERS, ERRORS, SDKS, Sdk
from matrix import UPSTREAMS
from proxy_litellm import config

PAGE = (ROOT / "docs" / "evaluation" / "sdks.md").read_text(encoding="utf-8")
CLIENTS = ROOT / "tests" / "sdks"


def test_the_page_describes_every_check() -> None:
    """Each check has its row, in these words."""
    assert [check for check, what in {**ANSWERS, **ERRORS}.items() if f"| {check} | {what} |\n" not in PAGE] == []


def test_the_tables_have_every_check_and_nothing_failed() -> None:
    """A row for each check and kind of replica; no cell says no."""
    first, second, errors = re.findall(r"^\| (?:replicas of the kind|error, raised).*\n(?:\|.*\n)+", PAGE, re.MULTILINE)
    for table, checks in ((first, ANSWERS), (second, ANSWERS), (errors, ERRORS)):
        head, _, *rows = table.strip().splitlines()
        assert head.split(" | ")[1:] == [*(sdk.name for sdk in SDKS[:-1]), f"{SDKS[-1].name} |"]
        assert [row.split(" | ")[0].removeprefix("| ") for row in rows] == [*checks]
    assert "**no**" not in PAGE


@pytest.mark.parametrize("sdk", SDKS, ids=lambda sdk: sdk.name)
def test_the_tables_are_of_the_versions_in_the_script(sdk: Sdk) -> None:
    """The page names the packages that the script installs."""
    assert f"`{' '.join(sdk.packages)}`" in PAGE


@pytest.mark.parametrize("sdk", SDKS, ids=lambda sdk: sdk.name)
def test_a_client_makes_only_checks_of_the_list(sdk: Sdk) -> None:
    """What a client calls its checks is what the list calls them, each once."""
    made = re.findall(r'^@?check\("([^"]+)"', (CLIENTS / sdk.client).read_text(encoding="utf-8"), re.MULTILINE)
    assert made
    assert len(made) == len(set(made))
    assert set(made) <= {*ANSWERS, *ERRORS}
    assert set(made) >= {*ERRORS, "answer", "stream", "tools", "structured output", "cancel while waiting"}


@pytest.mark.parametrize("agent", AGENTS, ids=lambda agent: agent.program)
def test_the_guide_has_the_tested_agents_and_their_settings(agent: Agent) -> None:
    """The guide has a row of the tested version for each kind of replica, and the settings with which it was tested."""
    page = (GUIDES / agent.guide).read_text(encoding="utf-8")
    for kind in UPSTREAMS:
        assert f"| {agent.name} {agent.version} | `{kind}` | yes |" in page
    start = agent.start("http://127.0.0.1:8080")
    for name, value in start.env.items():
        if name.startswith("ANTHROPIC"):
            assert f"{name}={value}" in page.replace("=KEY", "=sk-matrix").replace("claude-opus-5", MODEL)
    for text in start.files.values():
        shown = page.replace("qwen-coder", MODEL)
        if text.startswith("{"):
            (block,) = re.findall(r"^```json\n(.*?)^```$", shown, re.MULTILINE | re.DOTALL)
            tested = json.loads(text)
            assert json.loads(block) == {name: tested[name] for name in ("provider", "model")}
        else:
            assert f"```toml\n{text}```" in shown
    assert agent.recorded.exists()


def test_the_recipe_for_litellm_is_the_tested_one() -> None:
    """The guide has the configuration of LiteLLM's proxy with which it was tested."""
    page = (GUIDES / "with-litellm.md").read_text(encoding="utf-8")
    assert f"```yaml\n{config('http://ttft-gateway:8080', 'llama-70b')}```" in page
