"""The log: one line for each request, and one for each rare event, as JSON or as text for a terminal.

Owns the fields of a rare event's line (docs/logs.md); `request_line.py` has those of a request, `text_lines.py` its
text. Independent of the output: a function takes the lines of a batch or rejects them. Values from outside cannot break
a line or control a terminal.

Units: milliseconds in lines, from the events' seconds.
"""

import math
import os
import re
from collections.abc import Callable, Iterable
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
from gateway.observe.request_line import Level, RequestLine, in_ms, request_line
from gateway.observe.text_lines import rare_text, request_text
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
    StateDropped,
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
    StateDropped: ("state_dropped", "warning"),
    HedgingMeasured: ("hedging_measured", "info"),
}
_ONLY_LIVE: tuple[type[Event], ...] = (HedgeFired, HedgeDenied, AttemptFailed, PreviousKeyUsed)  # no line of their own


_ENCODER = msgspec.json.Encoder()

_RareLine = dict[str, object]


class RequestLog:
    """Turns the events of a batch into lines.

    Args:
        write: takes the lines of a batch, each with its newline.
        epoch_s: returns the Unix time at which the clock of the events was 0; read for each batch.
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
        self._lines: list[RequestLine | _RareLine] = []
        # component -> time of its last line, failures since then
        self._failed_components: dict[str, tuple[float, int]] = {}

    def on_events(self, events: Iterable[Event]) -> None:
        """Write the lines of a batch (a `gateway.observe.hub.Collector`)."""
        epoch_s, worker = self._read_epoch_s(), self._worker
        for event in events:
            time = datetime.fromtimestamp(epoch_s + event.at_s, UTC)
            if type(event) is RequestEnded:
                self._lines.append(request_line(event, time, worker))
            elif not isinstance(event, _ONLY_LIVE):
                self._add_rare(event, time)
        lines, self._lines = self._lines, []
        if lines:
            self._write(_text(lines) if self._text else _json(lines))

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
        self._lines.append({"time": time, "level": level, "event": name, **fields})


def _json(lines: list[RequestLine | _RareLine]) -> bytes:
    """Return lines as JSON, each with its newline."""
    batch = _ENCODER.encode_lines(lines)
    if 0x7F in batch or not batch.isascii():  # JSON escapes all other control characters
        batch = b"\n".join(map(_escaped, batch.split(b"\n")))
    return batch


def _text(lines: list[RequestLine | _RareLine]) -> bytes:
    """Return lines as text for a terminal, each with its newline."""
    texts = (request_text(line) if isinstance(line, RequestLine) else rare_text(line) for line in lines)
    return b"".join(_escaped(text.encode()) + b"\n" for text in texts)


def _escaped(line: bytes) -> bytes:
    """Escape the characters that break a line or control a terminal."""
    return _UNSAFE.sub(lambda found: f"\\u{ord(found[0]):04x}", line.decode()).encode()


def loss_line(lines: int, now: datetime, *, text: bool) -> bytes:
    """Return the line, with its newline, that reports a number of lost lines."""
    line: _RareLine = {"time": now, "level": "warning", "event": "lines_lost", "lines": lines}
    return _text([line]) if text else _json([line])


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
        for name in ("model", "trace_id", "limit"):
            if fields[name] is None:
                del fields[name]
    return fields
