"""Measured requests: one `Record` for each request, gathered in runs, and their form in a result folder.

Owns the columns of requests.csv. It must not depend on how requests are sent nor what is computed from them. Units:
seconds since the beginning of the run; tokens.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Final

import msgspec

from streaming_bench.errors import BenchError
from streaming_bench.report.results import Cell, Results, read_csv, read_json

REQUESTS: Final = "requests.csv"
RUNS: Final = "runs.json"
MODES: Final = {
    "flushed": "headers at once",
    "held": "headers with the first token",
    "role first": "headers and a role chunk at once",
    "comment first": "headers and a comment at once",
}
"""Header modes: bytes that a replica sends before its first token."""


@dataclass(slots=True)
class Record:
    """One request, as observed by its client.

    Attributes:
        number: position in the run; compared runs have the same request at the same number.
        block: stretch of the run.
        due_s: planned time, from which all durations count.
        sent_s: time at which the request was sent.
        headers_s: time of the response headers; None if there were none.
        byte_s: time of the first byte of the body; None if there was none.
        content_s: time of the first generated token; None if there was none.
        last_s: time of the last generated token; None if there was none.
        end_s: time of the end; NaN before the end.
        events: number of content events.
        gap_s_max: longest time between two content events; 0 with fewer than two.
        prompt_tokens: length of the prompt, counted by the server, else as planned.
        tokens: tokens generated, counted by the server, else the content events.
        status: HTTP status; 0 without a response.
        error: class of the failure; empty for none.
        replica: replica that answered, from the gateway's response header; empty without that header.
        attempts: upstream attempts, from the gateway's response header; 1 without that header.
        result: result of the race, from the gateway's response header; empty without that header.
    """

    number: int
    block: int
    due_s: float
    sent_s: float
    headers_s: float | None = None
    byte_s: float | None = None
    content_s: float | None = None
    last_s: float | None = None
    end_s: float = math.nan
    events: int = 0
    gap_s_max: float = 0.0
    prompt_tokens: int = 0
    tokens: int = 0
    status: int = 0
    error: str = ""
    replica: str = ""
    attempts: int = 1
    result: str = ""

    @property
    def ttft_s(self) -> float:
        """Time from due to first content; infinite without content or after a failure."""
        return self._since_due(self.content_s)

    @property
    def ttfb_s(self) -> float:
        """Time from due to response headers; infinite without headers or after a failure."""
        return self._since_due(self.headers_s)

    @property
    def whole_s(self) -> float:
        """Time from due to the end; infinite after a failure."""
        return self._since_due(self.end_s)

    @property
    def tokens_per_s(self) -> float:
        """Rate of the tokens after the first one; NaN with fewer than two."""
        if self.error or self.content_s is None or self.last_s is None or self.last_s <= self.content_s:
            return math.nan
        return (self.tokens - 1) / (self.last_s - self.content_s)

    def _since_due(self, at_s: float | None) -> float:
        return math.inf if self.error or at_s is None else at_s - self.due_s


@dataclass(slots=True)
class Run:
    """One stretch of traffic to one target.

    Attributes:
        name: name in files and tables.
        facts: other facts about the run; JSON values.
        records: its requests.
    """

    name: str
    facts: dict[str, object] = field(default_factory=dict)
    records: list[Record] = field(default_factory=list)


_COLUMNS: Final = tuple(each.name for each in fields(Record))


def write_runs(results: Results, runs: Sequence[Run]) -> list[Run]:
    """Write all runs: their facts, and a line for each request.

    Returns:
        The runs read back from the files, so that results computed from them can be computed again.
    """
    results.json(RUNS, {"runs": [{"name": run.name, **run.facts} for run in runs]})
    rows: list[list[Cell]] = [
        [run.name, *(getattr(record, column) for column in _COLUMNS)] for run in runs for record in run.records
    ]
    results.csv(REQUESTS, ("run", *_COLUMNS), rows)
    return read_runs(results.folder)


def read_runs(folder: Path) -> list[Run]:
    """Read the runs of a folder.

    Raises:
        BenchError: The folder has no runs.
    """
    runs_json = read_json(folder / RUNS).get("runs")
    if not isinstance(runs_json, list) or not all(isinstance(each, dict) and "name" in each for each in runs_json):
        raise BenchError(f"{folder / RUNS} has no runs; name a folder that `compare` or `load` wrote")
    runs = {
        str(each["name"]): Run(str(each["name"]), {k: v for k, v in each.items() if k != "name"}) for each in runs_json
    }
    for number, row in enumerate(read_csv(folder / REQUESTS), start=2):
        try:
            values = {column: value for column, value in row.items() if value}  # an empty cell has the default
            runs[values.pop("run")].records.append(msgspec.convert(values, Record, strict=False))
        except (KeyError, ValueError) as error:
            raise BenchError(f"{folder / REQUESTS}, line {number}: a value is wrong: {error}") from error
    return list(runs.values())
