"""Every function of the policy raises while requests come: each of them is answered in full all the same."""

import asyncio
import inspect
import pkgutil
import random
import sys
from collections.abc import Iterator, Sequence
from importlib import import_module
from types import FunctionType, ModuleType

import pytest

from defaults import default_hedging, default_timeouts
from gateway import admission, share
from gateway.admission.admission import Admission, ModelQueue
from gateway.admission.body_memory import BodyMemory
from gateway.admission.caller_limits import CallerLimits, KeyLimiter
from gateway.admission.fair_queue import FairQueue
from gateway.api.auth import Keyring
from gateway.api.body_reader import BodyLimits
from gateway.api.exchange import ClientExchange, Connection, request_ids
from gateway.api.request_head import RequestHead
from gateway.api.routes import RacedRoutes
from gateway.api.serving import RequestLimits, Serving
from gateway.api.turns import Turns
from gateway.events import ComponentFailed, Event
from gateway.race.context import Model, Runtime
from gateway.race.deadlines import TimerQueue
from gateway.server.public_routes import client_apis
from gateway.share import leases
from gateway.share.asker import Asker
from gateway.share.fleet import Fleet
from pretended_client import connected_to
from running import run_virtual
from scripted import Scripted, ScriptedStream, Step, answer, status
from shared_engine import EngineHost, HostedEngine
from ttft_gateway import estimation, hedging, limits, pool, routing
from ttft_gateway.apis.base import Call, Resource, Sink
from ttft_gateway.hedging.plan import Policy
from ttft_gateway.limits.bucket import Limit
from ttft_gateway.limits.ledger import Ledger
from ttft_gateway.limits.rates import LOCAL, LimitMaker
from ttft_gateway.pool.pool import Pool
from ttft_gateway.requests.parsed import NumberLimits
from ttft_gateway.routing.replicas import Replica
from ttft_gateway.routing.strategies import Routing

COMPLETE = b"<role>ab<stop><done>"
BODY = b'{"model": "m", "stream": true, "messages": [{"role": "user", "content": "%s"}]}'
LATE, FAILING, LIMITED, QUICK = answer(2.0), status(0.01, 500), status(0.01, 429, retry_after_s=0.5), answer(0.05)
SCRIPTS = (LATE, QUICK, FAILING, LIMITED)
BOUNDARIES = {"inside", "reachable"}  # while these raise no failover is sent, as it might cross a boundary
SHADOW = {"shadow_of", "reason_of", "drawn_ttft_s"}
UNGUARDED = {  # a failure without a class has no next step; the queue is what calls the limits
    "ttft_gateway.hedging.failures",
    "gateway.admission.admission",
}
WARM_UP = 60  # requests, so that there is a plan


class FlakyEndpoint(Scripted):
    """Plays `script` for the first attempt of a request, and a quick answer for every other one."""

    script: list[Step] = QUICK

    def open(self, call: Call, sink: Sink) -> ScriptedStream:
        """Play the script once."""
        self.scripts, FlakyEndpoint.script = (FlakyEndpoint.script,), QUICK
        return super().open(call, sink)


def functions(room: ModuleType) -> Iterator[tuple[object, str, FunctionType]]:
    """Yield every function with a body in a package: its owner, its name, itself."""
    for info in pkgutil.iter_modules(room.__path__):
        module = import_module(f"{room.__name__}.{info.name}")
        own = [value for value in vars(module).values() if getattr(value, "__module__", None) == module.__name__]
        for value in own:
            if isinstance(value, FunctionType):
                yield module, value.__name__, value
            elif inspect.isclass(value):
                yield from (
                    (value, name, method)
                    for name, method in vars(value).items()
                    if isinstance(method, FunctionType)
                    and not name.startswith("__")
                    and method.__code__.co_filename == module.__file__
                )


def call_sites(owner: object, name: str, function: FunctionType) -> list[object]:
    """Return the objects through which a function is called: its class, or every module that imports it."""
    if inspect.isclass(owner):
        return [owner]
    modules = [module for key, module in sys.modules.items() if key.split(".")[0] in {"gateway", "ttft_gateway"}]
    return [module for module in modules if getattr(module, name, None) is function]


