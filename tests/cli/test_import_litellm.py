"""`import litellm`: what is taken over, what is reported with which line, and that no secret is copied."""

import copy
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from checkout import ROOT
from gateway.__main__ import main
from gateway.cli.importing.command import PLACEHOLDERS
from gateway.cli.importing.endpoints import PROVIDERS
from gateway.cli.importing.litellm import Imported, from_litellm
from gateway.cli.importing.source import ForeignFile, NotReadable, read_source
from gateway.cli.parser import ExitCode
from gateway.config.document import Loc
from gateway.config.loader import load
from ttft_gateway.apis.catalog import CATALOG

GUIDE = (ROOT / "docs/guides/coming-from-litellm.md").read_text(encoding="utf-8")
EXAMPLE, WRITTEN = re.findall(r"^```yaml\n(.*?)^```$", GUIDE, re.MULTILINE | re.DOTALL)[:2]
REPORT = re.findall(r"^```text\n(.*?)^```$", GUIDE, re.MULTILINE | re.DOTALL)[0]
VARIABLES = ("AZURE_1_KEY", "AZURE_2_KEY", "LITELLM_KEY", "OPENAI_API_KEY")
PARAMS = "{model: hosted_vllm/x, api_base: http://a:1/v1}"
REPLICA: dict[str, object] = {"name": "vllm-1", "kind": "vllm", "base_url": "http://a:1/v1", "model": "x"}


def imported(text: str) -> Imported:
    """Convert a file."""
    return from_litellm(read_source(text), "config.yaml")


def written(result: Imported) -> dict[str, Any]:
    """The written settings as data; variables stay as they are written."""
    return dict(yaml.safe_load("\n".join(result.lines)))


def entry(params: str, info: str = "{}", name: str = "m") -> str:
    """A file with one entry."""
    return f"model_list:\n  - model_name: {name}\n    litellm_params: {params}\n    model_info: {info}\n"


