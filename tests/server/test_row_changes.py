"""Replicas that come and go while a gateway runs: what is built again, what is reused, and how a newcomer starts."""

import asyncio
import math
from collections import Counter
from collections.abc import Callable, Sequence
from functools import partial

import pytest

import gateway.server.model_parts
from gateway.config.discovered import PoolPlace, address_rows, sources, with_model, with_rows
from gateway.config.settings import Settings
from gateway.race.context import Runtime
from gateway.race.deadlines import TimerQueue
from gateway.server.credentials.board import TokenBoard
from gateway.server.model_parts import Foundation
from gateway.server.topology import Topology, build_topology
from running import run_virtual
from ttft_gateway.hedging.contract import RequestFacts
from ttft_gateway.limits.rates import LOCAL
from ttft_gateway.pool.pool import Pool
from ttft_gateway.routing.replicas import BreakerState

PLACE = PoolPlace("m0", 0)


class Site:
    """Topologies of models with replicas from a source."""

    def __init__(self, tasks: asyncio.TaskGroup, models: int, addresses: Sequence[str], **changes: object) -> None:
        source = {"dns": "vllm.svc", "port": 8000, "kind": "vllm"}
        rows = [{"name": f"m{number}", "discover": source, **changes} for number in range(models)]
        self.base = Settings.model_validate({"models": rows})
        self.runtime = Runtime(
            asyncio.get_running_loop(), lambda _: None, lambda: 0.5, TimerQueue(asyncio.get_running_loop())
        )
        self.rows = {place: address_rows(each, addresses, ()) for place, each in sources(self.base).items()}
        self.settings = with_rows(self.base, self.rows)
        self.foundation = Foundation(tasks, self.runtime, LOCAL, None, TokenBoard(self.runtime.loop.time))
        self.topology = build_topology(self.settings, self.foundation)

    @property
    def pool(self) -> Pool:
        """The pool of the first model."""
        return self.topology.models["m0"].pools[0]

    def change(self, *addresses: str) -> Topology:
        """Put other replicas of the first model in force; return the topology before."""
        source = sources(self.base)[PLACE]
        self.rows[PLACE] = address_rows(source, addresses, self.rows[PLACE])
        self.settings = with_model(self.settings, self.base, "m0", {PLACE: self.rows[PLACE]})
        old = self.topology
        self.topology = build_topology(self.settings, self.foundation, old, rows_only=True)
        self.topology.take_over(old, self.runtime.loop.time())
        return old


def virtually(main: Callable[[asyncio.TaskGroup], object]) -> None:
    """Run a test on a loop in virtual time."""

    async def run() -> None:
        async with asyncio.TaskGroup() as tasks:
            main(tasks)

    run_virtual(run())


def used(pool: Pool, requests: int, *, ttft_s: float = 0.1, since_s: float = 0.0, per_s: float = 100.0) -> Counter[str]:
    """Send requests one after the other, each answered immediately; return their replicas' names."""
    names: Counter[str] = Counter()
    for number in range(requests):
        now_s = since_s + number / per_s
        replica = pool.picker.pick(RequestFacts(), (), now_s, (number * 0.618034) % 1)
        assert replica is not None
        names[replica.name] += 1
        pool.loads.on_request(now_s)
        pool.loads.of[replica].used_s = now_s
        pool.learning.predictor.add(replica.name, ttft_s, 10.0, 0.0, now_s)
        pool.learning.add_content(replica.name, ttft_s, ttft_s, now_s)
    return names


def test_one_change_builds_one_pool(monkeypatch: pytest.MonkeyPatch) -> None:
    """With 50 models of 20 replicas, one more replica builds one pool, one replica and one client."""
    made: Counter[str] = Counter()

    def counted(name: str) -> None:
        original = getattr(gateway.server.model_parts, name)

        def count(*arguments: object, **named: object) -> object:
            made[name] += 1
            return original(*arguments, **named)

        monkeypatch.setattr(gateway.server.model_parts, name, count)

    def main(tasks: asyncio.TaskGroup) -> None:
        addresses = [f"10.0.0.{number}" for number in range(20)]
        site = Site(tasks, 50, addresses)
        for name in ("Pool", "Replica", "origin_of", "client_to", "_settings_of"):
            counted(name)
        old = site.change(*addresses, "10.0.0.20")
        assert made == {"Pool": 1, "Replica": 1, "origin_of": 1, "client_to": 1}
        kept = [name for name, model in site.topology.models.items() if model is old.models[name]]
        assert len(kept) == 49
        assert len(site.topology.replicas) == 1001
        assert site.topology.clients.keys() - old.clients.keys() == {
            site.topology.parts["m0"].rows["10.0.0.20:8000"][1]
        }
        assert site.topology.serving.admission is old.serving.admission

    virtually(main)


def test_replicas_that_stay_keep_everything() -> None:
    """Breaker, cool-down, level, windows, loads, budget and connections stay; running attempts still count."""

    def main(tasks: asyncio.TaskGroup) -> None:
        site = Site(tasks, 1, ["10.0.0.1", "10.0.0.2"], concurrency=3)
        old = site.pool
        used(old, 60)
        kept = old.replicas[0]
        kept.breaker.trip(1.0)
        kept.breaker.cool_down(500.0)
        before = site.change("10.0.0.1", "10.0.0.3")
        assert site.pool.replicas[0] is kept
        assert (kept.breaker.state, kept.breaker.cooling_until_s) == (BreakerState.OPEN, 500.0)
        assert site.pool.loads.of[kept] is old.loads.of[kept]
        assert site.pool.learning.ttft[kept.name] is old.learning.ttft[kept.name]
        assert (site.pool.learning.predictor, site.pool.budget) == (old.learning.predictor, old.budget)
        assert site.topology.model_queues == before.model_queues
        assert {origin.host for origin in site.topology.clients} == {"10.0.0.1", "10.0.0.3"}
        assert all(
            before.clients[origin] is client
            for origin, client in site.topology.clients.items()
            if origin.host == "10.0.0.1"
        )

    virtually(main)


