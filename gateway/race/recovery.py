"""Recovers a stream that broke after part of it was sent.

While the first winner is forwarded, its attempt records the bytes (`sent_events.py`) if a recovery is possible. A
`Recovery` reads the bytes as text and chooses the step to try. Another replica is asked either to continue the text, or
to answer the same request again; in the second case the part that the client has is compared and skipped, or, if it is
nothing but thinking, followed by the other answer. A step can be chosen while the stream is still open. This module
decides; the race sends the step, within its own limits on attempts and time. Reading text and joining two streams is
the protocol's part (`providers.recovery.Recoverer`).

Units: bytes, seconds of the loop's clock, tokens.
"""

from collections.abc import Callable, Sequence
from functools import partial
from typing import Final, NamedTuple

from msgspec.structs import replace

from gateway.events import RecoveryKind, RecoveryReport, RecoveryResult
from gateway.race.attempt import Attempt
from gateway.race.context import Model, RecoveryMode
from gateway.race.retry_plan import SendTo
from gateway.race.sent_events import SentEvents
from providers.recovery import Continuation, Joiner, Recoverer, Transcript
from ttft_gateway.apis.base import Api, Call, Usage
from ttft_gateway.apis.errors import TimedOut, UpstreamError
from ttft_gateway.hedging.contract import RequestFacts
from ttft_gateway.hedging.failures import classify
from ttft_gateway.hedging.outcomes import GuardCause, Outcome
from ttft_gateway.pool.pool import Pool
from ttft_gateway.routing.replicas import Replica

RECOVERIES_MAX: Final = 2  # streams of one request that may break and be recovered
EARLY_EVENTS: Final = 8  # after at most 8 events a replay costs little, even of a sampled answer
_OFF: Final = RecoveryMode.OFF
_NO_PREFILL_S: Final = 300.0  # after a replica rejected or ignored the beginning of an answer
_NO_FAULT: Final = (Outcome.LOST, Outcome.CLIENT_ERROR, Outcome.UNCLEAR_4XX)  # no fault of the replica


class _Step(NamedTuple):
    """One attempt to recover a stream.

    Attributes:
        kind: continuation, replay or restart.
        replica: target of the attempt.
        call: call to send.
        facts: facts about this call.
        joiner: joiner for its events.
        prefill_tokens: tokens of the answer that the call contains; 0 for a replay.
    """

    kind: RecoveryKind
    replica: Replica
    call: Call
    facts: RequestFacts
    joiner: Joiner
    prefill_tokens: int = 0


class _Method(NamedTuple):
    """One way to recover a stream, for any replica that is able.

    Attributes:
        kind: see `_Step`.
        able: returns True for a replica that may be asked; None for any.
        continuation: continuation of the answer; None for a replay or restart.
        is_guess: the answer is sampled, so that a replay of it may differ; tried once, within the retry budget.
    """

    kind: RecoveryKind
    able: Callable[[Replica], bool] | None
    continuation: Continuation | None = None
    is_guess: bool = False


def recorded(model: Model, call: Call, attempt: Attempt) -> SentEvents | None:
    """Return the place for the events of a winner's stream; None if a broken stream could not be recovered.

    Args:
        attempt: the winner. A policy refusal is never recovered.
    """
    recoverer = model.recoverers.get(call.api)
    if recoverer is None or model.recovery is _OFF or not call.streaming or not call.repeatable or attempt.refused:
        return None
    if model.stores_by_default and _is_stored(call):
        return None

    def is_long() -> bool:
        return _repeats(model, recoverer, call) or _continues(model, recoverer, call)

    sent_events = SentEvents()
    sent_events.is_long = is_long
    return sent_events


