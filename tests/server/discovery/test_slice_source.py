"""A Service that is watched through the faults of an API server, in virtual time: what is put in force, and when."""

import asyncio
from collections.abc import Awaitable, Callable

import pytest

from fake_kubernetes import SLICES, Endpoint, FakeKubernetes, FakeTransport, Refusal, endpoint_slice, pod
from gateway.config.settings import Settings
from gateway.events import ComponentFailed, Event
from gateway.process_events import DiscoveryChanged
from gateway.race.context import Runtime
from gateway.race.deadlines import TimerQueue
from gateway.server.discovery import kubernetes, slice_source
from gateway.server.discovery.driver import Discovery
from gateway.server.discovery.kubernetes import Access, Api
from running import run_virtual

A, B, C = Endpoint("10.0.0.1"), Endpoint("10.0.0.2"), Endpoint("10.0.0.3")
Scenario = Callable[["World"], Awaitable[None]]


class World:
    """A cluster, and a process that follows a Service of it.

    Attributes:
        token: token of the service account.
        applied: names of the replicas that were put in force, with the time.
    """

    def __init__(self) -> None:
        self.cluster = FakeKubernetes()
        self.token = "token-1"
        self.loop = asyncio.get_running_loop()
        self.applied: list[tuple[float, str]] = []
        self.events: list[Event] = []
        self.fails = False
        self.discovery: Discovery | None = None

    async def access(self) -> Access:
        """Return the login of the moment."""
        return Access("https://api", self.token, None, "llm")

    async def apply(self, settings: Settings, _model: str = "") -> None:
        """Record settings that are put in force."""
        if self.fails:
            raise ValueError
        names = " ".join(row.name for row in settings.models[0].replicas)
        self.applied.append((round(self.loop.time(), 2), names))

    @property
    def lists(self) -> int:
        """The number of lists that were asked for."""
        return sum(not each.is_watch for each in self.cluster.asked)

    @property
    def used(self) -> str:
        """The names of the replicas in force."""
        return self.applied[-1][1]

    @property
    def fault(self) -> str | None:
        """The fault that is shown."""
        assert self.discovery is not None
        [state] = self.discovery.states()
        return state.fault


LOADED = slice_source  # before the loop of a test runs


def play(monkeypatch: pytest.MonkeyPatch, scenario: Scenario, **source: object) -> World:
    """Follow the Service `vllm`, which has the pods `a` and `b` at first, during a scenario."""

    async def main() -> World:
        world = World()
        monkeypatch.setattr(kubernetes, "cluster_api", lambda *_: Api(world.access, FakeTransport(world.cluster)))
        world.cluster.pods(a=A, b=B)
        discover = {"endpointslices": "vllm", "kind": "vllm", **source}
        settings = Settings.model_validate({"models": [{"name": "m", "discover": discover}]})
        async with asyncio.TaskGroup() as tasks:
            runtime = Runtime(world.loop, world.events.append, lambda: 0.5, TimerQueue(world.loop))
            world.discovery = Discovery(tasks, runtime, world.apply, {})
            prepared = await world.discovery.prepare(settings)
            await world.apply(prepared.settings)
            world.discovery.commit(prepared)
            await scenario(world)
            world.discovery.close()
        return world

    return run_virtual(main())


def test_changes_come_by_the_watch(monkeypatch: pytest.MonkeyPatch) -> None:
    """Pods that come, end and go are in force 0.1 s later, with one list in ten minutes and a watch each 30 s."""

    async def scenario(world: World) -> None:
        await asyncio.sleep(1)
        world.cluster.pods(a=A, b=B, c=C)
        await asyncio.sleep(1)
        world.cluster.pods(a=A._replace(state="terminating"), b=B, c=C)
        await asyncio.sleep(1)
        world.cluster.pods(b=B, c=C)  # nothing changes
        await asyncio.sleep(1)
        world.cluster.put(SLICES, endpoint_slice("vllm-2", {"d": A}))
        world.cluster.pods(b=B)  # a change in two events
        await asyncio.sleep(600)

    world = play(monkeypatch, scenario)
    assert world.applied == [(0.0, "a b"), (1.1, "a b c"), (2.1, "b c"), (4.1, "b d")]
    assert world.lists == 1
    assert len(world.cluster.asked) == 1 + 21
    assert world.fault is None


