"""Recovers a stream that broke after part of it was sent.

While the first winner is forwarded, its attempt records the bytes (`sent_events.py`) if a recovery is possible. When
the stream breaks, a `Recovery` reads the bytes as text. Another replica is asked either to continue the text, or to
answer the same request again; in the second case the part that the client has is skipped. This module decides the step
to try; the race sends it, within its own limits on attempts and time. Reading text and joining two streams is the
protocol's part (`providers.recovery.Recoverer`).

Units: bytes, seconds of the loop's clock, tokens.
"""

from collections.abc import Callable, Iterator, Sequence
from typing import Final, NamedTuple

from msgspec.structs import replace

from gateway.events import RecoveryKind, RecoveryReport, RecoveryResult
from gateway.race.attempt import Attempt
from gateway.race.context import Model, RecoveryMode
from gateway.race.retry_plan import SendTo
from gateway.race.sent_events import PACK_BYTES, SentEvents
from providers.recovery import Continuation, Joiner, Recoverer, Transcript
from ttft_gateway.apis.base import Call, Usage
from ttft_gateway.apis.errors import TimedOut, UpstreamError
from ttft_gateway.hedging.contract import RequestFacts
from ttft_gateway.hedging.failures import classify
from ttft_gateway.hedging.outcomes import Outcome
from ttft_gateway.routing.replicas import Replica

RECOVERIES_MAX: Final = 2  # streams of one request that may break and be recovered
EARLY_EVENTS: Final = 8  # after at most 8 events a replay is tried even for a sampled answer
_OFF: Final = RecoveryMode.OFF
_NO_FAULT: Final = (Outcome.LOST, Outcome.CLIENT_ERROR, Outcome.UNCLEAR_4XX)  # no fault of the replica


