"""What a race is given: the model it asks, the caller it serves, the client it writes to, the host it runs on.

Data, one Protocol, and how a host asks what may fail. Units: seconds of the loop's clock.
"""

import asyncio
import enum
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import ParamSpec, Protocol, TypeVar

import msgspec

from gateway.errors import GatewayError
from gateway.estimation.tokens import TokenScale
from gateway.events import ComponentFailed, Event
from gateway.limits.budget import RetryBudget
from gateway.pool.pool import Pool
from gateway.race.timers import TimerQueue
from gateway.routing.affinity import Affinity
from gateway.routing.replicas import Replica
from providers.base import Api, Burst, Recoverer

_P = ParamSpec("_P")
_T = TypeVar("_T")
_D = TypeVar("_D")


@dataclass(frozen=True, slots=True)
class Timeouts:
    """How long a request may take, in seconds.

    Attributes:
        ttft_failover_s: without first content another attempt is started after this and
        ttft_failover_per_token_s: this much per prompt token.
        ttft_max_s: an attempt is given up after this.
        stall_s: silence in a stream that had begun.
        total_s: the whole request.
        commit_status_after_s: a streaming client gets its 200 after this, content or not,
        keepalive_interval_s: and a comment this often until there is content.
        retry_after_s_max: a Retry-After up to this is waited out before a fallback is used.
    """

    ttft_failover_s: float
    ttft_failover_per_token_s: float
    ttft_max_s: float
    stall_s: float
    total_s: float
    commit_status_after_s: float
    keepalive_interval_s: float
    retry_after_s_max: float


class RecoveryMode(enum.Enum):
    """What is done when a stream breaks after part of it has gone out; the value is the name in the settings."""

    OFF = "off"
    AUTO = "auto"  # what is likely to succeed
    REPLAY = "replay"
    CONTINUE = "continue"  # where it is possible, else replay


@dataclass(frozen=True, slots=True)
class Model:
    """A public model name.

    Attributes:
        name: what callers ask for.
        pools: the replicas' pool first, then the fallbacks' in order.
        timeouts: for its requests.
        scale: how its tokenizer counts, learned from reported usage.
        retries: how many attempts may follow failures.
        kept: which replica holds which kept answer.
        keeps: a replica keeps answers of the Responses API unless told not to.
        apis: in which at least one of its replicas can be asked.
        recovery: of broken streams.
        recoverers: what is known of each API's streams for that; an API that is not there has no recovery.
    """

    name: str
    pools: Sequence[Pool]
    timeouts: Timeouts
    scale: TokenScale = field(default_factory=TokenScale)
    retries: RetryBudget = field(default_factory=RetryBudget)
    kept: Affinity = field(default_factory=Affinity)
    keeps: bool = False
    apis: frozenset[Api] = frozenset(Api)
    recovery: RecoveryMode = RecoveryMode.OFF
    recoverers: Mapping[Api, Recoverer] = field(default_factory=dict)

    def replica(self, name: str | None) -> Replica | None:
        """The replica of this name, in whichever pool."""
        return next((each for pool in self.pools for each in pool.replicas if each.name == name), None)


class Client(Protocol):
    """Where the answer goes; calls `Race.pause` and `Race.resume` when it cannot keep up."""

    @property
    def committed(self) -> bool:
        """Part of an answer has gone out and cannot be taken back."""

    def begin(self, headers: list[tuple[bytes, bytes]]) -> None:
        """A winner is known. Called again when it failed and nothing was committed."""

    def keep_alive(self) -> None:
        """The answer takes long: give the status, or a sign of life."""

    def write(self, raw: bytes) -> None:
        """One event of the winner's."""

    def finish(self) -> None:
        """The winner's answer is complete."""

    def fail(self, error: GatewayError) -> None:
        """There will be no complete answer."""


@dataclass(frozen=True, slots=True)
class Runtime:
    """What every race of a process shares.

    Attributes:
        loop: its clock and timers.
        emit: hears events; must not raise.
        rand: uniform random numbers in [0, 1).
        alarms: when to look at a race again.
        burst: open while something is read from an upstream.
    """

    loop: asyncio.AbstractEventLoop
    emit: Callable[[Event], None]
    rand: Callable[[], float]
    timers: TimerQueue
    burst: Burst = field(default_factory=Burst)

    def safely(
        self, component: str, function: Callable[_P, _T], default: _D, *args: _P.args, **named: _P.kwargs
    ) -> _T | _D:
        """Call a policy function and return its result; if it raises, report it and return `default`.

        A bug in the policy must not fail a request.
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
    """Who asks, for events.

    Attributes:
        request_id: ours.
        key_name: of the caller's key.
        arrived_s: when the request had been received.
        queued_s: how long it then waited for its turn; known once that came.
    """

    request_id: str
    key_name: str
    arrived_s: float
    queued_s: float = 0.0
