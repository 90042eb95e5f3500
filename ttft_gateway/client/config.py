"""The settings of a hedging client: how late a request must be before a backup is sent, and what backups may cost.

Times are seconds. The policy is the gateway's (docs/hedging.md).
"""

import math
from collections.abc import Callable, Mapping
from typing import Final, Literal

import msgspec

from ttft_gateway.hedging.parameters import DEFAULTS, HEDGES_MAX, HedgeParameters
from ttft_gateway.hedging.plan import Policy
from ttft_gateway.routing.strategies import Crossing

First = Literal["content", "headers", "body"] | Callable[[bytes], bool]
"""Event that ends a race: the first content of a stream of an LLM API and the headers of any other response; always the
headers; the first byte of a body; or the first piece of a body for which a function returns True, which of a stream of
events is an event."""
Key = Literal["endpoint", "origin"] | Callable[[str, str], str]
"""Requests with comparable times: of one method and path, without identifiers; of one method at an origin; or with the
same name by a function of method and URL. Calls of LLM APIs are learned by model."""

_EVENTS: Final = ("content", "headers", "body")
_KEYS: Final = ("endpoint", "origin")
_POLICIES: Final = {"adaptive": Policy.ADAPTIVE, "percentile": Policy.QUANTILE, "off": Policy.OFF}


class HedgeConfig(msgspec.Struct, frozen=True):
    """When a late request gets a backup, and how many may.

    Attributes:
        policy: "adaptive" chooses the delay that saves most within the budget, "percentile" waits for a percentile of
            recent requests, "off" sends no backup.
        percentile: quantile of recent times to the first event, after which the policy "percentile" sends a backup; 0.9
            hedges the slowest tenth.
        budget_percent: largest number of backups in percent of the measured requests, and of their prompt tokens.
        min_delay: shortest time in seconds before a backup.
        max_hedges: largest number of backups of one request.
        window: age in seconds at which a measured time is forgotten, if a hundred newer ones are known.
        warmup_requests: number of first events before the learned delay is used.
        warmup_delay: time in seconds before a backup until then; None: 2, from the fourth request on three times the
            predicted time, at most 2. Below a budget of 100 %, it is at least 1.5 times the predicted time.
        key: requests with comparable times.
        safe: requests that may be sent twice, in addition to HEAD, OPTIONS, streams of LLM APIs, and GET without a
            subscription to events: rules such as "POST /search/*" with the event that ends their race.
        allow_billed_hedges: True to hedge also at providers that bill a cancelled request in full.

    Raises:
        ValueError: a value is out of its range.
    """

    policy: Literal["adaptive", "percentile", "off"] = "adaptive"
    percentile: float = DEFAULTS.quantile
    budget_percent: float = 100 * DEFAULTS.budget
    min_delay: float = 0.001  # shorter than the gateway's: a program may also call servers that answer in milliseconds
    max_hedges: int = DEFAULTS.max_hedges
    window: float = DEFAULTS.window_s
    warmup_requests: int = DEFAULTS.warm_samples
    warmup_delay: float | None = None
    key: Key = "endpoint"
    safe: Mapping[str, First] = msgspec.field(default_factory=dict)
    allow_billed_hedges: bool = False

    def __post_init__(self) -> None:
        if self.policy not in _POLICIES:
            raise ValueError(f"policy is {self.policy!r}; use 'adaptive', 'percentile' or 'off'")
        check_number("percentile", self.percentile, 0.01, 0.999)
        check_number("budget_percent", self.budget_percent, 0.0, 100.0)
        check_number("min_delay", self.min_delay, 0.0, 3600.0)
        check_number("max_hedges", self.max_hedges, 0, HEDGES_MAX, whole=True)
        check_number("window", self.window, 1.0, 86_400.0)
        check_number("warmup_requests", self.warmup_requests, 1, 100_000, whole=True)
        if self.warmup_delay is not None:
            check_number("warmup_delay", self.warmup_delay, 0.0, 3600.0)
        if not callable(self.key) and self.key not in _KEYS:
            raise ValueError(f"key is {self.key!r}; use 'endpoint', 'origin' or a function of method and URL")
        if not isinstance(self.safe, Mapping):
            raise TypeError(f"safe is {self.safe!r}; use rules with events, such as {{'POST /search': 'headers'}}")
        for first in self.safe.values():
            check_first(first)

    def __hash__(self) -> int:
        return hash((self.policy, self.percentile, self.budget_percent, self.max_hedges))  # `safe` is a mapping


def check_number(name: str, value: object, low: float, high: float, *, whole: bool = False) -> None:
    """Reject what is no number from low to high.

    Raises:
        ValueError: it is none.
    """
    kinds = (int,) if whole else (int, float)
    if isinstance(value, bool) or not isinstance(value, kinds) or not math.isfinite(value):
        raise ValueError(f"{name} is {value!r}; use a {'whole number' if whole else 'number'}")
    if not low <= value <= high:
        raise ValueError(f"{name} is {value:g}; use a value from {low:g} to {high:g}")


def check_first(first: object) -> None:
    """Reject what is no event.

    Raises:
        ValueError: it is none.
    """
    if not callable(first) and first not in _EVENTS:
        raise ValueError(f"first is {first!r}; use 'content', 'headers', 'body' or a function")


def parameters(config: HedgeConfig, budget_percent: float) -> HedgeParameters:
    """Convert the settings for the policy; the budget may be shared with other settings."""
    return HedgeParameters(
        policy=_POLICIES[config.policy] if config.max_hedges and budget_percent else Policy.OFF,
        budget=budget_percent / 100,
        max_hedges=config.max_hedges,
        quantile=config.percentile,
        hedge_delay_min_s=config.min_delay,
        cold_start_delay_s=DEFAULTS.cold_start_delay_s if config.warmup_delay is None else config.warmup_delay,
        crossing=Crossing.ALWAYS,
        hedge_hidden_reasoning=True,
        warm_samples=config.warmup_requests,
        window_s=config.window,
        shows_replicas=False,  # the statistics have windows of their own
    )
