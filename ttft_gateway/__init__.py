"""Hedging for the clients of LLM APIs, and of any HTTP API: `from ttft_gateway import HedgingTransport`.

Each name is imported from `ttft_gateway.client` when it is first used, so that a process loads only the client library
that it uses. docs/client.md is the guide.
"""

import gc
import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from ttft_gateway.client.aiohttp_session import HedgingSession
    from ttft_gateway.client.budget import Budget
    from ttft_gateway.client.config import HedgeConfig
    from ttft_gateway.client.grpc_async import async_hedging_interceptors
    from ttft_gateway.client.grpc_sync import hedging_channel
    from ttft_gateway.client.hedged import hedged
    from ttft_gateway.client.httpx_async import AsyncHedgingTransport, AsyncHedgingTransport2
    from ttft_gateway.client.httpx_sync import HedgingTransport, HedgingTransport2
    from ttft_gateway.client.prometheus import StatsCollector
    from ttft_gateway.client.report import RaceReport, report_of
    from ttft_gateway.client.stats import Stats, StatsSnapshot, TargetSnapshot
    from ttft_gateway.client.targets import Credential, Target

_MODULES = {
    "AsyncHedgingTransport": "httpx_async",
    "AsyncHedgingTransport2": "httpx_async",
    "Budget": "budget",
    "Credential": "targets",
    "HedgeConfig": "config",
    "HedgingSession": "aiohttp_session",
    "HedgingTransport": "httpx_sync",
    "HedgingTransport2": "httpx_sync",
    "RaceReport": "report",
    "Stats": "stats",
    "StatsCollector": "prometheus",
    "StatsSnapshot": "stats",
    "Target": "targets",
    "TargetSnapshot": "stats",
    "async_hedging_interceptors": "grpc_async",
    "hedged": "hedged",
    "hedging_channel": "grpc_sync",
    "report_of": "report",
}

_NEEDED = {
    "aiohttp": "'ttft-gateway[aiohttp]'",
    "grpc": "'ttft-gateway[grpc]'",
    "httpx2": "httpx2",
    "prometheus_client": "prometheus-client",
}

__all__ = [
    "AsyncHedgingTransport",
    "AsyncHedgingTransport2",
    "Budget",
    "Credential",
    "HedgeConfig",
    "HedgingSession",
    "HedgingTransport",
    "HedgingTransport2",
    "RaceReport",
    "Stats",
    "StatsCollector",
    "StatsSnapshot",
    "Target",
    "TargetSnapshot",
    "async_hedging_interceptors",
    "hedged",
    "hedging_channel",
    "report_of",
]


def __getattr__(name: str) -> Any:
    if name not in _MODULES:
        raise AttributeError(f"module 'ttft_gateway' has no attribute {name!r}")
    collects = gc.isenabled()
    gc.disable()  # imports leave no garbage, and looking for it takes a third of their time
    try:
        found = getattr(importlib.import_module(f"ttft_gateway.client.{_MODULES[name]}"), name)
    except ModuleNotFoundError as error:
        missing = (error.name or "").partition(".")[0]
        if missing not in _NEEDED:
            raise
        text = f"{name} needs {missing}; install it: pip install {_NEEDED[missing]}"
        raise ModuleNotFoundError(text, name=missing) from None
    finally:
        if collects:
            gc.enable()
    globals()[name] = found
    return found


def __dir__() -> list[str]:
    return sorted(__all__)
