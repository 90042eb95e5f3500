"""An engine in this process for a fleet in virtual time: it answers late, hangs, or is killed with its data."""

import asyncio
from collections.abc import Callable, Iterable, Sequence

from gateway.share.hub import ShareHub
from gateway.share.messages import ASK_LIFE_S, Answered, Ask, Reply, keep_silent
from ttft_gateway.pool.learned import Drop


class EngineHost:
    """The engine and its network.

    Attributes:
        hub: the state, replaced when the engine is killed.
        delay_s: time from an ask to its reply.
        asks: number of asks executed.
    """

    def __init__(self, loop: asyncio.AbstractEventLoop, delay_s: float = 0.0005) -> None:
        self.hub = ShareHub()
        self.delay_s = delay_s
        self.asks = 0
        self._loop = loop
        self._is_down = False
        self._hung: list[Callable[[], None]] | None = None
        self._waiting: dict[object, Answered] = {}
        self._cut: frozenset[str] = frozenset()

    def cut_off(self, processes: Iterable[str]) -> None:
        """Lose every batch of these processes, and reply to all others."""
        self._cut = frozenset(processes)

    def kill(self) -> None:
        """Lose all data, and every batch under way."""
        self._is_down, self._hung, self.hub = True, None, ShareHub()
        for answered in self._waiting.values():
            self._loop.call_soon(answered, None)
        self._waiting.clear()

    def start(self) -> None:
        """Listen again."""
        self._is_down = False

    def hang(self) -> None:
        """Take connections and asks, and do nothing, as after SIGSTOP."""
        self._hung = []

    def go_on(self) -> None:
        """Execute everything that came during the pause, as after SIGCONT."""
        hung, self._hung = self._hung or [], None
        for execute in hung:
            execute()

    def ask(self, process: str, asks: Sequence[Ask], answered: Answered) -> None:
        """Execute a batch after half of the delay."""
        if self._is_down or process in self._cut:
            self._loop.call_soon(answered, None)
            return
        number = object()
        self._waiting[number] = answered
        until_s = self._loop.time() + ASK_LIFE_S
        self._loop.call_later(self.delay_s / 2, self._arrived, number, process, asks, until_s)

    def _arrived(self, number: object, process: str, asks: Sequence[Ask], until_s: float) -> None:
        if number not in self._waiting:
            return
        if self._hung is not None:
            self._hung.append(lambda: self._execute(number, process, asks, until_s))
        else:
            self._execute(number, process, asks, until_s)

    def _execute(self, number: object, process: str, asks: Sequence[Ask], until_s: float) -> None:
        self.asks += len(asks)
        reply = self.hub.answer(self._loop.time(), process, asks, until_s)
        self._loop.call_later(self.delay_s / 2, self._reply, number, reply)

    def _reply(self, number: object, reply: Reply) -> None:
        answered = self._waiting.pop(number, None)
        if answered is not None:
            answered(reply)


class HostedEngine:
    """The connection of one process."""

    kind = "hub"
    carries_switches = False
    batch_exchanges = 20
    fault = ""
    is_rejected = False

    def __init__(self, host: EngineHost, process: str) -> None:
        self._host = host
        self._process = process
        self.drop: Drop = keep_silent

    def ask(self, asks: Sequence[Ask], answered: Answered) -> None:
        """Send a batch."""
        self._host.ask(self._process, asks, answered)

    def close(self) -> None:
        """Do nothing."""
