"""Reads a log in one pass: finds its format, counts its lines, and stores a sample of each model's requests.

The formats are a CSV file with a head line, the gateway's own lines (docs/logs.md), and JSON (rows.py). Memory is
bounded by the number of models and of requests stored for each, whatever the size of the file: the sample consists of
stretches of neighbours, spread evenly over the whole. Units: as in logged.py.
"""

import csv
import gzip
import json
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from datetime import datetime
from functools import partial
from pathlib import Path
from typing import Final, NamedTuple, cast

import msgspec

from streaming_bench.errors import BenchError
from streaming_bench.replay import rows
from streaming_bench.replay.logged import Contents, LineError, LoggedAttempt, LoggedRequest, Unused
from streaming_bench.replay.values import checked_ttft

STRETCH: Final = 1000  # requests; ten times the samples from which the gateway learns


class Stretches:
    """The sample of one model.

    Args:
        keep: largest number of requests in the sample.
    """

    def __init__(self, keep: int) -> None:
        self._stretch = min(STRETCH, keep)
        self._count = max(1, keep // self._stretch)
        self._every = 1  # one stretch in as many is kept
        self._seen = 0
        self._kept: list[list[LoggedRequest]] = []

    def add(self, request: LoggedRequest) -> None:
        """Add the next request."""
        number, place = divmod(self._seen, self._stretch)
        self._seen += 1
        if number % self._every:
            return
        if place == 0:
            if len(self._kept) >= 2 * self._count:
                self._kept = self._kept[::2]
                self._every *= 2
                if number % self._every:
                    return
            self._kept.append([])
        elif not self._kept[-1] or len(self._kept) * self._every <= number:
            return  # its beginning was not kept
        self._kept[-1].append(request)

    def chosen(self) -> list[LoggedRequest]:
        """Return the sample, by arrival."""
        whole = [each for each in self._kept if len(each) == self._stretch] or self._kept
        if len(whole) < len(self._kept) <= self._count:
            whole = self._kept  # nothing was dropped: the part at the end counts too
        steps = min(self._count, len(whole))
        picked = [whole[step * len(whole) // steps] for step in range(steps)]
        return sorted(request for stretch in picked for request in stretch)


MODELS_MAX: Final = 16
OTHERS: Final = "(other models)"
STANDARD_INPUT: Final = Path("-")

_LINE_BYTES_MAX: Final = 16 << 20  # a request with its prompt and answer; a longer line is skipped in pieces
_UNREADABLE_MAX: Final = 0.05  # of the lines; more is another format
_FIELD_LINES: Final = 100  # first lines, of which the fields are listed
_PROGRESS_EVERY: Final = 10_000  # lines
_GZIP: Final = b"\x1f\x8b"

GATEWAY: Final = "ttft-gateway's log"
LITELLM: Final = "LiteLLM's standard logging payload"
PLAIN_JSON: Final = "JSON"
CSV: Final = "CSV"

_Read = Callable[[bytes], LoggedRequest | Unused]


def read_log(
    path: Path,
    keep: int,
    take: Callable[[LoggedRequest], object] = lambda _request: None,
    progress: Callable[[int], object] = lambda _lines: None,
    *,
    attempts: bool = False,
) -> Contents:
    """Read a log.

    Args:
        path: file, also compressed by gzip; `-` for standard input.
        keep: largest number of requests kept for each model, in stretches from the whole log.
        take: called with each usable request.
        progress: called now and then with the number of lines.
        attempts: True to read all attempts of the gateway's log, and requests that their first replica refused.

    Raises:
        BenchError: The file cannot be read, or is in no known format; the message has the line number.
    """
    with _opened(path) as lines:
        number, first = next(lines, (0, b""))
        if not first:
            raise BenchError(f"{path} is empty; name a log with one request a line")
        try:
            kind, read, columns = _format_of(first)
        except LineError as error:
            raise BenchError(f"{path}, line {number}: {error}") from error
        if attempts and kind == GATEWAY:
            read = read_attempts
        contents = Contents(kind, fields=set(columns))
        kept: dict[str, Stretches] = {}
        if not columns:
            _use(contents, kept, keep, read, take, number, first)
        for number, line in lines:
            _use(contents, kept, keep, read, take, number, line)
            if contents.lines % _PROGRESS_EVERY == 0:
                progress(contents.lines)
    _check(path, contents)
    contents.requests = {model: stretches.chosen() for model, stretches in kept.items()}
    return contents


def _use(
    contents: Contents,
    kept: dict[str, Stretches],
    keep: int,
    read: _Read,
    take: Callable[[LoggedRequest], object],
    number: int,
    line: bytes,
) -> None:
    """Count one line, and keep its request."""
    contents.lines += 1
    if contents.lines <= _FIELD_LINES and contents.kind != CSV:
        contents.fields |= _fields_of(line)
    try:
        if len(line) > _LINE_BYTES_MAX:
            raise LineError(f"the line is longer than {_LINE_BYTES_MAX >> 20} MB; write one request a line")
        found = read(line)
    except LineError as error:
        contents.unreadable += 1
        contents.first_unreadable = contents.first_unreadable or f"line {number}: {error}"
        return
    if isinstance(found, Unused):
        contents.unused[found.reason] += 1
        return
    model = found.model if found.model in kept or len(kept) < MODELS_MAX else OTHERS
    contents.models[model] += 1
    take(found)
    if model != OTHERS:
        kept.setdefault(model, Stretches(keep)).add(found)


def _check(path: Path, contents: Contents) -> None:
    """Reject a file that is mostly in another format, or that has no usable request."""
    if contents.unreadable > _UNREADABLE_MAX * contents.lines:
        raise BenchError(
            f"{path}: {contents.unreadable:,} of {contents.lines:,} lines cannot be read as {contents.kind}; "
            f"{contents.first_unreadable}"
        )
    if not contents.models:
        reasons = ", ".join(f"{count:,} {reason}" for reason, count in contents.unused.most_common())
        raise BenchError(
            f"{path} has {contents.lines:,} lines of {contents.kind} and none with a time to the first token"
            f"{': ' if reasons else ''}{reasons}; log streamed requests that were answered"
        )


def _format_of(line: bytes) -> tuple[str, _Read, list[str]]:
    """Return format, reader and columns; the columns are empty without a head line.

    Raises:
        LineError: The line is of no known format.
    """
    start = line.lstrip()[:1]
    if b"\0" in line:
        raise LineError("the file is binary; name a text file, or one compressed by gzip")
    if start == b"[":
        raise LineError("the file is one JSON array; write one object a line: jq -c '.[]' FILE > lines.jsonl")
    if start == b"{":
        row = _object(line, "write one object a line: jq -c . FILE > lines.jsonl")
        if "event" in row and "level" in row:
            return GATEWAY, read_line, []
        if rows.litellm_payload(row) is not None:
            return LITELLM, lambda each: rows.read_litellm(_object(each)), []
        return PLAIN_JSON, lambda each: rows.read_plain(_object(each)), []
    head = _text(line)
    if head[:4].isdecimal() and " info " in head[:40]:
        raise LineError(
            "the file is the gateway's log as text, without prompt lengths; redirect its standard output to a file, "
            "so that the log is JSON"
        )
    read, columns = reader_of(head)
    return CSV, lambda each: read(_text(each)), columns


def _object(line: bytes, action: str = "write one object a line") -> dict[str, object]:
    try:
        row = msgspec.json.decode(line)
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise LineError(f"the line is no JSON object ({error}); {action}") from error
    if not isinstance(row, dict):
        raise LineError(f"the line is a JSON {type(row).__name__}; {action}")
    return cast("dict[str, object]", row)


def _fields_of(line: bytes) -> set[str]:
    try:
        row = json.loads(line)
    except ValueError:
        return set()
    inner = rows.litellm_payload(row) if isinstance(row, dict) else None
    return set(inner or (row if isinstance(row, dict) else ()))


def _text(line: bytes) -> str:
    try:
        return line.decode("utf-8-sig").strip("\r\n")
    except UnicodeDecodeError as error:
        raise LineError("the line is not UTF-8; convert the file, for example with iconv") from error


@contextmanager
def _opened(path: Path) -> Iterator[Iterator[tuple[int, bytes]]]:
    """Open a file as its lines that are not empty, with their numbers.

    Raises:
        BenchError: The file cannot be read.
    """
    try:
        if path == STANDARD_INPUT:
            yield _lines(sys.stdin.buffer.readline)
            return
        with path.open("rb") as file:
            is_compressed = file.peek(2)[:2] == _GZIP
            if is_compressed:
                with gzip.open(file) as inner:
                    yield _lines(inner.readline)
            else:
                yield _lines(file.readline)
    except (OSError, EOFError) as error:
        cause = getattr(error, "strerror", None) or str(error)
        raise BenchError(f"cannot read {path}: {cause}; name a log, or - for standard input") from error


def _lines(readline: Callable[[int], bytes]) -> Iterator[tuple[int, bytes]]:
    """Return the lines; of one that is too long, only the first part."""
    number = 0
    while line := readline(_LINE_BYTES_MAX + 1):
        number += 1
        rest = line
        while len(rest) > _LINE_BYTES_MAX and not rest.endswith(b"\n"):
            rest = readline(_LINE_BYTES_MAX + 1)
        if line.strip():
            yield number, line


HEADS: Final = "arrival,model,prompt_tokens,replica,ttft_ms"
"""The head line to write."""

_SEPARATORS: Final = (",", ";", "\t")
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
    wanted = (("arrival", rows.ARRIVED), ("ttft_ms or ttft_s", rows.TTFT))
    missing = [column for column, known in wanted if not any(name in known for name in names)]
    if missing:
        raise LineError(f"the head line has no column {' and no '.join(missing)}, but {', '.join(names)}; name them so")
    return partial(_read_cells, separator, names), names


def _read_cells(separator: str, names: Sequence[str], line: str) -> LoggedRequest | Unused:
    """Read one line of a CSV file.

    Raises:
        LineError: A cell is wrong.
    """
    cells = next(csv.reader([line], delimiter=separator))
    if len(cells) != len(names):
        raise LineError(f"the line has {len(cells)} cells, and the head line {len(names)}; write equally many")
    row = dict(zip(names, map(str.strip, cells), strict=True))
    found = rows.read_plain(row)
    if isinstance(found, Unused):
        return found
    return found._replace(cancelled=row.get("cancelled") in _TRUE, hedgeable=row.get("unhedgeable") not in _TRUE)


_MS: Final = 1e-3
_TIMED: Final = ("chat/completions", "completions", "responses", "messages")
_GAVE_UP: Final = ("lost", "client_gone", "drained", "ttft_timeout")
_REFUSED: Final = ("rate_limited", "failed")  # before a first token
_NOT_FOR_REPLAY: Final = ("off", "one_replica")  # reasons that the replayed settings replace


class _Tokens(msgspec.Struct):
    prompt_tokens: int | None = None
    completion_tokens: int | None = None


class _Attempt(msgspec.Struct):
    replica: str
    outcome: str
    start_ms: float | None = None
    end_ms: float | None = None
    work_ms: float | None = None
    ttft_ms: float | None = None
    usage: _Tokens | None = None
    charge: _Tokens | None = None


class _Line(msgspec.Struct):
    event: str
    time: datetime | None = None
    model: str = ""
    api: str = ""
    total_ms: float | None = None
    queued_ms: float | None = None
    gateway_ms: float | None = None
    ttft_ms: float | None = None
    never_hedged: str | None = None
    usage: _Tokens | None = None
    attempts: list[_Attempt] = []


_decode = msgspec.json.Decoder(_Line).decode


class _Wait(NamedTuple):
    """The wait for a first token, None for an attempt that failed or was rejected; `cancelled`: it was given up."""

    time_s: float | None
    cancelled: bool = False


def read_line(line: bytes) -> LoggedRequest | Unused:
    """Read the first attempt of one line.

    Raises:
        LineError: The line is none of the gateway's.
    """
    found = _request_line(line)
    return found if isinstance(found, Unused) else _request(found, _wait(found.attempts[0]))


def read_attempts(line: bytes) -> LoggedRequest | Unused:
    """Read all attempts of one line.

    Raises:
        LineError: The line is none of the gateway's.
    """
    found = _request_line(line)
    if isinstance(found, Unused):
        return found
    first, *others = found.attempts
    request = _request(found, _NO_WAIT if _is_refused(first) else _wait(first))
    if isinstance(request, Unused):
        return request
    later = []
    for each in others:
        sent_s = request.arrived_s + ((each.start_ms or 0.0) - (first.start_ms or 0.0)) * _MS
        wait = _NO_WAIT if _is_refused(each) else _wait(each)
        if wait.time_s:
            later.append(LoggedAttempt(sent_s, each.replica, wait.time_s, wait.cancelled, _is_refused(each)))
    if found.ttft_ms is not None and found.total_ms is not None:
        request = request._replace(rest_s=max(0.0, found.total_ms - found.ttft_ms) * _MS)
    return request._replace(refused=_is_refused(first), later=tuple(later))


def _request_line(line: bytes) -> _Line | Unused:
    try:
        found = _decode(line)
    except msgspec.DecodeError as error:
        raise LineError(f"the line is no line of the gateway's log ({error})") from error
    if found.event != "request":
        return Unused(f"other events ({found.event})" if found.event == "request_rejected" else "other events")
    if found.time is None or found.total_ms is None or not found.attempts:
        raise LineError("the line has no time, total_ms or attempts; replay whole lines of the log")
    if found.api not in _TIMED:
        return Unused("answers in one piece, such as embeddings")
    return found


def _first_ms(attempt: _Attempt) -> float | None:
    return attempt.ttft_ms if attempt.work_ms is None else attempt.work_ms


def _is_refused(attempt: _Attempt) -> bool:
    return _first_ms(attempt) is None and attempt.outcome in _REFUSED


def _wait(attempt: _Attempt) -> _Wait:
    first_ms = _first_ms(attempt)
    if first_ms is not None:
        return _Wait(first_ms * _MS)
    if attempt.outcome not in _GAVE_UP or attempt.end_ms is None:
        return _Wait(None)
    return _Wait(attempt.end_ms * _MS, cancelled=True)


_NO_WAIT: Final = _Wait(1e-6, cancelled=True)  # a refusal shows only that there was no first token at once


def _request(line: _Line, wait: _Wait) -> LoggedRequest | Unused:
    if wait.time_s is None:
        return Unused("the first replica failed or rejected the request")
    assert line.time is not None
    assert line.total_ms is not None
    primary = line.attempts[0]
    tokens = [each.prompt_tokens for each in (primary.usage, primary.charge, line.usage) if each and each.prompt_tokens]
    reported = [line.usage, *(each.usage for each in line.attempts)]
    answer = next((each.completion_tokens for each in reported if each and each.completion_tokens), 0)
    before_ms = (line.gateway_ms or 0.0) + (line.queued_ms or 0.0) + (primary.start_ms or 0.0)
    ended = wait.cancelled or primary.end_ms is None
    return LoggedRequest(
        line.time.timestamp() - line.total_ms * _MS + before_ms * _MS,
        line.model,
        primary.replica,
        float(tokens[0]) if tokens else 0.0,
        checked_ttft("ttft_ms", wait.time_s),
        0.0 if ended else max(0.0, (primary.end_ms or 0.0) - wait.time_s / _MS) * _MS,
        cancelled=wait.cancelled,
        hedgeable=line.never_hedged is None or line.never_hedged in _NOT_FOR_REPLAY,
        answer_tokens=float(answer),
    )
