"""Exports spans on a thread, from a bounded queue; a receiver that is slow or away costs spans, never requests.

Lost spans are counted. The log has one line when exports begin to fail, at most one a minute, and one when they work
again. Independent of the form of the export. Units: spans, seconds.
"""

import logging
import threading
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from typing import Final, Protocol

from gateway.observe.process import ProcessValue
from gateway.observe.spans import Span

_LOG: Final = logging.getLogger(__name__)
_SPANS_MAX: Final = 2048  # some 4 MB
_BATCH: Final = 64  # encoding them takes some 5 ms, for which the thread may delay the event loop
_GATHER_S: Final = 1.0  # delay of an export that is not full
_SILENCE_S: Final = 60.0  # between two lines that exports fail


class ExportFailed(Exception):
    """An export failed; the text is the reason, without a secret."""


class Exporter(Protocol):
    """Sends spans to a receiver."""

    def export(self, spans: Sequence[Span]) -> None:
        """Send the spans, within a bounded time.

        Raises:
            ExportFailed: they are lost.
        """

    def close(self) -> None:
        """End the connections, and a retry that waits; may be called from any thread."""


class SpanCounts:
    """Numbers of spans, of all queues of the process.

    Attributes:
        exported: spans that a receiver has accepted.
        lost: spans that were not exported.
    """

    def __init__(self) -> None:
        self.exported = 0
        self.lost = 0
        self._lock = threading.Lock()

    def add(self, exported: int = 0, lost: int = 0) -> None:
        """Count spans; may be called from any thread."""
        with self._lock:
            self.exported += exported
            self.lost += lost

    def values(self) -> Iterator[ProcessValue]:
        """Yield the metrics."""
        yield ProcessValue("ttft_gateway_spans_exported", "Spans that were exported", "counter", self.exported)
        yield ProcessValue("ttft_gateway_spans_lost", "Spans that were not exported", "counter", self.lost)


class SpanQueue:
    """A bounded queue and the thread that exports from it.

    Args:
        connect: returns the exporter; called on the thread, because it imports libraries.
        counts: counts the spans.
        now_s: returns the time, from any thread.
        spans_max: number of queued spans above which further ones are lost.
    """

    def __init__(
        self,
        connect: Callable[[], Exporter],
        counts: SpanCounts,
        now_s: Callable[[], float],
        spans_max: int = _SPANS_MAX,
    ) -> None:
        self._connect = connect
        self._counts = counts
        self._now_s = now_s
        self._spans_max = spans_max
        self._spans: deque[Span] = deque()
        self._exporter: Exporter | None = None
        self._wake = threading.Event()
        self._full = threading.Event()  # a whole batch waits, or the queue closes
        self._closing = False
        self._is_failing = False  # and the log has it
        self._lost_before = 0
        self._silent_until_s = 0.0
        self._thread = threading.Thread(target=self._run, name="span-exporter", daemon=True)
        self._thread.start()

    def put(self, spans: Sequence[Span]) -> None:
        """Queue the spans of one request, or lose all of them if there is no room."""
        queue = self._spans
        if self._closing or len(queue) + len(spans) > self._spans_max:
            self._counts.add(lost=len(spans))
            return
        queue.extend(spans)
        if not self._wake.is_set():
            self._wake.set()
        if len(queue) >= _BATCH:
            self._full.set()

    def close(self, wait_s: float = 0.0) -> None:
        """Take no more spans; export the queued ones, and wait for that at most `wait_s`.

        Queued spans are lost at the first failure from now on. With `wait_s`, spans that remain after it are lost, too.
        """
        self._closing = True
        self._wake.set()
        self._full.set()
        if wait_s:
            self._thread.join(wait_s)
            if self._thread.is_alive() and self._exporter is not None:
                self._exporter.close()

    def _run(self) -> None:
        try:
            exporter = self._exporter = self._connect()
        except Exception as error:
            _LOG.error("spans cannot be exported, and all are lost", exc_info=error)
            self._closing = True
            self._lose_all()
            return
        while self._spans or not self._closing:
            self._wake.wait()
            self._full.wait(_GATHER_S)
            self._wake.clear()  # before taking: a span that is added later sets it again
            if not self._closing:
                self._full.clear()
            for _ in range(0, len(self._spans), _BATCH):
                if not self._export(exporter) and self._closing:
                    self._lose_all()
                    break
        exporter.close()

    def _take(self, count: int) -> list[Span]:
        return [self._spans.popleft() for _ in range(min(count, len(self._spans)))]

    def _lose_all(self) -> None:
        self._counts.add(lost=len(self._take(self._spans_max)))

    def _export(self, exporter: Exporter) -> bool:
        """Export a batch; return True if the receiver accepted it."""
        spans = self._take(_BATCH)
        try:
            exporter.export(spans)
        except ExportFailed as error:
            self._on_failure(str(error))
        except Exception as error:  # a bug in a library must not end the thread
            self._on_failure(type(error).__name__)
        else:
            self._counts.add(exported=len(spans))
            if self._is_failing:
                self._is_failing = False
                _LOG.warning("spans are exported again; %d were lost", self._counts.lost - self._lost_before)
            return True
        self._counts.add(lost=len(spans))
        return False

    def _on_failure(self, reason: str) -> None:
        now_s = self._now_s()
        if not self._is_failing and now_s >= self._silent_until_s:
            self._is_failing, self._silent_until_s = True, now_s + _SILENCE_S
            self._lost_before = self._counts.lost
            _LOG.warning("spans are lost, because the receiver at `tracing.endpoint` does not accept them: %s", reason)
