"""Judges whether a replica's rejections concern the request or the replica itself. Pure.

A 4xx without a cause may mean either. The replica fails only if a second replica answers the same request, or if the
requests of three callers met such a rejection: one caller's prompt that a firewall rejects must not open breakers.

Units: seconds of the loop's clock.
"""

import math
from dataclasses import dataclass, field
from typing import Final

from gateway.routing.replicas import Breaker, BreakerState

_UNCLEAR_KEYS_MAX: Final = 3  # callers with different keys: by then it is not one caller's prompt
_PROOFS_MAX: Final = 10  # rejected requests that another replica answers: by then the replica rejects everything ...
_PROVED_S: Final = 10.0  # ... and earlier if it has answered no request for this long


@dataclass(slots=True)
class Rejections:
    """The rejections of one replica.

    Attributes:
        content_s: time of the last first content.
        breaker: breaker of the replica.
        unclear_keys: names of keys that have met a 4xx without a cause since the last complete answer.
    """

    breaker: Breaker
    unclear_keys: set[str] = field(default_factory=set)
    content_s: float = -math.inf
    _proofs: int = 0  # answers of other replicas to requests that it has rejected, since then

    def on_content(self, now_s: float) -> None:
        """Record that it answers a request."""
        self.content_s, self._proofs = now_s, 0

    def on_answer(self) -> None:
        """Record a complete answer."""
        self.unclear_keys.clear()

    def on_unclear(self, key_name: str, now_s: float) -> BreakerState | None:
        """Count a 4xx without a cause that a caller cannot have meant: three callers' requests open the breaker."""
        self.unclear_keys.add(key_name)
        if len(self.unclear_keys) < _UNCLEAR_KEYS_MAX:
            return None
        self.unclear_keys.clear()
        old_state = self.breaker.state
        self.breaker.trip(now_s)
        return self.breaker.state if self.breaker.state is not old_state else None

    def on_disproved(self, now_s: float, *, by_request: bool) -> BreakerState | None:
        """Count a 4xx without a cause as a failure: another replica answers the same request.

        Args:
            by_request: True for a status that most likely concerns the request. A replica that answers other requests
                may have narrower limits; it fails only if it rejects everything.
        """
        self._proofs += 1
        if by_request and self._proofs < _PROOFS_MAX and now_s < self.content_s + _PROVED_S:
            return None
        old_state = self.breaker.state
        self.breaker.on_failure(now_s)
        return self.breaker.state if self.breaker.state is not old_state else None