def can_recover(
    model: Model, attempts: Sequence[Attempt], winner: Attempt, recovery: "Recovery | None", now_s: float
) -> bool:
    """Return True if another replica may carry on the stream of a winner that is still open.

    Args:
        attempts: all attempts of the request.
        recovery: recovery of an earlier break of the stream, None if the stream has not broken before.
    """
    if winner.sent_events is None and (recovery is None or not recovery.may_break_again):
        return False
    tried = [attempt.replica for attempt in attempts if attempt.outcome not in _NO_FAULT]
    pools = model.pools[model.pools.index(winner.pool) :]
    others = (replica for pool in pools for replica in pool.picker.reachable(tried))
    return any(not each.out and each.breaker.is_closed(now_s) for each in others)


def _both(first: Callable[[Replica], bool] | None, second: Callable[[Replica], bool]) -> Callable[[Replica], bool]:
    """Return a condition that is True if both are."""
    return second if first is None else lambda replica: first(replica) and second(replica)


def _is_stored(call: Call) -> bool:
    """Return True if a provider stores the answer, so that another one would be stored under another id."""
    if call.api is not Api.RESPONSES:
        return False
    start, end = call.spans.get("store", (0, 0))
    return call.body[start:end] != b"false"


def _repeats(model: Model, recoverer: Recoverer, call: Call) -> bool:
    """Return True if a replay of any length is tried: the answer is expected to be the same, or so it is configured."""
    return model.recovery is not RecoveryMode.AUTO or recoverer.is_deterministic(call)


def _continues(model: Model, recoverer: Recoverer, call: Call) -> bool:
    """Return True if a replica of the model continues the answer from its beginning."""
    prefix = recoverer.prefix(call)
    return prefix is not None and any(prefix in replica.prefills for replica in model.replicas)


Fits = Callable[[Pool, RequestFacts, Replica], bool]
"""Returns True if a replica of a pool may be sent a guard, given the facts about its call."""


