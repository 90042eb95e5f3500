"""The window: equal to one DDSketch of the same samples, and reaching back far enough and no further."""

import gc

import numpy as np
import pytest
from ddsketch import DDSketch
from ddsketch.mapping import LogarithmicMapping
from hypothesis import given
from hypothesis import strategies as st

from ttft_gateway.estimation.window import RELATIVE_ACCURACY, SAMPLE_MAX, SAMPLE_MIN, Window

samples = st.floats(SAMPLE_MIN * 1.1, SAMPLE_MAX / 1.1)


@given(st.lists(st.tuples(samples, st.booleans()), min_size=1, max_size=700), st.floats(0.0, 1.0))
def test_quantiles_are_those_of_one_sketch(values: list[tuple[float, bool]], q: float) -> None:
    """For any distribution over slices, a quantile equals get_quantile_value of all events."""
    window = Window(reach_s=1e9)
    sketch = DDSketch(RELATIVE_ACCURACY)
    for n, (x, is_event) in enumerate(values):
        if is_event:
            window.add_event(x, n * 0.1)
            sketch.add(x)
        else:
            window.add_censored(x, n * 0.1)
    expected = sketch.get_quantile_value(q)
    actual = window.quantile(q, 100.0)
    assert actual == (None if expected is None else pytest.approx(expected))


@given(st.lists(st.tuples(samples, st.booleans()), max_size=300))
def test_bins_hold_every_sample_within_the_accuracy(values: list[tuple[float, bool]]) -> None:
    """Each sample is counted once, in its own row, in a bin with a value within 1 % of it; no bin is empty."""
    window = Window(reach_s=1e9)
    for n, (x, is_event) in enumerate(values):
        (window.add_event if is_event else window.add_censored)(x, n * 0.2)
    bins = window.bins(0.0)
    assert list(bins.values) == sorted(set(bins.values))
    assert all(events + censored > 0 for events, censored in zip(bins.events, bins.censored, strict=True))
    for counts, wanted in ((bins.events, True), (bins.censored, False)):
        expected = sorted(x for x, is_event in values if is_event is wanted)
        actual = np.repeat(bins.values, counts)
        assert actual == pytest.approx(expected, rel=RELATIVE_ACCURACY * 1.001)


def test_samples_older_than_the_reach_are_forgotten() -> None:
    """With enough traffic, what is older than 60 s plus one slice no longer counts."""
    window = Window()
    for n in range(2_000):
        window.add_event(1.0 if n < 1_000 else 2.0, n / 10)
    assert window.quantile(0.0, 199.9) == pytest.approx(2.0, rel=0.01)
    assert 600 <= window.count(199.9) <= 700


def test_a_hundred_samples_are_kept_however_old() -> None:
    """An idle hour does not empty the window: a slice expires only while the rest still holds 100."""
    window = Window()
    for n in range(1_000):
        window.add_event(1.0, n / 10)
    assert window.count(3_700.0) == 100
    window.add_censored(1.0, 3_700.0)
    assert window.count(3_700.0) == 101
    assert window.event_count(3_700.0) == 100


@given(st.lists(st.sampled_from([0.0, 0.01, 1.0, 9.0, 11.0, 500.0]), max_size=400))
def test_it_never_holds_less_than_the_last_hundred(gaps_s: list[float]) -> None:
    """For any arrivals: the last 100 samples are there, and no more than 60 s, 100 and two slices of them."""
    window = Window()
    now_s = 0.0
    times_s = []
    for gap_s in gaps_s:
        now_s += gap_s
        window.add_event(1.0, now_s)
        times_s.append(now_s)
        held = window.count(now_s)
        young = sum(t > now_s - 60.0 for t in times_s)
        assert held >= min(len(times_s), max(young, 100))
        slices = [sum(t <= u < t + 20.0 for u in times_s) for t in times_s]
        assert held <= max(young, 100) + max(slices) + 20


def test_rare_samples_make_few_slices() -> None:
    """One sample a minute for a day makes at most a dozen slices."""
    window = Window()
    for n in range(1_440):
        window.add_event(1.0, n * 60.0)
    assert len(window._closed) <= 12
    assert 100 <= window.count(1_440 * 60.0) <= 120


@pytest.mark.parametrize(
    ("x", "kept"), [(float("nan"), SAMPLE_MIN), (-1.0, SAMPLE_MIN), (0.0, SAMPLE_MIN), (float("inf"), SAMPLE_MAX)]
)
def test_nonsense_is_clamped(x: float, kept: float) -> None:
    """A sample out of range, NaN included, is taken at the nearest bound."""
    window = Window()
    window.add_event(x, 0.0)
    assert window.quantile(0.5, 0.0) == pytest.approx(kept, rel=0.01)


def test_an_empty_window_has_no_quantile() -> None:
    """Without samples there is no quantile, no bin and no count; censored samples alone give no quantile."""
    window = Window()
    assert window.quantile(0.5, 0.0) is None
    assert len(window.bins(0.0).values) == 0
    assert window.count(0.0) == 0
    window.add_censored(1.0, 0.0)
    assert window.quantile(0.5, 0.0) is None
    assert window.event_count(0.0) == 0


def test_reading_does_not_change_what_is_read() -> None:
    """Samples added between reads, before and after the raw buffer is full, are all there."""
    window = Window()
    rng = np.random.default_rng(1)
    for n in range(600):
        window.add_event(rng.lognormal(), 0.0)
        if n % 100 == 0:
            window.bins(0.0)
    assert sum(window.bins(0.0).events) == 600
    assert window.count(0.0) == 600


@given(st.floats(SAMPLE_MIN, SAMPLE_MAX, exclude_min=True, exclude_max=True))
def test_a_sample_is_in_the_bin_of_the_sketch(sample: float) -> None:
    """A sample is in the bin that DDSketch's own mapping gives it."""
    window, mapping = Window(), LogarithmicMapping(RELATIVE_ACCURACY)
    window.add_event(sample, 0.0)
    assert window.bins(0.0).values == [mapping.value(mapping.key(sample))]


def test_without_new_samples_nothing_is_replaced() -> None:
    """The exchange of many idle pools makes no objects that a search for garbage would visit."""
    window = Window()
    assert window.take_new() == ({}, {})
    before = gc.get_referents(window._events, window._censored)
    assert window.take_new() == window.take_new() == ({}, {})
    after = gc.get_referents(window._events, window._censored)
    assert list(map(id, before)) == list(map(id, after))
    window.add_event(1.0, 0.0)
    events, censored = window.take_new()
    assert (sum(events.values()), censored) == (1, {})
    assert window.take_new() == ({}, {})
