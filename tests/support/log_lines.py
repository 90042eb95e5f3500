"""Lines of the gateway's log, as it writes them for events."""

from gateway.events import Event
from gateway.observe.logs import RequestLog

_NOW_S = 1_772_368_215.25


def log_lines(*events: Event) -> list[bytes]:
    """Return the lines for these events, with their newlines."""
    batches: list[bytes] = []
    log = RequestLog(batches.append, lambda: _NOW_S, text=False)
    log.on_events(events)
    return b"".join(batches).splitlines(keepends=True)
