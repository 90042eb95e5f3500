"""The predictor: finds the law and the levels, and stragglers, losers and idleness move it as they must."""

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ttft_gateway.estimation.predictor import Predictor

LAW = (0.18, 1 / 16_000, 1 / 10_000)


def trained(
    samples: int, *, noise: float = 0.0, levels: dict[str, float] | None = None, law: tuple[float, float, float] = LAW
) -> Predictor:
    """Build a predictor from `samples` samples of a law, one every 50 ms, the last one at samples / 20 s."""
    rng = np.random.default_rng(5)
    predictor = Predictor()
    replicas = levels or {"a": 1.0}
    b, s, c = law
    for n in range(samples):
        replica = list(replicas)[n % len(replicas)]
        uncached, pending = float(rng.lognormal(6.5, 1.0)), float(rng.choice([0.0, 0.0, 500.0, 3_000.0]))
        ttft_s = replicas[replica] * (b + s * uncached + c * pending) * float(np.exp(noise * rng.normal()))
        predictor.add(replica, ttft_s, uncached, pending, n / 20)
        if n % 10 == 9:
            predictor.fold(n / 20)
    predictor.fold(samples / 20)
    return predictor


def predicted(predictor: Predictor, replica: str, uncached: float, pending: float, now_s: float) -> float:
    """A prediction that must exist."""
    value = predictor.predict(replica, uncached, pending, now_s)
    assert value is not None
    return value


def test_nothing_is_predicted_before_the_first_sample() -> None:
    """Without a first content there is no prediction, also after a late loser, and levels are 1."""
    predictor = Predictor()
    assert predictor.predict("a", 100.0, 0.0, 0.0) is None
    predictor.add_late("a", 5.0, 100.0, 0.0, 0.0)
    assert predictor.predict("a", 100.0, 0.0, 1.0) is None
    assert predictor.coefficients == (0.0, 0.0, 0.0)
    assert predictor.level_median == 1.0


def test_the_first_samples_fit_b_only() -> None:
    """Up to 20 samples the prediction is their median, with all levels 1: one tiny TTFT changes little."""
    predictor = Predictor()
    for n, ttft_s in enumerate([0.0001, *[0.1, 0.2, 0.4] * 6]):
        predictor.add("ab"[n % 2], ttft_s, 1_000.0 * n, 50.0, 0.0)
    for replica, uncached in (("a", 0.0), ("b", 30_000.0), ("never seen", 5.0)):
        assert predicted(predictor, replica, uncached, 0.0, 0.0) == 0.2
    assert set(predictor.levels.values()) <= {1.0}


def test_it_finds_the_law() -> None:
    """Without noise the coefficients are those that made the samples."""
    assert trained(600).coefficients == pytest.approx(LAW, rel=0.02)


def test_it_finds_the_law_through_noise_and_levels() -> None:
    """With noise of 30 % and replicas at 1 and 2, predictions are within 15 % of the typical TTFT on both."""
    predictor = trained(2_000, noise=0.3, levels={"a": 1.0, "b": 2.0})
    for uncached, pending in ((200.0, 0.0), (2_000.0, 0.0), (2_000.0, 3_000.0), (8_000.0, 0.0)):
        typical_s = LAW[0] + LAW[1] * uncached + LAW[2] * pending
        assert predicted(predictor, "a", uncached, pending, 100.0) == pytest.approx(typical_s, rel=0.15)
        assert predicted(predictor, "b", uncached, pending, 100.0) == pytest.approx(2 * typical_s, rel=0.15)


@pytest.mark.parametrize("drift", [0.0, 0.3])
@pytest.mark.parametrize(
    ("shortest", "longest", "pending"),
    [(13, 13, 0), (12, 13, 0), (12, 12.75, 0), (12, 20, 0), (12, 20, 40), (10, 60, 0)],
)
def test_prompts_of_nearly_one_length_show_no_slope(
    shortest: float, longest: float, pending: float, drift: float
) -> None:
    """After 150 prompts of nearly one length, a prompt of 2,300 tokens is predicted within a factor of 2."""
    for seed in range(6):
        rng, predictor = np.random.default_rng(seed), Predictor()
        for n in range(150):
            part = n / 150 if longest == 12.75 else float(rng.random())  # tokens that grow with time, like the drift
            ttft_s = 0.2 * (1.0 + drift * n / 150) * float(np.exp(0.25 * rng.normal()))
            uncached = shortest + part * (longest - shortest)
            predictor.add("abc"[n % 3], ttft_s, uncached, float(rng.random()) * pending, n / 2)
            predictor.fold(n / 2)
        for waiting in (0.0, 2_300.0) if pending else (0.0,):
            assert 0.1 * (1.0 + drift) <= predicted(predictor, "a", 2_300.0, waiting, 75.0) <= 0.4
        assert shortest * 0.9 <= predictor.usual_tokens <= longest * 1.1


