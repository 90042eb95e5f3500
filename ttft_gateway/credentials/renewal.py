"""Decides when a token is fetched again, used and given up. Pure.

A token is renewed when half of its lifetime is left, at most 15 minutes before its end, and a little earlier at random:
many gateways with tokens of the same age do not renew them at the same moment. Botocore renews 15 minutes before the
end, too; a source that returns the same token again, as Google's metadata server does until five minutes before the
end, is asked again after half of what is left. After a failure the token is used until it ends; the source is asked
again after 1, 2, 4 s and so on up to 30 s. A rejected token is renewed at once, and once a minute: if the new token is
rejected, too, the source is not at fault.

Units: seconds of one clock that does not jump.
"""

import math
from dataclasses import dataclass
from typing import Final

from ttft_gateway.credentials.token import Token

LEAD_S_MAX: Final = 900.0
_LEAD: Final = 0.5  # of the lifetime
_EARLIER: Final = 0.2  # of the lead, at most, at random
_AGAIN_S_MIN: Final = 0.5  # between two fetches
_RETRY_S: Final = 1.0
_RETRY_S_MAX: Final = 30.0
_RETRY_SPREAD: Final = 0.25
_CURE_S: Final = 60.0


@dataclass(slots=True)
class Renewal:
    """The state of one token.

    Attributes:
        token: the last token; None before the first.
        until_s: end of the token; infinite if it never ends.
        since_s: time of its fetch.
        next_s: time of the next fetch; infinite if a token without an end is not fetched again.
        fault: reason of the last failure; None after a success.
        every_s: time between two fetches of a token without an end, such as of a file that is watched.
    """

    token: Token | None = None
    until_s: float = -math.inf
    since_s: float = -math.inf
    next_s: float = -math.inf
    fault: str | None = None
    every_s: float = math.inf
    _failures: int = 0
    _cured_s: float = -math.inf  # time of the last fetch because of a rejection

    def usable(self, now_s: float) -> Token | None:
        """Return the token while it may be used."""
        return self.token if now_s < self.until_s else None

    def on_token(self, token: Token, now_s: float, rand: float) -> bool:
        """Take a fetched token; return True if its value is new."""
        is_new = self.token is None or self.token.value != token.value
        if is_new:
            self.since_s = now_s
        self.token, self.fault, self._failures = token, None, 0
        if token.lifetime_s is None:
            self.until_s, self.next_s = math.inf, now_s + self.every_s
            return is_new
        self.until_s = now_s + token.lifetime_s
        lead_s = min(_LEAD * token.lifetime_s, LEAD_S_MAX)
        at_s = self.until_s - lead_s * (1 + _EARLIER * rand)
        self.next_s = min(max(at_s, now_s + _AGAIN_S_MIN), now_s + self.every_s)
        return is_new

    def on_failure(self, fault: str, now_s: float, rand: float) -> None:
        """Record that no token was fetched."""
        wait_s = min(_RETRY_S * 2.0**self._failures, _RETRY_S_MAX)
        self._failures = min(self._failures + 1, 10)
        self.fault, self.next_s = fault, now_s + wait_s * (1 + _RETRY_SPREAD * rand)

    def on_rejected(self, sent_s: float, now_s: float) -> bool:
        """Record that an upstream rejected a request; return True if the token is to be fetched at once.

        Args:
            sent_s: time at which the request was sent.
        """
        if sent_s < self.since_s or now_s < self._cured_s + _CURE_S:  # with the token before this one
            return False
        self._cured_s = self.next_s = now_s
        return True
