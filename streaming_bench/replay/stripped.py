"""Removes from a log all that a replay does not need: writes a CSV file that can be shared. One pass, bounded memory.

Left: the distances between arrivals, rounded lengths of prompts and answers, times, and numbers in place of the names
of models and replicas. Units: milliseconds and seconds, as in the names of the columns.
"""

import csv
from collections.abc import Callable
from pathlib import Path
from typing import Final

from streaming_bench.errors import BenchError
from streaming_bench.replay.logged import Contents, LoggedRequest
from streaming_bench.replay.reader import read_log

COLUMNS: Final = (
    *("arrival_s", "model", "prompt_tokens", "replica", "ttft_ms", "total_ms", "cancelled", "unhedgeable"),
    "completion_tokens",
)
_NAMES_MAX: Final = 1000  # of each kind; further names get one number
_REQUESTS_MAX: Final = 1  # in memory while all are written

KNOWN_FIELDS: Final = {
    "messages": "prompts",
    "prompt": "prompts",
    "input": "prompts",
    "request": "prompts",
    "body": "prompts",
    "response": "answers",
    "output": "answers",
    "choices": "answers",
    "key": "names of API keys",
    "api_key": "API keys",
    "metadata": "API key hashes, users and teams",
    "user": "users",
    "end_user": "users",
    "requester_ip_address": "IP addresses",
    "ip": "IP addresses",
    "headers": "headers",
    "hidden_params": "addresses of deployments",
    "api_base": "addresses of deployments",
    "base_url": "addresses of deployments",
    "request_id": "request ids",
    "id": "request ids",
    "trace_id": "trace ids",
    "span_id": "trace ids",
    "response_cost": "cost",
    "cost": "cost",
    "request_tags": "tags",
    "model_parameters": "parameters of requests",
}
"""Contents of fields that a replay does not need."""


def revealed(contents: Contents) -> list[str]:
    """Return what a log contains beyond the needs of a replay, as far as its fields show, and what a replay uses."""
    known = {KNOWN_FIELDS[name] for name in contents.fields if name in KNOWN_FIELDS}
    return sorted(known)


def strip(source: Path, target: Path, progress: Callable[[int], object]) -> Contents:
    """Write the requests of a log as a CSV file.

    Raises:
        BenchError: A file cannot be read or written.
    """
    if target.exists() and source.exists() and target.samefile(source):
        raise BenchError(f"{target} is the log itself; name another file after --strip")
    try:
        with target.open("w", encoding="utf-8", newline="") as file:
            return read_log(source, _REQUESTS_MAX, _Rows(file.write).add, progress)
    except OSError as error:
        raise BenchError(f"cannot write {target}: {error.strerror}; name another file after --strip") from error


class _Rows:
    """Writes requests as lines."""

    def __init__(self, write: Callable[[str], object]) -> None:
        self._write = csv.writer(_File(write), lineterminator="\n").writerow
        self._models: dict[str, int] = {}
        self._replicas: dict[str, int] = {}
        self._first_s: float | None = None
        self._write(COLUMNS)

    def add(self, request: LoggedRequest) -> None:
        """Write one request."""
        if self._first_s is None:
            self._first_s = request.arrived_s
        self._write(
            (
                f"{request.arrived_s - self._first_s:.3f}",
                f"model-{_number(self._models, request.model)}",
                _rounded(request.tokens),
                f"replica-{_number(self._replicas, request.replica)}" if request.replica else "",
                f"{1e3 * request.ttft_s:.5g}",
                f"{1e3 * (request.ttft_s + request.rest_s):.5g}",
                "1" if request.cancelled else "",
                "" if request.hedgeable else "1",
                _rounded(request.answer_tokens),
            )
        )


def _rounded(tokens: float) -> str:
    return f"{float(f'{tokens:.2g}'):.0f}" if tokens else ""


class _File:
    """An object with the method that csv needs."""

    def __init__(self, write: Callable[[str], object]) -> None:
        self.write = write


def _number(numbers: dict[str, int], name: str) -> int:
    """Return the number of a name, from 1 on, in the order of appearance."""
    if len(numbers) < _NAMES_MAX:
        return numbers.setdefault(name, len(numbers) + 1)
    return numbers.get(name, _NAMES_MAX + 1)
