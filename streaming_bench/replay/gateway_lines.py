"""The gateway's own log lines (docs/logs.md), as logged requests. Pure.

A request is used from its first attempt: the primary. If another attempt won first, the primary was cancelled, and the
log has a lower bound of its TTFT. Units: milliseconds in lines.
"""

from datetime import datetime
from typing import Final

import msgspec

from streaming_bench.replay.logged import LineError, LoggedRequest, Unused
from streaming_bench.replay.values import checked_ttft

_MS: Final = 1e-3
_TIMED: Final = ("chat/completions", "completions", "responses", "messages")
_GAVE_UP: Final = ("lost", "client_gone", "drained", "ttft_timeout")
_NOT_FOR_REPLAY: Final = ("off", "one_replica")  # reasons that the replayed settings replace


class _Tokens(msgspec.Struct):
    prompt_tokens: int | None = None


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
    never_hedged: str | None = None
    attempts: list[_Attempt] = []


_decode = msgspec.json.Decoder(_Line).decode


def read_line(line: bytes) -> LoggedRequest | Unused:
    """Read one line.

    Raises:
        LineError: The line is none of the gateway's.
    """
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
    return _request(found, found.attempts[0], found.time.timestamp() - found.total_ms * _MS)


def _request(line: _Line, primary: _Attempt, arrived_s: float) -> LoggedRequest | Unused:
    first_ms = primary.ttft_ms if primary.work_ms is None else primary.work_ms
    if first_ms is None and (primary.outcome not in _GAVE_UP or primary.end_ms is None):
        return Unused("the first replica failed or rejected the request")
    waited_ms = primary.end_ms if first_ms is None else first_ms
    assert waited_ms is not None
    tokens = [each.prompt_tokens for each in (primary.usage, primary.charge) if each and each.prompt_tokens]
    before_ms = (line.gateway_ms or 0.0) + (line.queued_ms or 0.0) + (primary.start_ms or 0.0)
    return LoggedRequest(
        arrived_s + before_ms * _MS,
        line.model,
        primary.replica,
        float(tokens[0]) if tokens else 0.0,
        checked_ttft("ttft_ms", waited_ms * _MS),
        0.0 if first_ms is None or primary.end_ms is None else max(0.0, primary.end_ms - first_ms) * _MS,
        cancelled=first_ms is None,
        hedgeable=line.never_hedged is None or line.never_hedged in _NOT_FOR_REPLAY,
    )
