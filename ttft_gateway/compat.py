"""The names and settings of the package `hedge-python`, for a program that changes over in one line.

    from hedge import HedgeConfig, Stats                         from ttft_gateway.compat import HedgeConfig, Stats
    from hedge.transport import HedgedHttpxTransport             from ttft_gateway.compat import HedgedHttpxTransport
    from hedge.interceptor import HedgedUnaryInterceptor         from ttft_gateway.compat import HedgedUnaryInterceptor

docs/guides/coming-from-hedge-python.md has what differs. New code takes the names of `ttft_gateway`.
"""

import warnings
from collections.abc import Callable, Collection
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final, Literal, TypeVar

from ttft_gateway.client import config as own
from ttft_gateway.client.stats import Stats as OwnStats

if TYPE_CHECKING:
    from ttft_gateway.client.aiohttp_session import HedgingSession
    from ttft_gateway.client.httpx_async import AsyncHedgingTransport

_T = TypeVar("_T")
_RPS: Final = 100.0  # default of `estimated_rps`
_PERCENTILE: Final = 0.9
_KEYS: Final[dict[str, Literal["origin", "endpoint"]]] = {"host": "origin", "endpoint": "endpoint"}
_NO_COUNTERPART: Final = ("HedgedNiquestsSession", "HedgedTornadoClient")


@dataclass
class PortHedgeConfig:
    """The settings of hedge-python, with its defaults.

    Attributes:
        percentile: quantile of recent times before a backup; at its default, the policy `adaptive` chooses the delay.
        max_hedges: largest number of backups of a request.
        budget_percent: largest number of backups in percent of the requests.
        estimated_rps: ignored: the budget is a share of the measured requests.
        min_delay: shortest time in seconds before a backup.
        warmup_requests: requests before the learned delay is used.
        warmup_delay: time in seconds before a backup until then.
        window_duration: age in seconds at which measured times are forgotten.
        key_level: "host" or "endpoint".
        stats: counts; None: own ones.

    Raises:
        ValueError: a value is out of its range.
    """

    percentile: float = _PERCENTILE
    max_hedges: int = 1
    budget_percent: float = 10.0
    estimated_rps: float = _RPS
    min_delay: float = 0.001
    warmup_requests: int = 20
    warmup_delay: float = 0.01
    window_duration: float = 30.0
    key_level: Literal["host", "endpoint"] = "host"
    stats: "PortStats | None" = field(default=None, repr=False)

    def __post_init__(self) -> None:
        if self.key_level not in _KEYS:
            raise ValueError(f"key_level is {self.key_level!r}; use 'host' or 'endpoint'")
        if self.estimated_rps != _RPS:
            text = "estimated_rps is ignored, because the budget is a share of the measured requests; remove it"
            warnings.warn(text, DeprecationWarning, stacklevel=3)
        self.settings()

    def settings(self) -> own.HedgeConfig:
        """Return the settings of `ttft_gateway`."""
        return own.HedgeConfig(
            policy="adaptive" if self.percentile == _PERCENTILE else "percentile",
            percentile=self.percentile,
            budget_percent=self.budget_percent,
            min_delay=self.min_delay,
            max_hedges=self.max_hedges,
            window=self.window_duration,
            warmup_requests=max(1, self.warmup_requests),
            warmup_delay=self.warmup_delay,
            key=_KEYS[self.key_level],
        )


@dataclass(frozen=True)
class PortSnapshot:
    """Counts at one moment, under the names of hedge-python."""

    total_requests: int
    hedged_requests: int
    hedge_wins: int
    primary_wins: int
    budget_exhausted: int
    warmup_requests: int


class PortStats:
    """Counts under the names of hedge-python.

    Attributes:
        own: the same counts for `ttft_gateway`, such as for `StatsCollector`.
    """

    def __init__(self) -> None:
        self.own = OwnStats()
        self.warmup_max = 20  # requests of each host

    def snapshot(self) -> PortSnapshot:
        """Return the counts at this moment; `total_requests` are the requests that may be hedged."""
        counts = self.own.snapshot()
        primaries = [each.requests - each.hedges for each in counts.targets.values()]
        return PortSnapshot(
            counts.requests,
            counts.hedged_requests,
            counts.hedge_wins,
            counts.primary_wins,
            counts.budget_exhausted,
            sum(min(each, self.warmup_max) for each in primaries),
        )

    def hedge_rate(self) -> float:
        """Return the share of requests with a backup."""
        counts = self.snapshot()
        return counts.hedged_requests / counts.total_requests if counts.total_requests else 0.0

    def __getattr__(self, name: str) -> int:
        if name not in PortSnapshot.__dataclass_fields__:
            raise AttributeError(f"Stats has no attribute {name!r}")
        value: int = getattr(self.snapshot(), name)
        return value


HedgeConfig = PortHedgeConfig
Stats = PortStats
StatsSnapshot = PortSnapshot


def _named(make: Callable[[own.HedgeConfig, OwnStats], _T], config: PortHedgeConfig | None) -> _T:
    """Make clients, and give each `stats` and `_config`, as programs and tests for hedge-python read them."""
    config = config or PortHedgeConfig()
    stats = config.stats or PortStats()
    stats.warmup_max = max(1, config.warmup_requests)
    made: Any = make(config.settings(), stats.own)
    for each in made if isinstance(made, list) else [made]:
        each.stats, each._config = stats, config  # noqa: SLF001 # as in the port
    return made  # type: ignore[no-any-return]


def HedgedHttpxTransport(  # noqa: N802
    inner: Any = None, config: PortHedgeConfig | None = None
) -> "AsyncHedgingTransport":
    """Return a transport for `httpx.AsyncClient`; its `stats` have the names of hedge-python."""
    from ttft_gateway.client.httpx_async import AsyncHedgingTransport

    return _named(lambda settings, stats: AsyncHedgingTransport(settings, stats=stats, transport=inner), config)


def HedgedAiohttpSession(config: PortHedgeConfig | None = None, **session_kwargs: Any) -> "HedgingSession":  # noqa: N802
    """Return a session for aiohttp, made in a running event loop."""
    from ttft_gateway.client.aiohttp_session import HedgingSession

    return _named(lambda settings, stats: HedgingSession(settings, stats=stats, **session_kwargs), config)


def HedgedUnaryInterceptor(  # noqa: N802
    config: PortHedgeConfig | None = None, *, methods: Collection[str] = ()
) -> Any:
    """Return an interceptor for RPCs with one response.

    Args:
        config: settings.
        methods: methods that may be carried out twice, such as "/package.Service/Method".
    """
    return _interceptors(config, methods)[0]


def HedgedServerStreamInterceptor(  # noqa: N802
    config: PortHedgeConfig | None = None, *, methods: Collection[str] = ()
) -> Any:
    """Return an interceptor for RPCs with a stream of responses; see `HedgedUnaryInterceptor`."""
    return _interceptors(config, methods)[1]


def _interceptors(config: PortHedgeConfig | None, methods: Collection[str]) -> list[Any]:
    from ttft_gateway.client.grpc_async import async_hedging_interceptors

    if not methods:
        raise TypeError(
            "methods is empty; name those that may be carried out twice: methods={'/package.Service/Method'}"
        )
    return _named(lambda settings, stats: async_hedging_interceptors("default", methods, settings, stats=stats), config)


def __getattr__(name: str) -> object:
    if name in _NO_COUNTERPART:
        raise AttributeError(f"{name} has no counterpart; use httpx or aiohttp")
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
