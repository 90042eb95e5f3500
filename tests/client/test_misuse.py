"""Each wrong use has an error that shows what to write."""

import asyncio
import subprocess
import sys
from collections.abc import Callable
from typing import Any

import httpx
import httpx2
import pytest

from checkout import ROOT
from ttft_gateway import (
    AsyncHedgingTransport,
    AsyncHedgingTransport2,
    Budget,
    HedgingTransport,
    HedgingTransport2,
    Stats,
    Target,
    async_hedging_interceptors,
    hedged,
    hedging_channel,
)

_MOCK = httpx.MockTransport(lambda _: httpx.Response(200))
_MOCK2 = httpx2.MockTransport(lambda _: httpx2.Response(200))


def _get(client: Any, transport: Any) -> Any:
    with client(transport=transport) as made:
        return made.get("http://any")


def _get_async(client: Any, transport: Any) -> Any:
    async def main() -> Any:
        async with client(transport=transport) as made:
            return await made.get("http://any")

    return asyncio.run(main())


def _any(value: object) -> Any:
    return value


MISUSES: dict[str, tuple[Callable[[], object], str]] = {
    "a dict of settings": (lambda: HedgingTransport(_any({"percentile": 0.9})), "config is dict; use HedgeConfig"),
    "settings of gRPC": (lambda: async_hedging_interceptors("a", {"/a/b"}, _any(5)), "config is int; use HedgeConfig"),
    "one replica": (lambda: HedgingTransport(replicas="http://a"), "replicas is str; use a list"),
    "one target": (lambda: HedgingTransport(replicas=_any(Target("http://a"))), "replicas is Target; use a list"),
    "keys by address": (lambda: HedgingTransport(replicas=_any({"http://a": "k"})), "replicas is dict; use a list"),
    "pairs": (lambda: HedgingTransport(replicas=_any([("http://a", "k")])), "a replica is tuple; use an address or a"),
    "no address": (lambda: Target(_any(None)), "base_url is NoneType; use a string"),
    "a number as a model": (lambda: Target("http://a", model=_any(5)), "model is int; use a string"),
    "a list of headers": (lambda: Target("http://a", headers=_any([("a", "b")])), "headers is no mapping of strings"),
    "a number in headers": (lambda: Target("http://a", headers=_any({"a": 5})), "headers is no mapping of strings"),
    "counts as settings": (lambda: hedged(httpx.Client(), _any(Stats())), "config is Stats; use HedgeConfig"),
    "an SDK as a client": (lambda: hedged(_any(Target("http://a"))), "which an SDK takes as http_client"),
    "a transport that hedges": (lambda: HedgingTransport(transport=HedgingTransport()), "transport hedges already"),
    "a client that hedges": (lambda: hedged(hedged(httpx.Client(transport=_MOCK))), "transport hedges already"),
    "a hook that is none": (lambda: Stats(_any("log")), "on_race is str; use a function"),
    "an address as a channel": (
        lambda: hedging_channel(_any("a:1"), "a", {"/a/b"}),
        "channel is str; use grpc.insecure",
    ),
    "a token": (lambda: Target("http://a", token=_any("t")), "token is set without a credential; use api_key"),
    "a class of counts": (lambda: HedgingTransport(stats=_any({})), r"stats is dict; use Stats\(\)"),
    "a percentage": (lambda: HedgingTransport(budget=_any(10)), r"budget is int; use Budget\(\)"),
    "a client as inner": (
        lambda: HedgingTransport(transport=_any(httpx.Client())),
        "transport is Client without handle_request; use a transport of httpx",
    ),
    "httpx2 inside": (lambda: HedgingTransport(transport=_any(_MOCK2)), "is for httpx; use HedgingTransport2"),
    "httpx inside": (lambda: AsyncHedgingTransport2(transport=_any(_MOCK)), "use AsyncHedgingTransport"),
    "asynchronous in a Client": (
        lambda: _get(httpx.Client, AsyncHedgingTransport()),
        "use HedgingTransport in a Client",
    ),
    "synchronous in an AsyncClient": (
        lambda: _get_async(httpx.AsyncClient, HedgingTransport()),
        "use AsyncHedgingTransport in an AsyncClient",
    ),
    "httpx2's in httpx": (
        lambda: _get(httpx.Client, HedgingTransport2(transport=_MOCK2)),
        "HedgingTransport2 is for httpx2; it is in a client of httpx",
    ),
    "httpx's in httpx2": (
        lambda: _get_async(httpx2.AsyncClient, AsyncHedgingTransport(transport=_MOCK)),
        "AsyncHedgingTransport is for httpx; it is in a client of httpx2",
    ),
}


@pytest.mark.parametrize("name", MISUSES)
def test_a_wrong_use_has_an_error_with_the_right_one(name: str) -> None:
    """The error is a `TypeError`."""
    use, text = MISUSES[name]
    with pytest.raises(TypeError, match=text):
        use()


def test_a_budget_is_no_setting_of_its_own() -> None:
    """A wrong percentage is rejected."""
    with pytest.raises(ValueError, match="percent is 200; use a value from 0 to 100"):
        Budget(200)


@pytest.mark.parametrize(
    ("module", "name", "command"),
    [
        ("aiohttp", "HedgingSession", "pip install 'ttft-gateway[aiohttp]'"),
        ("grpc", "hedging_channel", "pip install 'ttft-gateway[grpc]'"),
        ("httpx2", "HedgingTransport2", "pip install httpx2"),
        ("prometheus_client", "StatsCollector", "pip install prometheus-client"),
    ],
)
def test_a_missing_library_is_named_with_its_extra(module: str, name: str, command: str) -> None:
    """The error has the command that installs it."""
    program = f"import sys; sys.modules[{module!r}] = None\nfrom ttft_gateway import {name}"
    done = subprocess.run([sys.executable, "-c", program], cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.stderr.splitlines()[-1] == f"ModuleNotFoundError: {name} needs {module}; install it: {command}"