def test_none_is_left(monkeypatch: pytest.MonkeyPatch) -> None:
    """A Service without pods has no replicas, at once; a Service that is deleted keeps them, as its pods may run on."""

    async def scenario(world: World) -> None:
        world.cluster.delete(SLICES, "vllm-1")
        await asyncio.sleep(1)
        assert world.fault == "the Service vllm has no EndpointSlices; check its name"
        world.cluster.pods()
        await asyncio.sleep(1)
        assert world.fault == "no pod is ready"
        world.cluster.pods(c=C)
        await asyncio.sleep(1)

    world = play(monkeypatch, scenario)
    assert [names for _, names in world.applied] == ["a b", "", "c"]


async def _away(world: World) -> None:
    world.cluster.is_away = True
    world.cluster.restart()
    await asyncio.sleep(50)
    assert world.fault == "the API server cannot be reached: Connection refused"
    assert world.used == "a b"
    world.cluster.pods(b=B, c=C)
    world.cluster.is_away = False
    await asyncio.sleep(46)


async def _restart(world: World) -> None:
    for _ in range(10):
        world.cluster.restart()
        await asyncio.sleep(20)
    world.cluster.pods(b=B, c=C)
    world.cluster.restart()
    await asyncio.sleep(1)
    assert world.lists == 1


async def _cut(world: World) -> None:
    await asyncio.sleep(10)
    world.cluster.is_cutting = True
    world.cluster.pods(b=B, c=C)
    await asyncio.sleep(1)
    assert world.lists == 1


async def _expired(world: World) -> None:
    await asyncio.sleep(10)
    world.cluster.delete(SLICES, "vllm-1")
    world.cluster.put(SLICES, endpoint_slice("vllm-2", {"b": B, "c": C}))
    world.cluster.expire()
    await asyncio.sleep(1)
    assert world.lists == 2


async def _expired_while_away(world: World) -> None:
    await asyncio.sleep(10)
    world.cluster.restart()
    world.cluster.pods(b=B, c=C)
    world.cluster.compact()
    await asyncio.sleep(1)
    assert world.lists == 2


async def _hang(world: World) -> None:
    await asyncio.sleep(10)
    world.cluster.is_hung = True
    world.cluster.pods(b=B, c=C)
    await asyncio.sleep(60)
    assert world.used == "a b"
    assert world.fault == "the API server has not answered within 10 s"
    world.cluster.is_hung = False
    await asyncio.sleep(46)


async def _slow(world: World) -> None:
    await asyncio.sleep(10)
    world.cluster.answer_s = 9
    world.cluster.restart()
    world.cluster.pods(b=B, c=C)
    await asyncio.sleep(10)
    assert world.fault is None


async def _refused(world: World) -> None:
    await asyncio.sleep(10)
    message = 'endpointslices is forbidden: User "system:serviceaccount:llm:default" cannot watch'
    world.cluster.refusals = [
        Refusal(429, "too many requests", {"retry-after": "20"}),
        Refusal(500, "etcdserver:\n\x1b[0m no leader"),
        Refusal(503),
        Refusal(403, message),
    ]
    world.cluster.pods(b=B)
    world.cluster.pods(b=B, c=C)
    world.cluster.restart()
    await asyncio.sleep(19)
    assert world.fault == "the API server answers 429: too many requests"
    asked = len(world.cluster.asked)
    await asyncio.sleep(10)
    assert len(world.cluster.asked) > asked
    await asyncio.sleep(20)


async def _no_bookmarks(world: World) -> None:
    world.cluster.bookmarks = False
    for _ in range(5):
        world.cluster.put(SLICES, endpoint_slice("other", {"x": C}, service="other"))
        world.cluster.compact()
        await asyncio.sleep(60)
    world.cluster.pods(b=B, c=C)
    await asyncio.sleep(1)


async def _new_token(world: World) -> None:
    await asyncio.sleep(10)
    world.token = "token-2"
    await asyncio.sleep(31)
    assert world.cluster.asked[-1].token == "Bearer token-2"
    world.cluster.pods(b=B, c=C)
    await asyncio.sleep(1)