def test_a_steep_slope_is_found_in_short_prompts() -> None:
    """The law of an engine with 10 ms a token is found in prompts of 10 to 60 tokens, which explain its TTFT."""
    rng, predictor = np.random.default_rng(1), Predictor()
    for n in range(150):
        uncached = float(rng.uniform(10, 60))
        predictor.add("a", (0.05 + 0.01 * uncached) * float(np.exp(0.25 * rng.normal())), uncached, 0.0, n / 2)
        predictor.fold(n / 2)
    assert predicted(predictor, "a", 10.0, 0.0, 75.0) == pytest.approx(0.15, rel=0.3)
    assert predicted(predictor, "a", 60.0, 0.0, 75.0) == pytest.approx(0.65, rel=0.2)


def test_the_usual_prompt_follows_the_traffic() -> None:
    """The usual prompt is the median from the first samples on, moves with the traffic, and survives a restart."""
    predictor = Predictor()
    for n in range(20):
        predictor.add("a", 0.2, 10.0 + n % 3, 0.0, float(n))
    predictor.fold(20.0)
    assert predictor.usual_tokens == 11.0
    for n in range(300):
        predictor.add("a", 0.3, 2_000.0, 0.0, 20.0 + n)
    predictor.fold(320.0)
    assert predictor.usual_tokens == pytest.approx(2_000.0, rel=0.05)
    restored = Predictor.restored(predictor.state(320.0), 0.0, 0.0)
    assert restored.usual_tokens == pytest.approx(2_000.0, rel=0.5)


@given(st.lists(st.tuples(st.floats(1e-4, 1e3), st.floats(0, 1e5), st.floats(0, 1e5)), min_size=1, max_size=120))
def test_coefficients_are_never_negative(samples: list[tuple[float, float, float]]) -> None:
    """For any samples, no coefficient is below 0, and every prediction is positive and finite."""
    predictor = Predictor()
    for n, (ttft_s, uncached, pending) in enumerate(samples):
        predictor.add("a", ttft_s, uncached, pending, float(n))
        value = predictor.predict("a", uncached, pending, float(n))
        assert value is not None
        assert 0.0 < value < math.inf
    assert min(predictor.coefficients) >= 0.0


def test_a_straggler_moves_the_level_little_and_the_fit_not_at_all() -> None:
    """A sample that is off by e^1.4 does not enter the fit, and moves the level by at most 0.03."""
    predictor = trained(600)
    before = predictor.coefficients
    level = math.log(predictor.levels["a"])
    for _ in range(8):
        predictor.add("a", 60.0, 500.0, 0.0, 30.0)
    predictor.fold(30.0)
    assert predictor.coefficients == before
    assert math.log(predictor.levels["a"]) == pytest.approx(level + 8 * 0.03, abs=0.001)


def test_a_slow_replica_is_followed_within_fifty_samples() -> None:
    """A replica that becomes three times slower is predicted so, the other one stays."""
    predictor = trained(600, levels={"a": 1.0, "b": 1.0})
    for n in range(100):
        predictor.add("ab"[n % 2], 0.18 * (3.0 if n % 2 else 1.0), 0.0, 0.0, 30.0 + n / 20)
        predictor.fold(30.0 + n / 20)
    fast_s, slow_s = (predicted(predictor, replica, 0.0, 0.0, 35.0) for replica in "ab")
    assert 2.3 <= slow_s / fast_s <= 3.2
    assert fast_s == pytest.approx(0.18, rel=0.25)


def test_many_samples_at_once_are_followed_by_their_median() -> None:
    """A batch of many moves a level most of the way to their median: in one step if all are slow, hardly if few are."""
    predictor = trained(600)
    level = math.log(predictor.levels["a"])
    for n in range(20):
        predictor.add("a", 60.0 if n % 4 == 0 else 0.18, 0.0, 0.0, 30.0)
    predictor.fold(30.0)
    assert math.log(predictor.levels["a"]) == pytest.approx(level, abs=0.01)
    for _ in range(20):
        predictor.add("a", 0.36, 0.0, 0.0, 30.0)
    predictor.fold(30.0)
    assert math.log(predictor.levels["a"]) == pytest.approx(level + 0.65 * math.log(2), abs=0.02)


def test_an_unconfirmed_level_drifts_to_one() -> None:
    """Without samples the logarithm of a level falls by e in 30 s."""
    predictor = trained(1_000, levels={"a": 1.0, "b": 1.5})
    before = math.log(predictor.levels["b"])
    predictor.fold(50.0 + 30.0)
    assert math.log(predictor.levels["b"]) == pytest.approx(before / math.e)
    predictor.fold(600.0)
    assert predictor.levels["b"] == pytest.approx(1.0, abs=1e-6)


