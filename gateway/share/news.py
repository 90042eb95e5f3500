"""Passes on what was switched to all gateways: a part of the exchange. Pure.

The last value of each name counts, also at gateways that start later. News of this gateway goes out again after the
engine has lost it. Units: seconds of the clock that the caller passes.
"""

from collections.abc import Callable, Sequence
from typing import Final, NamedTuple

from gateway.share.words import Answer, Ask, News, NewsAnswer, NewsAsk

EVERY_S: Final = 0.4  # news reaches all gateways within a second
KEPT_S: Final = 7 * 86_400.0
_OWN_MAX: Final = 1_024  # names


class Reach(NamedTuple):
    """The processes that an action has reached, and the number of all."""

    reached: int
    of: int


class SharedNews:
    """The news of one gateway: a `gateway.share.sync.Part`.

    Args:
        apply: called with name and value of the news of other gateways, and of this one's before its last start.

    Attributes:
        reached: number of gateways that had all news at the last answer.
    """

    def __init__(self, apply: Callable[[str, str], None]) -> None:
        self.reached = 1
        self._apply = apply
        self._own: dict[str, str] = {}
        self._waiting: dict[str, str] = {}  # not yet acknowledged
        self._asked: dict[str, str] = {}
        self._after = 0
        self._due_s = 0.0

    @property
    def is_sent(self) -> bool:
        """True if the engine has all that was published."""
        return not self._waiting

    def publish(self, name: str, value: str) -> None:
        """Send a value to all other gateways with the next batch."""
        for kept in (self._own, self._waiting):
            kept.pop(name, None)
            kept[name] = value
            if len(kept) > _OWN_MAX:
                del kept[next(iter(kept))]

    def asks(self, now_s: float, period_s: float) -> Sequence[Ask]:
        """Return what was published, and ask for the news of others."""
        if now_s < self._due_s and not self._waiting:
            return ()
        self._due_s = now_s + EVERY_S - period_s / 2
        self._asked = dict(self._waiting)
        return (NewsAsk([News(name, value, KEPT_S) for name, value in self._asked.items()], self._after),)

    def answered(self, answers: Sequence[Answer], now_s: float) -> None:
        """Apply the news of others."""
        for answer in answers:
            if not isinstance(answer, NewsAnswer):
                continue
            for name, value in self._asked.items():
                if self._waiting.get(name) == value:
                    del self._waiting[name]
            if answer.number < self._after:  # the engine has lost all
                self._waiting = self._own | self._waiting
            self._after, self.reached = answer.number, answer.reached
            if answer.news:
                self._due_s = 0.0  # the next ask acknowledges them
            for news in answer.news:
                if news.name not in self._waiting and self._asked.get(news.name) != news.value:
                    self._own.pop(news.name, None)
                    self._apply(news.name, news.value)
            self._asked = {}