class _Step(NamedTuple):
    """One attempt to recover a stream.

    Attributes:
        kind: continuation or replay.
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


_Write = Callable[[bytes], None]


def recorded(model: Model, call: Call, attempt: Attempt, write: _Write) -> tuple[_Write, SentEvents | None]:
    """Decide if the events of a winner's stream are recorded while it is forwarded.

    Args:
        attempt: the winner. A policy refusal is never recovered.
        write: sends an event to the client.

    Returns:
        Function that sends an event, and the place of the events; None if a broken stream could not be recovered.
    """
    recoverer = model.recoverers.get(call.api)
    if recoverer is None or model.recovery is _OFF or not call.streaming or not call.repeatable or attempt.refused:
        return write, None
    if not (attempt.pool.prefills and recoverer.continuable(call)) and not _replays_late(model, recoverer, call):
        return _until_early_end(attempt, write), SentEvents()
    return write, SentEvents()


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
    pools = (winner.pool,) if model.recovery is RecoveryMode.AUTO else model.pools[model.pools.index(winner.pool) :]
    tried = [attempt.replica for attempt in attempts if attempt.outcome not in _NO_FAULT]
    others = (replica for pool in pools for replica in pool.picker.reachable(tried))
    return any(not each.out and each.breaker.is_closed(now_s) for each in others)


def _replays_late(model: Model, recoverer: Recoverer, call: Call) -> bool:
    """Return True if a replay is tried after `EARLY_EVENTS`, too: the answer is expected to be the same."""
    return model.recovery is not RecoveryMode.AUTO or recoverer.is_deterministic(call)


def _until_early_end(attempt: Attempt, write: _Write) -> _Write:
    """Return a function that sends events; after `EARLY_EVENTS`, the attempt records none."""

    def write_early(raw: bytes) -> None:
        write(raw)
        if attempt.events > EARLY_EVENTS:
            attempt.forward(write)

    return write_early


class Recovery:
    """The part of an answer that the client has, and the recovery of its broken stream.

    Args:
        attempt: the attempt that won the race.
        sent_events: the events that the client was sent.

    Attributes:
        first: the attempt that won the race.
        catching_up: True while nothing new has come since the stream broke.
        error: the error that first broke the stream, None before `on_broken`.
        given_up: True if nothing more is tried.
        reports: results of the recoveries, in order.
    """

    __slots__ = (
        "_attempt",
        "_breaks",
        "_broken_s",
        "_call",
        "_model",
        "_places",
        "_pools",
        "_recoverer",
        "_rejected_prefill",
        "_sent_events",
        "_step",
        "_transcript",
        "catching_up",
        "error",
        "first",
        "given_up",
        "reports",
    )

    def __init__(self, model: Model, call: Call, attempt: Attempt, sent_events: SentEvents) -> None:
        self._model = model
        # A fallback may be another model: an answer goes on there only where that is configured.
        later = model.pools[model.pools.index(attempt.pool) + 1 :] if model.recovery is not RecoveryMode.AUTO else ()
        self._pools = (attempt.pool, *later)
        # Replicas, each with the number of tokens after which it broke the stream.
        self._places: frozenset[tuple[Replica, int]] = frozenset()
        self._rejected_prefill: frozenset[Replica] = frozenset()
        self._call = call
        self._recoverer = model.recoverers[call.api]
        self._transcript: Transcript | None = None
        self._attempt = self.first = attempt  # the client gets the events of `_attempt`
        self._sent_events = sent_events
        self._breaks = 0
        self._broken_s = 0.0
        self.catching_up = False
        self.given_up = False
        self.error: UpstreamError | None = None
        self._step: _Step | None = None  # the last recovery attempt
        self.reports: list[RecoveryReport] = []

    def on_broken(self, attempt: Attempt, error: UpstreamError) -> None:
        """Record that the client's stream broke, or that an attempt to continue it failed before it took over."""
        self.settle(RecoveryResult.FAILED, attempt.end_s or attempt.last_s)
        if attempt is self._attempt:
            self._breaks += 1
            self._broken_s = attempt.last_s
            self.error = self.error or error
            self.given_up = self.given_up or self._breaks > RECOVERIES_MAX
            return
        verdict = classify(error)
        if verdict.answers:  # another replica must not bypass a policy, but it may support continuations
            no_prefill = self._step is not None and self._step.kind is RecoveryKind.CONTINUE
            if no_prefill:
                self._rejected_prefill |= {attempt.replica}
            self.given_up = self.given_up or verdict.outcome is Outcome.MODEL_REFUSAL or not no_prefill

    def next(self, attempts: Sequence[Attempt], facts: RequestFacts, now_s: float, rand: float) -> SendTo | None:
        """Choose the next recovery step, None if there is none.

        Args:
            attempts: all attempts so far.
            facts: facts about the client's call.
            rand: uniform random number in [0, 1).
        """
        if self.given_up:
            return None
        transcript = self._read()
        place = (self._attempt.replica, transcript.tokens)
        is_new_place = place not in self._places
        self._places |= {place}
        for kind, continuation in self._kinds(transcript):
            call_facts = facts
            if continuation is not None:
                tokens = facts.prompt_tokens + continuation.prefill_tokens
                call_facts = replace(facts, prompt_tokens=tokens)
            target = self._other(kind, attempts, call_facts, now_s, rand)
            if target is None and is_new_place:
                target = self._same(kind, attempts, now_s)
            if target is None:
                continue
            replica = target.replica
            if continuation is None:
                self._step = _Step(kind, replica, self._call, call_facts, transcript.joiner())
            else:
                joiner, prefill_tokens = continuation.joiner, continuation.prefill_tokens
                self._step = _Step(kind, replica, continuation.call, call_facts, joiner, prefill_tokens)
            return target
        return None

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
        """Read the recorded events as text."""
        transcript = self._transcript = self._transcript or self._recoverer.transcript(self._call)
        for events in self._sent_events.take():
            transcript.add(events)
        return transcript

    def _kinds(self, transcript: Transcript) -> Iterator[tuple[RecoveryKind, Continuation | None]]:
        """Yield the possible kinds of recovery, best first."""
        if self._model.recovery is not RecoveryMode.REPLAY:
            continuation = transcript.continuation()
            if continuation is not None:
                yield RecoveryKind.CONTINUE, continuation
        is_early = transcript.tokens <= EARLY_EVENTS
        if transcript.comparable and (is_early or _replays_late(self._model, self._recoverer, self._call)):
            yield RecoveryKind.REPLAY, None

    def _other(
        self, kind: RecoveryKind, attempts: Sequence[Attempt], facts: RequestFacts, now_s: float, rand: float
    ) -> SendTo | None:
        """Choose another replica of the pool, or of a fallback where the mode is configured."""
        prefills = kind is RecoveryKind.CONTINUE
        tried = [attempt.replica for attempt in attempts if attempt.outcome not in _NO_FAULT]
        tried += self._rejected_prefill if prefills else ()
        for pool in self._pools:
            replica = pool.picker.pick(facts, tried, now_s, rand, prefills=prefills)
            if replica is not None:
                return SendTo(pool, replica)
        return None

    def _same(self, kind: RecoveryKind, attempts: Sequence[Attempt], now_s: float) -> SendTo | None:
        """Choose the same replica again if it cut the stream; one that stalled would stall the client twice."""
        prefills, same = kind is RecoveryKind.CONTINUE, self._attempt.replica
        latest = next(attempt for attempt in reversed(attempts) if attempt.replica is same)
        is_healthy = latest.outcome in (Outcome.CUT, *_NO_FAULT) and same.breaker.allows(now_s) and not same.out
        if latest.error == TimedOut.label or not is_healthy:
            return None
        is_able = not prefills or (same.prefills and same not in self._rejected_prefill)
        return SendTo(self._attempt.pool, same) if is_able else None

    # while it is continued

    def on_joined(self, attempt: Attempt) -> None:
        """Record that this attempt now continues the stream."""
        self._attempt = attempt

    def join(self, raw: bytes, now_s: float) -> bytes | None:
        """Return the new bytes for the client from one event; None if the answer differs from the client's part."""
        assert self._step is not None
        new = self._step.joiner.feed(raw)
        if new is None:
            return None
        if new and self.catching_up and self._step.joiner.caught_up:
            self.settle(RecoveryResult.RECOVERED, now_s)
        if new and not self.given_up:
            self._sent_events += new
            if len(self._sent_events) > PACK_BYTES and not self._sent_events.pack():
                self.given_up = True
                self._sent_events = SentEvents()
        return new

    def on_end(self, now_s: float) -> bool:
        """Record the end of a complete stream; return False if it is shorter than the part that the client has."""
        if self.catching_up and self._step is not None:
            if not self._step.joiner.caught_up:
                return False
            self.settle(RecoveryResult.RECOVERED, now_s)
        return True

    def settle(self, result: RecoveryResult, now_s: float) -> None:
        """Add the report of the running recovery, if there is one."""
        if not self.catching_up or self._step is None or self._transcript is None:
            return
        self.catching_up = False
        step, tokens = self._step, self._transcript.tokens
        gap_s = now_s - self._broken_s
        repeated_tokens = int(step.facts.prompt_tokens) + (0 if step.prefill_tokens else tokens)
        self.reports.append(RecoveryReport(step.kind, result, step.replica.name, tokens, gap_s, repeated_tokens))

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
