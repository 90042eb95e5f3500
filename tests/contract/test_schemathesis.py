"""schemathesis drives a running gateway by openapi.yaml: everything it can think of, with all its checks."""

import copy
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from contract_file import CONTRACT
from served import gateway, replicas
from ttft_gateway.apis.base import Api

_MODEL = "llama-70b"
_KEY = "sk-contract"
_CASES_MIN = 500
_RSS_BYTES_MAX = 120_000_000  # an idle gateway has two thirds of it


@pytest.mark.timeout(900)
def test_nothing_contradicts_the_contract(tmp_path: Path, pytestconfig: pytest.Config) -> None:
    """No request makes the gateway fail, answer otherwise than the contract says, or grow."""
    examples: int = pytestconfig.getoption("--schemathesis-examples")
    file = tmp_path / "openapi.json"
    file.write_text(json.dumps(_contract()), encoding="utf-8")
    profile = {"ttft": "1ms", "tokens": 3, "tokens_max": 20}
    with replicas(a=profile, b=profile) as urls:
        apis = [api.value for api in Api]  # translated, not all that may be sent makes sense
        rows = [{"name": name, "kind": "simulated", "base_url": url, "apis": apis} for name, url in urls.items()]
        config = {"keys": [{"name": "contract", "key": _KEY}], "models": [{"name": _MODEL, "replicas": rows}]}
        with gateway(config, tmp_path) as served:
            ended = _schemathesis(file, served.url, examples)
    assert ended.returncode == 0, ended.stdout + ended.stderr
    report = json.loads((tmp_path / "report.json").read_text(encoding="utf-8"))
    assert report["complete"]
    assert {name: phase["status"] for name, phase in report["phases"].items()} == dict.fromkeys(
        ("examples", "coverage", "fuzzing", "stateful"), "success"
    )
    assert report["operations"]["tested"] == report["operations"]["total"]
    assert report["test_cases"]["generated"] > _CASES_MIN
    assert served.rss_bytes_max < _RSS_BYTES_MAX
    assert "Traceback" not in "".join(served.stderr)


def _contract() -> dict[str, Any]:
    """The contract as it is for this gateway: a key is needed, there is one model, and a deadline can be met."""
    document = copy.deepcopy(CONTRACT)
    for limit in ("Deadline", "TtftMax", "Total"):
        document["components"]["parameters"][limit]["schema"]["pattern"] = "^[1-9][0-9]{2,6}s$"
    document["security"] = [{"bearer": []}]
    document["components"]["schemas"]["ModelName"]["enum"] = [_MODEL]
    document["paths"]["/v1/models/{model}"]["get"]["parameters"][0]["schema"]["enum"] = [_MODEL]
    return document


def _schemathesis(file: Path, url: str, examples: int) -> "subprocess.CompletedProcess[str]":
    """Run it where its files may stay."""
    command = [
        sys.executable,
        "-m",
        "schemathesis.cli",
        "run",
        str(file),
        "--url",
        url,
        "--checks",
        "all",
        "--no-color",
    ]
    command += ["--header", f"Authorization: Bearer {_KEY}", "--continue-on-failure"]
    command += ["--max-examples", str(examples), "--seed", "1", "--generation-database", "none"]
    command += ["--report", "json", "--report-json-path", str(file.with_name("report.json"))]
    return subprocess.run(command, cwd=file.parent, capture_output=True, text=True, timeout=880, check=False)
