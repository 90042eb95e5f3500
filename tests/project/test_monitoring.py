"""docker/monitoring: the rules fire and are silent as promtool sees them, and Grafana can import the dashboard."""

import json
import re
import subprocess
from collections import Counter
from pathlib import Path
from typing import Any

import yaml

from alert_cases import CASES
from checkout import DOCS, ROOT
from dashboard import FILE, text
from dashboard_panels import panels
from night_table import NIGHTS
from nights import sections
from prometheus_server import PROMTOOL, require_prometheus
from promtool_tests import PromtoolTests

RULES = ROOT / "docker/monitoring/rules.yaml"
ALERTS: dict[str, dict[str, Any]] = {
    rule["alert"]: rule
    for group in yaml.safe_load(RULES.read_text(encoding="utf-8"))["groups"]
    for rule in group["rules"]
    if "alert" in rule
}
UNITS = {"s", "percentunit", "reqps", "none", "bytes"}  # of Grafana


def test_each_alert_fires_and_is_silent(tmp_path: Path) -> None:
    """Promtool runs each alert with series on both sides of its condition; its text is the one expected."""
    require_prometheus()
    assert {case.alert for case in CASES} == set(ALERTS)
    files = []
    for number, document in enumerate(PromtoolTests(str(RULES), ALERTS).documents()):
        files.append(tmp_path / f"tests-{number}.yaml")
        files[-1].write_text(yaml.safe_dump(document), encoding="utf-8")
    command = [str(PROMTOOL), "test", "rules", *map(str, files)]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=170)
    assert done.returncode == 0, done.stdout + done.stderr


def test_each_alert_has_a_section_of_the_runbook() -> None:
    """The annotation names a heading, and the section names the alert; the page lists no alert that does not exist."""
    runbook = (DOCS / "runbook.md").read_text(encoding="utf-8")
    sections = {
        re.sub(r"[^\w\- ]", "", title.lower()).replace(" ", "-"): body
        for title, body in re.findall(r"^## (.+)\n((?:(?!## ).*\n)*)", runbook, re.MULTILINE)
    }
    for name, rule in ALERTS.items():
        page, _, anchor = rule["annotations"]["runbook"].partition("#")
        assert page == "docs/runbook.md"
        assert f"`{name}`" in sections[anchor], name
        assert rule["labels"]["severity"] in ("page", "ticket")
    assert set(re.findall(r"`(Ttft\w+)`", runbook)) == set(ALERTS)


def test_the_nights_are_sections_of_the_runbook() -> None:
    """Each has commands to look, commands that succeed when it is over, and its alert; the page begins with ten."""
    steps = sections((DOCS / "runbook.md").read_text(encoding="utf-8"))
    assert [night.section for night in NIGHTS][:10] == list(steps)[:10]
    for night in NIGHTS:
        assert steps[night.section]["Look"]
        assert steps[night.section]["Over"]
        assert ALERTS[night.alert]["annotations"]["runbook"].endswith(night.section.lower().replace(" ", "-"))


def test_rules_and_panels_use_metrics_that_exist() -> None:
    """Each name of a metric is documented in docs/metrics.md, or recorded by a rule."""
    rules = RULES.read_text(encoding="utf-8")
    documented = set(re.findall(r"^### `(\w+)`$", (DOCS / "metrics.md").read_text(encoding="utf-8"), re.MULTILINE))
    queries = rules + "\n".join(query.expr for panel in panels() for query in panel.queries)
    used = set(re.findall(r"(?<![:\w])(?:ttft_gateway|gen_ai|process)_\w+(?![:\w]*\")", queries))
    names = {re.sub(r"_(bucket|count|sum)$", "", name) for name in used} - {"gen_ai_request_model"}
    assert names - documented == set()
    assert "ttft_gateway_requests_total" in names


def test_the_dashboard_is_made_from_its_panels() -> None:
    """The file is the one that `python tests/support/dashboard.py` writes."""
    assert FILE.read_text(encoding="utf-8") == text()


def test_the_dashboard_can_be_imported() -> None:
    """Ids and titles are unique, no panel covers another, and each query has the chosen source, unit and legend."""
    board = json.loads(FILE.read_text(encoding="utf-8"))
    rows = board["panels"]
    variables = {each["name"] for each in board["templating"]["list"]}
    assert variables == {"datasource", "job", "model"}
    for field in ("id", "title"):
        assert [value for value, count in Counter(row[field] for row in rows).items() if count > 1] == []
    covered: set[tuple[int, int]] = set()
    for row in rows:
        place = row["gridPos"]
        cells = {
            (x, y)
            for x in range(place["x"], place["x"] + place["w"])
            for y in range(place["y"], place["y"] + place["h"])
        }
        assert not cells & covered, row["title"]
        assert max(x for x, _ in cells) < 24
        covered |= cells
    for panel in (row for row in rows if row["type"] != "row"):
        assert panel["fieldConfig"]["defaults"]["unit"] in UNITS
        assert panel["description"].endswith(".")
        assert [target["refId"] for target in panel["targets"]] == ["A", "B", "C"][: len(panel["targets"])]
        for target in panel["targets"]:
            assert target["datasource"] == panel["datasource"] == {"type": "prometheus", "uid": "${datasource}"}
            assert target["legendFormat"]
            assert set(re.findall(r"\$(\w+)", target["expr"])) <= {"__rate_interval", "job", "model"}
            assert "{" not in target["expr"] or "$job" in target["expr"]
            labels = set(re.findall(r"{{(\w+)}}", target["legendFormat"]))
            assert labels <= set(re.findall(r"\w+", target["expr"])) | {
                "instance",
                "replica",
                "pool",
                "gen_ai_request_model",
            }