ENDPOINTS: dict[str, tuple[dict[str, object], tuple[str, ...]]] = {  # litellm_params -> replica, words of the findings
    PARAMS: (REPLICA, ("no `api_key`; no key is sent. LiteLLM sends $HOSTED_VLLM_API_KEY",)),
    "{model: openai/gpt-4o, api_key: os.environ/K}": (
        {"kind": "openai", "base_url": "https://api.openai.com/v1", "api_key": "${K}", "model": "gpt-4o"},
        (),
    ),
    "{model: gpt-4o}": (
        {"kind": "openai", "base_url": "https://api.openai.com/v1", "api_key": "${OPENAI_API_KEY}", "model": "gpt-4o"},
        ("OPENAI_API_KEY",),
    ),
    "{model: openai/x, api_base: 'http://b:8000/v1/chat/completions', api_key: none}": (
        {"kind": "compatible", "base_url": "http://b:8000/v1", "model": "x"},
        ("compatible", "placeholder"),
    ),
    "{model: azure/d, api_base: 'https://n.openai.azure.com/', api_version: 2024-10-21, api_key: os.environ/K}": (
        {
            "kind": "azure",
            "base_url": "https://n.openai.azure.com/openai/deployments/d",
            "api_version": "2024-10-21",
            "api_key": "${K}",
            "model": "d",
        },
        (),
    ),
    "{model: azure/d, api_base: os.environ/BASE, api_version: os.environ/VERSION, api_key: os.environ/K}": (
        {"base_url": "${BASE}/openai/deployments/d", "api_version": "${VERSION}"},
        ("BASE must not end",),
    ),
    "{model: azure/d, api_base: 'https://n.openai.azure.com', api_key: os.environ/K}": (
        {"base_url": "https://n.openai.azure.com/openai/v1", "model": "d"},
        ("newer form",),
    ),
    "{model: claude-sonnet-4-5, api_base: 'https://api.anthropic.com', api_key: os.environ/K, max_tokens: 900}": (
        {"kind": "anthropic", "base_url": "https://api.anthropic.com/v1", "max_tokens_default": 900},
        (),
    ),
    "{model: ollama/q, api_base: 'http://o:11434'}": (
        {"kind": "ollama", "base_url": "http://o:11434/v1"},
        ("OLLAMA_API_KEY",),
    ),
    "{model: bedrock/converse/us.anthropic.claude-opus-4-8, aws_region_name: us-east-1, aws_profile_name: p}": (
        {
            "kind": "bedrock",
            "region": "us-east-1",
            "model": "us.anthropic.claude-opus-4-8",
            "credential": {"source": "aws", "profile": "p"},
        },
        ("not over Converse",),
    ),
    "{model: bedrock/eu-west-1/anthropic.claude-opus-4-8, api_key: os.environ/K}": (
        {"kind": "bedrock", "region": "eu-west-1", "model": "anthropic.claude-opus-4-8", "api_key": "${K}"},
        (),
    ),
    "{model: vertex_ai/gemini-3-flash, vertex_project: p, vertex_location: global}": (
        {
            "kind": "vertex",
            "region": "global",
            "project": "p",
            "model": "google/gemini-3-flash",
            "credential": "google",
        },
        (),
    ),
    "{model: azure_ai/claude-opus-4-8, api_base: 'https://r.services.ai.azure.com/anthropic', api_key: os.environ/K}": (
        {"kind": "foundry", "resource": "r", "model": "claude-opus-4-8", "api_key": "${K}"},
        (),
    ),
    "{model: azure/d, api_base: 'https://n.openai.azure.com/', tenant_id: os.environ/T, client_secret: very-secret}": (
        {"kind": "azure", "base_url": "https://n.openai.azure.com/openai/v1", "credential": "azure"},
        ("AZURE_CLIENT_SECRET", "AZURE_TENANT_ID", "newer form"),
    ),
    "{model: fireworks_ai/q, api_key: os.environ/K}": (
        {"kind": "fireworks", "model": "accounts/fireworks/models/q"},
        (),
    ),
    "{model: q/r, custom_llm_provider: hosted_vllm, api_base: 'http://a:1/v1'}": (
        {"kind": "vllm", "model": "q/r"},
        ("HOSTED_VLLM_API_KEY",),
    ),
    "{model: groq/x, api_key: os.environ/K, extra_headers: {anthropic-beta: b, X-Team: t}}": (
        {"headers": {"anthropic-beta": "b", "x-team": "${HEADER_X_TEAM}"}},
        ("HEADER_X_TEAM",),
    ),
    "{model: groq/x, api_key: os.environ/K, input_cost_per_token: 1e-6, output_cost_per_token: 0.000002}": (
        {"prices": {"prompt": 1, "completion": 2}},
        (),
    ),
    "{model: groq/x, api_key: os.environ/K, temperature: 0.1, tags: [a], foo: 1, timeout: 3}": (
        {"kind": "groq"},
        ("foo is not taken over", "tags", "temperature", "timeout"),
    ),
    "{model: groq/x, api_key: os.environ/K, weight: a, organization: 5, headers: x, rpm: r, drop_params: 1}": (
        {"kind": "groq"},
        ("drop_params", "headers", "organization", "rpm", "weight"),
    ),
}


@pytest.mark.parametrize("params", ENDPOINTS)
def test_an_entry_becomes_a_replica(params: str) -> None:
    """The replica has the entry's provider, address, key and options; everything else is reported."""
    result = imported(entry(params))
    expected, words = ENDPOINTS[params]
    (model,) = written(result)["models"]
    (replica,) = model["replicas"]
    assert {key: replica.get(key) for key in expected} == expected
    texts = sorted(finding.text for finding in result.findings)
    assert len(texts) == len(words), texts
    assert [word for word in words if not any(word in text for text in texts)] == []


SKIPPED = {  # entry -> word of the reason
    entry("{model: sagemaker/x}"): "provider sagemaker",
    entry("{model: bedrock/amazon.nova-pro-v1:0, aws_region_name: us-east-1, api_key: os.environ/K}"): "over Converse",
    entry("{model: some-model}"): "no kind",
    entry("{model: 'openai/*'}", name="'*'"): "wildcards",
    entry("{model: gpt-4o}", name="'a b'"): "model_name",
    entry("{model: whisper-1}", "{mode: audio_transcription}"): "audio",
    entry("{api_base: http://a:1/v1}"): "litellm_params.model",
    entry("{model: hosted_vllm/x, api_base: 'http://u:very-secret@a:1/v1'}"): "a password",
    "model_list: [7]": "litellm_params",
}


