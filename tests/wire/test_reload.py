"""Reloading over real sockets: what changes, what goes on, what is refused."""

import asyncio
import contextlib
import json
import signal
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

import simulated_sockets
from gateway.api.plain_routes import contract
from gateway.config.loader import load
from gateway.config.settings import Settings
from gateway.errors import ReloadFailed
from gateway.events import Event
from gateway.process_events import ConfigReloaded, ReplicaSwitched
from gateway.server.app import Gateway
from gateway_fixture import until
from pretended_client import connected
from raw_http import answer, asking
from running import run_real
from spawned import started
from ttft_gateway.hedging.contract import RequestFacts

contract()  # read the file while no loop is running


class House:
    """A gateway with a configuration file that can be written again, and two replicas."""

    def __init__(self, file: Path, urls: dict[str, str]) -> None:
        self.file = file
        self.urls = urls
        self.gateway: Gateway
        self.events: list[Event] = []

    def write(self, **changes: Any) -> None:
        """The configuration, with changes at the top level."""
        rows = [{"name": name, "kind": "simulated", "base_url": url} for name, url in self.urls.items()]
        config = {"listen": "127.0.0.1:0", "admin_listen": "off", "models": [{"name": "m", "replicas": rows}]}
        self.file.write_text(json.dumps({**config, **changes}), encoding="utf-8")

    def read(self) -> Settings:
        """As the command does."""
        return load(self.file, {})

    def replica(self, name: str) -> Any:
        """Return the current state of a replica."""
        return self.gateway.in_force.topology.replicas["m", name]


@contextlib.asynccontextmanager
async def house(folder: Path) -> AsyncIterator[House]:
    """A gateway without sockets of its own, over two simulated servers."""
    async with (
        simulated_sockets.serving(0, ttft="5ms") as first,
        simulated_sockets.serving(1, ttft="5ms") as second,
        asyncio.TaskGroup() as tasks,
    ):
        made = House(folder / "gateway.yaml", {"a": first.url, "b": second.url})
        made.write()
        made.gateway = Gateway(await asyncio.to_thread(made.read), tasks, made.read)
        made.gateway.hub.listeners.append(made.events.append)
        yield made
        made.gateway.close()


def test_a_configuration_that_is_given_up_changes_nothing(tmp_path: Path) -> None:
    """A prepared topology that is abandoned leaves weights, memory and the serving objects as they were."""

    async def main() -> None:
        async with house(tmp_path) as home:
            gateway, replica = home.gateway, home.replica("a")
            serving, memory = gateway.public.raced.serving, gateway.in_force.topology.memory
            before = (replica.weight, replica.backup_only, memory.bytes_max)
            rows = [{"name": "a", "kind": "simulated", "base_url": home.urls["a"], "weight": 7}]
            home.write(models=[{"name": "m", "replicas": rows}], limits={"buffered_bodies_max": "20MB"})
            prepared = gateway.reloads.prepare(await asyncio.to_thread(home.read))
            assert (replica.weight, memory.bytes_max) == (7, 20_000_000)
            gateway.reloads.abandon(prepared)
            assert (replica.weight, replica.backup_only, memory.bytes_max) == before
            assert gateway.public.raced.serving is serving
            assert home.replica("b") is not None

    run_real(main())


def test_what_has_not_changed_is_kept(tmp_path: Path) -> None:
    """Replicas keep their learned latencies and breakers; only a changed one starts without them."""

    async def main() -> None:
        async with house(tmp_path) as home:
            pool = home.gateway.in_force.topology.models["m"].pools[0]
            kept, changed = home.replica("a"), home.replica("b")
            kept.breaker.trip(0.0)
            pool.learning.add_content("a", 0.5, None, 0.0)
            pool.learning.add_content("b", 0.5, None, 0.0)
            rows: list[dict[str, object]] = [
                {"name": name, "kind": "simulated", "base_url": url} for name, url in home.urls.items()
            ]
            rows[1]["headers"] = {"x-team": "new"}
            home.write(models=[{"name": "m", "replicas": rows}, {"name": "n", "replicas": rows[:1]}])
            done = await home.gateway.reloads.reload()
            assert (done.models, done.kept, done.new) == (2, 1, 2)
            assert home.replica("a") is kept
            assert home.replica("b") is not changed
            learned = home.gateway.in_force.topology.models["m"].pools[0].learning
            assert [learned.ttft[name].event_count(0.0) for name in "ab"] == [1, 0]
            assert home.gateway.public.raced.serving.models.keys() == {"m", "n"}

    run_real(main())


def test_a_change_of_routing_keeps_the_replica(tmp_path: Path) -> None:
    """A replica keeps its learned state when its weight changes, or when it becomes backup-only and back again."""

    async def main() -> None:
        async with house(tmp_path) as home:
            changed = home.replica("b")
            for backup_only in (True, False):
                rows = [{"name": name, "kind": "simulated", "base_url": url} for name, url in home.urls.items()]
                models = [{"name": "m", "replicas": [rows[0], {**rows[1], "weight": 3, "backup_only": backup_only}]}]
                home.write(models=models, hedge={"routing": "round_robin"})
                done = await home.gateway.reloads.reload()
                assert (done.kept, done.new, home.replica("b") is changed, changed.weight) == (2, 0, True, 3)
                picker = home.gateway.in_force.topology.models["m"].pools[0].picker
                picks = {picker.pick(RequestFacts(), (), 0.0, rand / 10) for rand in range(10)}
                assert (changed in picks) is not backup_only

    run_real(main())


