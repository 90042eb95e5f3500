"""Quantities of simulated replicas: draws follow the text, and mistakes are explained."""

import random
import statistics

import pytest

from gateway.simulated.quantities import UnitError, distribution, duration, fixed, share


@pytest.mark.parametrize(
    ("text", "expected"), [("250us", 0.00025), ("20ms", 0.02), ("1.5s", 1.5), ("2m", 120.0), ("1h", 3600.0), (0, 0.0)]
)
def test_duration_is_read_in_seconds(text: object, expected: float) -> None:
    """A duration with a unit is a number of seconds."""
    assert duration(text) == pytest.approx(expected)


@pytest.mark.parametrize("text", ["20", "ms", "-1s", 25, None, "1 s", "1e3s"])
def test_duration_without_unit_is_rejected(text: object) -> None:
    """A number without a unit is rejected with an example."""
    with pytest.raises(UnitError, match="'20ms'"):
        duration(text)


@pytest.mark.parametrize(("text", "expected"), [("4%", 0.04), ("0.04", 0.04), (1, 1.0), ("100%", 1.0)])
def test_share_is_a_fraction(text: object, expected: float) -> None:
    """Percent and fractions mean the same."""
    assert share(text) == pytest.approx(expected)


@pytest.mark.parametrize("text", ["101%", -0.1, "many", None])
def test_share_beyond_its_range_is_rejected(text: object) -> None:
    """A share lies between 0 and 1."""
    with pytest.raises(UnitError):
        share(text)


@pytest.mark.parametrize(
    ("text", "mean_s", "sd_s"),
    [
        ("20ms", 0.02, 0.0),
        ("lognormal:15ms,3ms", 0.015, 0.003),
        ("normal:10ms,2ms", 0.01, 0.002),
        ("uniform:100ms,300ms", 0.2, 0.0577),
        ("exponential:500ms", 0.5, 0.5),
        ("lognormal:15ms,3ms | 20% 200ms", 0.052, 0.0741),
    ],
)
def test_draws_have_the_stated_mean_and_deviation(text: str, mean_s: float, sd_s: float) -> None:
    """A large sample has the mean and the standard deviation that the text states."""
    rng = random.Random(7)
    draws = [distribution(text).draw(rng, number) for number in range(4000)]
    assert statistics.fmean(draws) == pytest.approx(mean_s, rel=0.05)
    assert statistics.pstdev(draws) == pytest.approx(sd_s, rel=0.06, abs=1e-9)


@pytest.mark.parametrize(
    ("text", "least_s", "most_s"),
    [
        ("normal:20ms,50ms,1ms,100ms", 0.001, 0.1),
        ("normal:0,50ms", 0.0, 1.0),
        ("exponential:500ms,200ms,3s", 0.2, 3.0),
        ("pareto:1s,1.3", 1.0, float("inf")),
    ],
)
def test_draws_stay_in_their_bounds(text: str, least_s: float, most_s: float) -> None:
    """Draws of clamped shapes are within their bounds, and no time is negative."""
    rng = random.Random(7)
    draws = [distribution(text).draw(rng, number) for number in range(1000)]
    assert least_s <= min(draws)
    assert max(draws) <= most_s


def test_median_and_sigma_state_a_lognormal() -> None:
    """The median of `lognormal_median` is the one stated."""
    rng = random.Random(7)
    draws = [distribution("lognormal_median:500ms,0.3").draw(rng, 0) for _ in range(4000)]
    assert statistics.median(draws) == pytest.approx(0.5, rel=0.03)


def test_trace_is_taken_in_turn() -> None:
    """A trace gives its values in order of the requests, again and again."""
    trace = distribution("trace:10ms,20ms,30ms")
    assert [trace.draw(random.Random(0), number) for number in range(4)] == [0.01, 0.02, 0.03, 0.01]


def test_same_seed_gives_same_draws() -> None:
    """The generator decides everything."""
    shape = distribution("lognormal:15ms,3ms | 20% lognormal:200ms,25ms")
    first, second = ([shape.draw(rng, 0) for _ in range(50)] for rng in (random.Random(3), random.Random(3)))
    assert first == second


@pytest.mark.parametrize(
    ("text", "hint"),
    [
        ("gamma:1s,2s", "one of lognormal"),
        ("lognormal:1s", "give lognormal 2"),
        ("pareto:1s,x", "above 0"),
        ("1s | 60% 2s | 60% 3s", "100%"),
        ("1s | 2s", "share"),
    ],
)
def test_unreadable_distribution_is_explained(text: str, hint: str) -> None:
    """The message names the value and the correction."""
    with pytest.raises(UnitError, match=hint):
        distribution(text)


def test_distributions_written_alike_are_equal() -> None:
    """Profiles can be compared: they are equal if their texts are, and a text reads back as itself."""
    assert distribution("20ms") == distribution("20ms") == fixed(0.02)
    assert distribution("20ms") != distribution("21ms")
