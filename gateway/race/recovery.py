"""Recovers a stream that broke after part of it was sent.

While the first winner is forwarded, a `Recovery` keeps its bytes, compressed and bounded; if no recovery would be
possible, it keeps none. When the stream breaks, the bytes are read as text. Another replica is asked either to continue
the text, or to answer the same request again; in the second case the part that the client has is skipped. This module
decides the step to try; the race sends it, within its own limits on attempts and time. Reading text and joining two
streams is the protocol's part (`providers.base.Recoverer`).

Units: bytes, seconds of the loop's clock, tokens.
"""

import zlib
from collections.abc import Callable, Iterator, Sequence
from typing import Final, NamedTuple

from msgspec.structs import replace

from gateway.events import RecoveryKind, RecoveryReport, RecoveryResult
from gateway.hedging.contract import RequestFacts
from gateway.hedging.outcomes import Outcome
from gateway.race.attempt import Attempt
from gateway.race.context import Model, RecoveryMode
from gateway.race.failures import classify
from gateway.race.retry_plan import SendTo
from gateway.routing.replicas import Replica
from providers.base import Call, Usage
from providers.errors import TimedOut, UpstreamError
from providers.recovery import Continuation, Joiner, Recoverer, Transcript

_OFF, _AUTO = RecoveryMode.OFF, RecoveryMode.AUTO  # looked up once: in its class, a member is slow on Python 3.11
RECOVERIES_MAX: Final = 2  # streams of one request that may break and be recovered
EARLY_EVENTS: Final = 8  # so few events that a replay is worth trying even for a sampled answer
KEPT_BYTES_MAX: Final = 4 * 1024 * 1024  # of events: some 16,000 tokens; a longer answer is not recovered
_PACK_BYTES: Final = 16 * 1024  # events kept uncompressed before they are packed; most of a stream's memory
_PACK_LEVEL: Final = 1  # the fastest; events are very similar
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


def watch(model: Model, call: Call, attempt: Attempt, write: Callable[[bytes], None]) -> "Recovery | None":
    """Build the recovery for a winner's stream; None if a broken stream could not be recovered.

    Args:
        attempt: the winner. A policy refusal is never recovered.
        write: sends an event to the client.
    """
    recoverer = model.recoverers.get(call.api)
    if model.recovery is _OFF or recoverer is None or not call.streaming:
        return None
    if attempt.refused or not call.repeatable:
        return None
    recovery = Recovery(model, call, recoverer, attempt, write)
    continues = attempt.pool.prefills and recoverer.continuable(call)
    recovery.early_only = not continues and not recovery.replays_late
    return recovery


class Recovery:
    """The part of an answer that the client has, and the recovery of its stream.

    Attributes:
        first: the attempt that won the race.
        catching_up: True while nothing new has come since the stream broke.
        error: the error that first broke the stream, None while it is intact.
        given_up: True if nothing more is tried.
        early_only: True if only a stream that breaks within `EARLY_EVENTS` can be recovered.
        reports: results of the recoveries, in order.
    """

    __slots__ = (
        "_attempt",
        "_breaks",
        "_broken_s",
        "_call",
        "_kept",
        "_kept_bytes",
        "_mode",
        "_packed",
        "_places",
        "_pools",
        "_recoverer",
        "_rejected_prefill",
        "_step",
        "_transcript",
        "_write",
        "catching_up",
        "early_only",
        "error",
        "first",
        "given_up",
        "reports",
    )

    def __init__(
        self, model: Model, call: Call, recoverer: Recoverer, attempt: Attempt, write: Callable[[bytes], None]
    ) -> None:
        self._mode = model.recovery
        # A fallback may be another model: an answer goes on there only where that is configured.
        later = model.pools[model.pools.index(attempt.pool) + 1 :] if model.recovery is not _AUTO else ()
        self._pools = (attempt.pool, *later)
        # Replicas, and the number of tokens after which they broke the stream.
        self._places: frozenset[tuple[Replica, int]] = frozenset()
        self._rejected_prefill: frozenset[Replica] = frozenset()
        self._call = call
        self._recoverer = recoverer
        self._transcript: Transcript | None = None  # built when the stream breaks
        self._attempt = self.first = attempt  # the attempt whose events the client gets
        self._write = write
        self._kept = bytearray()  # events that are not yet packed
        self._packed: list[bytes] = []
        self._kept_bytes = 0  # uncompressed size of packed and read events
        self._breaks = 0
        self._broken_s = 0.0
        self.catching_up = False
        self.given_up = False
        self.early_only = False
        self.error: UpstreamError | None = None
        self._step: _Step | None = None  # the last recovery attempt
        self.reports: list[RecoveryReport] = []

    @property
    def replays_late(self) -> bool:
        """A replay is tried after `EARLY_EVENTS`, too: the answer is expected to be the same."""
        return self._mode is not RecoveryMode.AUTO or self._recoverer.is_deterministic(self._call)

    # while the stream is intact

    def record(self, raw: bytes) -> None:
        """Keep events and send them to the client."""
        self._kept += raw
        if len(self._kept) > _PACK_BYTES:
            self._pack()
        self._write(raw)

    def record_early(self, raw: bytes) -> None:
        """Keep and send events as `record` does, until `EARLY_EVENTS` have come; then events bypass this object."""
        self._kept += raw
        self._write(raw)
        if self._attempt.events > EARLY_EVENTS:
            self._forget()

    def _pack(self) -> None:
        self._kept_bytes += len(self._kept)
        if self._kept_bytes > KEPT_BYTES_MAX:
            self._forget()
            return
        self._packed.append(zlib.compress(self._kept, _PACK_LEVEL))
        self._kept = bytearray()

    def _forget(self) -> None:
        """Give up: drop the kept events, and forward the rest directly."""
        self.given_up = True
        self._packed.clear()
        self._kept = bytearray()
        if self._step is None:
            self._attempt.forward(self._write)

    # after it broke

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

    def on_sent(self) -> None:
        """Record that the step that `next` returned is being sent."""
        self.catching_up = True

    @property
    def recovery_call(self) -> tuple[Call, RequestFacts] | None:
        """Call and facts of the last recovery step; None while the stream is intact."""
        return (self._step.call, self._step.facts) if self._step is not None else None

    def _read(self) -> Transcript:
        """Read the kept events as text."""
        transcript = self._transcript = self._transcript or self._recoverer.transcript(self._call)
        for packed in self._packed:
            transcript.add(zlib.decompress(packed))
        transcript.add(bytes(self._kept))
        self._kept_bytes += len(self._kept)
        self._packed.clear()
        self._kept = bytearray()
        return transcript

    def _kinds(self, transcript: Transcript) -> Iterator[tuple[RecoveryKind, Continuation | None]]:
        """Yield the possible kinds of recovery, best first."""
        if self._mode is not RecoveryMode.REPLAY:
            continuation = transcript.continuation()
            if continuation is not None:
                yield RecoveryKind.CONTINUE, continuation
        if transcript.comparable and (self.replays_late or transcript.tokens <= EARLY_EVENTS):
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
            self._kept += new
            if len(self._kept) > _PACK_BYTES:
                self._pack()
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
        """Return the token counts of the joined answer, from those of its last attempt."""
        tokens = self.carried_tokens
        if usage is None or usage.prompt_tokens is None or usage.completion_tokens is None:
            return usage
        moved = min(tokens, usage.prompt_tokens)
        return replace(
            usage, prompt_tokens=usage.prompt_tokens - moved, completion_tokens=usage.completion_tokens + moved
        )
