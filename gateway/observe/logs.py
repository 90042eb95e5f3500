"""The log: one line for each request, and one for each rare event, as JSON or as text for a terminal.

Owns the fields of a rare event's line (docs/logs.md); `request_line.py` has those of a request, `text_lines.py` its
text. Independent of the output: a function takes the lines of a batch or rejects them. Values from outside cannot break
a line or control a terminal.

Units: milliseconds in lines, from the events' seconds.
"""

import math
import os
import re
from collections.abc import Callable
from datetime import UTC, datetime
from typing import Literal

import msgspec

from gateway.events import (
    AttemptFailed,
    BreakerChanged,
    ComponentFailed,
    Event,
    HedgeDenied,
    HedgeFired,
    ParamsDropped,
    PreviousKeyUsed,
    RequestEnded,
    RequestRejected,
)
from gateway.observe.request_line import Level, in_ms, request_line
from gateway.observe.text_lines import clock, request_text
from gateway.process_events import (
    AcceptingChanged,
    ConfigReloaded,
    DiscoveryChanged,
    HedgingMeasured,
    HedgingSwitched,
    LearnedFileFailed,
    LearnedRestored,
    ReplicasFound,
    ReplicaSwitched,
    ShareAway,
    ShareBack,
    WorkerChanged,
)

LogFormat = Literal["json", "text", "auto"]

_COMPONENT_SILENCE_S = 60.0  # a component that keeps failing is logged once in this time
_UNSAFE = re.compile("[\x00-\x1f\x7f-\x9f\u061c\u200e\u200f\u2028-\u202e\u2066-\u2069]")  # controls, line ends, bidi

_RARE_EVENTS: dict[type[Event], tuple[str, Level]] = {
    RequestRejected: ("request_rejected", "info"),
    BreakerChanged: ("breaker_changed", "warning"),
    HedgingSwitched: ("hedging_switched", "warning"),
    ReplicaSwitched: ("replica_switched", "warning"),
    ReplicasFound: ("replicas_found", "info"),
    DiscoveryChanged: ("discovery_changed", "warning"),
    ParamsDropped: ("params_dropped", "warning"),
    ConfigReloaded: ("config_reloaded", "warning"),
    LearnedRestored: ("learned_restored", "info"),
    LearnedFileFailed: ("learned_file_failed", "warning"),
    ComponentFailed: ("component_failed", "error"),
    AcceptingChanged: ("accepting_changed", "warning"),
    WorkerChanged: ("worker_changed", "warning"),
    ShareAway: ("share_away", "warning"),
    ShareBack: ("share_back", "warning"),
    HedgingMeasured: ("hedging_measured", "info"),
}
_ONLY_LIVE: tuple[type[Event], ...] = (HedgeFired, HedgeDenied, AttemptFailed, PreviousKeyUsed)  # no line of their own


_encode = msgspec.json.Encoder().encode


class RequestLog:
    """Turns events into lines, which are written in batches.

    Args:
        write: takes the lines of a batch, each with its newline.
        epoch_s: returns the Unix time at which the clock of the events was 0; read once for each batch.
        text: True for text lines instead of JSON.
        worker: number of the worker, for its lines; None for none.
    """

    def __init__(
        self,
        write: Callable[[bytes], object],
        epoch_s: Callable[[], float],
        *,
        text: bool = False,
        worker: int | None = None,
    ) -> None:
        self._worker = worker
        self._write = write
        self._read_epoch_s = epoch_s
        self._text = text
        self._lines: list[bytes] = []
        self._epoch_s = 0.0
        # component -> time of its last line, failures since then
        self._failed_components: dict[str, tuple[float, int]] = {}

    def on_event(self, event: Event) -> None:
        """Add the event's line, if there is one, to the batch (a `gateway.events.Listener`)."""
        if not self._lines:
            self._epoch_s = self._read_epoch_s()
        time = datetime.fromtimestamp(self._epoch_s + event.at_s, UTC)
        if type(event) is RequestEnded:
            line = request_line(event, time, self._worker)
            self._lines.append(request_text(line).encode() if self._text else _encode(line))
        elif not isinstance(event, _ONLY_LIVE):
            self._add_rare(event, time)

    def write_batch(self) -> None:
        """Write the lines of the batch."""
        lines, self._lines = self._lines, []
        if lines:
            batch = b"\n".join(lines)
            if self._text or b"\x7f" in batch or not batch.isascii():  # JSON escapes all other control characters
                batch = b"\n".join(map(_escaped, lines))
            self._write(batch + b"\n")

    def _add_rare(self, event: Event, time: datetime) -> None:
        name, level = _RARE_EVENTS[type(event)]
        fields = _fields(event) if self._worker is None else {"worker": self._worker, **_fields(event)}
        if isinstance(event, ComponentFailed):
            logged_at_s, repeats = self._failed_components.get(event.component, (-math.inf, 0))
            if event.at_s < logged_at_s + _COMPONENT_SILENCE_S:
                self._failed_components[event.component] = (logged_at_s, repeats + 1)
                return
            self._failed_components[event.component] = (event.at_s, 0)
            fields["more"] = repeats
        self._lines.append(_rare_line(name, level, fields, time, text=self._text))


def _escaped(line: bytes) -> bytes:
    """Escape the characters that break a line or control a terminal."""
    return _UNSAFE.sub(lambda found: f"\\u{ord(found[0]):04x}", line.decode()).encode()


def loss_line(lines: int, now: datetime, *, text: bool) -> bytes:
    """Return the line, with its newline, that reports a number of lost lines."""
    return _rare_line("lines_lost", "warning", {"lines": lines}, now, text=text) + b"\n"


def _rare_line(name: str, level: Level, fields: dict[str, object], now: datetime, *, text: bool) -> bytes:
    if text:
        pairs = (f"{key}={value}" for key, value in fields.items() if value is not None)
        return " ".join((clock(now), level, name, *pairs)).encode()
    return _encode({"time": now, "level": level, "event": name, **fields})


def wants_text(log_format: LogFormat, fd: int) -> bool:
    """Return True if lines are text; `auto` chooses text on a terminal."""
    return log_format == "text" or (log_format == "auto" and os.isatty(fd))


def _fields(event: Event) -> dict[str, object]:
    """Return a rare event's fields under their names in the log."""
    fields: dict[str, object] = msgspec.to_builtins(event)
    del fields["at_s"]
    if isinstance(event, RequestRejected):
        fields["key"] = fields.pop("key_name")
        del fields["queued_s"]
        del fields["trace"]
        if event.trace is not None and event.trace.sampled:
            fields["span_id"] = event.trace.span_id
        if event.queued_s:
            fields["queued_ms"] = in_ms(event.queued_s)
        for name in ("model", "trace_id"):
            if fields[name] is None:
                del fields[name]
    return fields
