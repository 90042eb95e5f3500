"""The waits of a pool that prefers a low bill, in a fleet: each gateway knows what all have seen, once."""

from collections.abc import Sequence

import pytest

from defaults import default_hedging
from gateway.share.hub import ShareHub
from gateway.share.messages import SliceAnswer
from gateway.share.pools import exchanges_of
from gateway.share.sync import Exchange
from gateway.share.ways import WayExchange
from scripted import Scripted
from ttft_gateway.hedging.parameters import Prefer
from ttft_gateway.limits.budget import RetryBudget
from ttft_gateway.limits.prices import Prices, TierPrices
from ttft_gateway.pool.bills import Bills
from ttft_gateway.pool.pool import Pool
from ttft_gateway.routing.replicas import Replica

USUAL = Prices(1.0, 1.0, 4.0)
OF = {"flex": USUAL.times(0.5), "default": USUAL}


class Fleet:
    """Gateways with a pool of two tiers each, and the engine between them."""

    def __init__(self, gateways: int) -> None:
        self.hub = ShareHub()
        self.pools = [self._pool(None) for _ in range(gateways)]
        self.dropped: list[str] = []
        self.exchanges: list[Sequence[Exchange]] = [self._exchanges(pool, ()) for pool in self.pools]

    @staticmethod
    def _pool(previous: Pool | None) -> Pool:
        ways = [Replica(name, Scripted(), prices=OF[name], tiers=TierPrices(name, USUAL, OF)) for name in OF]
        ways = ways if previous is None else list(previous.replicas)
        return Pool("m", ways, default_hedging(prefer=Prefer.COST, ttft_target_s=3.0), previous=previous)

    def _exchanges(self, pool: Pool, old: Sequence[Exchange]) -> list[Exchange]:
        return exchanges_of([([pool], RetryBudget())], {}, old, lambda name, why: self.dropped.append(f"{name}: {why}"))

    def reload(self, gateway: int) -> None:
        """Replace the pool of a gateway."""
        self.pools[gateway] = self._pool(self.pools[gateway])
        self.exchanges[gateway] = self._exchanges(self.pools[gateway], self.exchanges[gateway])

    def bills(self, gateway: int) -> Bills:
        """Return what a gateway has learned about the ways."""
        found = self.pools[gateway].bills
        assert found is not None
        return found

    def exchange(self, now_s: float) -> None:
        """Let each gateway ask once."""
        for number, exchanges in enumerate(self.exchanges):
            for each in exchanges:
                if asks := each.asks(now_s, 0.1):
                    each.answered(self.hub.answer(now_s, str(number), asks).answers, now_s)


def teach(bills: Bills, now_s: float) -> None:
    """Thirty answers of the cheap tier, ten waits that were given up, and ten refusals."""
    for number in range(30):
        bills.add_content("flex", 0.5 + number * 7 % 30 / 30, 100.0, now_s)
        if number % 3 == 0:
            bills.add_given_up("flex", 2.0, 100.0, now_s)
            bills.add_refused("flex")


def test_what_one_gateway_has_seen_all_know_once() -> None:
    """The others have the same curve and the same share of refusals; none counts a wait twice, also after a reload."""
    fleet = Fleet(3)
    fleet.exchange(0.0)
    teach(fleet.bills(0), 0.5)
    for second in range(1, 6):
        fleet.exchange(float(second))
        if second == 3:
            fleet.reload(0)
            fleet.reload(1)
    own = fleet.bills(0).waits["flex"]
    for gateway in (1, 2):
        found = fleet.bills(gateway).waits["flex"]
        assert (found.seen, found.refused) == (own.seen, own.refused) == (40, 0.2)
        for time_s in (0.4, 1.0, 1.9):
            assert found.curve().longer(time_s) == pytest.approx(own.curve().longer(time_s), abs=0.05)
        assert fleet.bills(gateway).waits["default"].seen == 0
    assert fleet.dropped == []


def test_the_last_waits_of_others_are_a_sample_of_all() -> None:
    """Short and long waits that come together are mixed: the last forty have the median of all."""
    fleet = Fleet(2)
    fleet.exchange(0.0)
    for number in range(200):
        fleet.bills(0).add_content("flex", 0.1 * 1.02**number, 100.0, 0.5)
    fleet.exchange(1.0)
    fleet.exchange(2.0)
    waits = fleet.bills(1).waits["flex"]
    assert waits.curve(40).longer(0.1 * 1.02**100) == pytest.approx(0.5, abs=0.1)


@pytest.mark.parametrize("name", ["e999 flex", "e-1 flex", "ex flex", "r1 flex"])
def test_waits_out_of_range_are_not_used(name: str) -> None:
    """A damaged count is reported, and nothing of the answer is taken in."""
    fleet = Fleet(1)
    fleet.exchange(0.0)
    ways = next(each for each in fleet.exchanges[0] if isinstance(each, WayExchange))
    ways.answered([SliceAnswer(1, {1: {name: 3, "e50 flex": 3}})], 1.0)
    assert fleet.bills(0).waits["flex"].seen == 0
    assert fleet.dropped[0].startswith("the waits of m: ")
