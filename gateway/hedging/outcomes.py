"""The ways an attempt can end, and one table with the effect of each on samples, breakers, tokens and metrics.

An error is never a latency, a loser is censored and never a latency, and neither a loser nor a caller's error counts
against a replica. Pure data; `Outcome.value` is the metric and log label.
"""

import enum
from typing import Final

import msgspec

from providers.base import FastEnum

_ANSWERING_EVENTS: Final = 8
_ANSWERING_S: Final = 1.0  # since the last one


class Outcome(FastEnum):
    """The end of one attempt, as statistics classify it."""

    FINISHED = "finished"  # the winner, complete
    LOST = "lost"  # another attempt won
    CLIENT_GONE = "client_gone"  # the client disconnected
    DRAINED = "drained"  # the gateway stopped
    TTFT_TIMEOUT = "ttft_timeout"  # no first content in time
    FAILED = "failed"  # 5xx, reset, empty stream, error frame, before content
    RATE_LIMITED = "rate_limited"  # 429
    MISCONFIGURED = "misconfigured"  # upstream 401, 403, 404: the gateway's fault, not the caller's
    CLIENT_ERROR = "client_error"  # a 4xx caused by the caller's request
    UNCLEAR_4XX = "unclear_4xx"  # a 4xx that does not blame the request: another replica is asked
    WRONG_4XX = "wrong_4xx"  # the same, and another replica answered the request
    OUT_OF_RESOURCES = "out_of_resources"  # this machine could make no connection: no fault of the replica
    UNSUPPORTED = "unsupported"  # this upstream's API cannot express the request; another replica's may
    MODEL_REFUSAL = "model_refusal"  # the provider refused, by its content policy
    CUT = "cut"  # cut or stalled after content


class Denial(enum.Enum):
    """Reason for not hedging a late request."""

    BUDGET = "budget"
    QUOTA = "quota"
    LOW_GAIN = "low_gain"
    OFF = "off"  # hedging is off for this request or model, or everywhere
    KEY = "key"  # the caller's key allows no second attempt
    NO_REPLICA = "no_replica"  # no other replica may be tried at the moment
    ONE_REPLICA = "one_replica"  # no other replica is configured in the pool and boundary
    BILLED = "billed"  # every other replica bills cancelled requests
    BILLING_UNKNOWN = "billing_unknown"  # every other replica bills cancelled requests, or may
    HOLDOUT = "holdout"  # withheld, to measure what hedging saves
    SHADOW = "shadow"  # withheld: the policy decides, and sends nothing
    HIDDEN_REASONING = "hidden_reasoning"  # answers begin with hidden reasoning


class Sample(enum.Enum):
    """Use of the time without a first content as a sample of the TTFT distribution."""

    NONE = "none"
    CENSORED = "censored"


class BreakerSignal(enum.Enum):
    """Signal to a replica's breaker."""

    NONE = "none"
    SUCCESS = "success"
    FAILURE = "failure"
    TRIP = "trip"
    COOL_DOWN = "cool_down"


class Bill(enum.Enum):
    """Accounting of an attempt's reserved tokens."""

    SETTLE = "settle"  # with the usage received
    PROMPT = "prompt"  # the prompt was accepted
    CATALOG = "catalog"  # as the provider bills cancelled requests
    RELEASE = "release"


class OutcomeEffect(msgspec.Struct, frozen=True):
    """One row of the table.

    Attributes:
        sample: sample that an attempt adds to the window if it ended *before* first content. A first content is an
            event at the moment it arrives, whatever follows.
        breaker: signal to the replica's breaker.
        bill: accounting of the reserved tokens.
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
    Outcome.UNCLEAR_4XX: OutcomeEffect(Sample.NONE, BreakerSignal.NONE, Bill.RELEASE),
    Outcome.WRONG_4XX: OutcomeEffect(Sample.NONE, BreakerSignal.FAILURE, Bill.RELEASE),
    Outcome.OUT_OF_RESOURCES: OutcomeEffect(Sample.NONE, BreakerSignal.NONE, Bill.RELEASE),
    Outcome.UNSUPPORTED: OutcomeEffect(Sample.NONE, BreakerSignal.NONE, Bill.RELEASE),
    Outcome.MODEL_REFUSAL: OutcomeEffect(Sample.NONE, BreakerSignal.NONE, Bill.SETTLE),
    Outcome.CUT: OutcomeEffect(Sample.NONE, BreakerSignal.FAILURE, Bill.SETTLE),
}


def was_answering(events: int, silent_s: float) -> bool:
    """Return True if an attempt without an end brought events until now: a client that disconnects had its answer."""
    return events >= _ANSWERING_EVENTS and silent_s < _ANSWERING_S