@pytest.mark.parametrize("text", SKIPPED)
def test_an_unusable_entry_is_reported(text: str) -> None:
    """An entry that cannot be a replica is a finding; without any replica nothing is written."""
    result = imported(text)
    assert result.lines == []
    (finding,) = result.findings
    assert SKIPPED[text] in finding.text
    assert "very-secret" not in finding.text


POOLS = f"""model_list:
  - {{model_name: m, litellm_params: {PARAMS[:-1]}, weight: 0.75, order: 1, rpm: 60, tpm: 9000}}}}
  - {{model_name: m, litellm_params: {PARAMS[:-1]}, weight: 0.25, order: 1}}, model_info: {{id: second}}}}
  - {{model_name: m, litellm_params: {PARAMS[:-1]}, order: 2}}}}
  - {{model_name: n, litellm_params: {PARAMS}}}
  - {{model_name: o, litellm_params: {PARAMS}}}
litellm_settings:
  drop_params: true
  request_timeout: 30.5
  fallbacks: [{{n: [m, second, gone]}}]
  default_fallbacks: [n]
router_settings:
  timeout: 90
  stream_timeout: 5
  routing_strategy: least-busy
  model_group_alias: {{alias: m, shown: {{model: n, hidden: true}}, o: m, lost: gone}}
  redis_host: h
general_settings:
  completion_model: m
guardrails: []
environment_variables: {{OTHER: very-secret}}
"""


def test_settings_of_the_whole_file() -> None:
    """Entries of a name are a model; order and fallbacks become pools, aliases, quotas and timeouts are taken over."""
    result = imported(POOLS)
    data = written(result)
    m, n, o = data["models"]
    rows = [*m["replicas"], *m["fallbacks"][0]["replicas"]]
    assert [(row["name"], row.get("weight")) for row in rows] == [("vllm-1", 100), ("second", 33), ("vllm-2", None)]
    assert data["quotas"] == [{"name": "m/vllm-1", "requests_per_min": 60, "tokens_per_min": 9000}]
    ordered = [finding.text for finding in result.findings if ".order" in finding.text]
    assert len(ordered) == 1
    assert (
        "makes 2 entries, which hedge each other, the first pool of m; the other one gets requests after failures only"
        in ordered[0]
    )
    pools = [[row["name"] for row in pool["replicas"]] for pool in n["fallbacks"]]
    assert pools == [["m-vllm-1", "m-second"], ["m-vllm-2"], ["m-second-2"]]
    assert [[row["name"] for row in pool["replicas"]] for pool in m["fallbacks"][1:]] == [["n-vllm-1"]]
    assert [[row["name"] for row in pool["replicas"]] for pool in o["fallbacks"]] == [["n-vllm-1"]]
    assert (m["aliases"], n["aliases"], o.get("aliases")) == (["alias"], ["shown"], None)
    assert [model["drop_params"] for model in (m, n, o)] == [True] * 3
    assert data["timeouts"] == {"total": "90s", "ttft_failover": "5s"}
    assert (data["hedge"], data["default_model"]) == ({"routing": "least_in_flight"}, "m")
    reported = {finding.text.partition(" ")[0]: finding.line for finding in result.findings}
    assert reported == {
        **{f"model_list[{index}].litellm_params": index + 2 for index in range(5)},
        "model_list[0].litellm_params.order": 2,
        "model_list[0].litellm_params.weight": 2,
        "model_list[1].litellm_params.weight": 3,
        "litellm_settings.fallbacks[0].n[2]": 10,
        "router_settings.stream_timeout": 14,
        "router_settings.routing_strategy": 15,
        "router_settings.model_group_alias.shown.hidden": 16,
        "router_settings.model_group_alias.o": 16,
        "router_settings.model_group_alias.lost": 16,
        "router_settings.redis_host": 17,
        "guardrails": 20,
        "environment_variables.OTHER": 21,
    }