def test_a_removed_replica_drains() -> None:
    """It gets nothing new, not even from requests with the old pool, is listed for 5 minutes, and leaves no level."""

    def main(tasks: asyncio.TaskGroup) -> None:
        site = Site(tasks, 1, ["10.0.0.1", "10.0.0.2", "10.0.0.3"])
        used(site.pool, 60)
        old, gone = site.pool, site.pool.replicas[2]
        gone.in_flight = 1
        site.change("10.0.0.1", "10.0.0.2")
        assert gone.name not in used(old, 40, since_s=2.0)
        assert old.picker.backup(RequestFacts(), old.replicas[0], [old.replicas[0]], 3.0, 0.5) is old.replicas[1]
        assert site.topology.draining() == {("m0", "m0"): [gone]}
        old.learning.predictor.add(gone.name, 9.0, 10.0, 0.0, 3.0)  # its last answer
        old.learning.predictor.fold(3.0)
        assert gone.name in site.pool.learning.predictor.levels
        assert site.topology.forget_drained(299.0) == site.topology.forget_drained(301.0) == []
        gone.in_flight = 0
        assert site.topology.forget_drained(301.0) == [("m0", gone.name)]
        assert site.topology.draining() == {}
        assert gone.name not in site.pool.learning.predictor.levels

    virtually(main)


def test_a_replica_that_was_taken_out_stays_out() -> None:
    """An operator's decision holds when the replica vanishes and returns; one that was not taken out is in again."""

    def main(tasks: asyncio.TaskGroup) -> None:
        site = Site(tasks, 1, ["10.0.0.1", "10.0.0.2", "10.0.0.3"])
        site.pool.switch(site.pool.replicas[1], 0.0, out=True)
        site.change("10.0.0.1")
        old = site.change("10.0.0.1", "10.0.0.2", "10.0.0.3")
        assert old.out() == {("m0", "10.0.0.2:8000")}
        assert site.topology.drained == {}

    virtually(main)


def test_a_new_replica_starts_slowly() -> None:
    """Its share is a tenth in the first second, grows for 10 s, and its level starts at the median of the others."""

    def main(tasks: asyncio.TaskGroup) -> None:
        site = Site(tasks, 1, ["10.0.0.1", "10.0.0.2", "10.0.0.3", "10.0.0.4"])
        used(site.pool, 400)
        levels = site.pool.learning.predictor._levels
        levels |= dict(zip(levels, (0.5, 0.6, 0.7, 0.8), strict=True))
        site.change("10.0.0.1", "10.0.0.2", "10.0.0.3", "10.0.0.4", "10.0.0.5")
        new = site.pool.replicas[4]
        assert site.pool.learning.predictor.levels[new.name] == pytest.approx(math.exp(0.65))
        for pool_level in levels:
            levels[pool_level] = 0.0
        levels[new.name] = -0.5  # so quick that it would get every request
        site.pool.learning.predictor.fold(0.0)
        site.pool.learning.predictor._scales |= {name: math.exp(level) for name, level in levels.items()}
        assert site.pool.picker.pick(RequestFacts(), (), 0.9, 0.5) is not new
        assert (
            site.pool.picker.pick(RequestFacts(), (), 1.0, 0.5) is new
        )  # the first one, however few requests there are
        site.pool.loads.of[new].used_s = 0.0
        shares = []
        for since_s in (0.0, 5.0, 9.0):
            picks = [
                site.pool.picker.pick(RequestFacts(), (), since_s + step / 1000, step / 1000) for step in range(1000)
            ]
            shares.append(picks.count(new) / len(picks))
        assert shares[0] <= 0.1 / 5
        assert shares == pytest.approx([0.02, 0.1, 0.18], abs=0.02)

    virtually(main)


def test_no_hedge_goes_to_a_new_replica_before_its_first_content() -> None:
    """A hedge on a replica that may not be ready would be lost; afterwards it takes them."""

    def main(tasks: asyncio.TaskGroup) -> None:
        site = Site(tasks, 1, ["10.0.0.1"])
        used(site.pool, 40)
        site.change("10.0.0.1", "10.0.0.2")
        first, new = site.pool.replicas
        backup = partial(site.pool.picker.backup, RequestFacts(), first, [first], 1.0, 0.5)
        assert backup() is None
        site.pool.loads.of[new].is_new = False
        assert backup() is new

    virtually(main)


@pytest.mark.parametrize("requests", [0, 40])
def test_nothing_starts_slowly_where_nothing_else_serves(requests: int) -> None:
    """Before the first request, and where every replica is another one, all replicas are used immediately."""

    def main(tasks: asyncio.TaskGroup) -> None:
        site = Site(tasks, 1, ["10.0.0.1"] if requests else [])
        if requests:
            used(site.pool, requests)
        site.change("10.0.0.2", "10.0.0.3")
        assert not any(site.pool.loads.of[replica].is_new for replica in site.pool.replicas)
        assert len(used(site.pool, 20)) == 2

    virtually(main)
