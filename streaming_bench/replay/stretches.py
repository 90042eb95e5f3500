"""Keeps a bounded sample of a sequence of requests: stretches of neighbours, spread evenly over the whole. Pure.

A policy learns from neighbours, and the hours of a day differ: single requests would lose the first, the last ones the
second. While more are read, every other stretch is dropped.
"""

from typing import Final

from streaming_bench.replay.logged import LoggedRequest

STRETCH: Final = 1000  # requests; ten times the samples from which the gateway learns


class Stretches:
    """The sample of one model.

    Args:
        keep: largest number of requests in the sample.
    """

    def __init__(self, keep: int) -> None:
        self._stretch = min(STRETCH, keep)
        self._count = max(1, keep // self._stretch)
        self._every = 1  # one stretch in as many is kept
        self._seen = 0
        self._kept: list[list[LoggedRequest]] = []

    def add(self, request: LoggedRequest) -> None:
        """Add the next request."""
        number, place = divmod(self._seen, self._stretch)
        self._seen += 1
        if number % self._every:
            return
        if place == 0:
            if len(self._kept) >= 2 * self._count:
                self._kept = self._kept[::2]
                self._every *= 2
                if number % self._every:
                    return
            self._kept.append([])
        elif not self._kept[-1] or len(self._kept) * self._every <= number:
            return  # its beginning was not kept
        self._kept[-1].append(request)

    def chosen(self) -> list[LoggedRequest]:
        """Return the sample, by arrival."""
        whole = [each for each in self._kept if len(each) == self._stretch] or self._kept
        if len(whole) < len(self._kept) <= self._count:
            whole = self._kept  # nothing was dropped: the rest at the end counts too
        steps = min(self._count, len(whole))
        picked = [whole[step * len(whole) // steps] for step in range(steps)]
        return sorted(request for stretch in picked for request in stretch)