def test_a_prediction_is_fresh_without_a_call_of_fold() -> None:
    """A prediction after a long silence already contains the drift."""
    predictor = trained(1_000, levels={"a": 1.0, "b": 2.0})
    b = predictor.coefficients[0]
    assert predicted(predictor, "b", 0.0, 0.0, 1_000.0) == pytest.approx(b, rel=1e-3)


@pytest.mark.parametrize(("waited_s", "moves"), [(0.05, False), (1.0, True)])
def test_an_attempt_without_content_counts_only_if_late(waited_s: float, *, moves: bool) -> None:
    """A loser cancelled early changes nothing; cancelled late, it raises the level, and never enters the fit."""
    predictor = trained(600)
    before = predictor.coefficients, predictor.levels["a"]
    for _ in range(10):
        predictor.add_late("a", waited_s, 0.0, 0.0, 30.0)
    predictor.fold(30.0)
    assert predictor.coefficients == before[0]
    assert (predictor.levels["a"] > before[1] * 1.2) is moves
    assert moves or predictor.levels["a"] == pytest.approx(before[1])


def test_the_scale_belongs_to_b_alone() -> None:
    """If all replicas become five times slower, the levels follow first, then b takes over."""
    predictor = trained(1_000, levels={"a": 1.0, "b": 1.0}, law=(0.1, 0.0, 0.0))
    for n in range(4_000):
        predictor.add("ab"[n % 2], 0.5, 100.0, 0.0, 50.0 + n / 20)
        predictor.fold(50.0 + n / 20)
        if n == 100:
            assert predicted(predictor, "a", 100.0, 0.0, 55.0) > 0.25
    assert predictor.coefficients[0] == pytest.approx(0.5, rel=0.05)
    assert predictor.level_median == pytest.approx(1.0, rel=0.05)


@pytest.mark.parametrize("every_s", [0.05, 0.6, 5.0])
@pytest.mark.parametrize("factor", [3.0, 15.0])
@pytest.mark.parametrize("samples", [60, 400, 1_500])
def test_a_slow_time_leaves_no_trace_in_the_law(every_s: float, factor: float, samples: int) -> None:
    """Pending tokens grow with the TTFT for any cause; 30 samples after a repair, the prediction is as before."""
    rng, predictor, now_s = np.random.default_rng(3), Predictor(), 0.0
    predictor.memory_s = max(30.0, 75 * every_s)
    for number in range(samples + 230):
        slow = factor if 200 <= number < 200 + samples else 1.0
        pending = 20.0 * float(rng.poisson(0.2 * slow / every_s))
        now_s += every_s
        predictor.add("a", 0.2 * slow * float(np.exp(0.25 * rng.normal())), 20.0, pending, now_s)
        predictor.fold(now_s)
    for pending in (0.0, 40.0):
        assert 0.1 < predicted(predictor, "a", 20.0, pending, now_s) < 0.4


def test_the_buffer_is_bounded() -> None:
    """Samples are folded in by themselves when 256 have gathered."""
    predictor = Predictor()
    for _ in range(1_000):
        predictor.add("a", 0.1, 0.0, 0.0, 0.0)
    assert len(predictor._raw) < 256
    assert predictor.coefficients[0] == pytest.approx(0.1)


def test_weights_stay_finite() -> None:
    """The fit is exact after a hundred thousand samples: old weights are scaled back in time."""
    predictor = trained(0)
    for n in range(100_000):
        predictor.add("a", 0.2 if n % 2 else 0.4, 0.0 if n % 2 else 2_000.0, 0.0, 0.0)
    b, s, _ = predictor.coefficients
    assert b == pytest.approx(0.2, rel=1e-3)
    assert s == pytest.approx(1e-4, rel=5e-3)  # the prior weighs less than one sample in 200


def test_a_forgotten_replica_starts_at_one() -> None:
    """Forgetting drops the level only."""
    predictor = trained(1_000, levels={"a": 1.0, "b": 2.0})
    predictor.forget("b")
    assert "b" not in predictor.levels
    assert predicted(predictor, "b", 0.0, 0.0, 50.0) == pytest.approx(predictor.coefficients[0])


@pytest.mark.parametrize("dust", [(1e-14, 0.0), (0.0, 1e-14), (3e-17, 2e-15)])
def test_what_rounding_leaves_of_tokens_teaches_nothing(dust: tuple[float, float]) -> None:
    """Sums of tokens that were added and taken away again end near 0: they explain no time."""
    predictor = Predictor()
    for n in range(200):
        slow = n % 10 == 0
        uncached, pending = dust if slow else (0.0, 0.0)
        predictor.add("a", 0.075 if slow else 0.05, uncached, pending, n / 5)
        predictor.fold(n / 5)
    assert 0.04 < predicted(predictor, "a", 100.0, 100.0, 40.0) < 0.1
