"""The files for GitHub and pre-commit: they fit their schemas, and name scripts, versions and files that exist."""

import re
import subprocess
import sys
import tomllib
from pathlib import Path
from typing import Any

import pytest
import yaml

from checkout import ROOT

GITHUB = ROOT / ".github"
WORKFLOWS = {path.name: path for path in sorted((GITHUB / "workflows").glob("*.yml"))}
FORMS = [GITHUB / "ISSUE_TEMPLATE" / name for name in ("bug.yml", "feature.yml")]
PYPROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
HOOKS = yaml.safe_load((ROOT / ".pre-commit-config.yaml").read_text(encoding="utf-8"))["repos"]

ACTION = re.compile(r"actions/[a-z-]+@v\d+")  # from GitHub itself, and by its major version


def _jobs(name: str) -> dict[str, dict[str, Any]]:
    jobs: dict[str, dict[str, Any]] = yaml.safe_load(WORKFLOWS[name].read_text(encoding="utf-8"))["jobs"]
    return jobs


@pytest.mark.parametrize(
    ("schema", "files"),
    [
        ("vendor.github-workflows", [*WORKFLOWS.values()]),
        ("vendor.github-issue-forms", FORMS),
        ("vendor.github-issue-config", [GITHUB / "ISSUE_TEMPLATE" / "config.yml"]),
    ],
)
def test_files_fit_their_schemas(schema: str, files: list[Path]) -> None:
    """check-jsonschema's built-in schemas accept every file."""
    tool = Path(sys.executable).with_name("check-jsonschema")
    command = [str(tool), "--builtin-schema", schema, *map(str, files)]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=120)
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.parametrize("name", WORKFLOWS)
def test_workflows_are_bounded(name: str) -> None:
    """A workflow may only read, ends its older run, limits the time of every job, and uses pinned actions."""
    workflow = yaml.safe_load(WORKFLOWS[name].read_text(encoding="utf-8"))
    assert workflow["permissions"] == {"contents": "read"}
    assert workflow["concurrency"]["cancel-in-progress"] is True
    assert [job for job, row in _jobs(name).items() if not row.get("timeout-minutes")] == []
    used = [step["uses"] for job in _jobs(name).values() for step in job["steps"] if "uses" in step]
    assert [action for action in used if not ACTION.fullmatch(action)] == []


def test_scripts_exist() -> None:
    """Every script that a workflow or a hook calls is in scripts/ and can be executed."""
    runs = [step["run"] for name in WORKFLOWS for job in _jobs(name).values() for step in job["steps"] if "run" in step]
    runs += [hook["entry"] for repo in HOOKS for hook in repo["hooks"] if "entry" in hook]
    called = {script for run in runs for script in re.findall(r"\bscripts/[\w-]+", run)}
    assert [script for script in called if not (ROOT / script).stat().st_mode & 0o111] == []
    assert "scripts/check" in called


def test_every_supported_version_is_tested() -> None:
    """The jobs run on each version of Python that pyproject.toml names, on Linux, and on macOS."""
    rows = PYPROJECT["project"]["classifiers"]
    supported = {row.rpartition(" ")[2] for row in rows if re.fullmatch(r".*:: Python :: 3\.\d+", row)}
    jobs = _jobs("check.yml")
    matrix = jobs["test"]["strategy"]["matrix"]
    tested = set(matrix["python"]) | {row["python"] for row in matrix["include"] if row["os"] == "ubuntu-latest"}
    tested |= {step["with"]["python-version"] for step in jobs["check"]["steps"] if "with" in step}
    assert supported <= tested
    assert "macos-latest" in {row["os"] for row in matrix["include"]}


def test_hooks_of_others_are_pinned() -> None:
    """Hooks from other repositories have a released version; local ones run programs of this project's environment."""
    assert all(re.fullmatch(r"v\d+\.\d+\.\d+", repo["rev"]) for repo in HOOKS if repo["repo"] != "local")
    [local] = [repo["hooks"] for repo in HOOKS if repo["repo"] == "local"]
    assert all(hook["entry"].startswith((".venv/bin/", "scripts/")) for hook in local)


@pytest.mark.parametrize("name", ["CONTRIBUTING.md", "SECURITY.md", "CODE_OF_CONDUCT.md"])
def test_links_lead_somewhere(name: str) -> None:
    """Every local link of a page for contributors has its file."""
    links = re.findall(r"\]\(([^)\s#]+)", (ROOT / name).read_text(encoding="utf-8"))
    assert [link for link in links if not link.startswith("https://") and not (ROOT / link).exists()] == []


def test_contributing_names_what_exists() -> None:
    """CONTRIBUTING.md has a row for every script, and every path and test folder that it names exists."""
    text = (ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8")
    rows = re.findall(r"^\| `(scripts/[\w-]+)` \|", text, re.MULTILINE)
    scripts = {path.relative_to(ROOT).as_posix() for path in (ROOT / "scripts").iterdir() if path.is_file()}
    assert rows == sorted(scripts)
    paths = re.findall(r"(?<![\w/])(?:docs/[\w-]+(?:\.\w+)+|(?:gateway|providers|tests)/[\w./-]*\w)", text)
    assert [path for path in paths if not (ROOT / path).exists()] == []


def test_packages_are_typed() -> None:
    """Each package has the marker that the classifier `Typing :: Typed` promises, as an empty file."""
    assert "Typing :: Typed" in PYPROJECT["project"]["classifiers"]
    packages = PYPROJECT["tool"]["hatch"]["build"]["targets"]["wheel"]["packages"]
    assert {package: (ROOT / package / "py.typed").read_bytes() for package in packages} == dict.fromkeys(packages, b"")
