"""The ways an attempt can end, and one table with the effect of each on samples, breakers, tokens and metrics.

An error is never a latency, a loser is censored and never a latency, and neither a loser nor a caller's error counts
against a replica. `Outcome.value` is the metric and log label. The docstrings of the members are rows of docs/logs.md
and docs/hedging.md. Also the sentences that explain a decision on a hedge in the log. Pure.
"""

import enum
from typing import Final

import msgspec

from ttft_gateway.apis.base import FastEnum

REFUSALS_FOR_LOAD: Final = (500, 502, 503, 529)
"""Statuses of a server that is full, if it is not down; 529: Anthropic."""

_ANSWERING_EVENTS: Final = 8
_ANSWERING_S: Final = 1.0  # since the last one


class Outcome(FastEnum):
    """The end of one attempt, as statistics classify it."""

    FINISHED = "finished"
    """The winner, complete."""
    EMPTY = "empty"
    """The same, without any content."""
    LOST = "lost"
    """Another attempt won."""
    CLIENT_GONE = "client_gone"
    """The client disconnected."""
    DRAINED = "drained"
    """The gateway stopped."""
    TTFT_TIMEOUT = "ttft_timeout"
    """No first content in time."""
    FAILED = "failed"
    """Before content: no connection, 5xx, reset, empty stream, error event."""
    RATE_LIMITED = "rate_limited"
    """429."""
    MISCONFIGURED = "misconfigured"
    """A 4xx by which the replica is judged to reject the gateway's key, account or model name (docs/blame.md)."""
    CLIENT_ERROR = "client_error"
    """A 4xx with an error object that blames the request."""
    UNCLEAR_4XX = "unclear_4xx"
    """Any other 4xx, which may be the fault of the request or of the replica; no other replica answered the request."""
    WRONG_4XX = "wrong_4xx"
    """The same, and another replica answered the request."""
    OUT_OF_RESOURCES = "out_of_resources"
    """No connection, because the gateway's machine is out of open files, local ports, memory or name lookups; nothing
    was sent, and the replica is not at fault."""
    UNSUPPORTED = "unsupported"
    """The replica's API cannot express the request; nothing was sent."""
    MODEL_REFUSAL = "model_refusal"
    """A policy refusal."""
    CUT = "cut"
    """Cut, failed, stalled or ended without a finish after content (docs/recovery.md#the-end-of-an-answer)."""
    SILENT = "silent"
    """Silent after content for too long for the caller's deadline (docs/deadlines.md); the replica is not blamed."""


class Denial(enum.Enum):
    """Reason for not hedging a late request."""

    BUDGET = "budget"
    """The budget has no credit left: more requests are late than it covers. Find the cause, or raise `hedge.budget`."""
    QUOTA = "quota"
    """Primaries need the rest of a rate limit, which is in `quotas` of `GET /admin/models/NAME`
    (docs/provider-quotas.md#what-it-does)."""
    LOW_GAIN = "low_gain"
    """A backup is not expected to save enough. That is right if all replicas are slow."""
    OFF = "off"
    """Hedging is switched off by the policy, a budget of 0%, `POST /admin/hedging` or `x-ttft-hedge: off`, or the
    request must not run twice (`n` above 1, `store`, server-side tools)."""
    KEY = "key"
    """The caller's key has `keys[].hedge: false` or `keys[].attempts_max: 1`."""
    NO_REPLICA = "no_replica"
    """No other replica of the pool may be tried at the moment, within the `models[].replicas[].boundary`."""
    ONE_REPLICA = "one_replica"
    """No other replica is configured in the pool and `models[].replicas[].boundary`; configure one."""
    BILLED = "billed"
    """Every other replica bills cancelled requests (docs/providers.md#the-catalogue): correct that with
    `models[].replicas[].cancel_stops_billing`, or accept it with `models[].replicas[].allow_billed_hedges`."""
    BILLING_UNKNOWN = "billing_unknown"
    """Every other replica bills cancelled requests, or may; the actions are the same."""
    HOLDOUT = "holdout"
    """Withheld by `hedge.measure.holdout`, to measure what hedging saves (docs/proof.md)."""
    SHADOW = "shadow"
    """Withheld, because the policy is `shadow` (docs/proof.md#before-hedging-is-switched-on)."""
    HIDDEN_REASONING = "hidden_reasoning"
    """Answers begin with hidden reasoning, without an informative sign of work, so a backup would reason as long. Use
    an API with signs of work (docs/thinking-models.md), or set `hedge.hedge_hidden_reasoning`."""


class GuardCause(FastEnum):
    """Reason for which a guard was sent beside an open stream; the value is the metric label."""

    SILENT = "silent"  # for longer than the streams of its replica usually are
    SLOW = "slow"  # far slower than the streams of its replica usually are


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
    Outcome.EMPTY: OutcomeEffect(Sample.NONE, BreakerSignal.SUCCESS, Bill.SETTLE),
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
