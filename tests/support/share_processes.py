"""Processes that ask an engine, on a clock that the test sets."""

from collections.abc import Callable, Sequence
from typing import TypeAlias, TypeVar

from gateway.share.messages import (
    Answer,
    Ask,
    BucketAnswer,
    BucketAsk,
    GaugeAnswer,
    GaugeAsk,
    SlotsAnswer,
    SlotsAsk,
)
from share_engines import SharedEngine

T = TypeVar("T", bound=Answer)
Engines: TypeAlias = Callable[[], SharedEngine]


class Processes:
    """Processes of one engine, at a time that the test sets."""

    def __init__(self, engines: Engines) -> None:
        self._engines = engines
        self.hub = engines()
        self.now_s = 1_000.0

    def lose(self) -> None:
        """Lose all that the engine has."""
        self.hub = self._engines()

    def ask(self, process: str, ask: Ask, kind: type[T]) -> T:
        [answer] = self.hub.answer(self.now_s, process, [ask]).answers
        assert isinstance(answer, kind)
        return answer

    def bucket(
        self,
        process: str = "a",
        want: float = 0.0,
        least: float = 0.0,
        beyond: float = 0.0,
        hint: float | None = None,
        epoch: int = 0,
        *,
        amount: float = 60.0,
        window_s: float = 60.0,
        drained: bool = False,
        hint_age_s: float = 0.0,
        spent: Sequence[float] = (),
    ) -> BucketAnswer:
        ask = BucketAsk("k", amount, window_s, want, least, beyond, hint, epoch, drained, hint_age_s, spent)
        return self.ask(process, ask, BucketAnswer)

    def slots(self, process: str, held: int, want: int = 0, others: int | None = None, limit: int = 4) -> SlotsAnswer:
        return self.ask(process, SlotsAsk("k", limit, held, want, others), SlotsAnswer)

    def gauge(self, process: str, **rows: tuple[int, ...]) -> GaugeAnswer:
        answer = self.ask(process, GaugeAsk("pool", rows), GaugeAnswer)
        return GaugeAnswer(answer.processes, answer.others)
