"""Calls that a request and a token cost, held to recorded numbers, which are the same on any machine and in any run.

Calls of the gateway are held within 3 %; those of the harness (pretended sockets, the loop) are recorded beside them. A
number that has changed for a good reason, up or down, is recorded anew here. Python versions count some calls
differently: the recorded numbers are of 3.11, and other versions are held within a third.
"""

import sys
from typing import NamedTuple

import pytest

from hot_path import Cost, Fleet, cost, longest_slice

_SHARE = 0.03 if sys.version_info[:2] == (3, 11) else 1 / 3
_SLICE_CALLS = 4500  # between two turns of the loop
_COUNT = 25


class Recorded(NamedTuple):
    """Calls on Python 3.11.

    Attributes:
        product: calls that the gateway makes, those into libraries included.
        total: the same with the calls of the harness.
    """

    product: float
    total: float


REQUEST = Recorded(638.1, 799.3)  # without its words
TOKEN = Recorded(28.15, 78.44)  # that arrives alone
READ_OF_20 = Recorded(38.99, 82.77)  # 20 tokens in one read


def test_a_request_and_a_token_cost_what_was_recorded() -> None:
    """A request without its words, and a token that arrives alone, make the recorded number of calls."""
    short, long = (cost(Fleet(words=words), _COUNT) for words in (10, 60))
    token = _each(short, long, 50)
    request = Recorded(short.product_calls - 10 * token.product, short.calls - 10 * token.total)
    assert (request, token) == (_about(REQUEST), _about(TOKEN))


def test_tokens_of_one_read_cost_what_was_recorded() -> None:
    """Twenty tokens that arrive in one read make the recorded number of calls."""
    short, long = (cost(Fleet(words=words, words_per_read=20), _COUNT) for words in (20, 120))
    assert _each(short, long, 5) == _about(READ_OF_20)


def _each(short: Cost, long: Cost, count: int) -> Recorded:
    """Cost of each of `count` more reads."""
    return Recorded((long.product_calls - short.product_calls) / count, (long.calls - short.calls) / count)


def _about(recorded: Recorded) -> object:
    return pytest.approx(recorded, rel=_SHARE)


def test_many_replicas_and_models_cost_hardly_more() -> None:
    """A request among 200 replicas costs at most 1.3 times one among 3; sixty models at most 1.1 times one."""
    few = cost(Fleet(), _COUNT).calls
    assert cost(Fleet(replicas=200), _COUNT).calls <= 1.3 * few
    assert cost(Fleet(models=60), _COUNT).calls <= 1.1 * few


def test_a_scrape_of_a_large_pool_is_done_in_slices() -> None:
    """Between two turns of the loop a scrape does a bounded part of its work, however many replicas there are."""
    assert longest_slice(Fleet(replicas=100), 100).calls < 2 * _SLICE_CALLS
