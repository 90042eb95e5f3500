"""The tokens of all workers: the supervisor keeps them, and sends each change to every worker.

Units: seconds of the loop's clock.
"""

import asyncio
from collections.abc import Callable, Collection, Iterable

from gateway.race.context import Runtime
from gateway.server.credentials.keepers import NOT_YET, TokenKeepers, TokenState
from gateway.workers.group import Worker, WorkerGroup
from gateway.workers.messages import TokenChange, TokenRejected
from ttft_gateway.credentials.sources import Source


class GroupTokens:
    """The tokens of all workers.

    Args:
        group: the workers.
        tasks: owner of the tasks.
        runtime: clock, random numbers and receiver of events.
        on_change: called after each change.

    Attributes:
        keepers: keepers of the tokens.
    """

    def __init__(
        self, group: WorkerGroup, tasks: asyncio.TaskGroup, runtime: Runtime, on_change: Callable[[], object]
    ) -> None:
        self._group = group
        self._on_change = on_change
        self._loop = runtime.loop
        self._states: dict[Source, TokenState] = {}
        self.keepers = TokenKeepers(tasks, runtime, self._put)

    @property
    def changes(self) -> list[TokenChange]:
        """The tokens in use, for a worker that begins."""
        return [TokenChange(source, state) for source, state in self._states.items()]

    def restore(self, changes: Iterable[TokenChange]) -> None:
        """Carry on with the tokens of an earlier supervisor, until they are fetched anew."""
        self._states = {change.source: change.state for change in changes}

    def send(self, worker: Worker) -> None:
        """Send all tokens to a worker: one may have changed since the worker began."""
        for change in self.changes:
            worker.channel.send("token", change)

    def follow(self, sources: Collection[Source]) -> None:
        """Keep the tokens of these sources only."""
        self.keepers.follow(sources)
        self._states = {source: state for source, state in self._states.items() if source in sources}

    def on_rejected(self, rejected: TokenRejected) -> None:
        """Renew a token that an upstream has rejected."""
        self.keepers.on_rejected(rejected.source, self._loop.time() - rejected.ago_s)

    def _put(self, source: Source, state: TokenState) -> None:
        if state.fault == NOT_YET and source in self._states:
            return
        self._states[source] = state
        self._group.notify("token", TokenChange(source, state))
        self._on_change()
