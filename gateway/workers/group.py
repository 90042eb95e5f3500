"""The workers as the supervisor sees them: their channels, their connections, and calls to all of them.

Owns the choice of the worker for a connection, and what dead workers have counted. Units: seconds, connections.
"""

import asyncio
import os
import signal
import socket
from collections import deque
from collections.abc import Callable, Iterable
from typing import Final, TypeVar

import msgspec

from gateway.events import Event
from gateway.observe.dropped import DroppedState
from gateway.observe.instruments import Instruments
from gateway.observe.usage import UsageTable
from gateway.process_events import WorkerChanged
from gateway.proof.tally import Tally, merged_tallies
from gateway.share.hub import METHOD, ShareHub, answers_of
from gateway.workers.channel import Channel, Handler, connect
from gateway.workers.messages import Counts, Ready, SwitchHedging, TokenRejected, WorkerEnded
from gateway.workers.passing import Lane
from ttft_gateway.pool.learned import LearnedModel

CALL_S_MAX: Final = 2.0  # for an answer about state
PING_S: Final = 1.0
_SILENT_PINGS: Final = 10  # in a row without an answer, after which a worker is ended; its streams hang
_ANSWER_S: Final = PING_S * _SILENT_PINGS  # a busy worker may answer late
_COUNTS_PINGS: Final = 5  # between two calls for counts; a killed worker loses at most these seconds
_HELD_MAX: Final = 256  # connections that wait for a worker with room
_HELD_S: Final = 0.02  # between two tries to pass them

_T = TypeVar("_T")


class Worker:
    """One worker process.

    Attributes:
        number: number of the worker, from 1; its replacement has the same number.
        process: id of the process.
        lane: its connections.
        channel: its message channel.
        revision: revision of the state that it has begun with.
        is_ready: True if it takes connections.
        ready_s: loop time since which it does; None before.
        counts: counters and usage of its last answer; None before.
        ended: its last message; None before.
        reason: reason of its end, from the top process; "" before.
        share_name: name among the processes that share limits.
    """

    channel: Channel

    def __init__(self, number: int, process: int, lane: Lane) -> None:
        self.number = number
        self.process = process
        self.lane = lane
        self.revision = 0
        self.is_ready = False
        self.ready_s: float | None = None
        self.counts: Counts | None = None
        self.ended: WorkerEnded | None = None
        self.reason = ""
        self.share_name = f"{number}-{process}"
        self.pings = 0
        self.silent_pings = 0


