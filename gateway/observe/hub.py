"""The observers of one process: the hub of its events, and the metrics, usage table and log that it feeds.

The hub passes the core's events on in batches, so that observing costs a request one append while it runs. A batch is
passed on when it is full, soon after its first event, and before a reader of an observer gets its counts (`Hub.flush`).
Each observer receives all events in the order in which they were emitted. Observers of every request receive whole
batches.

Units: events; seconds of the loop's clock.
"""

import asyncio
import logging
import os
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping
from datetime import UTC, datetime

from gateway.events import Event, Listener
from gateway.observe.dropped import DroppedState
from gateway.observe.logs import RequestLog, epoch_of, loss_line
from gateway.observe.metrics import Metrics
from gateway.observe.process import ALONE, Member, ProcessValue, ProcessValues
from gateway.observe.proof import COUNTED_S_MAX, BlockCounts, Goal, ProofCounts
from gateway.observe.state import AdmissionSource, AdmissionState, DiscoverySource, StateSource
from gateway.observe.usage import UsageTable
from gateway.observe.writer import LineWriter
from gateway.proof.blocks import Block
from gateway.proof.tally import Tally

Collector = Callable[[Iterator[Event]], None]
"""Receives the events of a batch; after an exception it is called again with the events that it has not taken."""

_EVENTS_MAX = 16  # of a batch: 0.3 ms of the loop's time, or 1.5 ms if each is the first of a model
_LAG_S_MAX = 0.1  # not noticed in the log, which a thread writes, or in the feed


class Hub:
    """Collects events for observers; an exception in an observer costs neither a request nor another event.

    Args:
        loop: event loop on which events are emitted.

    Attributes:
        collectors: receivers of every batch.
        listeners: receivers of every event.
        failures: number of exceptions in collectors and listeners.
    """

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self.collectors: list[Collector] = []
        self.listeners: list[Listener] = []
        self.failures = 0
        self._loop = loop
        self._events: list[Event] = []
        self._timer: asyncio.TimerHandle | None = None

    def emit(self, event: Event) -> None:
        """Add an event to the batch."""
        events = self._events
        events.append(event)
        if self._timer is None:
            self._timer = self._loop.call_later(_LAG_S_MAX, self._on_time)
        if len(events) >= _EVENTS_MAX:
            self.flush()

    def emit_now(self, event: Event) -> None:
        """Pass on an event that ends the batch: its cause is about to be confirmed to an operator."""
        self.emit(event)
        self.flush()

    def flush(self) -> None:
        """Pass on every event emitted so far."""
        events, self._events = self._events, []
        for collect in self.collectors:
            rest = iter(events)
            for _ in events:  # again after an exception, which costs one event
                try:
                    collect(rest)
                    break
                except Exception as error:  # an observer's bug
                    self._on_failure(error)
        for listener in self.listeners:
            for event in events:
                try:
                    listener(event)
                except Exception as error:  # an observer's bug
                    self._on_failure(error)

    def _on_time(self) -> None:
        self._timer = None
        self.flush()

    def _on_failure(self, error: Exception) -> None:
        self.failures += 1
        if self.failures == 1:
            logging.getLogger(__name__).error("an observer failed; further failures are not logged", exc_info=error)


class Observers:
    """The observers of a process.

    Args:
        loop: event loop of the process.
        version: version of the gateway.
        member: place of the process among the processes of the gateway.

    Attributes:
        hub: receiver of all events.
        usage: tokens and cost by key and model.
        dropped: damaged state that is not used.
        values: sources of further values for a scrape.
    """

    def __init__(self, loop: asyncio.AbstractEventLoop, version: str, member: Member = ALONE) -> None:
        self.hub = Hub(loop)
        self.usage = UsageTable()
        self.dropped = DroppedState(self.hub.emit, loop.time)
        out = sys.stdout.fileno()
        text = os.isatty(out)
        self._writer = LineWriter(
            out,
            lambda lines: loss_line(lines, datetime.now(UTC), text=text),
            _report_unwritable_log,
            lock=member.write_lock,
        )
        self._log = RequestLog(self._writer.write, epoch_of(loop.time), text=text, worker=member.number)
        self._proof = ProofCounts(self.hub.emit)
        self._block_counts = BlockCounts()
        self._every_goal: Callable[[], Mapping[str, Goal]] = dict
        self._loop = loop
        self._counted_until: asyncio.TimerHandle | None = None
        self.values: list[Callable[[], Iterable[ProcessValue]]] = [self._proof.values, self.dropped.values]
        self._process = ProcessValues(version, lambda: self._writer.lost, member.read_memory)

    def metrics(
        self,
        state: StateSource = tuple,
        admission: AdmissionSource = AdmissionState,
        discovery: DiscoverySource = tuple,
    ) -> Metrics:
        """Begin to pass events to metrics, which are returned, to the usage table and to the log."""
        metrics = Metrics(state, admission, self.process_values, discovery, self.usage)
        self.hub.collectors += [metrics.on_events, self._log.on_events]
        return metrics

    def process_values(self) -> Iterator[ProcessValue]:
        """Return the values of the process now."""
        yield from self._process()
        for values in self.values:
            yield from values()

    def measure(self, goals: Mapping[str, Goal], every: Callable[[], Mapping[str, Goal]]) -> None:
        """Count what hedging saves on some models; `every` returns the goals of all, for experiments."""
        self._every_goal = every
        if self._block_counts.on_event in self.hub.listeners:
            self._block_counts.goals = every()
        self._proof.goals, listeners = goals, self.hub.listeners
        if bool(goals) is not (self._proof.on_event in listeners):
            (listeners.append if goals else listeners.remove)(self._proof.on_event)

    def proof(self, hours: int | None) -> dict[str, Tally]:
        """Return the counts of each measured model."""
        self.hub.flush()
        return self._proof.tallies(hours)

    def blocks(self, begin: str) -> list[Block]:
        """Begin a block of an experiment, unless it has begun; return the counts of the last ones."""
        self.hub.flush()
        listeners, counts = self.hub.listeners, self._block_counts
        if counts.on_event not in listeners:
            counts.goals = self._every_goal()
            listeners.append(counts.on_event)
        counts.begin(begin, self._loop.time())
        if self._counted_until is not None:
            self._counted_until.cancel()
        self._counted_until = self._loop.call_later(COUNTED_S_MAX, self._end_blocks)
        return counts.blocks()

    def _end_blocks(self) -> None:
        self._counted_until = None
        self._block_counts.clear()
        self.hub.listeners.remove(self._block_counts.on_event)

    def close(self) -> None:
        """Pass on the last events, and write the last lines."""
        if self._counted_until is not None:
            self._counted_until.cancel()
        self.hub.flush()
        self._writer.close()


def _report_unwritable_log(error: OSError) -> None:
    logging.getLogger(__name__).error(
        "standard output is not writable (%s); log lines are lost until it is", error.strerror
    )
