"""The parts of a gateway's models that several gateways share. Pure."""

from collections.abc import Mapping, Sequence

from gateway.limits.budget import RetryBudget
from gateway.limits.ledger import Ledger
from gateway.pool.pool import Pool
from gateway.pool.shared_learning import SharedLearning
from gateway.pool.shared_loads import SharedLoads
from gateway.pool.shared_quotas import SharedQuota
from gateway.share.sync import Part
from gateway.share.words import Drop, keep_silent


def shared_parts(
    models: Sequence[tuple[Sequence[Pool], RetryBudget]],
    ledgers: Mapping[str, Ledger],
    old: Sequence[Part] = (),
    drop: Drop = keep_silent,
) -> list[Part]:
    """Return what gateways share of their models and quotas.

    Args:
        models: pools and retries of each model.
        ledgers: ledgers by quota.
        old: parts of the previous models and quotas; those of what is still in use go on.
        drop: receives what other gateways have sent and is out of range.
    """
    quotas = {part.ledger: part for part in old if isinstance(part, SharedQuota)}
    loads = {part.pool: part for part in old if isinstance(part, SharedLoads)}
    learned = [part for part in old if isinstance(part, SharedLearning)]
    parts: list[Part] = [quotas.get(ledger) or SharedQuota(name, ledger, drop) for name, ledger in ledgers.items()]
    for pools, retries in models:
        for number, pool in enumerate(pools):
            shared = loads.get(pool) or SharedLoads(pool, None if number else retries, drop)
            parts += [shared, SharedLearning(pool, shared, drop, learned)]
    return parts
