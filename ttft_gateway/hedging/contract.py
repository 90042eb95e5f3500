"""Data exchanged between a race and a pool: facts of a request, views of an attempt, and hedge decisions. Pure data.

Units: seconds of the loop's clock, tokens, bytes.
"""

import math
from typing import Final, Protocol

import msgspec

from ttft_gateway.apis.base import Api, Phase
from ttft_gateway.estimation.fit import Triple
from ttft_gateway.hedging.calibration import Expectation, Rescue
from ttft_gateway.hedging.charges import Chargeable
from ttft_gateway.hedging.outcomes import Denial
from ttft_gateway.limits.budget import Ticket
from ttft_gateway.limits.ledger import QuotaTicket
from ttft_gateway.routing.replicas import Replica

ATTEMPTS_MAX: Final = 4
"""Largest number of upstream attempts of a request; an SDK's own retries multiply the number."""


class RequestFacts(msgspec.Struct, frozen=True):
    """The facts of a request that a policy may use.

    Attributes:
        prompt_tokens: estimated tokens of the prompt.
        prompt_bytes: length of the raw prompt.
        prefixes: hashes of the prompt's prefixes (`estimation.prefixes`).
        text: weight of the text before a model's own factors (`estimation.tokens`); None if the text was not weighed.
        answer_tokens: limit on the answer's tokens; None if the client set none.
        hedge_off: reason for which the request may not be hedged; None if it may be.
        deadline_s: the caller's deadline for the first content, or for an answer in one piece; None if the client sent
            none.
        timed: True if the first content is a token; False for an answer in one piece, which is no TTFT sample.
        api: API that a replica must serve; None for any replica.
        pinned: replica that holds the state this request continues from, tried first; None for any replica.
        coin: random number in [0, 1) that selects the late requests which the budget can afford to hedge early.
        attempts_max: largest number of upstream attempts that the caller's key allows; None for the usual one.
        ttft_target_s: TTFT target that the client sent; None: the pool's target applies.
        read_timeout_s: silence of bytes after which the client's library closes the connection; None if unknown.
        silence_s: longest silence of content that the caller accepts in a stream, or longest duration of a whole
            answer; None: `deadline_s`.
        total_s: longest duration of the answer that the caller accepts.
    """

    prompt_tokens: float = 0.0
    prompt_bytes: int = 0
    prefixes: tuple[int, ...] = ()
    text: Triple | None = None
    answer_tokens: int | None = None
    hedge_off: Denial | None = None
    deadline_s: float | None = None
    timed: bool = True
    api: Api | None = None
    pinned: Replica | None = None
    coin: float = 0.0
    attempts_max: int | None = None
    ttft_target_s: float | None = None
    read_timeout_s: float | None = None
    silence_s: float | None = None
    total_s: float = math.inf


class Forecast(msgspec.Struct):
    """The pool's expectations for an attempt when it was sent.

    Attributes:
        number: number of this attempt in its pool.
        ttft_s: expected TTFT; None before the first sample.
        prompt_tokens: estimated tokens of the prompt.
        uncached: prompt tokens that the replica has to compute.
        pending: prompt tokens of earlier, unanswered attempts on the replica.
        timed: True if the first content is a token (`RequestFacts.timed`).
        earns: True if the request earns credits for hedges.
        never_hedged: reason for which the attempt cannot be hedged, however late it is; None if it can.
        tickets: credits taken for this hedge; None if the attempt is no hedge.
        quota: ticket of the replica's quota; None without a quota.
        by_work: True if its first token is a sign of work, False if it is content.
        exact: True if the attempt that it beat is read on, so that its saving will be known.
        target_s: TTFT target of its delay, from its start; None without a target, and for later attempts of a request.
        booked: money charged in advance for what it may cost more than the request on the usual way.
        cold: True if the replica may be cold after idle time: its TTFT shows nothing about others.
        crowd: crowd of its replica (`estimation.crowding`); None if it is no sample of it.
        others: number of the replica's other attempts that were in flight.
    """

    number: int
    ttft_s: float | None
    prompt_tokens: float
    uncached: float
    pending: float
    timed: bool
    earns: bool
    never_hedged: Denial | None
    tickets: "HedgeTickets | None"
    quota: QuotaTicket | None
    by_work: bool = False
    exact: bool = False
    target_s: float | None = None
    booked: float = 0.0
    cold: bool = False
    crowd: float | None = None
    others: int = 0


class HedgeTickets(msgspec.Struct, frozen=True):
    """Credits taken for one hedge.

    Attributes:
        expected: expected outcome, or a rescue; None before the first prediction.
    """

    request: Ticket
    cost: Ticket
    expected: Expectation | Rescue | None = None


class StreamWatch(msgspec.Struct, eq=False):
    """State of a stream of some length, for guards (`pool/guards.py`); of no interest to others.

    Attributes:
        mark_s, mark_events: time and number of the last event of the last look that measured a gap.
        gaps_s: longest gap of each phase, if it was long.
        phases: phases of the looks.
        due_s: time of the next look.
        gap_s: last measured gap; 0 before.
        is_slow: True if that was slow.
        beaten_gap_s: gap of the slow stream that it has replaced, until its own gap is known; 0 otherwise.
    """

    mark_s: float
    mark_events: int
    gaps_s: dict[Phase, float] = msgspec.field(default_factory=dict)
    phases: frozenset[Phase] = frozenset()
    due_s: float = 0.0
    gap_s: float = 0.0
    is_slow: bool = False
    beaten_gap_s: float = 0.0


class AttemptView(Chargeable, Protocol):
    """The fields of an attempt that a pool may read.

    Attributes:
        generated_s: time of the last event with generated output.
        output_s: time of the last generated output, or of the start of a block of it.
        phase: kind of the last output, or of the block that began after it; None for text.
        watch: its state for guards; None for a short stream.
        is_paced: True if its reading was paused for a slow client, who then sets the speed of the answer.
    """

    start_s: float
    headers_s: float | None
    content_s: float | None
    first_token_s: float | None
    last_s: float
    generated_s: float
    is_paced: bool
    phase: Phase | None
    watch: StreamWatch | None
    forecast: Forecast | None

    @property
    def output_s(self) -> float:
        """See above."""


def others_of(attempt: AttemptView) -> int:
    """Return the number of the replica's other attempts that were in flight when an attempt was sent."""
    return attempt.replica.in_flight if attempt.forecast is None else attempt.forecast.others


class Primary(msgspec.Struct, frozen=True):
    """A primary that was counted as sent.

    Attributes:
        delay_s: time to wait for its first content before a hedge is considered.
    """

    replica: Replica
    forecast: Forecast
    delay_s: float


class Hedge(msgspec.Struct, frozen=True):
    """Decision to start a backup; its credits are already reserved."""

    replica: Replica
    tickets: HedgeTickets
    why: str


class Denied(msgspec.Struct, frozen=True):
    """Decision against a backup, for now.

    Attributes:
        reason: reason from a closed set.
        again_after_s: delay before the next decision; infinite for never.
        why: explanation with numbers, for the log.
    """

    reason: Denial
    again_after_s: float
    why: str
