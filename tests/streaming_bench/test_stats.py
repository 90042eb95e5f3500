"""Statistics of the bench: textbook intervals, and ratios that match the input."""

import math
import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from streaming_bench.report.stats import Blocks, in_blocks, quantile, ratio


def test_the_interval_of_a_median_is_the_textbooks() -> None:
    """Of 100 values, the median lies between the 40th and the 61st with 95 % confidence."""
    found = quantile([float(number) for number in range(1, 101)], 0.5)
    assert found == (50.0, 40.0, 61.0)


@pytest.mark.parametrize(("count", "known"), [(100, False), (400, True)])
def test_a_small_sample_has_no_bound_on_its_p99(count: int, known: bool) -> None:
    """The interval is open if no value of the sample is far enough out."""
    found = quantile([float(number) for number in range(count)], 0.99)
    assert math.isfinite(found.high) is known
    assert found.known is known


def test_failures_are_slower_than_all_answers() -> None:
    """Failures count as infinite: with 10 % of them the p95 is infinite and the median is not."""
    found = [quantile([1.0] * 90 + [math.inf] * 10, share).value for share in (0.5, 0.95)]
    assert found == [1.0, math.inf]
    assert math.isnan(quantile([], 0.5).value)


@given(st.integers(1, 300), st.sampled_from([0.5, 0.9, 0.95, 0.99, 0.999]))
def test_the_value_is_in_its_interval(count: int, share: float) -> None:
    """A quantile lies between the ends of its interval, whatever the sample's size."""
    found = quantile([float(number) for number in range(count)], share)
    assert found.low <= found.value <= found.high


def test_intervals_have_their_confidence() -> None:
    """Of 400 samples, about 95 % of the intervals hold the true p90."""
    rng = random.Random(1)
    held = 0
    for _ in range(400):
        found = quantile([rng.random() for _ in range(200)], 0.9)
        held += found.low <= 0.9 <= found.high
    assert 0.93 <= held / 400 <= 0.985


@pytest.mark.parametrize("share", [None, 0.5])
@pytest.mark.parametrize("paired", [True, False])
def test_a_ratio_is_found(share: float | None, paired: bool) -> None:
    """The ratio of a sample to another 1.5 times smaller is 1.5, with a narrow interval."""
    rng = random.Random(2)
    values = [rng.uniform(10, 20) for _ in range(1000)]
    below, above = in_blocks(values, 50), in_blocks([1.5 * value for value in values], 50)
    found = ratio(Blocks(above, share), Blocks(below, share), 1, paired=paired)
    assert found.value == pytest.approx(1.5)
    assert 1.35 < found.low <= 1.5 + 1e-9
    assert 1.5 - 1e-9 <= found.high < 1.65
    assert ratio(Blocks(above, share), Blocks(below, share), 1, paired=paired) == found


@given(st.integers(0, 300), st.integers(1, 60))
def test_blocks_lose_nothing(count: int, size: int) -> None:
    """Blocks contain the sample's values in order, and only a single block may be short."""
    values = [float(number) for number in range(count)]
    blocks = in_blocks(values, size)
    assert [value for block in blocks for value in block] == values
    assert all(len(block) >= size for block in blocks) or len(blocks) == 1


@pytest.mark.parametrize(("blocks", "known"), [(1, False), (4, False), (5, True)])
def test_few_blocks_have_no_interval(blocks: int, known: bool) -> None:
    """A ratio of fewer than five blocks has no interval: the interval of one block would have no width."""
    sample = Blocks([[1.0, 2.0, 3.0 + block] for block in range(blocks)], None)
    found = ratio(sample, sample, 1, paired=True)
    assert (found.value, found.known) == (1.0, known)
