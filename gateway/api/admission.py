"""Admission: gives each request a permit at once or after queueing, or an error with a Retry-After.

A key's limits count a request before its body is read (`Entry`); its tokens and its model are known after that.

`limits.caller_limits` and `limits.fair_queue` decide; this module applies their decisions. Waiting needs no task: the
end of another request grants the permit, and the granted request starts in the next turn of the loop. A permit releases
its holdings exactly once, however its request ends. Independent of ASGI and of the client API; a request without limits
gets no permit.

    asking --leased--> waiting --granted--> granted --next turn of the loop--> running --RequestEnded--> over
      |                   '--disconnect, timeout, evicted, drain--> over       (granted: disconnect, drain --> over)
      '--refused, disconnect, drain--> over

A limit that the fleet shares may have to ask for more; a request waits for the answer, at most 100 ms. Only an answer
refuses it.

Units: seconds of the loop's clock, tokens.
"""

import asyncio
import math
from collections.abc import Callable, Mapping
from typing import Protocol

import msgspec

from gateway.api.entry import Entry, RequestSize, used_tokens
from gateway.api.key_limits import limit_headers, over_key_limit
from gateway.errors import GatewayError, Internal, Limit, Overloaded, ShuttingDown
from gateway.events import Event, RequestEnded, RequestRejected
from gateway.limits.caller_limits import KeyLimiter, OverLimit
from gateway.limits.fair_queue import FairQueue
from gateway.race.context import Caller, Runtime
from gateway.share.fleet import ASK_WAIT_S, WaitAllowance
from providers.base import Headers


class QueuedRequest(Protocol):
    """The request to run: a race."""

    def start(self) -> None:
        """Start; called at most once."""

    def client_gone(self) -> None:
        """The client disconnected."""

    def shut_down(self) -> None:
        """The gateway is stopping and the drain period is over."""


OnReject = Callable[[GatewayError], None]


class ModelQueue(msgspec.Struct, frozen=True):
    """A model's queue and the longest wait in it, in seconds."""

    fair_queue: "FairQueue[Permit]"
    timeout_s: float

    def waiting(self) -> int:
        """Return the number of requests that wait."""
        return self.fair_queue.waiting

    def admit(self) -> None:
        """Start requests that wait, as far as there are free slots."""
        while (permit := self.fair_queue.admit()) is not None:
            permit.granted()


class Admission:
    """Gives permits to requests.

    Args:
        key_limiters: limiters by key name, for keys that have limits.
        model_queues: queues by model name, for models with a concurrency limit.

    Attributes:
        has_limits: False if no key and no model has a limit: every call of this object is then unnecessary.
    """

    def __init__(
        self, key_limiters: Mapping[str, KeyLimiter], model_queues: Mapping[str, ModelQueue], runtime: Runtime
    ) -> None:
        self.has_limits = bool(key_limiters or model_queues)
        self._key_limiters = key_limiters
        self._model_queues = model_queues
        self._runtime = runtime

    def enter(self, key_name: str) -> "Entry | None":
        """Count a request whose body is not yet read; return None if its key has no limits.

        Raises:
            OverKeyLimit: the key is at one of its limits.
        """
        limiter = self._key_limiters.get(key_name)
        if limiter is None:
            return None
        now_s = self._runtime.loop.time()
        try:
            entered = limiter.enter(now_s)
            headers = tuple(limit_headers(limiter.status(now_s)))
        except Exception as error:  # a bug in a limit must not fail the request
            self._runtime.report("admission", error)
            return None
        if isinstance(entered, OverLimit):
            if not entered.is_asking:
                raise over_key_limit(entered, key_name, headers)
            return Entry(limiter, None, self._runtime)  # the body arrives meanwhile
        return Entry(limiter, entered, self._runtime)

    def applies_to(self, entry: "Entry | None", model: str) -> bool:
        """Return True if the key or the model has a limit, so that a request needs a permit."""
        return entry is not None or model in self._model_queues

    def admit(self, caller: Caller, model: str, size: RequestSize, entry: "Entry | None") -> "Permit":
        """Return a permit; the caller calls `run` or `close` on it in this turn of the loop.

        Args:
            caller: the request's caller.
            model: name of its model.
            size: its size.
            entry: its entry, which the permit closes when the request ends; None if the key has no limits.

        Raises:
            OverKeyLimit: the key is at one of its limits.
            LimitsAway: the state of the key's limits is unknown.
            Overloaded: the model's queue is full.
        """
        permit = Permit(caller, model, size, self._model_queues.get(model), self._runtime)
        if entry is not None:
            permit.reserve(entry)
        try:
            permit.enter()
        except BaseException:  # after a bug, too, the key gets its reservation back
            permit.close()
            raise
        return permit


