"""The names, settings and counts of hedge-python over the library's own transports."""

import asyncio
import warnings
from typing import Any

import httpx
import pytest

from client_replicas import replicas
from ttft_gateway import HedgeConfig as OwnConfig
from ttft_gateway import compat
from ttft_gateway.compat import HedgeConfig, HedgedAiohttpSession, HedgedHttpxTransport, HedgedUnaryInterceptor, Stats
from ttft_gateway.testing import Script, answer, late


def test_settings_have_their_counterparts() -> None:
    """Each field is taken over, the defaults included; another percentile is the policy `percentile`."""
    assert HedgeConfig().settings() == OwnConfig(window=30.0, warmup_delay=0.01, key="origin")
    given = HedgeConfig(
        percentile=0.8,
        max_hedges=2,
        budget_percent=5,
        min_delay=0.002,
        warmup_requests=0,
        warmup_delay=0.5,
        window_duration=10,
        key_level="endpoint",
    )
    assert given.settings() == OwnConfig(
        policy="percentile",
        percentile=0.8,
        max_hedges=2,
        budget_percent=5,
        min_delay=0.002,
        warmup_requests=1,
        warmup_delay=0.5,
        window=10,
        key="endpoint",
    )


def test_the_estimated_rate_is_ignored_with_a_warning() -> None:
    """The budget is a share of the measured traffic."""
    with pytest.warns(DeprecationWarning, match="estimated_rps is ignored"):
        HedgeConfig(estimated_rps=20)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        HedgeConfig()


def test_a_transport_counts_under_the_names_of_the_port() -> None:
    """Requests, backups, wins and requests of the warm-up."""
    stats = Stats()
    config = HedgeConfig(warmup_delay=0.001, budget_percent=100, warmup_requests=2, stats=stats)
    script = Script(answer(b"a"), late(), answer(b"b"))

    async def main() -> list[str]:
        transport: Any = HedgedHttpxTransport(inner=script.transport(httpx), config=config)
        assert (transport.stats, transport._config) == (stats, config)
        async with httpx.AsyncClient(transport=transport) as client:
            return [(await client.get("http://any")).text for _ in range(3)]

    assert asyncio.run(main()) == ["a", "b", "b"]
    counts = stats.snapshot()
    assert (counts.total_requests, counts.hedged_requests, counts.hedge_wins, counts.primary_wins) == (3, 1, 1, 0)
    assert (stats.warmup_requests, stats.budget_exhausted, stats.hedge_rate()) == (2, 0, 1 / 3)
    with pytest.raises(AttributeError, match="no attribute"):
        _ = stats.other


def test_a_session_of_aiohttp_is_made() -> None:
    """It sends, and counts under the names of the port."""
    with replicas() as site:
        replica = site.add("plain")

        async def main() -> tuple[bytes, int]:
            session: Any = HedgedAiohttpSession(config=HedgeConfig(warmup_delay=60))
            async with session:
                response = await session.get(replica.url)
                return await response.read(), session.stats.total_requests

        assert asyncio.run(main()) == (b"hello", 1)


def test_methods_of_grpc_are_named() -> None:
    """An RPC has no safe methods, so that the error asks for names."""
    with pytest.raises(TypeError, match="name those that may be carried out twice"):
        HedgedUnaryInterceptor(HedgeConfig())
    made: Any = HedgedUnaryInterceptor(HedgeConfig(), methods={"/a.B/C"})
    assert made.stats.total_requests == 0


def test_clients_without_a_counterpart_are_named() -> None:
    """The error has the alternative."""
    with pytest.raises(AttributeError, match="HedgedTornadoClient has no counterpart; use httpx or aiohttp"):
        _ = compat.HedgedTornadoClient
    with pytest.raises(ValueError, match="key_level is 'path'"):
        HedgeConfig(key_level="path")  # type: ignore[arg-type]
