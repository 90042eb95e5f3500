"""The settings of a hedging client: how late a request must be before a backup is sent, and what backups may cost.

Times are seconds. The policy is the gateway's (docs/hedging.md).
"""

import math
from dataclasses import dataclass
from typing import Final, Literal

from ttft_gateway.hedging.parameters import DEFAULTS, HEDGES_MAX, HedgeParameters
from ttft_gateway.hedging.plan import Policy
from ttft_gateway.routing.strategies import Crossing

_POLICIES: Final = {"adaptive": Policy.ADAPTIVE, "percentile": Policy.QUANTILE, "off": Policy.OFF}
_SAVED_HEDGES: Final = 12.0  # a program may end after some hundred requests, before traffic has earned that many


@dataclass(frozen=True, slots=True)
class HedgeConfig:
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
        warmup_delay: time in seconds before a backup until then.
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
    warmup_delay: float = DEFAULTS.cold_start_delay_s
    allow_billed_hedges: bool = False

    def __post_init__(self) -> None:
        if self.policy not in _POLICIES:
            raise ValueError(f"policy is {self.policy!r}; use 'adaptive', 'percentile' or 'off'")
        self._check("percentile", self.percentile, 0.01, 0.999)
        self._check("budget_percent", self.budget_percent, 0.0, 100.0)
        self._check("min_delay", self.min_delay, 0.0, 3600.0)
        self._check("max_hedges", self.max_hedges, 0, HEDGES_MAX, whole=True)
        self._check("window", self.window, 1.0, 86_400.0)
        self._check("warmup_requests", self.warmup_requests, 1, 100_000, whole=True)
        self._check("warmup_delay", self.warmup_delay, 0.0, 3600.0)

    @staticmethod
    def _check(name: str, value: object, low: float, high: float, *, whole: bool = False) -> None:
        kinds = (int,) if whole else (int, float)
        if isinstance(value, bool) or not isinstance(value, kinds) or not math.isfinite(value):
            raise ValueError(f"{name} is {value!r}; use a {'whole number' if whole else 'number'}")
        if not low <= value <= high:
            raise ValueError(f"{name} is {value:g}; use a value from {low:g} to {high:g}")


def parameters(config: HedgeConfig) -> HedgeParameters:
    """Convert the settings for the policy."""
    return HedgeParameters(
        policy=_POLICIES[config.policy] if config.max_hedges and config.budget_percent else Policy.OFF,
        budget=config.budget_percent / 100,
        max_hedges=config.max_hedges,
        quantile=config.percentile,
        hedge_delay_min_s=config.min_delay,
        cold_start_delay_s=config.warmup_delay,
        crossing=Crossing.ALWAYS,
        hedge_hidden_reasoning=True,
        warm_samples=config.warmup_requests,
        window_s=config.window,
        saved_hedges=_SAVED_HEDGES,
        shows_replicas=False,  # the statistics have windows of their own
    )
