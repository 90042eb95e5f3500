"""Reads the keys that `keys_from` names: a file, or all files of a directory, with one key in a line, as JSON.

JSON, because a hundred thousand keys of YAML take a minute. A list is used as a whole or not at all, so one wrong line
or an empty list is an error. Secrets become digests at once, and no message quotes anything but a name or a number.
Runs on a thread. Units: bytes, keys.
"""

import hashlib
import itertools
import re
import stat
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, Final

import msgspec

from gateway.config.errors import ConfigError, ConfigProblem
from gateway.config.settings import Settings
from gateway.config.values import secret_fault
from gateway.listed_keys import KeyRule, ListedKey, Parted
from ttft_gateway.hedging.contract import ATTEMPTS_MAX

KEYS_MAX: Final = 200_000
_BYTES_MAX: Final = 100_000_000  # of all files
_BUFFER_BYTES: Final = 128 * 1024
_PROBLEMS_MAX: Final = 20
_NAME = re.compile(r"[!-~]{1,128}").fullmatch
_DIGEST = re.compile(r"[0-9a-f]{64}").fullmatch
_EXAMPLE: Final = '{"name": "team-a", "key": "..."}'

_Count = Annotated[int, msgspec.Meta(ge=1)]


class _Line(msgspec.Struct, forbid_unknown_fields=True):
    """One line; `keys` in the configuration has the same fields."""

    name: str
    key: str | None = None
    key_sha256: str | None = None
    previous_key: str | None = None
    previous_key_sha256: str | None = None
    models: Annotated[list[str], msgspec.Meta(min_length=1)] | None = None
    requests_per_min: _Count | None = None
    tokens_per_min: _Count | None = None
    concurrency: _Count | None = None
    hedge: bool = True
    attempts_max: Annotated[int, msgspec.Meta(ge=1, le=ATTEMPTS_MAX)] = ATTEMPTS_MAX


_decode = msgspec.json.Decoder(_Line).decode

_FIELDS: Final = ", ".join(_Line.__struct_fields__)


def key_files(path: Path) -> list[Path]:
    """Return the files of a list: the file itself, or the regular files of a directory without hidden ones.

    Raises:
        OSError: the path does not exist, or cannot be read.
    """
    if not stat.S_ISDIR(path.stat().st_mode):
        return [path]
    return sorted(each for each in path.iterdir() if not each.name.startswith(".") and each.is_file())


def read_keys(path: Path, settings: Settings) -> Parted[str, ListedKey]:
    """Return the keys of a list by name.

    Args:
        path: a file, or a directory of files.
        settings: settings with which the list must agree: names and secrets are unique.

    Raises:
        ConfigError: the list is unreadable, empty or invalid.
    """
    try:
        files = key_files(path)
    except OSError as error:
        raise _error(path, f"the keys cannot be read: {error.strerror or error}") from None
    reader = _Reader(settings)
    for file in files:
        reader.read(file)
    if not reader.problems and not len(reader.keys):
        found = "the file has no key" if files == [path] else "the directory has no file with a key"
        raise _error(path, f"{found}; write at least one line such as {_EXAMPLE}, or remove `keys_from`")
    if reader.problems:
        raise ConfigError(tuple(reader.problems))
    reader.owners.clear()
    return reader.keys


def _error(path: Path, message: str) -> ConfigError:
    return ConfigError((ConfigProblem(str(path), None, None, "", message),))


