"""What several gateways have learned: the bins of one gateway, one base, one fit, and a plan for a newcomer."""

import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gateway.share.messages import SliceAnswer
from gateway.share.pools import SampleExchange, exchanges_of
from gateway.share.slices import Slice
from gateway.workers.merging import merged_learned
from pooled import pool as new_pool
from together import Together
from ttft_gateway.estimation.tokens import TokenScale
from ttft_gateway.estimation.window import Bins
from ttft_gateway.limits.budget import RetryBudget
from ttft_gateway.pool.learned import LearnedModel, LearnedPool, learned_pool, restore_pool
from ttft_gateway.pool.pool import Pool


def bins(pool: Pool, now_s: float) -> tuple[list[float], list[int], list[int]]:
    """The histogram of the ratios."""
    found: Bins = pool.learning.ratios.bins(now_s)
    return list(found.values), list(found.events), list(found.censored)


@settings(max_examples=10, deadline=None)
@given(st.integers(0, 2**32), st.integers(1, 5))
def test_bins_are_those_of_one_gateway(seed: int, gateways: int) -> None:
    """Wherever samples are taken, every gateway has the same histogram as one that takes them all."""
    rng, together, one = random.Random(seed), Together(gateways), new_pool(None, None, None)
    together.settle(0.0)
    for second in range(8):
        for _ in range(rng.randrange(60)):
            x, is_event = rng.lognormvariate(0.0, 1.0), rng.random() < 0.5
            for learning in (rng.choice(together.pools).learning, one.learning):
                add = learning.add_content if is_event else learning.add_given_up
                add("a", x, 1.0, float(second))
        together.exchange(second + 1.0)
    together.exchange(10.0)
    together.exchange(11.0)
    for pool in together.pools:
        assert bins(pool, 11.0) == bins(one, 11.0)


def test_a_change_of_replicas_counts_no_sample_twice() -> None:
    """The exchange goes on where it was, with the same learned state in another pool."""
    together, one = Together(2), new_pool(None, None, None)
    together.settle(0.0)
    for second in range(6):
        for learning in (together.pools[second % 2].learning, one.learning):
            learning.add_content("a", 1.0 + second, 1.0, float(second))
        together.exchange(second + 1.0)
        together.replace(second % 2)
    together.exchange(10.0)
    together.exchange(11.0)
    for pool in together.pools:
        assert bins(pool, 11.0) == bins(one, 11.0)


def teach(pool: Pool, rng: random.Random, count: int, now_s: float) -> None:
    """First contents by the law 0.1 s + 0.1 ms a token."""
    for _ in range(count):
        tokens = rng.uniform(10.0, 2_000.0)
        ttft_s = (0.1 + 1e-4 * tokens) * rng.lognormvariate(0.0, 0.1)
        pool.learning.predictor.add("a", ttft_s, tokens, 0.0, now_s)
        predicted_s = pool.learning.predictor.predict("a", tokens, 0.0, now_s)
        pool.learning.add_content("a", ttft_s, predicted_s, now_s)


def test_few_samples_each_are_enough_together() -> None:
    """Ten gateways with twelve samples each have a plan and one law; each alone would have none."""
    together, rng = Together(10), random.Random(1)
    together.settle(0.0)
    for second in range(4):
        for pool in together.pools:
            teach(pool, rng, 3, second + 0.5)
        together.exchange(second + 1.0)
    together.exchange(6.0)
    together.exchange(7.0)
    for pool in together.pools:
        b, s, _ = pool.learning.predictor.coefficients
        assert b == pytest.approx(0.1, rel=0.3)
        assert s == pytest.approx(1e-4, rel=0.3)
        assert pool.learning.plan("a", 7.0) is not None


def test_a_newcomer_has_a_plan_after_its_first_exchange() -> None:
    """It reads what the others have learned in the last minutes."""
    together, rng = Together(2), random.Random(2)
    for second in range(100):
        for pool in together.pools:
            teach(pool, rng, 2, float(second))
        together.exchange(second + 0.9)
    newcomer = together.join()
    together.exchange(100.5, processes=[2])
    assert newcomer.learning.plan("a", 100.6) is not None
    known, found = (pool.learning.predictor.predict("a", 1_000.0, 0.0, 100.6) for pool in together.pools[1:])
    assert known is not None
    assert found == pytest.approx(known, rel=0.05)


def test_requests_in_flight_count_for_all_as_soon_as_for_one() -> None:
    """Four gateways with 16 to 32 samples of slots each know of them together, and so does a newcomer."""
    together, rng = Together(4), random.Random(4)
    together.settle(0.0)
    for second in range(3):
        for pool in together.pools:
            for _ in range(16 if second < 2 else 0):
                crowd = rng.uniform(-1.0, 1.0)
                pool.learning.crowding.add(crowd, 0.5 * rng.lognormvariate(0.7 * crowd, 0.4), 0.5)
            assert second > 1 or not pool.learning.crowding.matters
        together.exchange(second + 0.9)
    together.exchange(4.0)
    newcomer = together.join()
    together.exchange(5.0)
    together.exchange(6.0)
    assert all(pool.learning.crowding.matters for pool in (*together.pools, newcomer))


