"""Admission: gives each request a permit immediately or after queueing, or an error with a Retry-After.

A key's limits count a request before its body is read (`Entry`); its tokens and its model are known after that. The
rate limit headers are OpenAI's, so that clients that pace themselves by these headers work unchanged.

`caller_limits` and `fair_queue` decide; this module applies their decisions. Waiting needs no task: the end of another
request grants the permit, and the granted request starts in the next turn of the loop. A permit releases its
reservation and its slot exactly once, however its request ends. Independent of ASGI and of the client API; a request
without limits gets no permit.

    asking --leased--> waiting --granted--> granted --next turn of the loop--> running --RequestEnded--> over
      |                   '--disconnect, timeout, evicted, drain--> over       (granted: disconnect, drain --> over)
      '--refused, disconnect, drain--> over

A limit that the fleet shares may have to ask for more; a request waits for the answer, and for the one after it if it
came while the first was under way. If others have used up what these granted, the part of this process in what the last
one left decides.

Units: seconds of the loop's clock, tokens.
"""

import asyncio
import math
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Final, Protocol

import msgspec

from gateway.admission.caller_limits import CallerTicket, KeyLimiter, LimitStatus, OverLimit, Quantity
from gateway.admission.fair_queue import FairQueue
from gateway.admission.listed_limiters import ListedLimiters
from gateway.errors import GatewayError, Internal, Limit, LimitsAway, OverKeyLimit, Overloaded, ShuttingDown
from gateway.events import Event, RequestEnded, RequestRejected
from gateway.race.context import Caller, Runtime
from gateway.share.fleet import ASK_WAIT_S, WaitAllowance
from ttft_gateway.apis.base import Headers

_SERVER_ERROR: Final = 500


class QueuedRequest(Protocol):
    """The request to run: a race."""

    def start(self) -> None:
        """Start; called at most once."""

    def client_gone(self) -> None:
        """The client disconnected."""

    def shut_down(self) -> None:
        """The gateway is stopping and the drain period is over."""


OnReject = Callable[[GatewayError], None]


class RequestSize(msgspec.Struct, frozen=True):
    """The estimated size of a request.

    Attributes:
        prompt_tokens: tokens of the prompt.
        answer_tokens: tokens of all its answers together.
        deadline_s: the caller's deadline, None if the client sent none.
    """

    prompt_tokens: float
    answer_tokens: float
    deadline_s: float | None = None


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
        listed: limiters of keys from a list; None without a list.

    Attributes:
        has_limits: False if no key and no model has a limit: every call of this object is then unnecessary.
    """

    def __init__(
        self,
        key_limiters: Mapping[str, KeyLimiter],
        model_queues: Mapping[str, ModelQueue],
        runtime: Runtime,
        listed: ListedLimiters | None = None,
    ) -> None:
        self.has_limits = bool(key_limiters or model_queues) or listed is not None
        self._key_limiters = key_limiters
        self._listed = listed
        self._model_queues = model_queues
        self._runtime = runtime

    def enter(self, key_name: str) -> "Entry | None":
        """Count a request before its body is read; return None if its key has no limits.

        Raises:
            OverKeyLimit: the key is at one of its limits.
        """
        limiter = self._key_limiters.get(key_name)
        if limiter is None and self._listed is not None:
            limiter = self._listed.get(key_name)
        if limiter is None:
            return None
        now_s, refusal = self._runtime.loop.time(), None
        try:
            entered = limiter.enter(now_s)
            if isinstance(entered, OverLimit) and not entered.is_asking:
                refusal = _over_key_limit(entered, key_name, tuple(_limit_headers(limiter.status(now_s))))
        except Exception as error:  # a bug in a limit must not fail the request
            self._runtime.report("admission", error)
            return None
        if refusal is not None:
            raise refusal
        # While the fleet is asked for a ticket, the body arrives.
        return Entry(limiter, None if isinstance(entered, OverLimit) else entered, key_name, self._runtime)

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


class Entry:
    """One request in its key's limits; closed once, whatever is called after that.

    Args:
        key_name: name of the key.

    Attributes:
        limiter: the key's limiter.
        ticket: the request's reservation in it; None while the fleet is asked for one, and after the end.
    """

    __slots__ = ("_allowance", "_key_name", "_runtime", "_waits_for", "limiter", "ticket")

    def __init__(self, limiter: KeyLimiter, ticket: CallerTicket | None, key_name: str, runtime: Runtime) -> None:
        self.limiter = limiter
        self.ticket = ticket
        self._key_name = key_name
        self._runtime = runtime
        self._allowance: WaitAllowance | None = None
        self._waits_for: Quantity | None = None  # None if it does not wait for the fleet

    def admit(self, size: RequestSize | None) -> bool:
        """Count the request, unless that is done, and reserve its tokens; return False while the fleet is asked.

        Called again after each `ASK_WAIT_S` until it returns True, or `reject` or `close`.

        Args:
            size: the size; None for a request without tokens.

        Raises:
            OverKeyLimit: the key is at one of its limits.
            LimitsAway: the state of the key's limits is unknown.
        """
        now_s = self._runtime.loop.time()
        self._stop_waiting()
        over = self._over(size, now_s)
        if over is not None and over.is_asking and not self.may_wait(now_s):
            over = self._over(size, now_s, at_once=True)
        if over is None:
            return True
        if not over.is_asking:
            raise _over_key_limit(over, self._key_name, self.headers(now_s))
        self._waits_for = over.quantity
        self.limiter.waiting[over.quantity] += 1
        return False

    def may_wait(self, now_s: float) -> bool:
        """Return True if there is time left to wait for an answer of the fleet."""
        self._allowance = self._allowance or WaitAllowance()
        return self._allowance.lasts(now_s)

    def headers(self, now_s: float) -> Headers:
        """Return the rate limit headers."""
        return tuple(_limit_headers(self.limiter.status(now_s)))

    def reject(self, status: int) -> None:
        """Close the entry of a request without a permit; it counts unless the gateway itself failed (5xx)."""
        self._stop_waiting()
        ticket, self.ticket = self.ticket, None
        if ticket is not None:
            close = self.limiter.release if status >= _SERVER_ERROR else self.limiter.reject
            self._runtime.safely("admission", close, None, ticket, self._runtime.loop.time())

    def close(self, used_tokens: float | None) -> None:
        """Close the entry of a request with a permit; `used_tokens` is None if no replica received the request."""
        self._stop_waiting()
        ticket, self.ticket = self.ticket, None
        if ticket is None:
            return
        now_s = self._runtime.loop.time()
        if used_tokens is None:
            self._runtime.safely("admission", self.limiter.release, None, ticket, now_s)
        else:
            self._runtime.safely("admission", self.limiter.settle, None, ticket, used_tokens, now_s)

    def _over(self, size: RequestSize | None, now_s: float, *, at_once: bool = False) -> OverLimit | None:
        if self.ticket is None:
            entered = self.limiter.enter(now_s, at_once=at_once)
            if isinstance(entered, OverLimit):
                return entered
            self.ticket = entered
        if size is None:
            return None
        return self.limiter.reserve(self.ticket, size.prompt_tokens, size.answer_tokens, now_s, at_once=at_once)

    def _stop_waiting(self) -> None:
        if self._waits_for is not None:
            self.limiter.waiting[self._waits_for] -= 1
            self._waits_for = None


class Permit:
    """One request's permit.

    Attributes:
        key_name, cost: see `fair_queue.Waiter`.
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
        self._allowance: WaitAllowance | None = None  # of a request without an entry
        self._timer: asyncio.Handle | None = None  # asks again, ends the wait, or starts the granted request
        self._request: QueuedRequest | None = None
        self._on_reject: OnReject | None = None
        self.key_name = caller.key_name
        self.cost = size.prompt_tokens + size.answer_tokens
        self.headers: Headers = ()
        self.entry: Entry | None = None

    @property
    def runtime(self) -> Runtime:
        """The runtime with the permit's own `emit`; built at each access, because storing it would be a cycle."""
        runtime = self._runtime
        return Runtime(runtime.loop, self._emit, runtime.rand, runtime.timers, runtime.burst)

    def reserve(self, entry: Entry) -> None:
        """Reserve the tokens in the key's limits, unless the fleet has to be asked for more.

        Raises:
            OverKeyLimit: the key is at one of its limits.
            LimitsAway: the state of the key's limits is unknown.
        """
        self._is_reserved = entry.admit(self._size)
        self._is_asking = not self._is_reserved
        self.entry, self.headers = entry, entry.headers(self._runtime.loop.time())

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
        if self.entry is not None:
            return self.entry.may_wait(now_s)
        self._allowance = self._allowance or WaitAllowance()
        return self._allowance.lasts(now_s)

    def _ask_again(self) -> None:
        """Continue after the answer of the fleet."""
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
            self._release(_used_tokens(event, self._size.prompt_tokens))
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


