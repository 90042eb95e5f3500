"""The total effect from pairs of blocks: its intervals against known effects, and too little data."""

import math
import random

import pytest

from gateway.proof.blocks import ModelCounts, added
from gateway.proof.switchback import Pair, TotalEffect, random_order, total_effect
from gateway.proof.tally import GroupTimes, upper_s


def block(chance: random.Random, median_s: float, requests: int = 300) -> ModelCounts:
    """A block with lognormal TTFTs."""
    times = GroupTimes()
    for _ in range(requests):
        times.add(min(10.0, chance.lognormvariate(math.log(median_s), 0.5)), 0.5)
    return ModelCounts(0.5, 10.0, times.count, times.misses, times.sum_s, bins=times.bins)


def estimate(seed: int, on_s: float, pairs: int = 8) -> TotalEffect:
    """The effect of a change of the median from 0.3 s, over blocks of different speed."""
    chance = random.Random(seed)
    found = []
    for _ in range(pairs):
        speed = chance.uniform(0.8, 1.25)
        found.append(Pair(block(chance, 0.3 * speed), block(chance, on_s * speed)))
    effect = total_effect("m", found, chance.random)
    assert effect is not None
    return effect


def test_intervals_contain_the_effect() -> None:
    """A fall of the median from 300 to 200 ms is found, and its interval contains it, in most of five draws."""
    effects = [estimate(seed, 0.2) for seed in range(5)]
    saved = [effect.p50_ms.saved for effect in effects]
    covering = sum(each is not None and each.low <= 100.0 <= each.high for each in saved)
    assert covering >= 3
    assert all(each is not None and each.low > 0 for each in saved)
    assert all(effect.p50_ms.chance is not None and effect.p50_ms.chance < 0.05 for effect in effects)


def test_no_effect_is_no_effect() -> None:
    """With equal arms, few of five draws have a small chance."""
    chances = [estimate(seed, 0.3).misses.chance for seed in range(5)]
    assert sum(chance is not None and chance < 0.05 for chance in chances) <= 2


def test_orders_are_balanced_in_pairs() -> None:
    """Of each two blocks one has hedging, and both orders occur."""
    order = random_order(20, random.Random(3).random)
    firsts = order[::2]
    assert [not first for first in firsts] == order[1::2]
    assert 0 < sum(firsts) < 20


def test_too_little_data() -> None:
    """Without requests there is no estimate; with two pairs or few requests, no interval or quantile."""
    empty, few = ModelCounts(0.5, 10.0), block(random.Random(1), 0.3, 100)
    assert total_effect("m", [Pair(empty, few), Pair(few, empty)], random.Random(1).random) is None
    two = total_effect("m", [Pair(few, few)] * 2, random.Random(1).random)
    assert two is not None
    assert (two.pairs, two.misses.saved, two.p99_ms.off) == (2, None, None)
    same = total_effect("m", [Pair(few, few)] * 3, random.Random(1).random)
    assert same is not None
    assert same.misses.saved is not None
    assert same.misses.saved.value == 0.0
    assert same.p50_ms.off == pytest.approx(1000 * upper_s(sorted(few.bins)[len(few.bins) // 2]), rel=0.3)


def test_counts_of_gateways_add_up() -> None:
    """Their bins and sums are added; without any there are none."""
    one = ModelCounts(0.5, 10.0, 2, 1, 0.7, 1, 100, 0.1, {5: 1, 7: 1})
    assert added([]) is None
    assert added([one, one]) == ModelCounts(0.5, 10.0, 4, 2, 1.4, 2, 200, 0.2, {5: 2, 7: 2})