@pytest.mark.parametrize("kept", ["ab", "a"])
def test_a_replica_stays_out(tmp_path: Path, kept: str) -> None:
    """A replica that is out stays out, with new settings, too; if the file has no other one left, it is taken in."""

    async def main() -> None:
        async with house(tmp_path) as home:
            await home.gateway.switches.switch_replica("a", None, out=True)
            await home.gateway.reloads.reload()
            assert [home.replica(name).out for name in "ab"] == [True, False]
            urls = {name: home.urls[name] for name in kept}
            rows = [
                {"name": name, "kind": "simulated", "base_url": url, "headers": {"x": "new"}}
                for name, url in urls.items()
            ]
            home.write(models=[{"name": "m", "replicas": rows}])
            assert (await home.gateway.reloads.reload()).new == len(kept)
            assert [home.replica(name).out for name in kept] == ([True, False] if kept == "ab" else [False])
            changes = [event.out for event in home.events if isinstance(event, ReplicaSwitched)]
            assert changes == ([True] if kept == "ab" else [True, False])

    run_real(main())


def test_a_reload_without_changes_changes_nothing(tmp_path: Path) -> None:
    """The same file again keeps every replica, every connection and the on-call switch."""

    async def main() -> None:
        async with house(tmp_path) as home:
            await home.gateway.switches.switch_hedging(None, on=False)
            clients = dict(home.gateway.in_force.topology.clients)
            budget = home.gateway.in_force.topology.models["m"].pools[0].budget
            done = await home.gateway.reloads.reload()
            assert (done.kept, done.new) == (2, 0)
            pool = home.gateway.in_force.topology.models["m"].pools[0]
            assert not pool.hedging_on
            assert pool.budget is budget
            assert home.gateway.in_force.topology.clients == clients

    run_real(main())


@pytest.mark.parametrize(
    ("change", "why"),
    [
        ({"listen": "127.0.0.1:1"}, "listen changed"),
        ({"learned_file": "x"}, "learned_file changed"),
        ({"share": {"url": "redis://h:6379"}}, "share changed"),
        ({"models": []}, "models"),
        ({"nonsense": 1}, "nonsense"),
    ],
)
def test_a_bad_configuration_is_refused(tmp_path: Path, change: dict[str, Any], why: str) -> None:
    """The old configuration remains in force; the response and the log contain the error."""

    async def main() -> None:
        async with house(tmp_path) as home:
            site = home.gateway.in_force.topology
            home.write(**change)
            with pytest.raises(ReloadFailed, match=why):
                await home.gateway.reloads.reload()
            assert home.gateway.in_force.topology is site
            reloads = [event for event in home.events if isinstance(event, ConfigReloaded)]
            assert len(reloads) == 1
            assert why in (reloads[0].error or "")

    run_real(main())


def test_keys_are_read_again(tmp_path: Path) -> None:
    """After a reload a key file's new content is the key, and the old one is not."""

    async def main() -> None:
        async with house(tmp_path) as home:
            secret = tmp_path / "team-a"
            for key in ("first", "second"):
                secret.write_text(key + "-key-of-the-team\n", encoding="utf-8")
                home.write(keys=[{"name": "team-a", "key_file": "team-a"}])
                await home.gateway.reloads.reload()
                keyring = home.gateway.public.raced.serving.keyring
                given = [(b"authorization", f"Bearer {key}-key-of-the-team".encode())]
                assert keyring.name(given) == "team-a"

    run_real(main())


def test_origins_are_read_again(tmp_path: Path) -> None:
    """After a reload a page of a new origin may read responses, and one of a removed origin may not."""
    request = b"GET /healthz HTTP/1.1\r\nhost: localhost\r\norigin: https://app.example\r\n\r\n"

    async def main() -> None:
        async with house(tmp_path) as home:
            client = connected(home.gateway)
            for origins in (["https://app.example"], []):
                home.write(cors_origins=origins)
                await home.gateway.reloads.reload()
                client.send(request)
                headers = (await client.receive()).headers
                assert headers.get("access-control-allow-origin") == (origins[0] if origins else None)
            client.leave()

    run_real(main())


def test_sighup_drops_no_stream(tmp_path: Path) -> None:
    """After SIGHUP, a process serves new models immediately, and a running stream completes; SIGUSR1 does nothing."""

    async def main() -> None:
        async with simulated_sockets.serving(ttft="5ms", gap="10ms") as server:
            row = {"name": "a", "kind": "simulated", "base_url": server.url}
            file = tmp_path / "gateway.yaml"

            def write(*names: str) -> None:
                models = [{"name": name, "replicas": [row]} for name in names]
                config = {"listen": "127.0.0.1:0", "admin_listen": "off", "models": models}
                file.write_text(json.dumps(config), encoding="utf-8")

            write("old")
            async with started("serve", "--config", str(file)) as gateway:
                await gateway.ready(gateway.process.stderr)
                async with answer(gateway.port, asking(model="old", max_tokens=60)) as got:
                    write("new")
                    gateway.process.send_signal(signal.SIGUSR1)  # of a rotation of logs
                    gateway.process.send_signal(signal.SIGHUP)
                    await gateway.says(gateway.process.stdout, b"config_reloaded")
                    async with answer(gateway.port, asking(model="new", max_tokens=2)) as other:
                        assert (await other.body()).endswith(b"data: [DONE]\n\n")
                    async with answer(gateway.port, asking(model="old", max_tokens=2)) as gone:
                        assert gone.status == 404
                    assert (await got.body()).endswith(b"data: [DONE]\n\n")
            await until(lambda: not server.stats.in_flight)

    run_real(main())
