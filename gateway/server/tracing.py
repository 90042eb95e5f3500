"""The export of traces, as the settings in force want it; part of the composition root. Units: seconds."""

import asyncio
import socket
from datetime import UTC, datetime
from typing import Final, NamedTuple

from gateway.config.settings import TracingSettings
from gateway.events import Event, RequestEnded, RequestRejected
from gateway.observe.hub import Hub
from gateway.observe.span_queue import Exporter, SpanCounts, SpanQueue
from gateway.observe.spans import ReplicaFacts, rejected_span, spans_of
from gateway.server.topology import InForce

_TRACED: Final = (RequestEnded, RequestRejected)
_CLOSE_S_MAX: Final = 2.0  # a receiver that does not answer must not delay the end of the process


class Tracing:
    """Exports the spans of sampled requests.

    Args:
        hub: receiver of all events.
        loop: event loop; its clock gives the times of the events.
        in_force: the topology in force, for facts about the replicas.
        version: version of the gateway.
        worker: number of the worker; None for a process that is no worker.

    Attributes:
        counts: numbers of spans since the start.
    """

    def __init__(
        self, hub: Hub, loop: asyncio.AbstractEventLoop, in_force: InForce, version: str, worker: int | None
    ) -> None:
        self._hub = hub
        self._loop = loop
        self._in_force = in_force
        self._version = version
        self._instance = socket.gethostname() if worker is None else f"{socket.gethostname()}-{worker}"
        self.counts = SpanCounts()
        self._receiver: _Receiver | None = None
        self._queue: SpanQueue | None = None

    def use(self, settings: TracingSettings | None) -> None:
        """Export as these settings want from now on; spans of earlier requests go to the earlier receiver."""
        receiver = None if settings is None else _receiver(settings)
        if receiver == self._receiver:
            return
        if self._queue is not None:
            self._hub.flush()
            self._hub.listeners.remove(self._on_event)
            self._queue.close()
            self._queue = None
        self._receiver = receiver
        if receiver is not None:
            self._queue = SpanQueue(lambda: self._connect(receiver), self.counts, self._loop.time)
            self._hub.listeners.append(self._on_event)

    def close(self) -> None:
        """Export the last spans, at most for 2 s."""
        if self._queue is not None:
            self._hub.flush()
            self._queue.close(_CLOSE_S_MAX)

    def _connect(self, receiver: "_Receiver") -> Exporter:
        """Return an exporter; called on its thread, because it reads files."""
        from gateway.observe.otlp import OtlpExporter

        return OtlpExporter(receiver.url, receiver.headers, self._version, self._instance)

    def _on_event(self, event: Event) -> None:
        """Queue the spans of a sampled request (a `gateway.events.Listener`)."""
        if not isinstance(event, _TRACED) or self._queue is None:
            return
        trace = event.trace
        if trace is None or not trace.sampled:
            return
        epoch_s = datetime.now(UTC).timestamp() - self._loop.time()
        if isinstance(event, RequestEnded):
            self._queue.put(spans_of(event, trace, epoch_s, self._find))
        else:
            self._queue.put([rejected_span(event, trace, epoch_s)])

    def _find(self, model: str, replica: str) -> ReplicaFacts | None:
        parts = self._in_force.topology.parts.get(model)
        row, origin = (None, None) if parts is None else parts.rows.get(replica, (None, None))
        if row is None or origin is None:
            return None
        port = None if origin.socket else origin.port
        return ReplicaFacts(row.kind, row.model or model, origin.socket or origin.host, port)


class _Receiver(NamedTuple):
    url: str
    headers: dict[str, str]


def _receiver(settings: TracingSettings) -> _Receiver:
    return _Receiver(settings.url, {name: value.get_secret_value() for name, value in settings.headers.items()})