def _used_tokens(event: RequestEnded, prompt_tokens: float) -> float:
    """Return the tokens to charge to the key: the reported usage, else the estimate of the prompt plus events seen."""
    usage = event.usage
    if usage is not None and usage.prompt_tokens is not None:
        return usage.prompt_tokens + (usage.completion_tokens or 0)
    return prompt_tokens + event.events if event.events else 0.0


def _over_key_limit(over: OverLimit, key_name: str, headers: Headers) -> GatewayError:
    """Build the error for a key that is at a limit, or that has limits in an unknown state."""
    limit = over.limit
    if over.is_unknown:
        wait_s = over.wait_s or 1.0
        message = f"the shared limits of key {key_name!r} are unavailable; retry in {wait_s:.3g} s"
        return LimitsAway(message, retry_after_s=wait_s)
    if over.quantity is Quantity.CONCURRENCY:
        what = f"is at its concurrency limit ({limit})"
    elif over.quantity is Quantity.REQUESTS:
        what = f"is at its limit of {limit} requests per minute"
    elif over.wait_s is None:
        what = f"is limited to {limit} tokens per minute and this prompt has about {over.asked}; send a shorter one"
    else:
        what = f"is at its limit of {limit} tokens per minute (this request may use {over.asked})"
    retry = "" if over.wait_s is None else f"; retry in {over.wait_s:.3g} s"
    error = OverKeyLimit(f"key {key_name!r} {what}{retry}", over.wait_s)
    error.extra_headers = tuple(headers)
    return error


def _limit_headers(statuses: Iterable[LimitStatus]) -> Iterator[tuple[bytes, bytes]]:
    """Yield OpenAI's rate limit headers: limit, remaining amount and reset time of each of a key's limits."""
    for status in statuses:
        name = status.quantity.value.encode()
        yield b"x-ratelimit-limit-" + name, b"%d" % status.limit
        yield b"x-ratelimit-remaining-" + name, b"%d" % status.remaining
        yield b"x-ratelimit-reset-" + name, _duration(status.reset_s)


def _duration(seconds: float) -> bytes:
    """Format a duration as OpenAI does: `120ms`, `6s`, `1m30s`; rounded up."""
    ms = math.ceil(1000 * seconds)
    if ms < 1000:
        return b"%dms" % ms
    minutes, rest = divmod(math.ceil(ms / 1000), 60)
    return b"%dm%ds" % (minutes, rest) if minutes else b"%ds" % rest
