"""Cost of tokens."""

import pytest

from ttft_gateway.limits.prices import Prices, money


@pytest.mark.parametrize(
    ("prompt", "cached", "completion", "cost"),
    [
        (0, 0, 0, 0.0),
        (1_000_000, 0, 0, 2.5),
        (1_000_000, 1_000_000, 0, 1.25),
        (1_000_000, 400_000, 0, 2.0),
        (0, 0, 1_000_000, 10.0),
        (1000, 0, 100, 0.0035),
        (100, 300, 0, 0.000125),  # more cached than there are: nonsense of an upstream's, never a negative price
        (1, 0, 0, 2.5e-6),
    ],
)
def test_prices_are_per_million_and_cached_tokens_have_their_own(
    prompt: int, cached: int, completion: int, cost: float
) -> None:
    """A prompt's tokens cost their price, the cached ones among them theirs, generated ones theirs, per million."""
    assert Prices(prompt=2.5, cached_prompt=1.25, completion=10.0).cost(prompt, cached, completion) == cost


def test_sums_of_money_have_no_noise() -> None:
    """Sums of tenths of a cent have no rounding noise: 0.1 + 0.2 is 0.3."""
    assert money(0.1 + 0.2) == 0.3
