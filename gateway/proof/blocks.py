"""Counts of requests by spans of time, the blocks of an experiment on a running gateway. Pure.

Units: seconds, tokens, money in the configuration's currency.
"""

from collections.abc import Iterable, Sequence

import msgspec

from gateway.proof.tally import REQUESTS, GroupTimes, Tally, merged_tallies


class Block(msgspec.Struct):
    """The counts of the requests that arrived in one span of time, by model."""

    name: str
    models: dict[str, Tally] = {}


class ModelCounts(msgspec.Struct, frozen=True):
    """The counts of one model in one block.

    Attributes:
        slo_s: TTFT above which a request is a miss.
        limit_s: limit of the TTFTs.
        requests: number of requests that have ended.
        misses: these above the TTFT of the SLO.
        sum_s: sum of their TTFTs.
        hedges: number of backups.
        tokens, cost: tokens and money billed for attempts that lost; the money is None without prices.
        bins: number of TTFTs by bin (`gateway.proof.tally.upper_s`).
    """

    slo_s: float
    limit_s: float
    requests: int = 0
    misses: int = 0
    sum_s: float = 0.0
    hedges: int = 0
    tokens: int = 0
    cost: float | None = None
    bins: dict[int, int] = {}


class BlockReport(msgspec.Struct, frozen=True):
    """One block as the admin address shows it."""

    block: str
    models: dict[str, ModelCounts]


def reports(blocks: Iterable[Block]) -> list[BlockReport]:
    """Describe the blocks."""
    return [BlockReport(block.name, {name: counts_of(each) for name, each in block.models.items()}) for block in blocks]


def counts_of(tally: Tally) -> ModelCounts:
    """Return the counts of all requests, with whatever hedges they had."""
    times = GroupTimes()
    for group in REQUESTS:
        if group in tally.groups:
            times.merge(tally.groups[group])
    return ModelCounts(
        tally.slo_s,
        tally.limit_s,
        times.count,
        times.misses,
        times.sum_s,
        tally.hedges,
        tally.tokens,
        tally.cost,
        times.bins,
    )


def merged(each: Iterable[Sequence[Block]]) -> list[Block]:
    """Add the blocks of several processes."""
    found: dict[str, list[dict[str, Tally]]] = {}
    for blocks in each:
        for block in blocks:
            found.setdefault(block.name, []).append(block.models)
    return [Block(name, merged_tallies(models)) for name, models in found.items()]


def added(each: Iterable[ModelCounts]) -> ModelCounts | None:
    """Add the counts of one model at several gateways; None without any."""
    total: ModelCounts | None = None
    for counts in each:
        if total is None:
            total = counts
            continue
        costs = [cost for cost in (total.cost, counts.cost) if cost is not None]
        bins = dict(total.bins)
        for index, count in counts.bins.items():
            bins[index] = bins.get(index, 0) + count
        total = ModelCounts(
            total.slo_s,
            total.limit_s,
            total.requests + counts.requests,
            total.misses + counts.misses,
            total.sum_s + counts.sum_s,
            total.hedges + counts.hedges,
            total.tokens + counts.tokens,
            sum(costs) if costs else None,
            bins,
        )
    return total
