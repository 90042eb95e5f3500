"""The workers as the supervisor sees them: their channels, and calls to all of them.

Owns what workers have counted, as parts that stay encoded until they are read: the counts of a thousand models are
100,000 objects, which each collection of garbage would search. A worker serves without its supervisor, too.

Units: seconds.
"""

import asyncio
import logging
import socket
from collections.abc import Callable, Iterable
from typing import Final, TypeVar

import msgspec

from gateway.events import Event
from gateway.observe.dropped import DroppedState
from gateway.observe.instruments import Instruments
from gateway.observe.usage import UsageDump, UsageTable
from gateway.process_events import WorkerChanged
from gateway.proof.tally import Tally, merged_tallies
from gateway.server.own_view import count_parts
from gateway.share.hub import METHOD, ShareHub, answers_of
from gateway.workers.board import Slot
from gateway.workers.channel import Channel, Handler, connect
from gateway.workers.messages import Counts, Ready, SwitchHedging, TokenRejected, WorkerEnded
from ttft_gateway.pool.learned import LearnedModel

CALL_S_MAX: Final = 2.0  # for an answer about state
_COUNTS_S: Final = 5.0  # between two calls for counts; a killed worker loses at most these seconds

_T = TypeVar("_T")


class Worker:
    """One worker process.

    Attributes:
        number: number of the worker, from 1; its replacement has the same number.
        process: id of the process.
        slot: its connections, and its beats.
        channel: its message channel.
        revision: revision of the state that it has; None until it has begun, or has the state of this supervisor.
        is_ready: True if it serves and answers.
        ready_s: loop time since which it does; None before.
        counts: counts of the answer to the latest question, in parts, encoded; none before.
        ended: its last message; None before.
        reason: reason of its end, from the top process; "" before.
        share_name: name among the processes that share limits.
    """

    channel: Channel

    def __init__(self, number: int, process: int, slot: Slot) -> None:
        self.number = number
        self.process = process
        self.slot = slot
        self.revision: int | None = None
        self.is_ready = False
        self.ready_s: float | None = None
        self.counts: list[bytes] = []
        self._counts_asked_s = 0.0
        self.ended: WorkerEnded | None = None
        self.reason = ""
        self.share_name = f"{number}-{process}"

    def keep(self, counts: list[bytes], asked_s: float) -> None:
        """Keep the counts of an answer, unless a later question was answered before: no counter goes back."""
        if asked_s >= self._counts_asked_s:
            self.counts, self._counts_asked_s = counts, asked_s


