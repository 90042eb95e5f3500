"""A process with leased limits, an engine, and a clock that the test sets."""

from gateway.share.fleet import ASK_WAIT_S, Fleet, Requester, WhenAway
from gateway.share.hub import ShareHub
from gateway.share.leases import LeasedRate, Leases
from gateway.share.low_limits import LowLimits
from gateway.share.messages import BucketAnswer, BucketAsk, SlotsAsk


class Table:
    """A fleet with asks that wait until the test has the engine answer, loses them, or lets time pass."""

    def __init__(self, when_away: WhenAway = WhenAway.SHARE, processes: int = 1) -> None:
        self.fleet = Fleet(when_away)
        self.fleet.is_alone = False
        self.fleet.processes = processes
        self.wanting: dict[Requester, None] = {}
        self.fleet.want = lambda requester: self.wanting.setdefault(requester, None)
        self.leases = Leases(self.fleet)
        self.hub = ShareHub()
        self.now_s = 100.0
        self.asks: list[BucketAsk | SlotsAsk] = []

    def rate(self, limit: int = 60) -> LeasedRate:
        return LeasedRate(self.leases, "k", limit)

    def answer(self, process: str = "me") -> None:
        """Let the engine answer what was asked."""
        for requester in self.take_asks():
            [answer] = self.hub.answer(self.now_s, process, [self.asks[-1]]).answers
            self.last_answer = answer
            requester.answered(answer, self.now_s)

    def exchange(self, low: LowLimits | None = None, process: str = "me") -> None:
        """Exchange how far limits are used up."""
        low = low or self.leases.low
        low.answered(self.hub.answer(self.now_s, process, low.asks(self.now_s, 0.1)).answers, self.now_s)

    @property
    def last_left(self) -> float:
        """Amount left in the last answer about a bucket."""
        assert isinstance(self.last_answer, BucketAnswer)
        return self.last_answer.left

    @property
    def last(self) -> BucketAsk:
        """The last ask of a bucket."""
        return next(ask for ask in reversed(self.asks) if isinstance(ask, BucketAsk))

    def lose(self) -> None:
        """Lose what was asked."""
        for requester in self.take_asks():
            requester.lost(self.now_s)

    def take_asks(self) -> list[Requester]:
        requesters, self.wanting = list(self.wanting), {}
        for requester in requesters:
            ask = requester.ask(self.now_s)
            assert isinstance(ask, BucketAsk | SlotsAsk)
            self.asks.append(ask)
        return requesters

    def leave(self) -> None:
        """Let the engine be away from now on."""
        self.fleet.leave(self.now_s)
        self.fleet.is_away = True

    def spend(self, rate: LeasedRate, number: int, cost: float = 1.0) -> int:
        """Let requests come at the same time; return how many have room."""
        admitted = 0
        for _ in range(number):
            if rate.wait_s(cost, self.now_s) == ASK_WAIT_S:
                self.answer()
            if rate.wait_s(cost, self.now_s) == 0:
                rate.take(cost, self.now_s)
                admitted += 1
            self.answer()
        return admitted

    def others_take(self, amount: float, limit: float = 60) -> None:
        self.hub.answer(self.now_s, "other", [BucketAsk("k", limit, 60, amount)])