class WorkerGroup:
    """All workers.

    Args:
        tasks: owner of the tasks of the channels.
        emit: receives events.
        on_ready: called with each worker that can serve, and with its message; returns False to end it.
        on_change: called when a worker has begun or ended to serve.
        on_event: receives each event of a worker for the feed, encoded.
        on_switch: receives each switch of another host from every worker.
        on_rejected: receives each rejected token.
        dropped: counts what is damaged.

    Attributes:
        workers: all processes with an open channel.
        dead: counters and histograms of processes that have ended.
        dead_usage: usage of these processes.
        dead_proof: counts of the savings of hedging of these processes, by model.
        learned: learned states of workers that have ended while the gateway stops.
        restarts: number of processes that ended before the gateway stopped.
        is_stopping: True once the workers are asked to end.
        cut: number of requests that ended workers have ended with an error.
    """

    def __init__(
        self,
        tasks: asyncio.TaskGroup,
        emit: Callable[[Event], object],
        on_ready: Callable[[Worker, Ready], bool],
        on_change: Callable[[], object],
        on_event: Callable[[bytes], object],
        on_switch: Callable[[SwitchHedging], object],
        on_rejected: Callable[[TokenRejected], object],
        dropped: DroppedState,
    ) -> None:
        self._tasks = tasks
        self._loop = asyncio.get_running_loop()
        self._emit = emit
        self._on_ready = on_ready
        self._on_change = on_change
        self._on_event = on_event
        self._on_switch = on_switch
        self._on_rejected = on_rejected
        self._dropped = dropped
        self._held: deque[socket.socket] = deque()  # accepted, and not passed
        self._share = ShareHub()
        self._retry: asyncio.TimerHandle | None = None
        self.workers: list[Worker] = []
        self.dead = Instruments()
        self.dead_usage = UsageTable()
        self.dead_proof: dict[str, Tally] = {}
        self.learned: list[dict[str, LearnedModel]] = []
        self._unexplained: dict[int, Worker] = {}  # ended, by process, without the reason from the top process
        self.restarts = 0
        self.is_stopping = False
        self.cut = 0

    @property
    def ready(self) -> list[Worker]:
        """The workers that take connections."""
        return [worker for worker in self.workers if worker.is_ready]

    async def add(
        self,
        number: int,
        process: int,
        messages: socket.socket,
        connections: socket.socket,
        begin: Callable[[Worker], object],
    ) -> None:
        """Add a worker process.

        Args:
            begin: returns the answer to its first call, or a coroutine of it.
        """
        worker = Worker(number, process, Lane(connections, self._pass_held))
        handlers: dict[str, Handler] = {
            METHOD: answers_of(self._share, worker.share_name, self._loop.time, self._dropped.of("share")),
            "begin": lambda _: begin(worker),
            "ready": lambda payload: self._begin(worker, payload),
            "event": lambda payload: self._on_event(msgspec.msgpack.decode(payload, type=bytes)),
            "switched": lambda payload: self._on_switch(msgspec.msgpack.decode(payload, type=SwitchHedging)),
            "token_rejected": lambda payload: self._on_rejected(msgspec.msgpack.decode(payload, type=TokenRejected)),
            "ended": lambda payload: self._set_last(worker, payload),
        }
        worker.channel = Channel(self._tasks, handlers, lambda: self._on_end(worker))
        self.workers.append(worker)
        await connect(worker.channel, messages)

    # connections

    @property
    def has_room(self) -> bool:
        """True if another connection can be taken."""
        return len(self._held) < _HELD_MAX and any(worker.is_ready for worker in self.workers)

    def take(self, connection: socket.socket) -> None:
        """Pass an accepted connection to the worker with the fewest, later if none has room."""
        self._held.append(connection)
        if self._retry is None:
            self._pass_held()

    def _pass_held(self) -> None:
        if self._retry is not None:
            self._retry.cancel()
            self._retry = None
        while self._held:
            if not self._pass(self._held[0]):
                self._retry = self._loop.call_later(_HELD_S, self._on_retry)
                return
            self._held.popleft()

    def _on_retry(self) -> None:
        self._retry = None
        self._pass_held()

    def _pass(self, connection: socket.socket) -> bool:
        by_load = sorted(self.ready, key=lambda worker: (worker.lane.open, worker.lane.passed))
        return any(worker.lane.pass_on(connection) for worker in by_load)

    def close_held(self) -> None:
        """Close the connections that no worker has taken."""
        while self._held:
            self._held.popleft().close()

    # calls

    def notify(self, method: str, payload: object = None) -> None:
        """Send a notice to every worker that serves."""
        for worker in self.ready:
            worker.channel.send(method, payload)

    async def ask(
        self,
        method: str,
        payload: object = None,
        deadline_s: float = CALL_S_MAX,
        workers: Iterable[Worker] | None = None,
    ) -> list[tuple[Worker, bytes | None]]:
        """Call a method of every worker that serves, or of these; an answer is None if it did not arrive in time."""
        asked = self.ready if workers is None else list(workers)
        answers = await asyncio.gather(*(worker.channel.ask(method, payload, deadline_s) for worker in asked))
        return list(zip(asked, answers, strict=True))

    async def read(self, method: str, kind: type[_T], payload: object = None) -> list[tuple[Worker, _T]]:
        """Call a method of every worker that serves; return the answers that arrived in time and are of this kind."""
        answers = [(worker, self.decoded(worker, answer, kind)) for worker, answer in await self.ask(method, payload)]
        return [(worker, answer) for worker, answer in answers if answer is not None]

    def decoded(self, worker: Worker, answer: bytes | None, kind: type[_T]) -> _T | None:
        """Return an answer; None if there is none, or if it is damaged."""
        if answer is not None:
            with self._dropped.leaving_out("worker", f"an answer of worker {worker.number}"):
                return msgspec.msgpack.decode(answer, type=kind)
        return None

    # start and end of a worker

    async def watch(self) -> None:
        """Record the counts of all workers, and end workers that do not answer; runs until it is cancelled."""
        while True:
            await asyncio.sleep(PING_S)
            for worker in self.ready:
                self._ping(worker)

    def _ping(self, worker: Worker) -> None:
        worker.pings += 1
        worker.silent_pings += 1  # a machine that was suspended misses one, however long that was
        if worker.silent_pings > _SILENT_PINGS:
            worker.reason = "it did not answer"
            is_first = worker.silent_pings == _SILENT_PINGS + 1
            os.kill(worker.process, signal.SIGABRT if is_first else signal.SIGKILL)  # a stopped process ignores SIGABRT
        elif worker.pings % _COUNTS_PINGS:
            worker.channel.call("ping", None, lambda reply: self._answered(worker, reply), _ANSWER_S)
        else:
            worker.channel.call("counts", None, lambda reply: self._answered(worker, reply, counts=True), _ANSWER_S)

    def _answered(self, worker: Worker, reply: bytes | None, *, counts: bool = False) -> None:
        if reply is not None:
            worker.silent_pings = 0
            if counts:
                worker.counts = self.decoded(worker, reply, Counts) or worker.counts

    def _begin(self, worker: Worker, payload: bytes) -> None:
        if not self._on_ready(worker, msgspec.msgpack.decode(payload, type=Ready)):
            worker.channel.send("end")
            return
        worker.is_ready, worker.ready_s = True, self._loop.time()
        self._emit(WorkerChanged(self._loop.time(), worker.number, worker.process, ready=True))
        self._on_change()
        self._pass_held()

    def _set_last(self, worker: Worker, payload: bytes) -> None:
        worker.ended = msgspec.msgpack.decode(payload, type=WorkerEnded)
        worker.counts = worker.ended.counts
        self.cut += worker.ended.cut
        if self.is_stopping:
            self.learned.append(worker.ended.learned)

    def _on_end(self, worker: Worker) -> None:
        """Add the counts of a worker to `dead`, and pass connections that it has not taken to another worker."""
        worker.is_ready = False
        self.workers.remove(worker)
        self._share.gone(worker.share_name)
        self._held.extend(worker.lane.close())
        if worker.counts is not None:
            self.dead.add(worker.counts.instruments)
            self.dead_usage.add(worker.counts.usage)
            self.dead_proof = merged_tallies([worker.counts.proof, self.dead_proof])
        if not self.is_stopping:
            self.restarts += 1
            self._unexplained[worker.process] = worker
            self._explain(worker)
        self._on_change()
        self._pass_held()

    def on_process_end(self, process: int, reason: str) -> None:
        """Take the reason for which a process has ended."""
        for worker in (*self.workers, *self._unexplained.values()):
            if worker.process == process:
                worker.reason = f"{worker.reason}; {reason}" if worker.reason else reason
                worker.is_ready = False
                self._explain(worker)
                return

    def _explain(self, worker: Worker) -> None:
        """Report the end of a worker once its channel has ended and the reason is known."""
        if worker.process in self._unexplained and worker.reason:
            del self._unexplained[worker.process]
            self._emit(
                WorkerChanged(self._loop.time(), worker.number, worker.process, ready=False, reason=worker.reason)
            )