class WorkerGroup:
    """All workers.

    Args:
        tasks: owner of the tasks of the channels.
        emit: receives events.
        on_ready: called with each worker that can serve, and with its message; then `serve` or the end of the worker
            follows.
        on_change: called when a worker has begun or ended to serve.
        on_event: receives each event of a worker for the feed, encoded.
        on_switch: receives each switch of another host from every worker.
        on_rejected: receives each rejected token.
        dropped: counts what is damaged.

    Attributes:
        workers: all processes with an open channel.
        handlers: further methods for workers.
        dead_proof: counts of the savings of hedging of processes that have ended, by model.
        learned: learned states of workers that have ended while the gateway stops.
        restarts: number of processes that ended before the gateway stopped.
        is_open: True once the workers accept connections.
        is_stopping: True once the workers are asked to end.
        cut: number of requests that ended workers have ended with an error.
    """

    def __init__(
        self,
        tasks: asyncio.TaskGroup,
        emit: Callable[[Event], object],
        on_ready: Callable[[Worker, Ready], object],
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
        self._share = ShareHub()
        self.workers: list[Worker] = []
        self.handlers: dict[str, Handler] = {}
        self._dead: list[bytes] = []  # counts of all that have ended
        self._leaving: list[list[bytes]] = []  # counts of each that has just ended
        self._adding = asyncio.Lock()
        self.dead_proof: dict[str, Tally] = {}
        self.learned: list[dict[str, LearnedModel]] = []
        self._unexplained: dict[int, Worker] = {}  # ended, by process, without the reason from the top process
        self.restarts = 0
        self.is_open = False
        self.is_stopping = False
        self.cut = 0

    @property
    def counts_of_dead(self) -> list[bytes]:
        """Return the counts of workers that have ended, in parts, encoded."""
        return [*self._dead, *(part for parts in self._leaving for part in parts)]

    def counted(self) -> list[bytes]:
        """Return the counts of all workers, in parts, encoded."""
        return [*self.counts_of_dead, *(part for worker in self.workers for part in worker.counts)]

    def counts_of(self, part: bytes) -> Counts:
        """Return a part of the counts; nothing if it is damaged."""
        return self._decoded("counts of a worker", part, Counts) or Counts({}, UsageDump([], []))

    def carry_on(self, dead: list[bytes], restarts: int) -> None:
        """Carry on with the counts of an earlier supervisor."""
        self._add_dead(dead)
        self.restarts = restarts

    def _add_dead(self, counts: list[bytes]) -> None:
        self._leaving.append(counts)
        if not self.is_stopping:
            self._tasks.create_task(self._add_leaving())

    async def _add_leaving(self) -> None:
        """Add the counts of a worker that has ended to the counts of all that have ended, in slices."""
        async with self._adding:
            total, usage, proof = Instruments(), UsageTable(), dict[str, Tally]()
            for part in (*self._leaving[0], *self._dead):
                counts = self.counts_of(part)
                for _ in total.add_parts(counts.instruments):
                    await asyncio.sleep(0)
                usage.add(counts.usage)
                before = {name: proof[name] for name in counts.proof if name in proof}
                proof |= merged_tallies([before, counts.proof])
            dead = []
            for each in count_parts(total, usage, proof):
                dead.append(msgspec.msgpack.encode(Counts(*each)))
                await asyncio.sleep(0)
            self._dead, self.dead_proof = dead, proof
            del self._leaving[0]

    @property
    def ready(self) -> list[Worker]:
        """The workers that serve and answer."""
        return [worker for worker in self.workers if worker.is_ready]

    @property
    def late(self) -> tuple[int, ...]:
        """Numbers of the workers that have served and do not answer."""
        return tuple(worker.number for worker in self.workers if not worker.is_ready and worker.ready_s is not None)

    async def add(
        self, number: int, process: int, slot: Slot, messages: socket.socket, begin: Callable[[Worker], object]
    ) -> None:
        """Add a worker process, a new one or one that has served under an earlier supervisor.

        Args:
            messages: socket of its channel.
            begin: returns the answer to its first call, or a coroutine of it.
        """
        worker = Worker(number, process, slot)
        handlers: dict[str, Handler] = {
            METHOD: answers_of(self._share, worker.share_name, self._loop.time, self._dropped.of("share")),
            "begin": lambda _: begin(worker),
            "ready": lambda payload: self._on_ready(worker, msgspec.msgpack.decode(payload, type=Ready)),
            "event": lambda payload: self._on_event(msgspec.msgpack.decode(payload, type=bytes)),
            "switched": lambda payload: self._on_switch(msgspec.msgpack.decode(payload, type=SwitchHedging)),
            "token_rejected": lambda payload: self._on_rejected(msgspec.msgpack.decode(payload, type=TokenRejected)),
            "ended": lambda payload: self._set_last(worker, payload),
            **self.handlers,
        }
        worker.channel = Channel(self._tasks, handlers, lambda: self._on_end(worker))
        self.workers.append(worker)
        await connect(worker.channel, messages)

    def open(self) -> None:
        """Let all workers accept connections from now on."""
        self.is_open = True
        self.notify("accept")

    def serve(self, worker: Worker) -> None:
        """Use a worker from now on."""
        worker.is_ready, worker.ready_s = True, self._loop.time()
        if self.is_open:
            worker.channel.send("accept")
        self._emit(WorkerChanged(self._loop.time(), worker.number, worker.process, ready=True))
        self._on_change()

    # calls

    def notify(self, method: str, payload: object = None) -> None:
        """Send a notice to every worker that serves."""
        for worker in self.ready:
            worker.channel.send(method, payload)

    def notify_all(self, method: str) -> None:
        """Send a notice to every worker, also to one that begins."""
        for worker in self.workers:
            worker.channel.send(method)

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

    async def change(
        self,
        method: str,
        payload: object = None,
        deadline_s: float = CALL_S_MAX,
        workers: Iterable[Worker] | None = None,
    ) -> list[tuple[Worker, bytes | None]]:
        """Do the same for a change; a worker without an answer counts as a new one: it may lack the change."""
        answers = await self.ask(method, payload, deadline_s, workers)
        for worker, answer in answers:
            if answer is None and worker.is_ready and worker.channel.is_open:
                text = "worker %d (process %d) did not answer to %s; it gets the settings and switches in force again"
                logging.getLogger(__name__).warning(text, worker.number, worker.process, method)
                self._doubt(worker)
                self._on_ready(worker, Ready(None))
        return answers

    async def read(self, method: str, kind: type[_T], payload: object = None) -> list[_T]:
        """Call a method of every worker that serves; return the answers of this kind in time."""
        answers = [self.decoded(worker, answer, kind) for worker, answer in await self.ask(method, payload)]
        return [answer for answer in answers if answer is not None]

    async def read_parts(
        self, method: str, kind: type[_T], payload: object = None, workers: Iterable[Worker] | None = None
    ) -> list[tuple[Worker, list[_T]]]:
        """Call a method of every worker that serves, or of these; return all parts of each answer in time."""
        asked = self.ready if workers is None else list(workers)
        asking = (worker.channel.ask_parts(method, payload, CALL_S_MAX) for worker in asked)
        found = []
        for worker, answer in zip(asked, await asyncio.gather(*asking), strict=True):
            parts = []
            for encoded in answer or ():
                part = self.decoded(worker, encoded, kind)
                if part is None:
                    break
                parts.append(part)
                await asyncio.sleep(0)
            else:
                if parts:
                    found.append((worker, parts))
        return found

    def decoded(self, worker: Worker, answer: bytes | None, kind: type[_T]) -> _T | None:
        """Return an answer; None if there is none, or if it is damaged."""
        return self._decoded(f"an answer of worker {worker.number}", answer, kind)

    def _decoded(self, name: str, content: bytes | None, kind: type[_T]) -> _T | None:
        if content is not None:
            with self._dropped.leaving_out("worker", name):
                return msgspec.msgpack.decode(content, type=kind)
        return None

    # start and end of a worker

    async def keep_counts(self) -> None:
        """Record the counts of all workers every few seconds; runs until it is cancelled."""
        while True:
            await asyncio.sleep(_COUNTS_S)
            await self.read_counts()

    async def read_counts(self) -> None:
        """Record the counts of all workers now."""
        asked_s = self._loop.time()
        asked = self.ready
        asking = (worker.channel.ask_parts("counts", None, CALL_S_MAX) for worker in asked)
        for worker, counts in zip(asked, await asyncio.gather(*asking), strict=True):
            if counts is not None:
                worker.keep(counts, asked_s)

    def on_hung(self, process: int) -> None:
        """Ask a worker nothing until it answers again."""
        for worker in self.workers:
            if worker.process == process and worker.is_ready:
                text = "worker %d (process %d) does not answer; the other ones accept its connections"
                logging.getLogger(__name__).warning(text, worker.number, process)
                self._doubt(worker)

    def on_answers(self, process: int) -> None:
        """Use a worker again that has not answered for some seconds."""
        for worker in self.workers:
            if worker.process == process and not worker.is_ready and worker.ready_s is not None:
                self._on_ready(worker, Ready(None))

    def _doubt(self, worker: Worker) -> None:
        worker.is_ready, worker.revision = False, None
        self._on_change()

    def _set_last(self, worker: Worker, payload: bytes) -> None:
        worker.ended = msgspec.msgpack.decode(payload, type=WorkerEnded)
        worker.counts = worker.ended.counts
        self.cut += worker.ended.cut
        if self.is_stopping:
            self.learned.append(msgspec.msgpack.decode(worker.ended.learned, type=dict[str, LearnedModel]))

    def _on_end(self, worker: Worker) -> None:
        """Add the counts of a worker to `dead`."""
        worker.is_ready = False
        self.workers.remove(worker)
        self._share.gone(worker.share_name)
        if worker.counts:
            self._add_dead(worker.counts)
        if not self.is_stopping:
            self.restarts += 1
            self._unexplained[worker.process] = worker
            self._explain(worker)
        self._on_change()

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
