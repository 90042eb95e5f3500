"""The inputs of a race: its model, caller, client and runtime.

Data, one Protocol, and `Runtime.safely`, which calls policies. Units: seconds of the loop's clock.
"""

import asyncio
import enum
from collections.abc import Callable, Mapping, Sequence
from typing import ParamSpec, Protocol, TypeVar

import msgspec

from gateway.errors import GatewayError
from gateway.events import ComponentFailed, Event
from gateway.race.deadlines import Timeouts, TimerQueue
from gateway.traces import Trace
from providers.recovery import Recoverer
from ttft_gateway.apis.base import Api, Burst
from ttft_gateway.estimation.tokens import TokenScale
from ttft_gateway.limits.budget import RetryBudget
from ttft_gateway.pool.pool import Pool
from ttft_gateway.routing.affinity import Affinity
from ttft_gateway.routing.replicas import Replica

_P = ParamSpec("_P")
_T = TypeVar("_T")
_D = TypeVar("_D")


class RecoveryMode(enum.Enum):
    """Reaction to a stream that breaks after part of it was sent; the value is the name in the settings."""

    OFF = "off"
    AUTO = "auto"  # only if it is likely to succeed
    REPLAY = "replay"
    CONTINUE = "continue"  # if possible, else replay


class Model(msgspec.Struct, frozen=True):
    """A public model name.

    Attributes:
        name: name that callers send.
        pools: pool of the model's replicas, then the pools of its fallbacks in order.
        timeouts: time limits of its requests, and of attempts in its first pool.
        fallback_timeouts: time limits of attempts in a fallback that has its own, by the pool's name.
        scale: scale of its tokenizer, learned from reported usage.
        retries: budget for attempts after failures.
        stored_answers: replicas with stored answers of the Responses API, by id; of all models.
        stores_by_default: True if a replica stores answers of the Responses API by default.
        apis: client APIs that at least one of its replicas supports.
        recovery: reaction to broken streams.
        recoverers: recoverers by API; for any other API there is no recovery.
        pass_through: families of routes that its replicas get as they are.
    """

    name: str
    pools: Sequence[Pool]
    timeouts: Timeouts
    fallback_timeouts: Mapping[str, Timeouts] = msgspec.field(default_factory=dict)
    scale: TokenScale = msgspec.field(default_factory=TokenScale)
    retries: RetryBudget = msgspec.field(default_factory=RetryBudget)
    stored_answers: Affinity = msgspec.field(default_factory=Affinity)
    stores_by_default: bool = False
    apis: frozenset[Api] = frozenset(Api)
    recovery: RecoveryMode = RecoveryMode.OFF
    recoverers: Mapping[Api, Recoverer] = msgspec.field(default_factory=dict)
    pass_through: frozenset[str] = frozenset()

    @property
    def replicas(self) -> list[Replica]:
        """Replicas of all pools."""
        return [replica for pool in self.pools for replica in pool.replicas]

    def replica(self, name: str | None) -> Replica | None:
        """Return the replica of this name from any pool, None if there is none."""
        return next((each for each in self.replicas if each.name == name), None)


class Client(Protocol):
    """Sends the answer; calls `Race.pause` and `Race.resume` while the client is slow."""

    @property
    def committed(self) -> bool:
        """True once part of an answer was sent and cannot be withdrawn."""

    def begin(self, headers: list[tuple[bytes, bytes]]) -> None:
        """Start the response of a winner. Called again if the winner failed and nothing was committed."""

    def keep_alive(self) -> None:
        """Send the status, or a keep-alive: the answer takes long."""

    def write(self, raw: bytes) -> None:
        """Send one event of the winner."""

    def finish(self) -> None:
        """End the response: the winner's answer is complete."""

    def fail(self, error: GatewayError) -> None:
        """End the response with an error: there will be no complete answer."""


class Stoppable(Protocol):
    """Work that is ended when the gateway stops."""

    def stop(self) -> None:
        """End the work."""


class Runtime(msgspec.Struct, frozen=True):
    """The clock, timers, random numbers and event receiver that all races of a process share.

    Attributes:
        loop: event loop; its clock is the only one.
        emit: receives events; must not raise.
        rand: returns uniform random numbers in [0, 1).
        timers: timers of the races.
        burst: open during each read of an upstream.
        losers: attempts that have lost their race and are read on to be measured.
    """

    loop: asyncio.AbstractEventLoop
    emit: Callable[[Event], None]
    rand: Callable[[], float]
    timers: TimerQueue
    burst: Burst = msgspec.field(default_factory=Burst)
    losers: set["Stoppable"] = msgspec.field(default_factory=set)

    def safely(
        self, component: str, function: Callable[_P, _T], default: _D, *args: _P.args, **named: _P.kwargs
    ) -> _T | _D:
        """Call a policy function and return its result; if it raises, report it and return `default`.

        A bug in the policy must not fail a request. This takes 2,500 to 4,200 instructions more than a `try` (Python
        3.13), so calls that each request makes have a `try` of their own.
        """
        try:
            return function(*args, **named)
        except Exception as error:
            self.report(component, error)
            return default

    def report(self, component: str, error: Exception) -> None:
        """Emit `ComponentFailed` for a component that raised and is bypassed for this request."""
        self.emit(ComponentFailed(self.loop.time(), component, type(error).__name__))


class Caller(msgspec.Struct, gc=False):
    """The caller of a request, for events.

    Attributes:
        request_id: the caller's id of the request, else the gateway's.
        key_name: name of the caller's key.
        arrived_s: time at which the whole request had arrived.
        queued_s: time in the model's queue after `arrived_s`; 0 until the request leaves the queue.
        trace_id: id of the request's trace, None if it has no trace.
        gave_id: True if replicas get `request_id`, which is the caller's.
        trace: place of the request in its trace, None without tracing.
    """

    request_id: str
    key_name: str
    arrived_s: float
    queued_s: float = 0.0
    trace_id: str | None = None
    gave_id: bool = False
    trace: Trace | None = None
