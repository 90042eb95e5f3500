"""Quotas under load, in small: hedging causes no 429, and every reserved token is accounted for."""

import pytest

from quota_scenarios import books, refused
from streaming_bench.simulation.provider_quota import LimitHeaders
from ttft_gateway.hedging.outcomes import Outcome


@pytest.mark.parametrize(("headers", "others"), [(LimitHeaders.EXACT, 0.0), (LimitHeaders.STALE, 0.5)])
def test_hedging_causes_no_429(headers: LimitHeaders, others: float) -> None:
    """With quotas at 1.12 times the traffic no hedge gets a 429, and primaries no more of them than without hedging."""
    seen = refused(headers, others=others, requests=800, seed=101)
    hedged, off = seen["adaptive"], seen["off"]
    assert hedged.hedges == 0
    assert hedged.primaries + hedged.failed <= off.primaries + off.failed + 0.001 * off.requests
    assert hedged.hedged > 0.02


def test_a_quota_that_is_overdrawn_is_left_to_primaries() -> None:
    """If other clients take so much that primaries are rejected, hedges stop."""
    seen = refused(LimitHeaders.EXACT, others=0.5, headroom=0.5, requests=800, seed=101)
    assert seen["off"].primaries + seen["off"].failed > 80
    assert seen["adaptive"].hedges == 0
    assert seen["adaptive"].hedged < 0.04  # the first ones, while the quota was full


def test_every_token_is_accounted_for() -> None:
    """After hedges, cuts, errors and clients that left: reserved = settled + released, to the token."""
    seen = books(600)
    assert seen.totals.under_way == 0
    assert seen.totals.settled > 0 < seen.totals.released
    assert seen.hedges > 20
    happened = {outcome for outcome, number in seen.outcomes.items() if number}
    assert happened >= {Outcome.FINISHED, Outcome.LOST, Outcome.CLIENT_GONE, Outcome.CUT, Outcome.FAILED}
    assert happened >= {Outcome.RATE_LIMITED, Outcome.MISCONFIGURED, Outcome.CLIENT_ERROR}
