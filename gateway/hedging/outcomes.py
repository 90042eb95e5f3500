"""What each way an attempt can end means: the one table behind samples, breakers, tokens and metrics.

An error is never a latency, a loser is censored and never a latency, and neither a loser nor anything the caller did
counts against a replica. Pure data; `Outcome.value` is the metric and log label.
"""

import enum
from dataclasses import dataclass


class Outcome(enum.Enum):
    """How one attempt ended, as far as statistics care."""

    __hash__ = object.__hash__  # a C function; Enum's own is Python's, and these are looked up for every request

    FINISHED = "finished"  # the winner, complete
    LOST = "lost"  # another attempt won
    CLIENT_GONE = "client_gone"  # the client left
    DRAINED = "drained"  # the gateway stopped
    TTFT_TIMEOUT = "ttft_timeout"  # no first content in time
    FAILED = "failed"  # 5xx, reset, empty stream, error frame, before content
    RATE_LIMITED = "rate_limited"  # 429
    MISCONFIGURED = "misconfigured"  # upstream 401, 403, 404: ours, not the caller's
    CLIENT_ERROR = "client_error"  # the caller's own 4xx
    UNSUPPORTED = "unsupported"  # this upstream has no words for the request; another may have
    MODEL_REFUSAL = "model_refusal"  # a policy answer
    CUT = "cut"  # cut or stalled after content


class Denial(enum.Enum):
    """Why a late request was not hedged."""

    BUDGET = "budget"
    QUOTA = "quota"
    LOW_GAIN = "low_gain"
    OFF = "off"  # hedging is off for this request, model, key or everywhere
    NO_REPLICA = "no_replica"  # no other replica may be tried


class Sample(enum.Enum):
    """What the time without a first content says about the distribution of TTFT."""

    NONE = "none"
    CENSORED = "censored"


class BreakerSignal(enum.Enum):
    """What the breaker hears."""

    NONE = "none"
    SUCCESS = "success"
    FAILURE = "failure"
    TRIP = "trip"
    COOL_DOWN = "cool_down"


class Bill(enum.Enum):
    """What happens to reserved tokens."""

    SETTLE = "settle"  # with the usage seen
    PROMPT = "prompt"  # the prompt was accepted
    CATALOG = "catalog"  # as the provider bills cancelled requests
    RELEASE = "release"


@dataclass(frozen=True, slots=True)
class OutcomeEffect:
    """One row of the table.

    Attributes:
        sample: what an attempt that ended so *before* first content adds to the window. A first content is an
            event at the moment it is seen, whatever follows.
        breaker: the signal to the replica's breaker.
        bill: what happens to its tokens.
    """

    sample: Sample
    breaker: BreakerSignal
    bill: Bill


OUTCOME_EFFECTS: dict[Outcome, OutcomeEffect] = {
    Outcome.FINISHED: OutcomeEffect(Sample.NONE, BreakerSignal.SUCCESS, Bill.SETTLE),
    Outcome.LOST: OutcomeEffect(Sample.CENSORED, BreakerSignal.NONE, Bill.CATALOG),
    Outcome.CLIENT_GONE: OutcomeEffect(Sample.CENSORED, BreakerSignal.NONE, Bill.CATALOG),
    Outcome.DRAINED: OutcomeEffect(Sample.CENSORED, BreakerSignal.NONE, Bill.CATALOG),
    Outcome.TTFT_TIMEOUT: OutcomeEffect(Sample.CENSORED, BreakerSignal.FAILURE, Bill.CATALOG),
    Outcome.FAILED: OutcomeEffect(Sample.NONE, BreakerSignal.FAILURE, Bill.PROMPT),
    Outcome.RATE_LIMITED: OutcomeEffect(Sample.NONE, BreakerSignal.COOL_DOWN, Bill.RELEASE),
    Outcome.MISCONFIGURED: OutcomeEffect(Sample.NONE, BreakerSignal.TRIP, Bill.RELEASE),
    Outcome.CLIENT_ERROR: OutcomeEffect(Sample.NONE, BreakerSignal.NONE, Bill.RELEASE),
    Outcome.UNSUPPORTED: OutcomeEffect(Sample.NONE, BreakerSignal.NONE, Bill.RELEASE),
    Outcome.MODEL_REFUSAL: OutcomeEffect(Sample.NONE, BreakerSignal.NONE, Bill.SETTLE),
    Outcome.CUT: OutcomeEffect(Sample.NONE, BreakerSignal.FAILURE, Bill.SETTLE),
}
