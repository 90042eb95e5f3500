"""The thread that exports spans: order, bounds, receivers that are slow or away, the end."""

import logging
import threading
from collections.abc import Sequence

import pytest

from gateway.observe import span_queue
from gateway.observe.span_queue import ExportFailed, SpanCounts, SpanQueue
from gateway.observe.spans import Span

_WAIT_S = 60.0  # of a loaded machine


def _spans(count: int, name: str = "s") -> list[Span]:
    return [Span(f"{name}{n}", "01" * 16, "02" * 8, None, False, True, 1, 2, {}, None) for n in range(count)]


class Receiver:
    """An exporter that keeps what it gets; `open` is set unless exports wait."""

    def __init__(self) -> None:
        self.names: list[str] = []
        self.sizes: list[int] = []
        self.tried: list[int] = []
        self.fault: Exception | None = None
        self.began = threading.Event()
        self.open = threading.Event()
        self.open.set()
        self.closed = threading.Event()

    def export(self, spans: Sequence[Span]) -> None:
        self.tried.append(len(spans))
        self.began.set()
        assert self.open.wait(_WAIT_S)
        if self.closed.is_set():
            raise ExportFailed("closed")
        if self.fault is not None:
            raise self.fault
        self.names += [span.name for span in spans]
        self.sizes.append(len(spans))

    def close(self) -> None:
        self.closed.set()
        self.open.set()


class Clock:
    """A clock that a test sets."""

    now_s = 100.0

    def __call__(self) -> float:
        return self.now_s


@pytest.fixture(autouse=True)
def soon(monkeypatch: pytest.MonkeyPatch) -> None:
    """Export immediately."""
    monkeypatch.setattr(span_queue, "_GATHER_S", 0.001)


def _ended(queue: SpanQueue) -> None:
    queue.close(_WAIT_S)
    assert not queue._thread.is_alive()


def test_spans_are_exported_in_order_and_in_batches() -> None:
    """Every queued span is exported, in order, by the time close() returns; a batch has at most 64."""
    receiver, counts = Receiver(), SpanCounts()
    queue = SpanQueue(lambda: receiver, counts, Clock())
    spans = _spans(1_000)
    for span in spans:
        queue.put([span])
    _ended(queue)
    assert receiver.names == [span.name for span in spans]
    assert max(receiver.sizes) <= 64
    assert (counts.exported, counts.lost) == (1_000, 0)
    assert receiver.closed.is_set()


def test_a_slow_receiver_costs_spans_only() -> None:
    """While the receiver is silent, spans above the limit are lost immediately, by whole requests, and counted."""
    receiver, counts = Receiver(), SpanCounts()
    receiver.open.clear()
    queue = SpanQueue(lambda: receiver, counts, Clock(), spans_max=10)
    queue.put(_spans(1))
    assert receiver.began.wait(_WAIT_S)
    for _ in range(6):
        queue.put(_spans(3))
    assert counts.lost == 9
    receiver.open.set()
    _ended(queue)
    assert (counts.exported, counts.lost) == (10, 9)
    queue.put(_spans(2))
    assert counts.lost == 11


def test_a_receiver_that_is_away_is_reported_once(caplog: pytest.LogCaptureFixture) -> None:
    """The log has one line when exports begin to fail, at most one a minute, and one when they work again."""
    receiver, counts, clock = Receiver(), SpanCounts(), Clock()
    queue = SpanQueue(lambda: receiver, counts, clock)
    caplog.set_level(logging.INFO)

    def exported(count: int, fault: Exception | None = None) -> None:
        receiver.fault = fault
        total = counts.exported + counts.lost + count
        queue.put(_spans(count))
        waiting = threading.Event()
        while counts.exported + counts.lost < total:
            waiting.wait(0.001)

    exported(1, ExportFailed("Connection refused"))
    exported(2, ValueError("a bug"))
    exported(1)
    exported(3, ExportFailed("Connection refused"))  # again within the minute
    exported(1)
    clock.now_s += 61.0
    exported(1, ValueError("a bug"))
    _ended(queue)
    assert [record.getMessage() for record in caplog.records] == [
        "spans are lost, because the receiver at `tracing.endpoint` does not accept them: Connection refused",
        "spans are exported again; 3 were lost",
        "spans are lost, because the receiver at `tracing.endpoint` does not accept them: ValueError",
    ]
    assert (counts.exported, counts.lost) == (2, 7)


def test_the_end_does_not_wait_for_a_dead_receiver() -> None:
    """close() returns after its time; the exporter is closed, and the queued spans are lost and counted."""
    receiver, counts = Receiver(), SpanCounts()
    receiver.open.clear()
    queue = SpanQueue(lambda: receiver, counts, Clock())
    queue.put(_spans(200))
    assert receiver.began.wait(_WAIT_S)
    queue.close(0.001)
    assert receiver.closed.is_set()
    queue._thread.join(_WAIT_S)
    assert (counts.exported, counts.lost) == (0, 200)


def test_an_earlier_queue_ends_by_itself() -> None:
    """close() without a time returns immediately; the thread exports what is queued and ends."""
    receiver, counts = Receiver(), SpanCounts()
    receiver.open.clear()
    queue = SpanQueue(lambda: receiver, counts, Clock())
    queue.put(_spans(200))
    queue.close()
    receiver.open.set()
    queue._thread.join(_WAIT_S)
    assert (counts.exported, counts.lost) == (200, 0)
    assert receiver.closed.is_set()


def test_an_earlier_queue_ends_at_its_first_failure() -> None:
    """After close(), one failed export loses all queued spans; the receiver gets no export without spans."""
    receiver, counts = Receiver(), SpanCounts()
    receiver.open.clear()
    queue = SpanQueue(lambda: receiver, counts, Clock())
    queue.put(_spans(1_000))
    assert receiver.began.wait(_WAIT_S)
    receiver.fault = ExportFailed("status 500")
    queue.close()
    receiver.open.set()
    queue._thread.join(_WAIT_S)
    assert receiver.tried == [64]
    assert (counts.exported, counts.lost) == (0, 1_000)


def test_a_library_that_cannot_be_loaded_costs_spans_only(caplog: pytest.LogCaptureFixture) -> None:
    """An exporter that cannot be made is reported once; all spans are lost and counted."""

    def connect() -> Receiver:
        raise ImportError("no module")

    counts = SpanCounts()
    queue = SpanQueue(connect, counts, Clock())
    queue._thread.join(_WAIT_S)
    queue.put(_spans(3))
    _ended(queue)
    assert counts.lost == 3
    assert [record.getMessage() for record in caplog.records] == ["spans cannot be exported, and all are lost"]