STRATEGIES = {  # routing_strategy -> settings of hedging, word of the finding
    "latency-based-routing": (None, "lowest predicted TTFT"),
    "simple-shuffle": (None, "is replaced"),
    "usage-based-routing-v2": (None, "`quotas`"),
    "usage-based-routing": (None, "`quotas`"),
    "cost-based-routing": (None, "no routing by price"),
    "least-busy": ({"routing": "least_in_flight"}, "least_in_flight"),
    "my-own": (None, "no such strategy"),
}


@pytest.mark.parametrize("strategy", STRATEGIES)
def test_a_routing_strategy_is_reported(strategy: str) -> None:
    """Each strategy of the router is a finding that names its replacement, an equivalent one, too."""
    result = imported(
        f"{entry('{model: groq/x, api_key: os.environ/K}')}router_settings: {{routing_strategy: {strategy}}}"
    )
    hedge, word = STRATEGIES[strategy]
    assert written(result).get("hedge") == hedge
    (finding,) = result.findings
    assert finding.line == 5
    assert finding.text.startswith("router_settings.routing_strategy ")
    assert word in finding.text


def test_literal_secrets_are_replaced() -> None:
    """Equal secrets share a variable, no variable means two keys, and neither file nor report has a secret."""
    text = """model_list:
  - {model_name: a, litellm_params: {model: openai/x, api_key: sk-very-secret-1}}
  - {model_name: a, litellm_params: {model: openai/y, api_key: sk-very-secret-1}}
  - {model_name: a, litellm_params: {model: openai/z, api_key: sk-very-secret-2}}
  - {model_name: a, litellm_params: {model: openai/z}}
  - {model_name: a, litellm_params: {model: openai/z, api_key: os.environ/OPENAI_API_KEY_2}}
general_settings: {master_key: sk-very-secret-3, database_url: postgresql://u:very-secret@h/d}
"""
    result = imported(text)
    (model,) = written(result)["models"]
    names = ["OPENAI_API_KEY_3", "OPENAI_API_KEY_3", "OPENAI_API_KEY_4", "OPENAI_API_KEY", "OPENAI_API_KEY_2"]
    assert [row["api_key"] for row in model["replicas"]] == [f"${{{name}}}" for name in names]
    assert written(result)["keys"] == [{"name": "litellm-master", "key": "${LITELLM_MASTER_KEY}"}]
    assert "very-secret" not in "\n".join([*result.lines, *(finding.text for finding in result.findings)])


def paths(data: object, loc: Loc = ()) -> Iterator[Loc]:
    """Every path of a document."""
    yield loc
    for key, value in data.items() if isinstance(data, dict) else enumerate(data) if isinstance(data, list) else ():
        yield from paths(value, (*loc, key))


def test_any_value_anywhere_gives_a_valid_file(tmp_path: Path) -> None:
    """Whatever a value is replaced with, the written file is valid, or nothing is written."""
    file = tmp_path / "gateway.yaml"
    checked: set[str] = set()
    whole = read_source(POOLS + "credential_list: [{a: b}]\n").data
    example = read_source(EXAMPLE).data
    for original in (whole, example):
        for loc in [path for path in paths(original) if path and path != ("model_list",)]:
            for odd in (None, True, -1, 1e400, "", "${X}", "a b\n# c: d", "é", [], ["x"], {}, {"a": {"b": "c"}}):
                data = copy.deepcopy(original)
                parent: Any = data
                for part in loc[:-1]:
                    parent = parent[part]
                parent[loc[-1]] = odd
                result = from_litellm(ForeignFile(data, {}), "config.yaml")
                text = re.sub(r"^#.*\n", "", "\n".join(result.lines), flags=re.MULTILINE)
                if text and text not in checked:
                    checked.add(text)
                    file.write_text("\n".join(result.lines), encoding="utf-8")
                    env = {name: PLACEHOLDERS.get(use, f"value-{name}") for name, use in result.variables.items()}
                    assert load(file, env).models, (loc, odd)