@pytest.mark.parametrize(
    "scenario",
    [
        _away,
        _restart,
        _cut,
        _expired,
        _expired_while_away,
        _hang,
        _slow,
        _refused,
        _no_bookmarks,
        _new_token,
    ],
)
def test_faults_of_the_server(monkeypatch: pytest.MonkeyPatch, scenario: Scenario) -> None:
    """After each fault the last state is in force, no state before it is, and no fault is shown."""
    world = play(monkeypatch, scenario)
    assert world.used == "b c"
    assert len(world.applied) == 2
    assert world.fault is None
    assert [event for event in world.events if isinstance(event, ComponentFailed)] == []
    outages = [event.error for event in world.events if isinstance(event, DiscoveryChanged)]
    assert [bool(error) for error in outages] in ([], [True, False])  # reported once
    assert "token-" not in repr(world.events)


def test_repetitions_become_rare(monkeypatch: pytest.MonkeyPatch) -> None:
    """A server that refuses gets two dozen requests in ten minutes, one that ends each watch at once one a second."""

    async def refused(world: World) -> None:
        world.cluster.refusals = [Refusal(403)] * 10_000
        world.cluster.restart()
        await asyncio.sleep(600)

    async def ending(world: World) -> None:
        for _ in range(1_200):
            world.cluster.restart()
            await asyncio.sleep(0.5)

    assert 20 <= len(play(monkeypatch, refused).cluster.asked) <= 28
    assert 300 <= len(play(monkeypatch, ending).cluster.asked) <= 600


def test_changes_between_restarts(monkeypatch: pytest.MonkeyPatch) -> None:
    """While the server restarts or forgets every second for a minute, each change is in force 2 s later at most."""

    async def scenario(world: World) -> None:
        for number in range(60):
            world.cluster.put(SLICES, endpoint_slice("vllm-2", {f"c-{number}": C}))
            (world.cluster.restart, world.cluster.expire)[number % 2]()
            if number % 5 == 0:
                world.cluster.restart()
                world.cluster.compact()  # the next watch gets 410 instead of its response
            await asyncio.sleep(1)
            if number >= 2:
                assert world.used in {f"a b c-{each}" for each in (number - 2, number - 1, number)}

    play(monkeypatch, scenario)


def test_a_start_without_the_server(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without an answer at the start there are no replicas; the first answer is used as soon as it is there."""

    async def scenario(world: World) -> None:
        assert world.used == ""
        assert world.fault is None or "no replicas" not in world.fault
        await asyncio.sleep(20)
        world.cluster.answer_s = 0
        await asyncio.sleep(2)
        assert world.used == "a b"

    started = FakeKubernetes.__init__

    def slow(cluster: FakeKubernetes) -> None:
        started(cluster)
        cluster.answer_s = 20

    monkeypatch.setattr(FakeKubernetes, "__init__", slow)
    assert play(monkeypatch, scenario).applied[0] == (3.0, "")


def test_pods_are_chosen_by_label(monkeypatch: pytest.MonkeyPatch) -> None:
    """A label that is added to a pod, such as of a LoRA adapter, adds it; only metadata of pods is asked for."""

    async def scenario(world: World) -> None:
        assert world.used == ""
        world.cluster.put("pods", pod("a", lora__sql="loaded"))
        await asyncio.sleep(1)
        world.cluster.put("pods", pod("b", lora__sql="loaded"))
        await asyncio.sleep(1)
        world.cluster.put("pods", pod("a", lora__sql="loaded", ttft_gateway__weight="5"))
        await asyncio.sleep(1)
        world.cluster.put("pods", pod("b"))
        await asyncio.sleep(1)

    world = play(monkeypatch, scenario, pods="lora/sql=loaded")
    assert [names for _, names in world.applied] == ["", "a", "a b", "a b", "a"]
    asked = {(each.path, each.query["labelSelector"]) for each in world.cluster.asked}
    assert asked == {
        ("/apis/discovery.k8s.io/v1/namespaces/llm/endpointslices", "kubernetes.io/service-name=vllm"),
        ("/api/v1/namespaces/llm/pods", "lora/sql=loaded"),
    }
    assert all("as=Partial" in each.accept for each in world.cluster.asked if each.path.endswith("/pods"))


def test_a_change_that_cannot_be_put_in_force(monkeypatch: pytest.MonkeyPatch) -> None:
    """After a bug in applying, the change is tried again, although the watch sends nothing."""

    async def scenario(world: World) -> None:
        world.fails = True
        world.cluster.pods(c=C)
        await asyncio.sleep(3)
        world.fails = False
        await asyncio.sleep(3)

    assert [names for _, names in play(monkeypatch, scenario).applied] == ["a b", "c"]