class Permit:
    """One request's permit.

    Attributes:
        key_name, cost: see `limits.fair_queue.Waiter`.
        headers: rate limit headers for the response; empty if the key has no limits.
        entry: the request in the key's limits, None if the key has no limits.
    """

    __slots__ = (
        "_allowance",
        "_caller",
        "_has_slot",
        "_has_started",
        "_is_asking",
        "_is_over",
        "_is_reserved",
        "_is_waiting",
        "_model",
        "_on_reject",
        "_queue",
        "_request",
        "_runtime",
        "_size",
        "_start_s",
        "_timer",
        "cost",
        "entry",
        "headers",
        "key_name",
    )

    def __init__(
        self, caller: Caller, model: str, size: RequestSize, queue: ModelQueue | None, runtime: Runtime
    ) -> None:
        self._caller = caller
        self._model = model
        self._size = size
        self._queue = queue
        self._runtime = runtime
        self._is_waiting = self._has_slot = self._has_started = self._is_over = False
        self._is_asking = self._is_reserved = False
        self._start_s = 0.0
        self._allowance: WaitAllowance | None = None
        self._timer: asyncio.Handle | None = None  # asks again, ends the wait, or starts the granted request
        self._request: QueuedRequest | None = None
        self._on_reject: OnReject | None = None
        self.key_name = caller.key_name
        self.cost = size.prompt_tokens + size.answer_tokens
        self.headers: Headers = ()
        self.entry: Entry | None = None

    @property
    def runtime(self) -> Runtime:
        """The runtime with the permit's own `emit`; built at each access, because keeping it would be a cycle."""
        runtime = self._runtime
        return Runtime(runtime.loop, self._emit, runtime.rand, runtime.timers, runtime.burst)

    def reserve(self, entry: Entry) -> None:
        """Reserve the tokens in the key's limits, unless the fleet has to be asked for more.

        Raises:
            OverKeyLimit: the key is at one of its limits.
            LimitsAway: the state of the key's limits is unknown.
        """
        now_s = self._runtime.loop.time()
        over = entry.reserve(self._size, now_s)
        if over is not None and over.is_asking and not self._may_ask(now_s):
            over = entry.reserve(self._size, now_s, anyway=True)
        self.headers = tuple(limit_headers(entry.limiter.status(now_s)))
        if over is None:
            self.entry, self._is_reserved = entry, True
        elif over.is_asking:
            self.entry, self._is_asking = entry, True
        else:
            raise over_key_limit(over, self.key_name, self.headers)

    def enter(self) -> None:
        """Take a slot, or join the queue for one, once the key's limits have room.

        Raises:
            Overloaded: the queue is full.
        """
        queue = self._queue
        if queue is None or self._is_asking:
            return
        self._has_slot = queue.fair_queue.try_acquire()
        if self._has_slot:
            return
        now_s = self._runtime.loop.time()
        if queue.fair_queue.is_asking(now_s) and self._may_ask(now_s):
            self._is_asking = True
            return
        displaced = queue.fair_queue.enqueue(self)
        if displaced is self:
            raise self._overloaded(f"its queue is full ({queue.fair_queue.waiting_max})")
        self._is_waiting = True
        if displaced is not None:
            displaced.evicted()
        wait_s = min(queue.timeout_s, self._size.deadline_s or math.inf)
        self._timer = self._runtime.loop.call_later(wait_s, self._wait_timed_out)

    def run(self, request: QueuedRequest, on_reject: OnReject) -> None:
        """Start a request, now or when its permit is granted.

        Args:
            request: emits its end through `Permit.runtime`.
            on_reject: called with an error if the request never starts.
        """
        self._request, self._on_reject = request, on_reject
        if self._is_asking:
            self._timer = self._runtime.loop.call_later(ASK_WAIT_S, self._ask_again)
        elif not self._is_waiting:
            self._start(request)

    def granted(self) -> None:
        """Take the slot that the queue passed on."""
        self._is_waiting, self._has_slot = False, True
        self._stop_timer()
        self._timer = self._runtime.loop.call_soon(self._start_granted)  # not on the stack of the request that ended

    def evicted(self) -> None:
        """Reject the request: another key's request took its place in the queue."""
        self._is_waiting = False
        self._reject(self._overloaded("this request was evicted in favour of a key with fewer queued requests"))

    def client_gone(self) -> None:
        if self._has_started:
            if self._request is not None:
                self._request.client_gone()
        elif not self._is_over:
            self.close()
            self._emit_rejected(499, "client_gone")

    def shut_down(self) -> None:
        if self._has_started:
            if self._request is not None:
                self._request.shut_down()
        elif not self._is_over:
            self._reject(ShuttingDown("the gateway is shutting down and this request is still queued; retry"))

    def close(self) -> None:
        """Release everything without having run; a no-op once the permit is over."""
        if self._is_over:
            return
        self._is_over = True
        self._request = self._on_reject = None  # no cycle outlives a request
        self._stop_timer()
        if self._is_waiting and self._queue is not None:
            self._is_waiting = False
            self.runtime.safely("admission", self._queue.fair_queue.remove, None, self)
        self._release(None)

    # inside

    def _may_ask(self, now_s: float) -> bool:
        """Return True if there is time left to wait for an answer of the fleet."""
        self._allowance = self._allowance or WaitAllowance()
        return self._allowance.lasts(now_s)

    def _ask_again(self) -> None:
        """Go on with what the fleet has answered."""
        self._timer, self._is_asking = None, False
        try:
            if self.entry is not None and not self._is_reserved:
                self.reserve(self.entry)
            self.enter()
        except GatewayError as error:
            if self.entry is not None:
                self.entry.reject(error.status)
            self._reject(error)
            return
        except Exception as error:  # a bug in a limit must not fail the request
            self._runtime.report("admission", error)
        if self._is_asking:
            self._timer = self._runtime.loop.call_later(ASK_WAIT_S, self._ask_again)
        elif not self._is_waiting:
            self._start_granted()

    def _start_granted(self) -> None:
        self._timer = None
        self._caller.queued_s = self._waited_s()
        request, on_reject = self._request, self._on_reject
        assert request is not None
        assert on_reject is not None
        try:
            self._start(request)
        except Exception as error:  # a callback of the loop: no caller would catch it
            self._runtime.report("race", error)
            request.client_gone()
            on_reject(Internal("the gateway failed; see its log"))

    def _start(self, request: QueuedRequest) -> None:
        self._has_started = True
        self._start_s = self._runtime.loop.time()
        request.start()

    def _emit(self, event: Event) -> None:
        """Pass on an event of the request; its end releases everything."""
        if isinstance(event, RequestEnded) and not self._is_over:
            self._is_over = True
            self._request = self._on_reject = None
            self._release(used_tokens(event, self._size.prompt_tokens))
        self._runtime.emit(event)

    def _wait_timed_out(self) -> None:
        self._reject(self._overloaded(f"this request was queued for {self._waited_s():.3g} s"))

    def _reject(self, error: GatewayError) -> None:
        on_reject = self._on_reject
        self.close()
        self._emit_rejected(error.status, error.code or error.kind, error.limit)
        if on_reject is not None:
            on_reject(error)

    def _release(self, used_tokens: float | None) -> None:
        """Release the reservation and the slot; `used_tokens` is None if no replica received the request."""
        if self.entry is not None:
            self.entry.close(used_tokens)
        if self._has_slot and self._queue is not None:
            self._has_slot = False
            fair_queue = self._queue.fair_queue
            if used_tokens is None:
                next_permit = self.runtime.safely("admission", fair_queue.release_unused, None)
            else:
                next_permit = self.runtime.safely(
                    "admission", fair_queue.release, None, self._runtime.loop.time() - self._start_s
                )
            if next_permit is not None:
                next_permit.granted()

    def _waited_s(self) -> float:
        return self._runtime.loop.time() - self._caller.arrived_s

    def _stop_timer(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _emit_rejected(self, status: int, code: str | None, limit: Limit | None = None) -> None:
        caller = self._caller
        now_s, waited_s = self._runtime.loop.time(), self._waited_s()
        event = RequestRejected(
            now_s,
            caller.request_id,
            caller.key_name,
            status,
            code,
            self._model,
            waited_s,
            caller.trace_id,
            caller.trace,
            limit,
        )
        self._runtime.emit(event)

    def _overloaded(self, reason: str) -> Overloaded:
        assert self._queue is not None
        fair_queue = self._queue.fair_queue
        wait_s = fair_queue.wait_s()
        busy = f"model {self._model!r} is at its concurrency limit ({fair_queue.slots})"
        return Overloaded(f"{busy} and {reason}; retry in {wait_s:.3g} s", wait_s, limit="model")
