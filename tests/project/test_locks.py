"""The lock files: complete, agreeing with pyproject.toml and each other, and free of any index address."""

import re
import tomllib

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from checkout import ROOT

LOCKS = ["requirements.lock", "requirements-build.lock", "requirements-dev.lock"]


def _pins(lock: str) -> dict[str, str]:
    """Return name -> version of every entry; each must be one exact version with at least one hash."""
    text = (ROOT / lock).read_text()
    assert "://" not in text
    entries = re.split(r"\n(?=\S)", re.sub(r"^ *#.*\n", "", text, flags=re.MULTILINE).strip())
    pattern = re.compile(r"(?P<name>[a-z0-9-]+)==(?P<version>\S+)( ; [^\\\n]+)?( \\\n    --hash=sha256:[0-9a-f]{64})+")
    matches = [pattern.fullmatch(entry) for entry in entries]
    assert [entry for entry, match in zip(entries, matches, strict=True) if not match] == []
    return {match["name"]: match["version"] for match in matches if match}


def _wanted() -> dict[str, list[Requirement]]:
    """Return lock -> the requirements in both pyproject.toml files."""
    with (ROOT / "pyproject.toml").open("rb") as file:
        pyproject = tomllib.load(file)
    with (ROOT / "packaging/server/pyproject.toml").open("rb") as file:
        server = tomllib.load(file)["project"]["dependencies"]
    extras = pyproject["project"]["optional-dependencies"]
    others = [line for line in server if not line.startswith("ttft-gateway==")]
    runtime = [*pyproject["project"]["dependencies"], *others, *extras["otel"], *extras["share"]]
    build = pyproject["dependency-groups"]["build"]
    groups = [runtime, build, [*runtime, *build, *extras["bench"], *extras["dev"]]]
    return {lock: [Requirement(line) for line in group] for lock, group in zip(LOCKS, groups, strict=True)}


@pytest.mark.parametrize("lock", LOCKS)
def test_a_lock_satisfies_pyproject(lock: str) -> None:
    """Every requirement is locked at a version it accepts; `scripts/lock` mends it if not."""
    pins = _pins(lock)
    assert [want for want in _wanted()[lock] if pins.get(canonicalize_name(want.name), "") not in want.specifier] == []


@pytest.mark.parametrize("lock", LOCKS[:2])
def test_the_dev_lock_holds_the_others(lock: str) -> None:
    """What is tested is what is shipped: the same versions in all lock files."""
    assert _pins(lock).items() <= _pins("requirements-dev.lock").items()
