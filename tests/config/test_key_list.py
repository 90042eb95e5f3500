"""Lists of keys: what a line may have, what is rejected, and that no message has a secret."""

import hashlib
from pathlib import Path

import pytest

from gateway.config.errors import ConfigError
from gateway.config.key_list import read_keys
from gateway.config.loader import from_replicas
from gateway.listed_keys import USUAL, KeyRule

SETTINGS = from_replicas(
    "llama", ["http://127.0.0.1:9"], others={"keys": [{"name": "own", "key": "own-secret", "previous_key": "old-own"}]}
)
DIGEST = hashlib.sha256(b"secret-b").digest()


def _fault(file: Path, text: str) -> str:
    file.write_text(text, encoding="utf-8")
    with pytest.raises(ConfigError) as caught:
        read_keys(file, SETTINGS)
    return str(caught.value).replace(str(file), "FILE")


def test_a_file_with_keys(tmp_path: Path) -> None:
    """A key has a secret or its digest, and the limits that `keys` have; equal rules are one object."""
    file = tmp_path / "keys.jsonl"
    limited = '"models": ["llama"], "requests_per_min": 5, "tokens_per_min": 6, "concurrency": 7, "hedge": false, '
    file.write_text(
        '{"name": "a", "key": "secret-a", "previous_key": "old-a"}\n'
        f'\n{{"name": "b", {limited}"attempts_max": 1, "key_sha256": "{DIGEST.hex()}"}}\r\n'
        f'{{"name": "c", {limited}"attempts_max": 1, "key": "secret-c"}}',
        encoding="utf-8",
    )
    keys = dict(sorted(read_keys(file, SETTINGS).items()))
    assert list(keys) == ["a", "b", "c"]
    assert (keys["a"].digest, keys["a"].rule) == (hashlib.sha256(b"secret-a").digest(), USUAL)
    assert (keys["a"].previous, keys["b"].digest) == (hashlib.sha256(b"old-a").digest(), DIGEST)
    assert keys["b"].rule == KeyRule(frozenset(["llama"]), 5, 6, 7, False, 1)
    assert keys["b"].rule is keys["c"].rule


def test_a_directory_with_keys(tmp_path: Path) -> None:
    """All files count but hidden ones and folders, as a Secret of Kubernetes has them."""
    (tmp_path / "..data").mkdir()
    (tmp_path / ".new").write_text("half a li", encoding="utf-8")
    for name in "ab":
        (tmp_path / name).write_text(f'{{"name": "{name}", "key": "secret-{name}"}}\n', encoding="utf-8")
    assert set(read_keys(tmp_path, SETTINGS)) == {"a", "b"}


@pytest.mark.parametrize(
    ("text", "fault"),
    [
        ("", "FILE: the file has no key; write at least one line"),
        ("\n\n", "FILE: the file has no key; write at least one line"),
        ("- name: a", "FILE:1:1: the line is not JSON; write one object in a line"),
        ('{"name": "a", "key": "s"}\n{"name"', "FILE:2:1: the line is not JSON"),
        ('{"sk-secret": "team-a"}', "FILE:1:1: the line has an unknown field; the fields are name, key,"),
        ('{"key": "s"}', "FILE:1:1: Object missing required field `name`; write for example"),
        ('{"name": "a b", "key": "s"}', "FILE:1:1: a name must be 1 to 128 visible ASCII characters"),
        ('{"name": "a"}', "FILE:1:1: the line has no secret; write `key` or `key_sha256`"),
        ('{"name": "a", "key": ""}', "FILE:1:1: key: the secret is empty"),
        ('{"name": "a", "key": "s s"}', "FILE:1:1: key: the secret contains a space"),
        ('{"name": "a", "key": "s", "key_sha256": "00"}', "FILE:1:1: `key` and `key_sha256` are both set"),
        ('{"name": "a", "key_sha256": "sk-secret"}', "FILE:1:1: `key_sha256` is no SHA-256; write 64 digits"),
        ('{"name": "a", "key": "s", "models": []}', "FILE:1:1: Expected `array` of length >= 1 - at `$.models`"),
        ('{"name": "a", "key": "s", "concurrency": 0}', "FILE:1:1: Expected `int` >= 1 - at `$.concurrency`"),
        ('{"name": "own", "key": "s"}', 'FILE:1:1: found "own", but `keys` in the configuration already has this name'),
        ('{"name": "a", "key": "s"}\n{"name": "a", "key": "t"}', 'FILE:2:1: found "a", but another line already has'),
        ('{"name": "a", "key": "s"}\n{"name": "b", "key": "s"}', "FILE:2:1: this secret is the same as that of a;"),
        ('{"name": "a", "key": "s", "previous_key": "s"}', "FILE:1:1: this secret is the same as that of a;"),
        ('{"name": "a", "key": "own-secret"}', "FILE:1:1: this secret is the same as that of own;"),
        ('{"name": "a", "previous_key": "old-own", "key": "s"}', "FILE:1:1: this secret is the same as that of own;"),
    ],
)
def test_a_list_that_cannot_be_used(tmp_path: Path, text: str, fault: str) -> None:
    """One mistake rejects the whole list, with its line and without the secret."""
    found = _fault(tmp_path / "keys.jsonl", text)
    assert found.startswith(fault)
    assert "sk-secret" not in found


def test_paths_without_keys(tmp_path: Path) -> None:
    """A path that is missing, and a folder without files, are mistakes, too."""
    with pytest.raises(ConfigError, match="No such file"):
        read_keys(tmp_path / "missing", SETTINGS)
    with pytest.raises(ConfigError, match="the directory has no file with a key"):
        read_keys(tmp_path, SETTINGS)


def test_many_mistakes(tmp_path: Path) -> None:
    """The first twenty are reported."""
    found = _fault(tmp_path / "keys.jsonl", "{\n" * 1000)
    assert len(found.splitlines()) == 20
