"""The parts of a gateway's models that several gateways share. Pure."""

from collections.abc import Sequence

from gateway.limits.budget import RetryBudget
from gateway.pool.pool import Pool
from gateway.pool.shared_learning import SharedLearning
from gateway.pool.shared_loads import SharedLoads
from gateway.share.sync import Part


def shared_parts(models: Sequence[tuple[Sequence[Pool], RetryBudget]]) -> list[Part]:
    """Return what gateways share of their models.

    Args:
        models: pools and retries of each model.
    """
    parts: list[Part] = []
    for pools, retries in models:
        for number, pool in enumerate(pools):
            loads = SharedLoads(pool, None if number else retries)
            parts += [loads, SharedLearning(pool, loads)]
    return parts