def test_the_example_of_the_guide(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The guide shows the report and the file that the command gives for its example."""
    monkeypatch.chdir(tmp_path)
    for name in (*VARIABLES, "TTFT_GATEWAY_LISTEN"):
        monkeypatch.delenv(name, raising=False)
    Path("config.yaml").write_text(EXAMPLE, encoding="utf-8")
    assert main(["import", "litellm", "config.yaml"]) == ExitCode.OK
    out, err = capsys.readouterr()
    assert out == REPORT
    assert err == ""
    assert Path("gateway.yaml").read_text(encoding="utf-8") == WRITTEN


BAD: dict[str, tuple[str, ...]] = {  # content -> words of the error
    "a: [": ("config.yaml:", "not valid YAML"),
    "a: b\n---\nc: d": ("config.yaml:2", "not valid YAML"),
    "[" * 5000: ("nested too deeply",),
    "a: &a [*a]": ("nested too deeply",),
    "a: \x00": ("control character",),
    "": ("model_list",),
    "model_list: []": ("model_list",),
    "models: [{name: m}]": ("check-config",),
    entry("{model: bedrock/x}"): ("no entry", "not written"),
}


@pytest.mark.parametrize("content", BAD)
def test_bad_input(
    content: str, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A file that cannot be imported is an error with exit code 3, and nothing is written."""
    monkeypatch.chdir(tmp_path)
    Path("config.yaml").write_text(content, encoding="utf-8")
    assert main(["import", "litellm", "config.yaml"]) == ExitCode.BAD_CONFIG
    err = capsys.readouterr().err
    assert [word for word in BAD[content] if word not in err] == []
    assert [each.name for each in tmp_path.iterdir()] == ["config.yaml"]


def test_aliases_cannot_exhaust_memory() -> None:
    """Aliases that multiply values end with an error; merge keys and anchors work."""
    lines = ["a0: &a0 [x, x, x, x, x, x, x, x, x]"]
    lines += [f"a{n}: &a{n} [{', '.join([f'*a{n - 1}'] * 9)}]" for n in range(1, 9)]
    with pytest.raises(NotReadable, match="values"):
        read_source("\n".join(lines))
    source = read_source("a: &a {x: 1}\nb:\n  <<: *a\n  y: 2")
    assert source.data == {"a": {"x": 1}, "b": {"x": 1, "y": 2}}
    assert (source.line(("b", "y")), source.line(("b", "gone"))) == (4, 2)


def test_files(tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    """An existing file is replaced with --force only, never the input; an unreadable or unwritable file is an error."""
    monkeypatch.chdir(tmp_path)
    Path("config.yaml").write_text(EXAMPLE, encoding="utf-8")
    Path("out.yaml").write_text("mine", encoding="utf-8")
    command = ["import", "litellm", "config.yaml", "--output"]
    assert main([*command, "out.yaml"]) == ExitCode.USAGE
    assert "--force" in capsys.readouterr().err
    assert Path("out.yaml").read_text(encoding="utf-8") == "mine"
    assert main([*command, "config.yaml", "--force"]) == ExitCode.USAGE
    assert Path("config.yaml").read_text(encoding="utf-8") == EXAMPLE
    assert main([*command, "out.yaml", "--force"]) == ExitCode.OK
    assert Path("out.yaml").read_text(encoding="utf-8") == WRITTEN
    assert main([*command, "gone/out.yaml"]) == ExitCode.FAILED
    assert "cannot be written" in capsys.readouterr().err
    assert main(["import", "litellm", "gone.yaml"]) == ExitCode.BAD_CONFIG
    assert "does not exist" in capsys.readouterr().err


def test_a_provider_has_one_kind() -> None:
    """No name of LiteLLM's belongs to two kinds, and each provider with an address has a name."""
    assert sum(len(kind.litellm) for kind in CATALOG.values()) == len(PROVIDERS)
    assert [name for name, kind in CATALOG.items() if kind.base_url and not kind.litellm] == []
