"""Old spellings of settings are answered with the new ones."""

import re
from pathlib import Path
from typing import Any

import pytest
import yaml

from checkout import DOCS
from gateway.config.errors import ConfigError
from gateway.config.loader import load
from gateway.config.renamed import CHANGED_VALUES, RENAMED_KEYS
from gateway.config.sections import sections

KEYS = [(path, old, new) for path, keys in RENAMED_KEYS.items() for old, new in keys.items()]


def problem(tmp_path: Path, path: tuple[str, ...], key: str, value: object) -> tuple[str, str]:
    """Return path and message of the one problem of a configuration with this setting."""
    replica: dict[str, Any] = {"name": "a", "kind": "vllm", "base_url": "http://127.0.0.1:1/v1"}
    model: dict[str, Any] = {
        "name": "m",
        "replicas": [replica],
        "fallbacks": [{"replicas": [{**replica, "name": "b"}]}],
    }
    config: dict[str, Any] = {"models": [model]}
    place: Any = config
    for part in path:
        place = place.setdefault(part, {})
        place = place[0] if isinstance(place, list) else place
    place[key] = value
    file = tmp_path / "gateway.yaml"
    file.write_text(yaml.safe_dump(config))
    with pytest.raises(ConfigError) as caught:
        load(file, {})
    [found] = caught.value.problems
    return found.path, found.message


@pytest.mark.parametrize(("path", "old", "new"), KEYS)
def test_an_old_key_is_answered_with_the_new_one(path: tuple[str, ...], old: str, new: str, tmp_path: Path) -> None:
    """The error has the path of the old key, and names the new one."""
    where, message = problem(tmp_path, path, old, "1")
    assert where.endswith(f".{old}")
    assert message == f"`{old}` was renamed to `{new}`"


@pytest.mark.parametrize(("path", "old", "new"), KEYS)
def test_a_new_key_is_a_setting(path: tuple[str, ...], old: str, new: str) -> None:
    """A recommended key exists in its section, and the old key does not."""
    known = {field.alias for field in sections()[path].model_fields.values()}
    assert new in known
    assert old not in known


@pytest.mark.parametrize(("key", "value"), CHANGED_VALUES)
def test_an_old_value_is_answered_with_what_to_write(key: str, value: str, tmp_path: Path) -> None:
    """The error of a removed value recommends another one."""
    where, message = problem(tmp_path, ("hedge",), key, value)
    assert where == f"hedge.{key}"
    assert message == CHANGED_VALUES[key, value]


def test_the_page_has_every_renamed_setting() -> None:
    """docs/renamed.md lists each old key and value beside its new name."""
    page = (DOCS / "renamed.md").read_text(encoding="utf-8")
    olds = set(re.findall(r"^\| `([^`]+)` \|", page, re.MULTILINE))
    assert {old.rpartition(".")[2] for old in olds} >= {old for _, old, _ in KEYS}
    assert {old.rpartition(": ")[2] for old in olds} >= {value for _, value in CHANGED_VALUES}
