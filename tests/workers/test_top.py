"""Starts of workers that end again."""

from gateway.workers.top import delay_s


def test_a_worker_that_ends_again_is_started_ever_later() -> None:
    """The first start is immediate; then the delay doubles up to 30 s."""
    assert [delay_s(failures) for failures in range(9)] == [0, 0, 1, 2, 4, 8, 16, 30, 30]
