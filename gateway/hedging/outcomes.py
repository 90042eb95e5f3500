"""The ways an attempt can end, and one table with the effect of each on samples, breakers, tokens and metrics.

An error is never a latency, a loser is censored and never a latency, and neither a loser nor a caller's error counts
against a replica. `Outcome.value` is the metric and log label. Also the sentences that explain a decision on a hedge in
the log. Pure.
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
    MISCONFIGURED = "misconfigured"  # a 4xx by which the gateway's key, account or model name is judged wrong
    CLIENT_ERROR = "client_error"  # a 4xx caused by the caller's request
    UNCLEAR_4XX = "unclear_4xx"  # a 4xx that may blame the request or the replica: another replica is asked
    WRONG_4XX = "wrong_4xx"  # the same, and another replica answered the request
    OUT_OF_RESOURCES = "out_of_resources"  # this machine could make no connection: no fault of the replica
    UNSUPPORTED = "unsupported"  # this upstream's API cannot express the request; another replica's may
    MODEL_REFUSAL = "model_refusal"  # the provider refused, by its content policy
    CUT = "cut"  # cut or stalled after content
    SILENT = "silent"  # silent after content for too long for the caller's deadline; no verdict on the replica


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
    Outcome.WRONG_4XX: OutcomeEffect(Sample.NONE, BreakerSignal.NONE, Bill.RELEASE),
    Outcome.OUT_OF_RESOURCES: OutcomeEffect(Sample.NONE, BreakerSignal.NONE, Bill.RELEASE),
    Outcome.UNSUPPORTED: OutcomeEffect(Sample.NONE, BreakerSignal.NONE, Bill.RELEASE),
    Outcome.MODEL_REFUSAL: OutcomeEffect(Sample.NONE, BreakerSignal.NONE, Bill.SETTLE),
    Outcome.CUT: OutcomeEffect(Sample.NONE, BreakerSignal.FAILURE, Bill.SETTLE),
    Outcome.SILENT: OutcomeEffect(Sample.NONE, BreakerSignal.NONE, Bill.CATALOG),
}


def was_answering(events: int, silent_s: float) -> bool:
    """Return True if an attempt without an end brought events until now: a client that disconnects had its answer."""
    return events >= _ANSWERING_EVENTS and silent_s < _ANSWERING_S


def why_hedged(late_replica: str, waited_s: float, predicted_s: float | None, gain_s: float | None) -> str:
    """Explain a hedge; None for a prediction or a gain that does not exist."""
    text = f"{late_replica} had no token after {1000 * waited_s:.0f} ms"
    if predicted_s is not None:
        text += f", {1000 * predicted_s:.0f} ms expected here"
    if gain_s is not None:
        text += f", saving {1000 * gain_s:.0f} ms"
    return text


def why_low_gain(replica: str, gain_s: float, required_s: float) -> str:
    """Explain a denial for a gain that is too small."""
    return f"a backup on {replica} would save {1000 * gain_s:.0f} ms ({1000 * required_s:.0f} ms needed)"


def why_no_quota(replica: str, left_share: float) -> str:
    """Explain a denial for a quota that is reserved for primaries."""
    return f"{left_share:.0%} of the quota of {replica} is left and reserved for primaries"
