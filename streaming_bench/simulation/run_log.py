"""The gateway's own log of a simulated run, as it would write it. Time begins with the year 2026."""

from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import Final

from gateway.events import Event, Listener
from gateway.observe.logs import RequestLog
from streaming_bench.errors import BenchError
from streaming_bench.simulation.runner import ignore

_START_S: Final = datetime(2026, 1, 1, tzinfo=UTC).timestamp()
_BATCH: Final = 500  # events


@contextmanager
def run_log(path: Path | None) -> Iterator[Listener]:
    """Open a log; return the function that takes the events. None for no log.

    Raises:
        BenchError: The file cannot be written.
    """
    if path is None:
        yield ignore
        return
    try:
        with path.open("wb") as file:
            log, events = RequestLog(file.write, lambda: _START_S), list[Event]()

            def listener(event: Event) -> None:
                events.append(event)
                if len(events) >= _BATCH:
                    log.on_events(events)
                    events.clear()

            yield listener
            log.on_events(events)
    except OSError as error:
        raise BenchError(f"cannot write {path}: {error.strerror}; name another file after --log") from error
