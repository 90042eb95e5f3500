"""A result folder: tables as CSV and Markdown, data as JSON, and a manifest of their origin.

Owns formats and the manifest. It must not depend on what is measured. The same data give the same bytes on every
version of Python; only the manifest contains time and machine.
"""

import csv
import hashlib
import io
import json
import math
import os
import platform
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

from streaming_bench.errors import BenchError
from streaming_bench.report.grid import Grid

MANIFEST = "manifest.json"

_VERSIONS = ("ttft-gateway", "httptools", "msgspec", "numpy", "matplotlib")
_DIGITS = 9  # significant digits in files: more than a clock has, and no rounding noise

Cell = str | int | float | bool | None


class ResultsError(BenchError):
    """A folder cannot be written or read; the message names the file and the cause."""


class Results:
    """A result folder being written.

    Args:
        folder: created if it is missing; files of the same names are replaced.
        argv: the command line without the program's name.
        seed: seed of all random numbers; None without random numbers.

    Raises:
        ResultsError: The folder cannot be created.
    """

    def __init__(self, folder: Path, argv: Sequence[str], seed: int | None) -> None:
        self.folder = folder
        self._argv = list(argv)
        self._seed = seed
        self._began = datetime.now(UTC)
        self._names: list[str] = []
        try:
            folder.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise ResultsError(f"cannot make the folder {folder}: {error.strerror}") from error

    def path(self, name: str) -> Path:
        """Return the path of a file, and list the file in the manifest."""
        if name not in self._names:
            self._names.append(name)
        return self.folder / name

    def text(self, name: str, text: str) -> None:
        """Write a text."""
        self.path(name).write_text(text, encoding="utf-8", newline="\n")

    def json(self, name: str, data: object) -> None:
        """Write data; infinite numbers and NaN become null."""
        self.text(name, json.dumps(rounded(data), indent=1, allow_nan=False) + "\n")

    def csv(self, name: str, heads: Sequence[str], rows: Sequence[Sequence[Cell]]) -> None:
        """Write a table."""
        self.text(name, csv_text(heads, rows))

    def markdown(self, name: str, title: str, *parts: Grid | str) -> None:
        """Write a page of texts and tables."""
        blocks = [f"# {title}", *("\n".join(p.markdown()) if isinstance(p, Grid) else p for p in parts)]
        self.text(name, "\n\n".join(blocks) + "\n")

    def close(self, **facts: object) -> None:
        """Write the manifest.

        Args:
            facts: other facts needed to repeat the run.
        """
        files = {name: _sha256(self.folder / name) for name in sorted(self._names)}
        manifest = {
            "command": ["ttft-bench", *self._argv],
            "seed": self._seed,
            **facts,
            "began": self._began.isoformat(timespec="seconds"),
            "ended": datetime.now(UTC).isoformat(timespec="seconds"),
            "versions": {"python": platform.python_version(), **_versions()},
            "machine": machine(),
            "files": files,
        }
        text = json.dumps(rounded(manifest), indent=1, allow_nan=False) + "\n"
        (self.folder / MANIFEST).write_text(text, encoding="utf-8", newline="\n")


def read_manifest(folder: Path) -> Mapping[str, object]:
    """Return the manifest of a folder after checking the folder's files against it.

    Raises:
        ResultsError: The manifest is missing, or a file differs from it.
    """
    manifest = read_json(folder / MANIFEST)
    files = manifest.get("files")
    if not isinstance(files, dict):
        raise ResultsError(f"{folder / MANIFEST} lists no files; name a folder that ttft-bench wrote")
    for name, expected in files.items():
        path = folder / str(name)
        if not path.is_file():
            raise ResultsError(f"{path} is missing, but is listed in the manifest; measure again")
        if _sha256(path) != expected:
            raise ResultsError(f"{path} is not the file listed in the manifest; measure again")
    return manifest


def read_json(path: Path) -> Mapping[str, object]:
    """Read a JSON object from a file.

    Raises:
        ResultsError: The file cannot be read or holds no JSON object.
    """
    try:
        data = json.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise ResultsError(f"cannot read {path}: {error.strerror}; name a folder that ttft-bench wrote") from error
    except ValueError as error:
        raise ResultsError(f"{path} is not JSON: {error}") from error
    if not isinstance(data, dict):
        raise ResultsError(f"{path} holds no JSON object")
    return data


def read_csv(path: Path) -> list[dict[str, str]]:
    """Read the rows of a table.

    Raises:
        ResultsError: The file cannot be read.
    """
    try:
        with path.open(encoding="utf-8", newline="") as file:
            return list(csv.DictReader(file))
    except OSError as error:
        raise ResultsError(f"cannot read {path}: {error.strerror}; name a folder that ttft-bench wrote") from error


def csv_text(heads: Sequence[str], rows: Sequence[Sequence[Cell]]) -> str:
    """Return a table as CSV: nine significant digits, empty cells for infinite and NaN, line feeds as line ends."""
    out = io.StringIO()
    writer = csv.writer(out, lineterminator="\n")
    writer.writerow(heads)
    writer.writerows([_cell(cell) for cell in row] for row in rows)
    return out.getvalue()


def rounded(data: object) -> object:
    """Return the same data with nine digits, and None for infinite and NaN."""
    if isinstance(data, float):
        return float(f"{data:.{_DIGITS}g}") if math.isfinite(data) else None
    if isinstance(data, Mapping):
        return {str(key): rounded(value) for key, value in data.items()}
    if isinstance(data, Sequence) and not isinstance(data, str):
        return [rounded(value) for value in data]
    return data


def machine() -> dict[str, object]:
    """Return the facts about the machine."""
    usable = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    return {"system": platform.system(), "release": platform.release(), "machine": platform.machine(), "cores": usable}


def _versions() -> dict[str, str]:
    found = {}
    for name in _VERSIONS:
        try:
            found[name] = version(name)
        except PackageNotFoundError:  # not installed, or without the extra
            continue
    return found


def _cell(value: Cell) -> str:
    if isinstance(value, bool):
        return str(int(value))
    if isinstance(value, float):
        return f"{value:.{_DIGITS}g}" if math.isfinite(value) else ""
    return "" if value is None else str(value)


def _sha256(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()
