"""A pool reports the true reason for which a late request cannot be hedged."""

import pytest

from defaults import default_hedging
from gateway.observe.describe import usual_delay_s
from pooled import Seen
from scripted import Scripted
from ttft_gateway.hedging.contract import Denied, RequestFacts
from ttft_gateway.hedging.outcomes import Denial
from ttft_gateway.hedging.plan import Policy
from ttft_gateway.pool.pool import Pool
from ttft_gateway.routing.replicas import Replica


def built(*billing: bool | None, policy: Policy = Policy.ADAPTIVE) -> Pool:
    """A pool of replicas a, b, ...: True stops billing when cancelled, None is unknown."""
    replicas = [
        Replica(name, Scripted(), hedgeable=bool(stops), bills_cancelled=not stops, billing_unknown=stops is None)
        for name, stops in zip("abc", billing, strict=False)
    ]
    return Pool("m", replicas, default_hedging(policy=policy))


def denial(pool: Pool, first: int) -> Denial:
    """Reason for not hedging a late request that was sent to this replica."""
    facts, late = RequestFacts(), Seen(pool.replicas[first], 0.0)
    pool.on_sent(late, facts, None, is_first=True)
    decision = pool.decide(facts, late, [late], [late.replica], 30.0, 0.0)
    assert isinstance(decision, Denied)
    assert decision.why
    return decision.reason


@pytest.mark.parametrize(
    ("billing", "expected"),
    [
        ([False, False], Denial.BILLED),
        ([True, False], Denial.BILLED),
        ([None, None], Denial.BILLING_UNKNOWN),
        ([True, None], Denial.BILLING_UNKNOWN),
        ([True], Denial.ONE_REPLICA),
    ],
)
def test_what_the_configuration_rules_out_has_its_own_reason(billing: list[bool | None], expected: Denial) -> None:
    """The denial of a late request, and the reason that is shown before any request, are the same."""
    pool = built(*billing)
    assert pool.never_hedged(pool.replicas[0]) is expected
    assert denial(pool, 0) is expected
    assert usual_delay_s(pool, pool.replicas[0], 0.0) is None


def test_a_configured_delay_is_shown_before_any_request() -> None:
    """The delay of the static policy needs no sample, and is at least the minimum delay."""
    for delay_s, shown_s in ((0.3, 0.3), (0.001, 0.005)):
        settings = default_hedging(policy=Policy.STATIC, static_delay_s=delay_s, hedge_delay_min_s=0.005)
        pool = Pool("m", [Replica("a", Scripted()), Replica("b", Scripted())], settings)
        assert usual_delay_s(pool, pool.replicas[0], 0.0) == shown_s


def test_no_replica_is_for_what_may_be_tried_later() -> None:
    """A replica that takes hedges and is not healthy now is no reason that lasts."""
    pool = built(True, True, False)
    pool.replicas[1].breaker.trip(0.0)
    pool.replicas[1].breaker.trip(0.0)
    assert pool.never_hedged(pool.replicas[0]) is None
    assert denial(pool, 0) is Denial.NO_REPLICA


def test_hidden_reasoning_is_learned() -> None:
    """Answers with hidden reasoning rule hedging out where the configuration allows it."""
    pool, billed = built(True, True), built(False, False)
    for each in (pool, billed):
        each.first_token.add_answer(hidden=True)
    assert pool.never_hedged(pool.replicas[0]) is Denial.HIDDEN_REASONING
    assert billed.never_hedged(billed.replicas[0]) is Denial.BILLED
    assert denial(pool, 0) is Denial.HIDDEN_REASONING


def test_a_policy_of_off_comes_first() -> None:
    """With hedging off nothing else is a reason."""
    pool = built(None, policy=Policy.OFF)
    assert pool.never_hedged(pool.replicas[0]) is Denial.OFF


def test_no_hedge_is_sent_before_the_minimum_delay() -> None:
    """The minimum also holds for a pool that has learned nothing yet."""
    replica = Replica("a", Scripted())
    settings = default_hedging(cold_start_delay_s=0.1, hedge_delay_min_s=0.5)
    pool = Pool("p", [replica, Replica("b", Scripted())], settings)
    attempt = Seen(replica, 0.0)
    pool.on_sent(attempt, RequestFacts(), None, is_first=True)
    assert pool.delay_s(attempt, RequestFacts()) == 0.5
