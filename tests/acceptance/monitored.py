"""A gateway under every kind of trouble that a metric shows, scraped by a real Prometheus server.

Each model has one kind of trouble. The queries of the dashboard and of the rules are run against the server, and drawn
by panels.py. Units: seconds.
"""

import asyncio
import contextlib
import json
from collections.abc import Callable, Coroutine, Iterator, Mapping
from functools import partial
from pathlib import Path
from typing import Final
from urllib.parse import urlsplit

import yaml

from checkout import ROOT
from dashboard_panels import panels
from prometheus_server import PrometheusServer, Setup, prometheus
from raw_http import ASK, Cut, answer, request_bytes
from served import Served, gateway, replicas

RULES: Final = ROOT / "docker/monitoring/rules.yaml"
_USUAL: Final = {"ttft": "lognormal_median:60ms,0.3", "gap": "2ms", "tokens": 20, "headers": "at_once"}
_REPLICAS: Final[Mapping[str, Mapping[str, object]]] = {
    "steady": _USUAL,
    "tail": {**_USUAL, "stall": "30%:1500ms"},
    "failing": {**_USUAL, "faults": ["500 20%", "cut_rst:4 20%"]},
    "broken": {**_USUAL, "faults": ["503"]},
    "busy": {**_USUAL, "ttft": "400ms"},
    "limited": {**_USUAL, "provider": "openai", "requests_per_min": 30, "tokens_per_min": 6000},
}
_PRICES: Final = {"prompt": 2.5, "completion": 10}
_KEYS: Final = {"team-a": "key-of-team-a", "team-b": "key-of-team-b", "nobody": "a-wrong-key"}
_ANSWER_S_MAX: Final = 30.0
# Of each model: key, requests per second.
_TRAFFIC: Final[Mapping[str, tuple[str, float]]] = {
    "tail": ("team-a", 8.0),
    "failing": ("team-a", 4.0),
    "broken": ("team-b", 1.0),
    "busy": ("team-b", 6.0),
    "limited": ("team-b", 2.0),
    "steady": ("nobody", 0.5),
}
NEEDS_A_DEFECT: Final = ("Parts that failed",)


def _config(urls: Mapping[str, str]) -> dict[str, object]:
    def rows(*names: str, kind: str = "vllm") -> list[dict[str, str]]:
        return [{"name": name, "kind": kind, "base_url": urls[name], "model": "m"} for name in names]

    tight = {"policy": "static", "delay": "150ms", "hedge_delay_min": "1ms", "budget": "5%"}
    models = [
        {"name": "tail", "replicas": rows("steady", "tail"), "prices": _PRICES, "hedge": tight},
        {"name": "failing", "replicas": rows("failing", "steady"), "recovery": "replay"},
        {"name": "broken", "replicas": rows("broken")},
        {"name": "busy", "replicas": rows("busy"), "concurrency": 1, "queue": {"max": 1, "timeout": "2s"}},
        {"name": "limited", "replicas": [{**row, "api_key": "k"} for row in rows("limited", kind="openai")]},
    ]
    keys = [{"name": name, "key": key} for name, key in _KEYS.items() if name != "nobody"]
    return {"models": models, "keys": keys}


@contextlib.contextmanager
def monitored(folder: Path, rules: Path | None, interval_s: float) -> Iterator[tuple[Served, PrometheusServer, str]]:
    """Run replicas, a gateway and a Prometheus server; give the last two, and the address of the limited replica."""
    with replicas(**_REPLICAS) as urls, gateway(_config(urls), folder) as served:
        target = urlsplit(served.admin_url).netloc
        with prometheus(folder / "prometheus", Setup({target: {}}, rules, interval_s)) as server:
            yield served, server, urls["limited"]


async def trouble(served: Served, limited: str, for_s: float) -> None:
    """Send every kind of traffic for a time, some of it past the gateway."""
    port, beside = urlsplit(served.url).port or 0, urlsplit(limited).port or 0
    async with asyncio.TaskGroup() as tasks:
        for model, (key, per_s) in _TRAFFIC.items():
            tasks.create_task(every(1 / per_s, for_s, partial(ask, port, model, _KEYS[key])))
        tasks.create_task(every(0.5, for_s, partial(ask, beside, "m", "another client's")))


async def every(interval_s: float, for_s: float, send: Callable[[], Coroutine[object, object, object]]) -> None:
    """Send requests at a constant rate, and wait for all answers."""
    loop = asyncio.get_running_loop()
    end_s = loop.time() + for_s
    async with asyncio.TaskGroup() as tasks:
        while loop.time() < end_s:
            tasks.create_task(send())
            await asyncio.sleep(interval_s)


async def ask(port: int, model: str, key: str) -> int:
    """Send a request, read its answer, and return the status; 0 if it was cut."""
    body = json.dumps({**ASK, "model": model, "stream_options": {"include_usage": True}}).encode()
    payload = request_bytes(body, headers={"authorization": f"Bearer {key}"})
    try:
        async with asyncio.timeout(_ANSWER_S_MAX), answer(port, payload) as got:
            await got.body()
            return got.status
    except (Cut, OSError):  # also a timeout
        return 0


def filled(expr: str, window: str) -> str:
    """Return a query of the dashboard with values for its variables."""
    for name, value in (("$__rate_interval", window), ("$job", ".*"), ("$model", ".*")):
        expr = expr.replace(name, value)
    return expr


def empty_queries(server: PrometheusServer, window: str) -> list[str]:
    """Return the queries of panels and recording rules that give no series, except those that need a defect."""
    rules = yaml.safe_load(RULES.read_text(encoding="utf-8"))["groups"]
    recorded = [rule["expr"] for group in rules for rule in group["rules"] if "record" in rule]
    queries = [query.expr for panel in panels() if panel.title not in NEEDS_A_DEFECT for query in panel.queries]
    return [expr for expr in (*queries, *recorded) if not server.instant(filled(expr, window))]


def failing_conditions(server: PrometheusServer) -> list[str]:
    """Return the alerts with a condition that cannot be evaluated."""
    failing = []
    for group in yaml.safe_load(RULES.read_text(encoding="utf-8"))["groups"]:
        for rule in group["rules"]:
            try:
                server.instant(rule["expr"])
            except ValueError as error:
                failing.append(f"{rule.get('alert', rule.get('record'))}: {error}")
    return failing