def test_laws_agree() -> None:
    """The fits of all gateways equal the fit of one gateway with all samples, but for the order of the samples."""
    together, one = Together(3), new_pool(None, None, None)
    rng, same = random.Random(3), random.Random(3)
    for second in range(60):
        for pool in together.pools:
            teach(pool, rng, 5, float(second))
            teach(one, same, 5, float(second))
        together.exchange(second + 0.9)
    expected = one.learning.predictor.predict("a", 500.0, 0.0, 61.0)
    assert expected is not None
    for pool in together.pools:
        assert pool.learning.predictor.predict("a", 500.0, 0.0, 61.0) == pytest.approx(expected, rel=0.03)


def test_engines_learn_nothing_from_others_without_their_loads() -> None:
    """The same predictions without the same loads would send everything to one engine."""
    for period_s, expected in ((0.1, 40), (1.0, 20)):
        together = Together(2, batches=True)
        for second in range(1, 20):
            for pool in together.pools:
                pool.learning.add_content("a", 1.0, 1.0, float(second)) if second == 5 else None
            together.exchange(float(second), period_s=period_s)
        counts = {pool.learning.ratios.count(20.0) for pool in together.pools}
        assert counts == {expected // 20}


def test_what_was_seen_is_not_counted_again() -> None:
    """Own counts, known bins and a lost reply add nothing; an engine that has lost everything begins again."""
    slice_ = Slice()
    slice_.ask("k", {"e1": 2})
    assert slice_.others(SliceAnswer(7, {6: {"e1": 1}})) == {"e1": 1}
    slice_.ask("k", {"e1": 1})
    assert slice_.others(SliceAnswer(7, {})) == {}
    slice_.ask("k", {"e2": 9})  # its reply is lost
    ask = slice_.ask("k", {"e2": 1})
    assert ask.since == 7
    assert slice_.others(SliceAnswer(8, {7: {"e1": 8}})) == {"e1": 5}
    slice_.ask("k", {})
    assert slice_.others(SliceAnswer(9, {8: {"e2": 10, "e3": 3}})) == {"e3": 3}
    slice_.ask("k", {"e1": 1})
    assert slice_.others(SliceAnswer(3, {2: {"e3": 3}})) == {"e3": 3}


def taught(together: Together, rng: random.Random, start_s: float, seconds: int) -> None:
    """Let every gateway learn, and exchange, for some time."""
    for second in range(seconds):
        for pool in together.pools:
            teach(pool, rng, 5, start_s + second)
        together.exchange(start_s + second + 0.9)
    together.settle(start_s + seconds + 1.0)


def counts(pool: Pool, now_s: float) -> tuple[int, int]:
    """First contents, and ratios."""
    return pool.learning.state(now_s).contents, pool.learning.ratios.count(now_s)


def test_a_reload_counts_nothing_again() -> None:
    """New pools with the samples of old ones go on where the old ones were, their unsent samples included."""
    together, rng = Together(2), random.Random(4)
    taught(together, rng, 0.0, 20)
    before = [counts(pool, 22.5) for pool in together.pools]
    teach(together.pools[0], rng, 3, 22.6)
    together.reload(0)
    together.settle(23.0)
    together.settle(24.5)
    found = [counts(pool, 26.0) for pool in together.pools]
    assert found == [(contents + 3, ratios + 3) for contents, ratios in before]


def state_of(pool: Pool, now_s: float) -> dict[str, LearnedModel]:
    """The learned state of a gateway with this pool."""
    state = list(learned_pool(pool, now_s))[-1]
    assert isinstance(state, LearnedPool)
    return {"m": LearnedModel(TokenScale().state, {pool.name: state})}


def test_samples_of_workers_are_counted_once() -> None:
    """In the learned file, by a worker that replaces another one, and after restarts with that file."""
    together, rng = Together(3), random.Random(5)
    taught(together, rng, 0.0, 20)
    expected = counts(together.pools[0], 22.5)
    for _ in range(3):  # restarts
        saved = merged_learned([state_of(pool, 22.5) for pool in together.pools])
        [learned] = saved["m"].pools.values()
        together = Together(3)
        for pool in together.pools:
            assert restore_pool(pool, learned, 0.0, 22.5)
        together.settle(22.5)
        assert [counts(pool, 24.0) for pool in together.pools] == [expected] * 3
    taught(together, rng, 25.0, 5)
    expected = counts(together.pools[0], 31.5)
    saved = merged_learned([state_of(pool, 31.5) for pool in together.pools])
    newcomer = together.join()
    assert restore_pool(newcomer, next(iter(saved["m"].pools.values())), 0.0, 31.5)
    together.settle(31.6)
    together.settle(33.0)
    assert [counts(pool, 34.0) for pool in together.pools] == [expected] * 4


def test_a_pool_that_a_reload_keeps_goes_on_with_its_exchanges() -> None:
    """The exchanges of a pool that is the same are the same objects, and a new pool with its samples has its state."""
    kept, old, new = (new_pool(None, None) for _ in range(3))
    retries = RetryBudget()
    before = exchanges_of([([kept], retries), ([old], retries)], {})
    for each in before:
        each.asks(1.0, 0.1)
    new.learning = old.learning
    after = exchanges_of([([kept], retries), ([new], retries)], {}, before)
    assert [one is other for one, other in zip(before, after, strict=True)] == [True, True, False, False]
    assert isinstance(before[3], SampleExchange)
    assert isinstance(after[3], SampleExchange)
    assert after[3].state is before[3].state is not None
