"""The parts of a gateway's models that several gateways share. Pure."""

from collections.abc import Mapping, Sequence

from gateway.limits.budget import RetryBudget
from gateway.limits.ledger import Ledger
from gateway.pool.pool import Pool
from gateway.pool.shared_learning import SharedLearning
from gateway.pool.shared_loads import SharedLoads
from gateway.pool.shared_quotas import SharedQuota
from gateway.share.sync import Part


def shared_parts(models: Sequence[tuple[Sequence[Pool], RetryBudget]], ledgers: Mapping[str, Ledger]) -> list[Part]:
    """Return what gateways share of their models and quotas.

    Args:
        models: pools and retries of each model.
        ledgers: ledgers by quota.
    """
    parts: list[Part] = [SharedQuota(name, ledger) for name, ledger in ledgers.items()]
    for pools, retries in models:
        for number, pool in enumerate(pools):
            loads = SharedLoads(pool, None if number else retries)
            parts += [loads, SharedLearning(pool, loads)]
    return parts
