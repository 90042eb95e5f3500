"""Limiters of keys from a list, made at the first request of a key: most keys of a long list are quiet. Pure.

A limiter lives as long as the limits of its key, over changes of other keys and over reloads. Units: as in
caller_limits.py.
"""

from collections.abc import Mapping

from gateway.admission.caller_limits import CallerLimits, KeyLimiter
from gateway.listed_keys import KeyRule, ListedKey, ListedKeys
from ttft_gateway.limits.rates import LimitMaker


class Listed:
    """A list of keys and its limiters, which live as long as their process.

    Attributes:
        keys: the list.
        limiters: limiters of requests.
        counts: limiters of requests that only count tokens.
    """

    def __init__(self, made: LimitMaker) -> None:
        self.keys = ListedKeys()
        self.limiters = ListedLimiters(self.keys, made, "key")
        self.counts = ListedLimiters(self.keys, made, "count", counts_only=True)


class ListedLimiters:
    """The limiters of the keys of a list.

    Args:
        keys: the list.
        made: makes the limits.
        kind: beginning of the names of the limits, the same in every process.
        counts_only: True for requests that only count tokens, which have no limit of tokens.
    """

    def __init__(self, keys: ListedKeys, made: LimitMaker, kind: str, *, counts_only: bool = False) -> None:
        self._keys = keys
        self._made = made
        self._kind = kind
        self._counts_only = counts_only
        self._limiters: dict[str, KeyLimiter] = {}
        keys.listeners.append(self._on_change)

    @property
    def in_use(self) -> Mapping[str, KeyLimiter]:
        """The limiters by key, of keys that have sent a request."""
        return self._limiters

    def get(self, name: str) -> KeyLimiter | None:
        """Return the limiter of a key; None if it has no limits."""
        limiter = self._limiters.get(name)
        if limiter is None:
            rule = self._keys.rule(name)
            if rule is not None and (limits := self._limits(rule)) != _NONE:
                limiter = self._limiters[name] = KeyLimiter(limits, f"{self._kind}:{name}", self._made)
        return limiter

    def _limits(self, rule: KeyRule) -> CallerLimits:
        tokens = None if self._counts_only else rule.tokens_per_min
        return CallerLimits(rule.requests_per_min, tokens, rule.concurrency)

    def _on_change(self, before: ListedKey | None, after: ListedKey | None) -> None:
        if before is not None and (after is None or self._limits(after.rule) != self._limits(before.rule)):
            self._limiters.pop(before.name, None)


_NONE = CallerLimits()
