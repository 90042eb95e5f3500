"""A pool with state that cannot be described, and state that is dropped: only it is lost, and it is reported once."""

import asyncio
import json

from gateway.api.plain_routes import contract
from gateway.config.settings import Settings
from gateway.events import Event
from gateway.observe.dropped import DroppedState
from gateway.process_events import StateDropped
from gateway.server.app import Gateway
from running import run_virtual
from scrapes import rendered

METRIC = "ttft_gateway_state_dropped"


def test_a_pool_that_cannot_be_described_is_left_out() -> None:
    """Scrapes, lists and descriptions have the other pools; the log has one line, and the metric counts each time."""
    rows = [{"name": name, "kind": "vllm", "base_url": f"http://127.0.0.1:{n}/v1"} for n, name in enumerate("ab", 1)]
    fallbacks = [{"replicas": [{**rows[0], "name": "c"}]}]
    models = [{"name": "m", "replicas": rows, "fallbacks": fallbacks}, {"name": "n", "replicas": rows}]
    checked = Settings.model_validate({"models": models})
    contract()  # read the file while no loop is running
    events: list[Event] = []

    async def main() -> None:
        async with asyncio.TaskGroup() as tasks:
            gateway = Gateway(checked, tasks)
            gateway.hub.listeners.append(events.append)
            gateway.in_force.topology.models["m"].pools[0].learning.ttft.clear()
            view = gateway.view
            await view.scrape()
            text = (await rendered(await view.scrape())).decode()
            names = {(pool.model, pool.pool) for pool in await view.pools()}
            described = await view.describe("m", ())
            gateway.hub.flush()
            gateway.close()
        assert names == {("m", "m/fallback-1"), ("n", "n")}
        assert f'{METRIC}_total{{source="pool"}} 2.0' in text
        assert 'ttft_gateway_in_flight{gen_ai_request_model="n",replica="a"} 0.0' in text
        assert 'ttft_gateway_in_flight{gen_ai_request_model="m",replica="c"} 0.0' in text
        assert 'ttft_gateway_in_flight{gen_ai_request_model="m",replica="a"}' not in text
        assert described is not None
        assert [pool["pool"] for pool in json.loads(json.dumps(described))["pools"]] == ["m/fallback-1"]

    run_virtual(main())
    dropped = [event for event in events if isinstance(event, StateDropped)]
    assert [(event.source, event.name, event.reason) for event in dropped] == [("pool", "m", "KeyError: 'a'")]


def test_what_is_dropped_is_reported_once() -> None:
    """An event for each name, at most 1,000 of them, with short texts; the metric counts all, from zero."""
    events: list[Event] = []
    dropped = DroppedState(events.append, lambda: 5.0)
    assert {value.labels["source"]: value.value for value in dropped.values()} == {
        "learned_file": 0,
        "pool": 0,
        "share": 0,
        "worker": 0,
    }
    for name in ("a", "b", "a"):
        dropped.of("share")(name, "it is damaged")
    dropped.add("worker", "a", "x" * 5_000)
    assert events == [
        StateDropped(5.0, "share", "a", "it is damaged"),
        StateDropped(5.0, "share", "b", "it is damaged"),
        StateDropped(5.0, "worker", "a", "x" * 200),
    ]
    for number in range(2_000):
        dropped.add("share", f"{number} {'x' * 300}", "")
    assert len(events) == 1_000
    counts = {value.labels["source"]: value.value for value in dropped.values()}
    assert (counts["share"], counts["worker"], counts["pool"]) == (2_003, 1, 0)
