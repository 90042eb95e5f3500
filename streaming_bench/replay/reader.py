"""Reads a log in one pass: finds its format, counts its lines, and keeps a sample of each model's requests.

Memory is bounded by the number of models and of requests kept for each, whatever the size of the file. Units: as in
logged.py.
"""

import gzip
import json
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final, cast

import msgspec

from streaming_bench.errors import BenchError
from streaming_bench.replay import csv_rows, gateway_lines, json_rows
from streaming_bench.replay.logged import Contents, LineError, LoggedRequest, Unused
from streaming_bench.replay.stretches import Stretches

MODELS_MAX: Final = 16
OTHERS: Final = "(other models)"
STANDARD_INPUT: Final = Path("-")

_LINE_BYTES_MAX: Final = 16 << 20  # a request with its prompt and answer; a longer line is skipped in pieces
_UNREADABLE_MAX: Final = 0.05  # of the lines; more is another format
_FIELD_LINES: Final = 100  # lines whose fields are listed
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
) -> Contents:
    """Read a log.

    Args:
        path: file, also compressed by gzip; `-` for standard input.
        keep: largest number of requests kept for each model, in stretches from the whole log.
        take: called with each usable request.
        progress: called now and then with the number of lines.

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
        found = read(line) if len(line) <= _LINE_BYTES_MAX else _too_long()
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


def _too_long() -> Unused:
    raise LineError(f"the line is longer than {_LINE_BYTES_MAX >> 20} MB; write one request a line")


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
            return GATEWAY, gateway_lines.read_line, []
        if json_rows.litellm_payload(row) is not None:
            return LITELLM, lambda each: json_rows.read_litellm(_object(each)), []
        return PLAIN_JSON, lambda each: json_rows.read_plain(_object(each)), []
    head = _text(line)
    if head[:4].isdecimal() and " info " in head[:40]:
        raise LineError(
            "the file is the gateway's log as text, without prompt lengths; redirect its standard output to a file, "
            "so that the log is JSON"
        )
    read, columns = csv_rows.reader_of(head)
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
    inner = json_rows.litellm_payload(row) if isinstance(row, dict) else None
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
