"""Measures one target, or several targets that take turns block by block.

Turns expose all targets to the same changes over the day; the target that begins alternates. A session ends early, with
the results so far, on Ctrl-C, after more tokens than allowed, or if a target rejects all of its first requests. Units:
seconds of the loop's clock.
"""

import asyncio
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from streaming_bench.load.client import Client, PlannedRequest, Target
from streaming_bench.load.pacing import LoopLag, closed_loop, open_loop
from streaming_bench.load.plan import in_blocks
from streaming_bench.progress import Progress, quiet
from streaming_bench.report.records import Record, Run
from streaming_bench.report.stats import quantile

_REJECTED_MAX = 20  # first requests of a target
_REJECTIONS = frozenset({"connect", "http_401", "http_403", "http_404"})  # of every request, until something is changed


@dataclass(frozen=True, slots=True)
class Session:
    """Targets and requests of a measurement.

    Attributes:
        targets: targets by the names of their runs.
        requests: requests sent to each target.
        concurrency: requests in flight of a closed loop; None for an open loop.
        extra: additional fields of each body.
        tokens_max: number of tokens after which no further request is sent.
        progress: called with the current run and the share done.
    """

    targets: Mapping[str, Target]
    requests: Sequence[PlannedRequest]
    concurrency: int | None = None
    extra: Mapping[str, object] = field(default_factory=dict)
    tokens_max: float = float("inf")
    progress: Progress = quiet


@dataclass(slots=True)
class Measurement:
    """Result of a session.

    Attributes:
        runs: one run for each target.
        ended_early: reason of an early end; empty for a complete session.
    """

    runs: list[Run]
    ended_early: str = ""


async def measure(session: Session) -> Measurement:
    """Send all requests; return the results so far if interrupted."""
    outcome = Measurement([Run(name) for name in session.targets])
    async with asyncio.TaskGroup() as tasks:
        runner = _SessionRunner(session, outcome, tasks)
        try:
            await runner.run()
        except asyncio.CancelledError:
            outcome.ended_early = runner.ended_early or "Ctrl-C"
            task = asyncio.current_task()
            assert task is not None
            task.uncancel()
        finally:
            runner.close()
    return outcome


class _SessionRunner:
    """Sends blocks to targets in turn.

    Attributes:
        ended_early: reason why it stopped itself; empty if it did not.
    """

    def __init__(self, session: Session, outcome: Measurement, tasks: asyncio.TaskGroup) -> None:
        self._session = session
        self._loop = asyncio.get_running_loop()
        self._begin_s = self._loop.time()
        self._task = asyncio.current_task()
        self._clients = [Client(target, tasks, self._begin_s, session.extra) for target in session.targets.values()]
        self._runs = outcome.runs
        self._lags: list[list[float]] = [[] for _ in outcome.runs]
        self._tokens = self._done = 0
        self.ended_early = ""

    async def run(self) -> None:
        requests = self._session.requests
        if len(self._runs) == 1:
            await self._stretch(0, requests)
            return
        for number, block in enumerate(in_blocks(requests)):
            order = range(len(self._runs))
            for which in order if number % 2 == 0 else reversed(order):
                await self._stretch(which, block)

    def close(self) -> None:
        """Abort requests in flight and record the delay of the event loop."""
        for client, run, lags_s in zip(self._clients, self._runs, self._lags, strict=True):
            client.close()
            run.facts["lag_p99_ms"] = 1000 * quantile(lags_s, 0.99).value
            run.records.sort(key=lambda record: record.number)

    async def _stretch(self, which: int, requests: Sequence[PlannedRequest]) -> None:
        client, concurrency = self._clients[which], self._session.concurrency

        def done(record: Record) -> None:
            self._count(record, which)

        lag = LoopLag()
        try:
            if concurrency is None:
                await open_loop(client, requests, self._loop.time(), done)
            else:
                await closed_loop(client, requests, concurrency, done)
        finally:
            lag.stop()
            self._lags[which] += lag.lags_s

    def _count(self, record: Record, which: int) -> None:
        records = self._runs[which].records
        records.append(record)
        self._done += 1
        self._tokens += record.prompt_tokens + record.tokens
        name = self._runs[which].name
        self._session.progress(name, self._done / (len(self._session.requests) * len(self._runs)))
        if self._tokens > self._session.tokens_max:
            self._end_early(f"{self._tokens:,} tokens counted, more than --tokens-max {self._session.tokens_max:,}")
        if len(records) == _REJECTED_MAX and all(each.error in _REJECTIONS for each in records):
            self._end_early(f"the first {_REJECTED_MAX} requests to the {name} ended with {record.error}")

    def _end_early(self, reason: str) -> None:
        if not self.ended_early:
            self.ended_early = reason
            assert self._task is not None
            self._task.cancel()