class Recovery:
    """The part of an answer that the client has, and the recovery of its broken stream, or of one that may break.

    Args:
        attempt: the attempt that won the race.
        sent_events: the events that the client was sent.

    Attributes:
        first: the attempt that won the race.
        catching_up: True while nothing new has come since the stream broke.
        error: the error that first broke the stream, None before `on_broken`.
        given_up: True if nothing more is tried.
        obstacle: the reason for which the stream is not carried on, for the client's error; empty before.
        reports: results of the recoveries, in order.
    """

    __slots__ = (
        "_attempt",
        "_breaks",
        "_broken_s",
        "_call",
        "_guard",
        "_guessed",
        "_model",
        "_now_s",
        "_places",
        "_pools",
        "_prefix",
        "_read_bytes",
        "_recoverer",
        "_restarted",
        "_sent_events",
        "_step",
        "_transcript",
        "catching_up",
        "error",
        "first",
        "given_up",
        "obstacle",
        "reports",
    )

    def __init__(self, model: Model, call: Call, attempt: Attempt, sent_events: SentEvents) -> None:
        self._model = model
        self._pools = model.pools[model.pools.index(attempt.pool) :]
        # Replicas, each with the number of tokens after which it broke the stream.
        self._places: frozenset[tuple[Replica, int]] = frozenset()
        self._call = call
        self._recoverer = model.recoverers[call.api]
        self._prefix = self._recoverer.prefix(call)
        self._transcript = self._recoverer.transcript(call)
        self._read_bytes = 0  # of the events that were sent, in the transcript
        self._restarted: Joiner | None = None  # the last one after which the transcript has another answer
        self._attempt = self.first = attempt  # the client gets the events of `_attempt`
        self._sent_events = sent_events
        self._breaks = 0
        self._now_s = 0.0  # of the present choice
        self._broken_s = 0.0
        self._guessed = False  # a sampled answer was replayed
        self._guard: GuardCause | None = None  # the reason for the last step if it was taken beside an open stream
        self.catching_up = False
        self.given_up = False
        self.error: UpstreamError | None = None
        self.obstacle = ""
        self._step: _Step | None = None  # the last recovery attempt
        self.reports: list[RecoveryReport] = []

    def beside(self, attempt: Attempt) -> "Recovery | None":
        """Return a recovery of the same stream, which goes on in `attempt`, for a guard; None if there can be none."""
        is_restarted = self._step is not None and self._step.joiner.restarted
        if not self.may_break_again or is_restarted:
            return None
        other = Recovery(self._model, self._call, attempt, self._sent_events)
        other.first, other.reports, other.error = self.first, [*self.reports], self.error
        other._breaks, other._guessed = self._breaks, self._guessed
        other._places = self._places
        return other

    def on_overtaken(self, late: Attempt) -> None:
        """Record that the guard has brought new output before the stream beside it."""
        self._breaks += 1
        self._broken_s = late.output_s
        self.catching_up = True

    def on_broken(self, attempt: Attempt, error: UpstreamError) -> None:
        """Record that the client's stream broke, or that an attempt to continue it failed before it took over."""
        self.settle(RecoveryResult.FAILED, attempt.end_s or attempt.last_s)
        if attempt is self._attempt:
            self._breaks += 1
            self._broken_s = attempt.last_s
            self.error = self.error or error
            if self._breaks > RECOVERIES_MAX:
                self.give_up(f"it was carried on {RECOVERIES_MAX} times before")
            return
        verdict = classify(error)
        if verdict.answers:  # another replica must not bypass a policy, but it may support continuations
            no_prefill = self._step is not None and self._step.kind is RecoveryKind.CONTINUE
            if no_prefill:
                self._refuse_prefill(attempt.replica, attempt.end_s or attempt.last_s)
            if verdict.outcome is Outcome.MODEL_REFUSAL or not no_prefill:
                self.give_up("another replica rejected the request")

    def on_guard_rejected(self, guard: Attempt, error: UpstreamError) -> None:
        """Record the failure of a guard that did not win: a rejection of its text holds for later requests, too."""
        if classify(error).answers and not self.repeats:
            self._refuse_prefill(guard.replica, guard.end_s or guard.last_s)

    @staticmethod
    def _refuse_prefill(replica: Replica, now_s: float) -> None:
        replica.no_prefill_until_s = now_s + _NO_PREFILL_S

    def give_up(self, obstacle: str) -> None:
        """Try nothing more; `obstacle` completes the sentence `the answer was not carried on, because …`."""
        self.given_up, self.obstacle = True, self.obstacle or obstacle

    def next(self, attempts: Sequence[Attempt], facts: RequestFacts, now_s: float, rand: float) -> SendTo | None:
        """Choose the next recovery step, None if there is none.

        Args:
            attempts: all attempts so far.
            facts: facts about the client's call.
            rand: uniform random number in [0, 1).
        """
        if self.given_up:
            return None
        self._now_s = now_s
        transcript = self._read()
        place = (self._attempt.replica, transcript.tokens)
        is_new_place = place not in self._places
        self._places |= {place}
        methods = self._methods(transcript)
        for is_other in (True, False) if is_new_place else (True,):
            for method in methods:
                call_facts = self._facts_of(method, facts)
                target = (
                    self._other(method, attempts, call_facts, now_s, rand)
                    if is_other
                    else self._same(method, attempts, now_s)
                )
                if target is not None and (not method.is_guess or self._model.retries.take(now_s)):
                    self._guard = None
                    self._set_step(method, target.replica, call_facts, transcript)
                    return target
        self.obstacle = "no other replica can carry it on" if methods else self._recoverer.continues
        return None

    def next_beside(
        self,
        attempts: Sequence[Attempt],
        facts: RequestFacts,
        now_s: float,
        rand: float,
        cause: GuardCause,
        fits: Fits,
    ) -> SendTo | None:
        """Choose the step of a guard, None if there is none: no guess, and a continuation beside a slow stream."""
        self._now_s = now_s
        transcript = self._read()
        for method in self._methods(transcript):
            if method.is_guess or (cause is GuardCause.SLOW and method.continuation is None):
                continue
            call_facts = self._facts_of(method, facts)
            target = self._other(method, attempts, call_facts, now_s, rand, fits)
            if target is not None:
                self._set_step(method, target.replica, call_facts, transcript)
                self._guard = cause
                return target
        return None

    @property
    def current(self) -> Attempt:
        """The attempt with the client's stream."""
        return self._attempt

    @property
    def repeats(self) -> bool:
        """True if the last step generates the answer from its beginning."""
        return self._step is None or self._step.kind is not RecoveryKind.CONTINUE

    def _set_step(self, method: _Method, replica: Replica, facts: RequestFacts, transcript: Transcript) -> None:
        self._guessed = self._guessed or method.is_guess
        found = method.continuation
        if found is None:
            self._step = _Step(method.kind, replica, self._call, facts, transcript.joiner())
        else:
            self._step = _Step(method.kind, replica, found.call, facts, found.joiner, found.prefill_tokens)

    @property
    def may_break_again(self) -> bool:
        """True if the stream is recovered once more if it breaks again; False while it is not carried on yet."""
        return not (self.given_up or self.catching_up) and self._breaks < RECOVERIES_MAX

    def on_sent(self) -> None:
        """Record that the step that `next` returned is being sent."""
        self.catching_up = True

    @property
    def recovery_call(self) -> tuple[Call, RequestFacts] | None:
        """Call and facts of the last recovery step; None while the stream is intact."""
        return (self._step.call, self._step.facts) if self._step is not None else None

    def _read(self) -> Transcript:
        """Read the events that were sent since the last break as text."""
        transcript, joiner = self._transcript, None if self._step is None else self._step.joiner
        if joiner is not None and joiner.restarted and joiner is not self._restarted:
            self._restarted = joiner
            transcript.abandon()
        for events in self._sent_events.since(self._read_bytes):
            transcript.add(events)
        self._read_bytes = self._sent_events.total
        return transcript

    def _methods(self, transcript: Transcript) -> list[_Method]:
        """Return the possible ways to recover the stream, best first."""
        methods: list[_Method] = []
        mode = self._model.recovery
        if mode is not RecoveryMode.REPLAY:
            continuation = transcript.continuation()
            if continuation is not None:
                methods.append(_Method(RecoveryKind.CONTINUE, self._may_continue, continuation))
        if transcript.restartable:
            kind = RecoveryKind.REPLAY if transcript.comparable else RecoveryKind.RESTART
            methods.append(_Method(kind, None))
        elif transcript.comparable:
            is_likely = transcript.tokens <= EARLY_EVENTS or _repeats(self._model, self._recoverer, self._call)
            if is_likely:
                methods.append(_Method(RecoveryKind.REPLAY, None))
            elif not self._guessed:
                methods.append(_Method(RecoveryKind.REPLAY, self._is_alike, is_guess=True))
        return methods

    def _is_alike(self, replica: Replica) -> bool:
        """Return True if a replica gives the same answers as the replica of the broken stream."""
        return replica.answers_as == self._attempt.replica.answers_as

    def _may_continue(self, replica: Replica) -> bool:
        """Return True if a replica may continue the text of the broken stream."""
        is_able = self._prefix in replica.prefills and self._now_s >= replica.no_prefill_until_s
        return is_able and (self._model.recovery is RecoveryMode.CONTINUE or self._is_alike(replica))

    @staticmethod
    def _facts_of(method: _Method, facts: RequestFacts) -> RequestFacts:
        """Return the facts about the call of a method."""
        if method.continuation is None:
            return facts
        return replace(facts, prompt_tokens=facts.prompt_tokens + method.continuation.prefill_tokens)

    def _other(
        self,
        method: _Method,
        attempts: Sequence[Attempt],
        facts: RequestFacts,
        now_s: float,
        rand: float,
        fits: Fits | None = None,
    ) -> SendTo | None:
        """Choose another replica of the pool, or of a fallback."""
        tried = [attempt.replica for attempt in attempts if attempt.outcome not in _NO_FAULT]
        for pool in self._pools:
            able = method.able if fits is None else _both(method.able, partial(fits, pool, facts))
            replica = pool.picker.pick(facts, tried, now_s, rand, able=able)
            if replica is not None:
                return SendTo(pool, replica)
        return None

    def _same(self, method: _Method, attempts: Sequence[Attempt], now_s: float) -> SendTo | None:
        """Choose the same replica again if it cut the stream; one that stalled would stall the client twice."""
        same = self._attempt.replica
        latest = next(attempt for attempt in reversed(attempts) if attempt.replica is same)
        is_healthy = latest.outcome in (Outcome.CUT, *_NO_FAULT) and same.breaker.allows(now_s) and not same.out
        if latest.error == TimedOut.label or not is_healthy or method.is_guess:
            return None
        return SendTo(self._attempt.pool, same) if method.able is None or method.able(same) else None

    # while it is continued

    def on_joined(self, attempt: Attempt) -> None:
        """Record that this attempt now continues the stream."""
        self._attempt = attempt

    def join(self, raw: bytes, now_s: float) -> bytes | None:
        """Return the new bytes for the client from one event; None if the answer differs from the client's part."""
        assert self._step is not None
        new = self.read_beside(raw, now_s)
        if new:
            self.on_new(new, now_s)
        return new

    def read_beside(self, raw: bytes, now_s: float) -> bytes | None:
        """Do the same for an event of a guard, of which the client has nothing yet; `on_new` follows if it wins."""
        assert self._step is not None
        joiner = self._step.joiner
        new = joiner.feed(raw)
        if joiner.repeated:
            self._refuse_prefill(self._step.replica, now_s)
        return new

    def on_new(self, new: bytes, now_s: float) -> None:
        """Record bytes that the client gets from the attempt that continues its stream."""
        assert self._step is not None
        if self.catching_up and self._step.joiner.caught_up:
            self.settle(RecoveryResult.RECOVERED, now_s)
        if not self.given_up:
            sent = self._sent_events
            sent += new
            if len(sent) > sent.bytes_max and not sent.pack():
                self.give_up("it is too long")
                self._sent_events = SentEvents()

    def on_end(self, now_s: float) -> bool:
        """Record the end of a complete stream; return False if it is shorter than the part that the client has."""
        if self.catching_up and self._step is not None:
            if not self._step.joiner.caught_up:
                return False
            self.settle(RecoveryResult.RECOVERED, now_s)
        return True

    def settle(self, result: RecoveryResult, now_s: float) -> None:
        """Add the report of the running recovery, if there is one."""
        if not self.catching_up or self._step is None:
            return
        self.catching_up = False
        self.reports.append(self._report(self._step, result, now_s - self._broken_s))

    def lost(self, result: RecoveryResult, gap_s: float) -> RecoveryReport:
        """Return the report of a guard that did not win."""
        assert self._step is not None
        return self._report(self._step, result, gap_s)

    def _report(self, step: _Step, result: RecoveryResult, gap_s: float) -> RecoveryReport:
        tokens = self._transcript.tokens
        repeated_tokens = int(step.facts.prompt_tokens) + (0 if step.prefill_tokens else tokens)
        kind = RecoveryKind.RESTART if step.joiner.restarted else step.kind
        return RecoveryReport(kind, result, step.replica.name, tokens, gap_s, repeated_tokens, self._guard)

    @property
    def carried_tokens(self) -> int:
        """Tokens of the answer that the last attempt got as prefill and did not generate."""
        return self._step.prefill_tokens if self._step is not None else 0

    def usage(self, usage: Usage | None) -> Usage | None:
        """Return the token counts of the joined answer, from the token counts of its last attempt."""
        tokens = self.carried_tokens
        if usage is None or usage.prompt_tokens is None or usage.completion_tokens is None:
            return usage
        moved = min(tokens, usage.prompt_tokens)
        return replace(
            usage, prompt_tokens=usage.prompt_tokens - moved, completion_tokens=usage.completion_tokens + moved
        )