class GatewayUnderTest:
    """Routes over a pool of three weighted replicas with a quota, two hedges allowed, and all emitted events."""

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        routing: Routing,
        made: LimitMaker = LOCAL,
        policy: Policy = Policy.ADAPTIVE,
    ) -> None:
        self.events: list[Event] = []
        limit = Limit(Resource.TOKENS, 1e9, 60.0, enforce=made is not LOCAL)
        ledgers = {"quota": Ledger([limit], lambda each: made.bucket("quota", each))}
        replicas = [Replica(name, FlakyEndpoint(QUICK), "quota", weight=n) for n, name in enumerate("abc", 1)]
        settings = default_hedging(policy=policy, budget=1.0, max_hedges=2, routing=routing, cold_start_delay_s=0.1)
        model = Model("m", [Pool("m", replicas, settings, ledgers)], default_timeouts())
        runtime = Runtime(loop, self.events.append, random.Random(1).random, TimerQueue(loop))
        bodies = BodyLimits(1_000_000, 10.0, BodyMemory(1_000_000_000), runtime, Turns(runtime.loop))
        limiters = {"anonymous": KeyLimiter(CallerLimits(10**9, 10**9, 10**9), "key", made)}
        slots = made.slots("model", 10**9)
        admission = Admission(limiters, {"m": ModelQueue(FairQueue(10**9, 0, slots), 1.0)}, runtime)
        limits = RequestLimits(NumberLimits(n_max=8, max_tokens_max=100_000), frozenset())
        serving = Serving({"m": model}, Keyring({}, {}), bodies, bodies, admission, admission, limits)
        self._routes = RacedRoutes(serving, client_apis(), runtime, request_ids())
        self._client = connected_to(self._open)

    def _open(self, connection: Connection, head: RequestHead) -> ClientExchange:
        exchange = self._routes.open(connection, head)
        assert exchange is not None
        return exchange

    async def ask(self, text: str, script: list[Step] = QUICK) -> bytes:
        """One request's answer."""
        FlakyEndpoint.script = script
        response = await self._client.ask(BODY % text.encode())
        assert response.status == 200
        return response.body


async def inject_faults(
    targets: Sequence[tuple[object, str, FunctionType]],
    routing: Routing,
    made: LimitMaker = LOCAL,
    policy: Policy = Policy.ADAPTIVE,
) -> set[str]:
    """Break one function after the other during late, failing and quick requests; return the functions that raised."""
    raised: set[str] = set()
    gateway = GatewayUnderTest(asyncio.get_running_loop(), routing, made, policy)
    for n in range(WARM_UP):
        assert await gateway.ask(f"warm {n}", LATE if n % 10 == 9 else QUICK) == COMPLETE
    assert not any(isinstance(event, ComponentFailed) for event in gateway.events)
    for owner, name, function in targets:
        label = f"{getattr(owner, '__name__', '')}.{name}"

        def broken(*_args: object, _label: str = label, **_named: object) -> None:
            raised.add(_label)
            raise ZeroDivisionError

        with pytest.MonkeyPatch.context() as patch:
            for call_site in call_sites(owner, name, function):
                patch.setattr(call_site, name, broken)
            for script in SCRIPTS[:2] if name in BOUNDARIES else SCRIPTS:
                body = await gateway.ask(f"{label} {'long ' * 300}", script)
                assert body == COMPLETE, label
                await asyncio.sleep(1.0)  # a plan may be due again
    return raised


@pytest.mark.parametrize(
    "room", [admission, estimation, limits, routing, hedging, pool], ids=lambda room: room.__name__
)
@pytest.mark.parametrize("choice", [Routing.PREDICTED, Routing.PREFIX_AFFINITY])
def test_an_exception_in_any_pure_function_fails_no_request(room: ModuleType, choice: Routing) -> None:
    """With any function of the policy raising on every call, every client gets the whole answer of one replica."""
    guarded = [target for target in functions(room) if target[2].__module__ not in UNGUARDED]
    targets = [target for target in guarded if target[1] not in SHADOW]
    raised = run_virtual(inject_faults(targets, choice))
    assert len(raised) >= 0.25 * len(targets)  # the others serve the admin address, or cases that do not occur here


def test_an_exception_in_shadow_fails_no_request() -> None:
    """With the policy `shadow`, too."""
    targets = [target for target in functions(hedging) if target[1] in SHADOW]
    for target in targets:
        assert run_virtual(inject_faults([target], Routing.PREDICTED, policy=Policy.SHADOW))


def test_an_exception_in_any_leased_limit_fails_no_request() -> None:
    """With limits that a fleet shares, too."""

    async def main() -> set[str]:
        loop, fleet = asyncio.get_running_loop(), Fleet()
        held = leases.Leases(fleet)
        engine = HostedEngine(EngineHost(loop), "me")
        asker = Asker(engine, fleet, loop, random.Random(1).random, bool, bool, lambda _: None)
        asker.ticks.append(held.tick)
        await asker.start()
        raised = await inject_faults(targets, Routing.PREDICTED, held)
        asker.close()
        return raised

    targets = [target for target in functions(share) if target[2].__module__ == leases.__name__]
    raised = run_virtual(main())
    assert len(raised) >= 0.3 * len(targets)  # without an outage or a reload
