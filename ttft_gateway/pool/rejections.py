"""Judges by evidence whether a replica or its requests are at fault for its 4xx. Pure.

A 4xx can mean either: a dead key or a wrong model name, or a caller's file that does not exist. The replica fails when
it rejects different requests and answers none in between; a request that is sent again is the same one. An answer to
any caller acquits: a replica that answers works, so the requests that it has rejected were at fault, whichever other
replicas have rejected them, too. Until an answer, callers that have not met the rejections may try such a replica.

Units: seconds of the loop's clock.
"""

import math
from collections.abc import Hashable, Sequence
from typing import Final

import msgspec

from ttft_gateway.routing.replicas import Breaker, BreakerState

_REQUESTS_MAX: Final = 3  # different requests without an answer; one or two are a caller's mistakes
_KEYS_MAX: Final = 3  # callers that a dead key costs a retry
_ANSWERING_S: Final = 10.0  # since its last first content; such a replica may have narrower limits than another one


class _Rejected(msgspec.Struct, frozen=True, eq=False):
    """A request that a replica has rejected.

    Attributes:
        key_name: name of the caller's key.
        replicas: replicas that have rejected it.
        disproved: True if another replica has answered it.
    """

    key_name: str
    replicas: Sequence["Rejections"]
    disproved: bool


class Rejections(msgspec.Struct, eq=False):
    """The rejections of one replica.

    Attributes:
        breaker: breaker of the replica.
        content_s: time of the last first content; -inf before the first.
        requests: requests rejected since then, by digest; at most two more than the callers' keys that may try.
    """

    breaker: Breaker
    content_s: float = -math.inf
    requests: dict[Hashable, _Rejected] = msgspec.field(default_factory=dict)

    @property
    def is_trusted(self) -> bool:
        """True if the replica has answered, and rejected no request since."""
        return self.content_s > -math.inf and not self.requests

    def is_answering(self, now_s: float) -> bool:
        """Return True if the replica has answered lately."""
        return now_s < self.content_s + _ANSWERING_S

    def admits(self, key_name: str) -> bool:
        """Return True if the replica is out because of other callers' requests, and this caller may try it."""
        keys = {each.key_name for each in self.requests.values()}
        return self.breaker.rejecting and key_name not in keys and len(keys) < _KEYS_MAX

    def on_content(self, now_s: float) -> None:
        """Record that the replica answers a request: it and all that rejected the same requests are acquitted."""
        self.content_s = now_s
        if self.requests:
            for request, rejected in tuple(self.requests.items()):
                for each in rejected.replicas:
                    each.acquit(request, now_s)
            self.requests.clear()
            if self.breaker.rejecting and self.breaker.state is BreakerState.OPEN:
                self.breaker.state = BreakerState.HALF_OPEN  # the answer is as good as the answer to a probe

    def on_content_elsewhere(self, now_s: float) -> None:
        """Record that the replica answers another gateway; that gateway may have another key than this one.

        The requests that another replica has answered here still count.
        """
        for request, rejected in tuple(self.requests.items()):
            if not rejected.disproved:
                for each in rejected.replicas:
                    each.acquit(request, now_s)

    def on_rejected(
        self, request: Hashable, key_name: str, replicas: Sequence["Rejections"], now_s: float, *, disproved: bool
    ) -> BreakerState | None:
        """Count a rejected request; return the breaker's state if the request has opened it.

        Args:
            request: digest of the request, equal for a repeated one.
            key_name: name of the caller's key.
            replicas: all replicas that rejected it.
            disproved: True if another replica has answered it.
        """
        breaker, old_state = self.breaker, self.breaker.state
        if breaker.rejecting:
            return None
        if len(self.requests) >= _REQUESTS_MAX:  # from before a new key
            self.requests.clear()
        self.requests[request] = _Rejected(key_name, replicas, disproved)
        if len(self.requests) < _REQUESTS_MAX:
            return None
        breaker.trip(now_s)
        breaker.rejecting = True
        return breaker.state if breaker.state is not old_state else None

    def on_rejected_again(self, request: Hashable, key_name: str) -> None:
        """Record that a caller has met the rejections of a replica that is out because of them."""
        if self.admits(key_name):
            self.requests[request] = _Rejected(key_name, (self,), disproved=False)

    def acquit(self, request: Hashable, now_s: float) -> None:
        """Drop a request that was at fault itself; without enough other requests, the replica is probed immediately."""
        self.requests.pop(request, None)
        if self.breaker.rejecting and len(self.requests) < _REQUESTS_MAX:
            self.breaker.open_until_s = min(self.breaker.open_until_s, now_s)
