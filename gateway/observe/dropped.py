"""Counts the state that is damaged and not used: rows of other gateways, the learned file, answers of workers.

Each name is reported once, in an event; the metric counts all. Units: none.
"""

import contextlib
from collections.abc import Callable, Iterator
from functools import partial
from typing import Final, Literal, get_args

from gateway.events import Event
from gateway.observe.process import ProcessValue
from gateway.process_events import StateDropped
from ttft_gateway.pool.learned import Drop

Source = Literal["learned_file", "pool", "share", "worker"]

_NAMES_MAX: Final = 1_000  # that are reported
_NAME_CHARS_MAX: Final = 200
_REASON_CHARS_MAX: Final = 200


class DroppedState:
    """The state that one process has dropped.

    Args:
        emit: receives an event for each new name.
        now_s: returns the time of events.
    """

    def __init__(self, emit: Callable[[Event], object], now_s: Callable[[], float]) -> None:
        self._emit = emit
        self._now_s = now_s
        self._counts: dict[Source, int] = dict.fromkeys(get_args(Source), 0)
        self._reported: set[tuple[Source, str]] = set()

    def add(self, source: Source, name: str, reason: str) -> None:
        """Count something that was dropped."""
        self._counts[source] += 1
        named = (source, name[:_NAME_CHARS_MAX])
        if named not in self._reported and len(self._reported) < _NAMES_MAX:
            self._reported.add(named)
            self._emit(StateDropped(self._now_s(), *named, reason[:_REASON_CHARS_MAX]))

    def of(self, source: Source) -> Drop:
        """Return the function that counts for a source."""
        return partial(self.add, source)

    @contextlib.contextmanager
    def leaving_out(self, source: Source, name: str) -> Iterator[None]:
        """Leave out what raises here, so that it costs nothing else."""
        try:
            yield
        except Exception as error:
            self.add(source, name, f"{type(error).__name__}: {error}")

    def values(self) -> Iterator[ProcessValue]:
        """Yield the metrics."""
        for source, count in self._counts.items():
            text = "Parts of the state that were damaged and not used"
            yield ProcessValue("ttft_gateway_state_dropped", text, "counter", count, {"source": source})
