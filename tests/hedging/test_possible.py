"""The replicas with requests that can never be hedged, and why: a table of pools."""

import pytest

from scripted import Scripted
from ttft_gateway.hedging.outcomes import Denial
from ttft_gateway.hedging.possible import EXPLANATIONS, HedgeTarget, never_hedged, target_of
from ttft_gateway.routing.replicas import Replica
from ttft_gateway.routing.strategies import Crossing

BILLED, UNKNOWN, ONE, OFF = Denial.BILLED, Denial.BILLING_UNKNOWN, Denial.ONE_REPLICA, Denial.OFF
NEVER, FAILOVER, ALWAYS = Crossing.NEVER, Crossing.FAILOVER, Crossing.ALWAYS

Pool = list[tuple[str | None, Denial | None]]
"""The boundary of each replica, and what bars hedges from it."""


@pytest.mark.parametrize(
    ("pool", "crossing", "expected"),
    [
        pytest.param([(None, None), (None, None)], NEVER, [None, None], id="two that stop billing"),
        pytest.param([(None, None)], NEVER, [ONE], id="one"),
        pytest.param([(None, UNKNOWN)], NEVER, [ONE], id="one that may bill"),
        pytest.param([(None, BILLED), (None, BILLED)], NEVER, [BILLED, BILLED], id="two that bill"),
        pytest.param([(None, UNKNOWN), (None, UNKNOWN)], NEVER, [UNKNOWN, UNKNOWN], id="two that may bill"),
        pytest.param([(None, None), (None, BILLED)], NEVER, [BILLED, None], id="hedged in one direction"),
        pytest.param([(None, BILLED), (None, UNKNOWN)], NEVER, [UNKNOWN, BILLED], id="the other one's reason"),
        pytest.param([(None, None), (None, BILLED), (None, UNKNOWN)], NEVER, [UNKNOWN, None, None], id="may bill wins"),
        pytest.param([("eu", None), ("us", None)], NEVER, [ONE, ONE], id="one on each side"),
        pytest.param([("eu", None), ("us", None)], FAILOVER, [ONE, ONE], id="crossing with failovers only"),
        pytest.param([("eu", None), ("us", None)], ALWAYS, [None, None], id="crossing with hedges"),
        pytest.param([("eu", None), ("eu", None), ("us", None)], NEVER, [None, None, ONE], id="two sides"),
        pytest.param([("eu", None), ("eu", BILLED), ("us", None)], NEVER, [BILLED, None, ONE], id="a side that bills"),
    ],
)
def test_reasons_by_replica(pool: Pool, crossing: Crossing, expected: list[Denial | None]) -> None:
    """A request can be hedged if another replica within its boundary takes hedges; with hedging off no one can be."""
    stops = {None: True, BILLED: False, UNKNOWN: None}
    targets = [HedgeTarget(str(number), side, stops[bar]) for number, (side, bar) in enumerate(pool)]
    assert list(never_hedged(targets, off=False, crossing=crossing).values()) == expected
    assert set(never_hedged(targets, off=True, crossing=crossing).values()) == {OFF}


def test_every_reason_is_explained() -> None:
    """A reason that does not depend on the plan has a sentence in hedging/possible.py; the gate has its own."""
    assert set(EXPLANATIONS) == set(Denial) - {Denial.LOW_GAIN, Denial.QUOTA, Denial.BUDGET}


@pytest.mark.parametrize(
    ("stops", "allowed", "expected"),
    [
        (True, False, None),
        (True, True, None),
        (False, False, BILLED),
        (False, True, None),
        (None, False, UNKNOWN),
        (None, True, None),
    ],
)
def test_a_bill_bars_hedges_unless_it_is_allowed(*, stops: bool | None, allowed: bool, expected: Denial | None) -> None:
    """Hedges go where cancelling stops the bill, or where the bill is accepted; a replica keeps the reason."""
    assert HedgeTarget("a", None, stops, allowed).barred is expected
    takes, unknown = expected is None, stops is None
    replica = Replica("a", Scripted(), hedgeable=takes, bills_cancelled=not stops, billing_unknown=unknown)
    assert target_of(replica).barred is expected