class _Reader:
    """Collects keys and problems.

    Attributes:
        keys: keys by name.
        owners: names by digest of a secret; freed at once, they would hold the interpreter's lock for long.
        problems: the first problems.
    """

    def __init__(self, settings: Settings) -> None:
        self.keys = Parted[str, ListedKey]()
        self.problems: list[ConfigProblem] = []
        self._rules: dict[KeyRule, KeyRule] = {}
        self._count = 0
        self._left_bytes = _BYTES_MAX
        self._own = {key.name for key in settings.keys}
        self.owners = Parted(_digests_of(settings))

    def read(self, file: Path) -> None:
        """Read one file, line by line: to free a large block would hold the interpreter's lock for long."""
        try:
            with file.open("rb", _BUFFER_BYTES) as stream:
                for number in itertools.count(1):
                    line = stream.readline(self._left_bytes + 1)
                    self._left_bytes -= len(line)
                    if self._left_bytes < 0:
                        self._add(file, None, f"the keys are larger than {_BYTES_MAX:,} bytes; is this the right path?")
                    elif line.strip() and (fault := self._take(line)) is not None:
                        self._add(file, number, fault)
                    if not line or self._left_bytes < 0 or len(self.problems) >= _PROBLEMS_MAX:
                        return
        except OSError as error:
            self._add(file, None, f"the file cannot be read: {error.strerror or error}")

    def _add(self, file: Path, line: int | None, message: str) -> None:
        self.problems.append(ConfigProblem(str(file), line, None if line is None else 1, "", message))

    def _take(self, line: bytes) -> str | None:
        """Take a line; return its fault, None if it is valid."""
        try:
            row = _decode(line)
        except msgspec.ValidationError as error:
            if "unknown field" in str(error):  # its name may be a secret
                return f"the line has an unknown field; the fields are {_FIELDS}"
            return f"{error}; write for example {_EXAMPLE}"
        except (msgspec.DecodeError, UnicodeDecodeError):
            return f"the line is not JSON; write one object in a line, such as {_EXAMPLE}"
        digest, fault = _digest(row.key, row.key_sha256, "key")
        previous, previous_fault = _digest(row.previous_key, row.previous_key_sha256, "previous_key")
        fault = fault or previous_fault or self._name_fault(row.name)
        if fault is not None or digest is None:
            return fault or "the line has no secret; write `key` or `key_sha256`"
        for secret in filter(None, (digest, previous)):
            if (owner := self.owners.setdefault(secret, row.name)) is not row.name or digest == previous:
                return f"this secret is the same as that of {owner}; use a different secret, or remove one key"
        self.keys[row.name] = ListedKey(row.name, digest, previous, self._rule(row))
        self._count += 1
        return None

    def _name_fault(self, name: str) -> str | None:
        if not _NAME(name):
            return "a name must be 1 to 128 visible ASCII characters without spaces (it is used in labels and headers)"
        if name in self.keys or name in self._own:
            where = "another line" if name in self.keys else "`keys` in the configuration"
            return f'found "{name}", but {where} already has this name; give each key its own name'
        if self._count >= KEYS_MAX:
            return f"there are more than {KEYS_MAX:,} keys; split them between several gateways"
        return None

    def _rule(self, row: _Line) -> KeyRule:
        models = None if row.models is None else frozenset(row.models)
        limits = row.requests_per_min, row.tokens_per_min, row.concurrency
        rule = KeyRule(models, *limits, row.hedge, row.attempts_max)
        return self._rules.setdefault(rule, rule)


def _digest(secret: str | None, sha256: str | None, field: str) -> tuple[bytes | None, str | None]:
    """Return the digest of a secret and a fault; None for each that is absent."""
    if secret is not None and sha256 is not None:
        return None, f"`{field}` and `{field}_sha256` are both set; remove one of the two"
    if secret is not None:
        fault = secret_fault(secret)
        return (None, f"{field}: {fault}") if fault else (hashlib.sha256(secret.encode()).digest(), None)
    if sha256 is not None:
        if not _DIGEST(sha256):
            return None, f"`{field}_sha256` is no SHA-256; write 64 digits 0-9 and a-f, as `sha256sum` does"
        return bytes.fromhex(sha256), None
    return None, None


def _digests_of(settings: Settings) -> Iterator[tuple[bytes, str]]:
    """Yield the digest of each secret of callers in the settings, with its owner."""
    own = [(key.name, secret) for key in settings.keys for secret in (key.key, key.previous_key)]
    for owner, secret in (("admin_key", settings.admin_key), *own):
        if secret is not None:
            yield hashlib.sha256(secret.get_secret_value().encode()).digest(), owner
