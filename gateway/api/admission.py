"""Admission: each request that was read gets a permit, now or when its turn comes, or an error that says when to ask.

The edge of `limits.callers` and `limits.admission`, which decide. It waits without a task: a permit is granted by the
end of another request, and begins in a turn of the loop of its own. Whatever ends a request, its permit gives back what
it holds once. Knows neither ASGI nor which API is spoken; where nothing is limited it stays out of the way.

    waiting --turn--> granted --next turn of the loop--> running --RequestEnded--> over
       '--client left, time-out, pushed out, drain--> over          (granted: client left, drain --> over)

Units: seconds of the loop's clock, tokens.
"""

import asyncio
import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Protocol

from gateway.api.key_limits import limit_headers, over_key_limit
from gateway.errors import GatewayError, Internal, Overloaded, ShuttingDown
from gateway.events import Event, RequestEnded, RequestRejected
from gateway.limits.caller_limits import CallerTicket, KeyLimiter, OverLimit
from gateway.limits.fair_queue import FairQueue
from gateway.race.context import Caller, Runtime
from providers.base import Headers


class QueuedRequest(Protocol):
    """What is to run: a race."""

    def start(self) -> None:
        """Begin; called once at most."""

    def client_gone(self) -> None:
        """The client has left."""

    def shut_down(self) -> None:
        """The gateway stops and the drain is over."""


Refuse = Callable[[GatewayError], None]


@dataclass(frozen=True, slots=True)
class ModelQueue:
    """A model's gate, and how long one waits there at most."""

    fair_queue: "FairQueue[Permit]"
    timeout_s: float


@dataclass(frozen=True, slots=True)
class RequestSize:
    """What a request weighs, estimated.

    Attributes:
        prompt_tokens: of its prompt.
        answer_tokens: of the answers it may get.
        deadline_s: the client waits no longer than this, None when it did not say.
    """

    prompt_tokens: float
    answer_tokens: float
    deadline_s: float | None = None


class Admission:
    """Gives requests their places.

    Args:
        accounts: by the names of keys that have limits.
        entrances: by the names of models that have a bound.
        host: what races share.
    """

    def __init__(
        self, key_limiters: Mapping[str, KeyLimiter], model_queues: Mapping[str, ModelQueue], runtime: Runtime
    ) -> None:
        self._key_limiters = key_limiters
        self._model_queues = model_queues
        self._runtime = runtime

    def binds(self, key_name: str, model: str) -> bool:
        """Whether a request needs a permit at all."""
        return model in self._model_queues or key_name in self._key_limiters

    def admit(self, caller: Caller, model: str, size: RequestSize) -> "Permit":
        """A permit, on which `run` or `close` is called in this turn of the loop.

        Raises:
            OverKeyLimit: the key has used up what it may.
            Overloaded: nobody else may wait for this model.
        """
        limiter, now_s = self._key_limiters.get(caller.key_name), self._runtime.loop.time()
        permit = Permit(caller, model, size, self._model_queues.get(model), self._runtime)
        if limiter is not None:
            reserved = limiter.reserve(size.prompt_tokens, size.answer_tokens, now_s)
            permit.headers = tuple(limit_headers(limiter.status(now_s)))
            if isinstance(reserved, OverLimit):
                raise over_key_limit(reserved, caller.key_name, permit.headers)
            permit.limiter, permit.ticket = limiter, reserved
        try:
            permit.enter()
        except BaseException:  # a bug, too: what it has taken of its key's limits goes back
            permit.close()
            raise
        return permit


