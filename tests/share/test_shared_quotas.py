"""A quota that several gateways use: the mirror of each counts the usage of all."""

import pytest

from together import Mirrors
from ttft_gateway.apis.base import RateLimit, Resource
from ttft_gateway.limits.bucket import Spend


def test_usage_adds_up() -> None:
    """What one gateway reserves is missing at all; what it gives back is there again."""
    mirrors = Mirrors(3)
    mirrors.exchange(0.0)
    tickets = [mirrors.ledgers[0].reserve(Spend(10, 10), 0.1) for _ in range(100)]
    mirrors.exchange(0.1)
    assert mirrors.left(0.1) == [500.0] * 3
    for ticket in tickets[:50]:
        mirrors.ledgers[0].release(ticket, 0.1)
    mirrors.exchange(0.1)
    assert mirrors.left(0.1)[0] == 550.0


def test_usage_of_a_gone_gateway_stays_used() -> None:
    """Its row goes, and nothing is given back."""
    mirrors = Mirrors(3)
    mirrors.exchange(0.0)
    for _ in range(100):
        mirrors.ledgers[0].reserve(Spend(1, 1), 0.1)
    mirrors.exchange(0.1)
    mirrors.hub.gone("0")
    mirrors.quotas = mirrors.quotas[1:]
    mirrors.ledgers = mirrors.ledgers[1:]
    mirrors.exchange(0.2)
    assert mirrors.left(0.2) == [pytest.approx(501.0)] * 2


def test_a_fresh_response_contains_the_usage_of_all() -> None:
    """The provider has counted what others have sent before it."""
    mirrors = Mirrors(2, configured=False)
    mirrors.exchange(0.0)
    for ledger in mirrors.ledgers:
        ticket = ledger.reserve(Spend(1, 1), 0.0)
        ledger.observe(ticket, [RateLimit(Resource.REQUESTS, 60.0, 600.0, 598.0)], 0.0)
    mirrors.exchange(0.1)
    for _ in range(100):
        mirrors.ledgers[0].reserve(Spend(1, 1), 0.2)
    ticket = mirrors.ledgers[1].reserve(Spend(1, 1), 0.2)
    mirrors.ledgers[1].observe(ticket, [RateLimit(Resource.REQUESTS, 60.0, 600.0, 490.0)], 0.25)
    before = mirrors.left(0.25)[1]
    mirrors.exchange(0.25)
    assert mirrors.left(0.25)[1] == before


def test_a_cool_down_is_one_of_all() -> None:
    """A Retry-After that one gateway gets holds at all, and ends."""
    mirrors = Mirrors(3)
    mirrors.exchange(0.0)
    mirrors.ledgers[1].rate_limited(mirrors.ledgers[1].reserve(Spend(1, 1), 0.0), 0.0, 10.0)
    mirrors.exchange(0.1)
    for ledger in mirrors.ledgers:
        assert ledger.cooling_s(0.1) == pytest.approx(9.9, abs=0.01)
        assert not ledger.room_for_hedge(Spend(1, 1), 11.0)
    for step in range(2, 120):
        mirrors.exchange(step / 10)
    assert [ledger.cooling_s(12.0) for ledger in mirrors.ledgers] == [0.0] * 3
