"""Decides whether a pool sends or takes a guard, and pays for it, from the state of all parts of the pool. Pure.

`guards.py` decides when a stream is silent or slow. Units: seconds of the loop's clock, tokens.
"""

from ttft_gateway.hedging.contract import AttemptView, RequestFacts
from ttft_gateway.hedging.outcomes import GuardCause
from ttft_gateway.pool.pool import Pool
from ttft_gateway.routing.replicas import Replica


def may_guard(pool: Pool, late: AttemptView, facts: RequestFacts, cause: GuardCause, now_s: float) -> bool:
    """Return True if a guard may be sent beside a stream of a pool, if its budget can pay for the prompt."""
    if facts.hedge_off is not None or not pool.hedging_on or late.is_paced:
        return False
    if not pool.budget.requests.affords(now_s):
        return False
    return pool.guards.allows(cause, sum(load.contents for load in pool.loads.of.values()))


def takes_guard(
    pool: Pool, replica: Replica, facts: RequestFacts, late: AttemptView, cause: GuardCause, now_s: float
) -> bool:
    """Return True if a replica of a pool may be sent a guard: it takes hedges, and has not the same fault."""
    is_free = replica.hedgeable and replica.breaker.is_closed(now_s) and pool.quotas.has_room(replica, facts, now_s)
    is_answering = is_free and not pool.loads.is_suspect(replica, now_s)
    return is_answering and late.watch is not None and pool.guards.is_well(replica, late, late.watch, cause)


def pay_guard(
    pool: Pool,
    late: AttemptView,
    target: Replica,
    facts: RequestFacts,
    cause: GuardCause,
    uncached: float,
    now_s: float,
) -> bool:
    """Pay for a guard beside a stream of a pool; return False if the hedge budget is too low.

    Args:
        facts: facts about the call of the guard.
        uncached: its prompt tokens that the target has to compute.
    """
    answer_tokens = pool.answer_tokens(facts)
    cost = pool.budget.hedge_cost(late.replica, target, facts.prompt_tokens, uncached, answer_tokens)
    if not pool.budget.affords(cost, now_s):
        return False
    pool.budget.settle(pool.budget.reserve(cost, now_s))
    pool.guards.on_sent(cause)
    return True
