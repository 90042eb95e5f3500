"""What a request and a chunk cost in calls: twice of what was recorded fails, on any machine and in any run.

A figure that has grown for a good reason is recorded anew here; the pretended sockets and the loop are counted, too.
"""

from hot_path import Fleet, cost, longest_slice

_REQUEST_CALLS = 810  # without its words
_CHUNK_CALLS = 78
_SLICE_CALLS = 4500  # between two turns of the loop
_COUNT = 25


def test_a_request_and_a_chunk_cost_no_more_than_twice_what_they_did() -> None:
    """The hot path is as short as it was, within a factor of two."""
    short, long = (cost(Fleet(words=words), _COUNT).calls for words in (10, 60))
    chunk = (long - short) / 50
    assert 0.5 * _CHUNK_CALLS < chunk < 2 * _CHUNK_CALLS
    assert 0.5 * _REQUEST_CALLS < short - 10 * chunk < 2 * _REQUEST_CALLS


def test_many_replicas_and_models_cost_hardly_more() -> None:
    """A request among 200 replicas costs at most 1.3 times one among 3; sixty models at most 1.1 times one."""
    few = cost(Fleet(), _COUNT).calls
    assert cost(Fleet(replicas=200), _COUNT).calls <= 1.3 * few
    assert cost(Fleet(models=60), _COUNT).calls <= 1.1 * few


def test_a_scrape_of_a_large_pool_is_done_in_slices() -> None:
    """Between two turns of the loop a scrape does a bounded part of its work, however many replicas there are."""
    assert longest_slice(Fleet(replicas=100), 100).calls < 2 * _SLICE_CALLS
