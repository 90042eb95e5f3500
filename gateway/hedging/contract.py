"""The words in which a race and a pool talk: what is known of a request, of an attempt, and what is decided. Pure data.

Units: seconds of the loop's clock, tokens, bytes.
"""

from dataclasses import dataclass
from typing import Protocol

import msgspec

from gateway.estimation.tokens import TextTokens
from gateway.hedging.charges import Chargeable
from gateway.hedging.outcomes import Denial
from gateway.limits.budget import Ticket
from gateway.limits.ledger import QuotaTicket
from gateway.routing.replicas import Replica
from providers.base import Api


class RequestFacts(msgspec.Struct, frozen=True):
    """What a policy may know of a request.

    Attributes:
        prompt_tokens: estimated.
        prompt_bytes: length of the raw prompt.
        prefixes: hashes of its beginnings (`estimation.prefixes`).
        text: what its text weighs before a model's own factors (`estimation.tokens`), None where nobody looked.
        answer_tokens: bound on the answer, None when the client gave none.
        hedge_off: why it may not be hedged, None when it may.
        deadline_s: the client waits no longer than this, None when it did not say.
        timed: its first content is a token; False where the answer comes as a whole, which says nothing of TTFT.
        api: it may only go to replicas that serve this one; None: to all.
        pinned: the replica that holds what the request goes on with; it is asked first. None: any will do.
        coin: decides whether a late request is among those the budget can afford early.
    """

    prompt_tokens: float = 0.0
    prompt_bytes: int = 0
    prefixes: tuple[int, ...] = ()
    text: TextTokens | None = None
    answer_tokens: int | None = None
    hedge_off: Denial | None = None
    deadline_s: float | None = None
    timed: bool = True
    api: Api | None = None
    pinned: Replica | None = None
    coin: float = 0.0


class Forecast(msgspec.Struct):
    """What was thought of an attempt when it was sent.

    Attributes:
        number: of this attempt, in its pool.
        ttft_s: expected TTFT, None before anything was learned.
        prompt_tokens: of the prompt, estimated.
        uncached: prompt tokens the replica has to compute.
        pending: prompt tokens it had been sent before and not answered.
        timed: its first content is a token (`RequestFacts.timed`).
        earns: its request earns credits for hedges.
        tickets: what a hedge has paid with.
        quota: what was reserved with the replica's quota, None without one.
    """

    number: int
    ttft_s: float | None
    prompt_tokens: float
    uncached: float
    pending: float
    timed: bool
    earns: bool
    tickets: "HedgeTickets | None"
    quota: QuotaTicket | None


class HedgeTickets(msgspec.Struct, frozen=True):
    """Credits one hedge has taken."""

    request: Ticket
    cost: Ticket


class AttemptView(Chargeable, Protocol):
    """What the pool may know of an attempt."""

    start_s: float
    headers_s: float | None
    content_s: float | None
    forecast: Forecast | None


@dataclass(frozen=True, slots=True)
class Hedge:
    """Start a backup there; it is paid for."""

    replica: Replica
    tickets: HedgeTickets
    why: str


@dataclass(frozen=True, slots=True)
class Denied:
    """No backup now.

    Attributes:
        reason: one of a closed set.
        again_after_s: ask again then; infinite for never.
        why: with numbers, for people.
    """

    reason: Denial
    again_after_s: float
    why: str
