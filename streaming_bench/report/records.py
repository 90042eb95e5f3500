"""What was measured: one `Record` for each request, gathered in runs, and their form in a folder of results.

Owns the columns of requests.csv. It must not know how requests are sent nor what is computed from them. Units: seconds
since the beginning of the run; tokens.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Final

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
"""What a replica sends before its first token."""


@dataclass(slots=True)
class Record:
    """One request, as its client saw it.

    Attributes:
        number: in the run's order; runs that are compared have the same request under the same number.
        block: which stretch of the run it belongs to.
        due_s: when it was meant to be sent; all its times count from then.
        sent_s: when it was.
        headers_s: when the response head came, None: never; likewise the others.
        byte_s: when the first byte of the body came.
        content_s: when the first generated token came.
        last_s: when the last one came.
        end_s: when it was over.
        events: content events.
        gap_s_max: the longest time between two of them; 0 with fewer than two.
        prompt_tokens: as the server counted, or as planned where it did not say.
        tokens: generated, likewise; content events where it did not say.
        status: of HTTP; 0: there was none.
        error: a class of failure, empty: none.
        replica: that answered, as the gateway says it; likewise the others.
        attempts: upstream.
        result: of the race.
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
        """From when it was due until its first content; infinite if that never came or the answer failed."""
        return self._since_due(self.content_s)

    @property
    def ttfb_s(self) -> float:
        """The same until its response head."""
        return self._since_due(self.headers_s)

    @property
    def whole_s(self) -> float:
        """The same until its end."""
        return self._since_due(self.end_s)

    @property
    def tokens_per_s(self) -> float:
        """How fast tokens came behind the first one; NaN with fewer than two."""
        if self.error or self.content_s is None or self.last_s is None or self.last_s <= self.content_s:
            return math.nan
        return (self.tokens - 1) / (self.last_s - self.content_s)

    def _since_due(self, at_s: float | None) -> float:
        return math.inf if self.error or at_s is None else at_s - self.due_s


@dataclass(slots=True)
class Run:
    """One stretch of traffic to one target.

    Attributes:
        name: of the run, for files and tables.
        facts: what is known of it besides its requests; JSON values.
        records: of its requests.
    """

    name: str
    facts: dict[str, object] = field(default_factory=dict)
    records: list[Record] = field(default_factory=list)


_COLUMNS: Final = tuple(each.name for each in fields(Record))


def write_runs(results: Results, runs: Sequence[Run]) -> list[Run]:
    """Write all runs: their facts, and a line for each request.

    Returns:
        The runs as they stand in the files now, so that what is made of them can be made again from there.
    """
    results.json(RUNS, {"runs": [{"name": run.name, **run.facts} for run in runs]})
    rows: list[list[Cell]] = [
        [run.name, *(getattr(record, column) for column in _COLUMNS)] for run in runs for record in run.records
    ]
    results.csv(REQUESTS, ("run", *_COLUMNS), rows)
    return read_runs(results.folder)


def read_runs(folder: Path) -> list[Run]:
    """The runs of a folder.

    Raises:
        BenchError: It has none.
    """
    told = read_json(folder / RUNS).get("runs")
    if not isinstance(told, list) or not all(isinstance(each, dict) and "name" in each for each in told):
        raise BenchError(f"{folder / RUNS} has no runs in it; name a folder that `compare` or `load` wrote")
    runs = {str(each["name"]): Run(str(each["name"]), {k: v for k, v in each.items() if k != "name"}) for each in told}
    for number, row in enumerate(read_csv(folder / REQUESTS), start=2):
        try:
            runs[row["run"]].records.append(_record(row))
        except (KeyError, ValueError) as error:
            raise BenchError(f"{folder / REQUESTS}, line {number}: cannot be read: {error}") from error
    return list(runs.values())


def _record(row: Mapping[str, str]) -> Record:
    end_s = _seconds(row["end_s"])
    return Record(
        number=int(row["number"]),
        block=int(row["block"]),
        due_s=float(row["due_s"]),
        sent_s=float(row["sent_s"]),
        headers_s=_seconds(row["headers_s"]),
        byte_s=_seconds(row["byte_s"]),
        content_s=_seconds(row["content_s"]),
        last_s=_seconds(row["last_s"]),
        end_s=math.nan if end_s is None else end_s,
        events=int(row["events"]),
        gap_s_max=float(row["gap_s_max"]),
        prompt_tokens=int(row["prompt_tokens"]),
        tokens=int(row["tokens"]),
        status=int(row["status"]),
        error=row["error"],
        replica=row["replica"],
        attempts=int(row["attempts"]),
        result=row["result"],
    )


def _seconds(text: str) -> float | None:
    return float(text) if text else None
