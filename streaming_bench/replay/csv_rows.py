"""A CSV file with a head line, as logged requests. Pure. Units: as in the names of the columns."""

import csv
from collections.abc import Callable, Sequence
from http import HTTPStatus
from typing import Final

from streaming_bench.replay.logged import LineError, LoggedRequest, Unused
from streaming_bench.replay.values import time_s, tokens, ttft_s

HEADS: Final = "arrival,model,prompt_tokens,replica,ttft_ms"
"""The head line to write."""

_SEPARATORS: Final = (",", ";", "\t")
_ARRIVAL: Final = ("arrival", "arrived", "arrived_at", "arrival_s", "at_s", "time", "timestamp", "start", "start_time")
_TTFT: Final = {"ttft_ms": 1e-3, "ttft_s": 1.0, "ttft": None, "first_token_ms": 1e-3, "first_token_s": 1.0}
_MODEL: Final = ("model",)
_TOKENS: Final = ("prompt_tokens", "input_tokens", "tokens")
_REPLICA: Final = ("replica", "deployment", "provider", "backend", "host", "region")
_TOTAL: Final = {"total_ms": 1e-3, "total_s": 1.0}
_STATUS: Final = ("status", "status_code")
_CANCELLED: Final = ("cancelled",)
_UNHEDGEABLE: Final = ("unhedgeable",)
_TRUE: Final = ("1", "true", "True", "yes")


def reader_of(head: str) -> tuple[Callable[[str], LoggedRequest | Unused], list[str]]:
    """Return the reader of the lines after a head line, and the names of the columns.

    Raises:
        LineError: The head line lacks a column.
    """
    separator = max(_SEPARATORS, key=head.count)
    names = [name.strip().strip('"').lower().replace(" ", "_") for name in head.split(separator)]
    if any(name.replace(".", "").isdecimal() for name in names):
        raise LineError(f"the file has no head line; begin it with the names of the columns: {HEADS}")
    arrival, ttft = _column(names, _ARRIVAL), _column(names, tuple(_TTFT))
    missing = [wanted for wanted, column in (("arrival", arrival), ("ttft_ms or ttft_s", ttft)) if column is None]
    if arrival is None or ttft is None:
        raise LineError(f"the head line has no column {' and no '.join(missing)}, but {', '.join(names)}; name them so")
    optional = (_MODEL, _TOKENS, _REPLICA, tuple(_TOTAL), _STATUS, _CANCELLED, _UNHEDGEABLE)
    rest = [_column(names, wanted) for wanted in optional]
    return _Rows(separator, names, arrival, ttft, rest).read, names


class _Rows:
    """Reads the lines of one file.

    Args:
        arrival, ttft: numbers of the columns.
        rest: numbers of the optional columns, in the order of `reader_of`; None without one.
    """

    def __init__(
        self, separator: str, names: Sequence[str], arrival: int, ttft: int, rest: Sequence[int | None]
    ) -> None:
        self._separator = separator
        self._names = names
        self._arrival, self._ttft = arrival, ttft
        self._model, self._tokens, self._replica, self._total, self._status, self._cancelled, self._unhedgeable = rest

    def read(self, line: str) -> LoggedRequest | Unused:
        """Read one line.

        Raises:
            LineError: A cell is wrong.
        """
        cells = next(csv.reader([line], delimiter=self._separator))
        if len(cells) != len(self._names):
            raise LineError(
                f"the line has {len(cells)} cells, and the head line {len(self._names)}; write equally many"
            )
        status = self._cell(cells, self._status)
        if status.isdecimal() and int(status) >= HTTPStatus.BAD_REQUEST:
            return Unused("failed")
        if not cells[self._ttft].strip():
            return Unused("no first token")
        ttft, total = self._names[self._ttft], "" if self._total is None else self._names[self._total]
        arrived_s = time_s(self._names[self._arrival], cells[self._arrival].strip())
        waited_s = ttft_s(ttft, cells[self._ttft].strip(), _TTFT[ttft])
        ended = self._cell(cells, self._total)
        rest_s = max(0.0, ttft_s(total, ended, _TOTAL[total]) - waited_s) if ended else 0.0
        return LoggedRequest(
            arrived_s,
            self._cell(cells, self._model),
            self._cell(cells, self._replica),
            tokens("prompt_tokens", self._cell(cells, self._tokens)),
            waited_s,
            rest_s,
            cancelled=self._cell(cells, self._cancelled) in _TRUE,
            hedgeable=self._cell(cells, self._unhedgeable) not in _TRUE,
        )

    def _cell(self, cells: Sequence[str], column: int | None) -> str:
        return "" if column is None else cells[column].strip()


def _column(names: Sequence[str], wanted: Sequence[str]) -> int | None:
    return next((names.index(name) for name in wanted if name in names), None)