class Permit:
    """One request's permit.

    Attributes:
        key_name, cost: what the gate asks (`limits.admission.Waiting`).
        headers: of every answer to it: what the key's limits have left.
        account, ticket: what it has taken of its key's limits, None where that has none.
    """

    __slots__ = (
        "_begun_s",
        "_caller",
        "_has_begun",
        "_has_slot",
        "_is_over",
        "_is_waiting",
        "_model",
        "_queue",
        "_refuse",
        "_request",
        "_runtime",
        "_size",
        "_timer",
        "cost",
        "headers",
        "key_name",
        "limiter",
        "ticket",
    )

    def __init__(
        self, caller: Caller, model: str, size: RequestSize, queue: ModelQueue | None, runtime: Runtime
    ) -> None:
        self._caller = caller
        self._model = model
        self._size = size
        self._queue = queue
        self._runtime = runtime
        self._is_waiting = self._has_slot = self._has_begun = self._is_over = False
        self._begun_s = 0.0
        self._timer: asyncio.Handle | None = None  # ends the waiting, or begins the running
        self._request: QueuedRequest | None = None
        self._refuse: Refuse | None = None
        self.key_name = caller.key_name
        self.cost = size.prompt_tokens + size.answer_tokens
        self.headers: Headers = ()
        self.limiter: KeyLimiter | None = None
        self.ticket: CallerTicket | None = None

    @property
    def runtime(self) -> Runtime:
        """What its request tells of itself; not kept: it would be a cycle."""
        runtime = self._runtime
        return Runtime(runtime.loop, self._emit, runtime.rand, runtime.timers, runtime.burst)

    def enter(self) -> None:
        """Take a slot, or begin to wait for one.

        Raises:
            Overloaded: nobody else may wait.
        """
        queue = self._queue
        if queue is None:
            return
        self._has_slot = queue.fair_queue.try_acquire()
        if self._has_slot:
            return
        lost = queue.fair_queue.enqueue(self)
        if lost is self:
            raise self._overloaded(f"all {queue.fair_queue.waiting_max} places in its queue are taken")
        self._is_waiting = True
        if lost is not None:
            lost.evicted()
        wait_s = min(queue.timeout_s, self._size.deadline_s or math.inf)
        self._timer = self._runtime.loop.call_later(wait_s, self._too_late)

    def run(self, request: QueuedRequest, refuse: Refuse) -> None:
        """Start a request, now or when its turn comes.

        Args:
            request: tells its end to `host`.
            refuse: answers with an error instead.
        """
        self._request, self._refuse = request, refuse
        if not self._is_waiting:
            self._start(request)

    def granted(self) -> None:
        """Its turn has come: the slot is its own."""
        self._is_waiting, self._has_slot = False, True
        self._stop_timer()
        self._timer = self._runtime.loop.call_soon(self._turn)  # not on the stack of the request that has just ended

    def evicted(self) -> None:
        """Another one has its permit in the queue."""
        self._is_waiting = False
        self._lose(self._overloaded("a key with fewer requests in its queue goes first"))

    def client_gone(self) -> None:
        """The client has left."""
        if self._has_begun:
            if self._request is not None:
                self._request.client_gone()
        elif not self._is_over:
            self.close()
            self._tell(499, "client_gone")

    def shut_down(self) -> None:
        """The gateway stops and the drain is over."""
        if self._has_begun:
            if self._request is not None:
                self._request.shut_down()
        elif not self._is_over:
            self._lose(ShuttingDown("the gateway is shutting down and this request was still waiting for its turn"))

    def close(self) -> None:
        """Give back what it holds although nothing has run; does nothing when it is over."""
        if self._is_over:
            return
        self._is_over = True
        self._request = self._refuse = None  # no cycle outlives a request
        self._stop_timer()
        if self._is_waiting and self._queue is not None:
            self._is_waiting = False
            self.runtime.safely("admission", self._queue.fair_queue.remove, None, self)
        self._give_back(None)

    # inside

    def _turn(self) -> None:
        """Begin after having waited."""
        self._timer = None
        self._caller.queued_s = self._waited_s()
        request, refuse = self._request, self._refuse
        assert request is not None
        assert refuse is not None
        try:
            self._start(request)
        except Exception as error:  # nobody else is on the stack to catch it
            self._runtime.report("race", error)
            request.client_gone()
            refuse(Internal("the gateway failed; its log says where"))

    def _start(self, request: QueuedRequest) -> None:
        self._has_begun = True
        self._begun_s = self._runtime.loop.time()
        request.start()

    def _emit(self, event: Event) -> None:
        """What the request tells; its end gives everything back."""
        if isinstance(event, RequestEnded) and not self._is_over:
            self._is_over = True
            self._request = self._refuse = None
            self._give_back(_used_tokens(event, self._size.prompt_tokens))
        self._runtime.emit(event)

    def _too_late(self) -> None:
        """It has waited for as long as one may."""
        self._lose(self._overloaded(f"a turn did not come within {self._waited_s():.3g} s"))

    def _lose(self, error: GatewayError) -> None:
        """It ends without having run."""
        refuse = self._refuse
        self.close()
        self._tell(error.status, error.code)
        if refuse is not None:
            refuse(error)

    def _give_back(self, used_tokens: float | None) -> None:
        """Give back what it holds; None tokens: no replica has seen it."""
        now_s = self._runtime.loop.time()
        if self.limiter is not None and self.ticket is not None:
            if used_tokens is None:
                self.runtime.safely("admission", self.limiter.release, None, self.ticket, now_s)
            else:
                self.runtime.safely("admission", self.limiter.settle, None, self.ticket, used_tokens, now_s)
        if self._has_slot and self._queue is not None:
            self._has_slot = False
            fair_queue = self._queue.fair_queue
            if used_tokens is None:
                following = self.runtime.safely("admission", fair_queue.release_unused, None)
            else:
                following = self.runtime.safely("admission", fair_queue.release, None, now_s - self._begun_s)
            if following is not None:
                following.granted()

    def _waited_s(self) -> float:
        return self._runtime.loop.time() - self._caller.arrived_s

    def _stop_timer(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _tell(self, status: int, code: str | None) -> None:
        """Tell observers that it has waited for nothing."""
        caller = self._caller
        now_s, waited_s = self._runtime.loop.time(), self._waited_s()
        event = RequestRejected(now_s, caller.request_id, caller.key_name, status, code, self._model, waited_s)
        self._runtime.emit(event)

    def _overloaded(self, why: str) -> Overloaded:
        assert self._queue is not None
        fair_queue = self._queue.fair_queue
        wait_s = fair_queue.wait_s()
        busy = f"the model {self._model!r} has all the {fair_queue.slots} requests it takes at a time"
        return Overloaded(f"{busy}, and {why}; try again in {wait_s:.3g} s", wait_s)


def _used_tokens(event: RequestEnded, prompt_tokens: float) -> float:
    """What a request has used of its key's tokens: what was reported, else what was seen of an answer."""
    usage = event.usage
    if usage is not None and usage.prompt_tokens is not None:
        return usage.prompt_tokens + (usage.completion_tokens or 0)
    return prompt_tokens + event.events if event.events else 0.0
