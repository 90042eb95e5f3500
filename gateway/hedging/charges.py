"""What each attempt of a request used, whether that is billed, and what it costs. Pure.

Follows the column `bill` of `outcomes.OUTCOME_EFFECTS`, by one rule: what is not known is billed. A prompt counts as
billed once it was sent, unless the upstream answered with an error or no connection was made. A cancelled attempt is
billed for what it had generated, or, where cancelling does not stop the bill or may not, for the whole answer. Token
counts that the replica reported are taken as they are; others are estimates, say so, and count no token as cached.

Units: tokens; money of the configuration's currency.
"""

import enum
from collections.abc import Iterable
from typing import Protocol

import msgspec

from gateway.hedging.outcomes import OUTCOME_EFFECTS, Bill, Outcome
from gateway.limits.prices import money
from gateway.routing.replicas import Replica
from providers.base import Usage


class Disposition(enum.Enum):
    """Where an attempt stood when its request was over; the value is the metric and log label."""

    __hash__ = object.__hash__  # a C function; Enum's own is Python's, and these are looked up for every request

    WINNER = "winner"  # its answer went out
    LOSER = "loser"  # raced and lost, or a backup of a race that nobody won: the price of hedging
    FAILED = "failed"  # it failed, before or after its answer had begun
    ABANDONED = "abandoned"  # the client left, or the gateway stopped, before it had an answer


class Billed(enum.Enum):
    """How much of an attempt is billed."""

    NOTHING = "nothing"
    USED = "used"  # what it used until it ended
    WHOLE = "whole"  # cancelled, and billed as if it had gone on to the end


class Charge(msgspec.Struct, frozen=True, omit_defaults=True, gc=False):
    """What one attempt is billed for.

    Attributes:
        disposition: what for.
        billed: how much of it; all counts are 0 where nothing is.
        prompt_tokens: cached ones included.
        cached_tokens: of these.
        completion_tokens: reasoning included.
        estimated: the replica did not report these counts, or not all of them.
        cost: in money, None where the replica has no prices.
    """

    disposition: Disposition
    billed: Billed
    prompt_tokens: int = 0
    cached_tokens: int = 0
    completion_tokens: int = 0
    estimated: bool = False
    cost: float | None = None


class Chargeable(Protocol):
    """What has to be known of an attempt."""

    replica: Replica
    status: int | None
    error: str | None
    usage: Usage | None
    events: int
    empty: bool


def charge(
    attempt: Chargeable, outcome: Outcome, disposition: Disposition, prompt_tokens: float, answer_tokens: float
) -> Charge:
    """What one attempt is billed for.

    Args:
        attempt: which one.
        outcome: how it ended; an answer that is about to be complete counts as finished.
        disposition: in its request.
        prompt_tokens: of the prompt, as estimated.
        answer_tokens: of the whole answer, as far as that can be known.
    """
    prices = attempt.replica.prices
    bill = OUTCOME_EFFECTS[outcome].bill
    if bill is Bill.RELEASE or (bill is Bill.PROMPT and not _accepted(attempt)):
        return Charge(disposition, Billed.NOTHING, cost=None if prices is None else 0.0)
    usage = attempt.usage
    prompt = usage.prompt_tokens if usage is not None else None
    completion = usage.completion_tokens if usage is not None else None
    cached = (usage.cached_tokens or 0) if usage is not None else 0
    whole = bill is Bill.CATALOG and attempt.replica.bills_cancelled and not attempt.empty
    estimated = whole or prompt is None or completion is None
    if prompt is None:
        prompt = round(prompt_tokens)
    if completion is None:
        completion = attempt.events  # most servers send one event a token
    if whole:
        completion = max(completion, round(answer_tokens))
    cost = None if prices is None else prices.cost(prompt, cached, completion)
    billed = Billed.WHOLE if whole else Billed.USED
    return Charge(disposition, billed, prompt, cached, completion, estimated, cost)


def _accepted(attempt: Chargeable) -> bool:
    """Whether a failed attempt's prompt may have been worked on."""
    return attempt.error != "connect" and (attempt.status is None or attempt.status < 400)


def disposition(outcome: Outcome, *, is_backup: bool, is_won: bool) -> Disposition:
    """Where an attempt stands that did not win.

    Args:
        outcome: how it ended.
        is_backup: it was a hedge.
        is_won: another attempt of its request won.
    """
    if outcome is Outcome.LOST:
        return Disposition.LOSER if is_backup or is_won else Disposition.FAILED
    if outcome in (Outcome.CLIENT_GONE, Outcome.DRAINED):
        return Disposition.LOSER if is_backup else Disposition.ABANDONED
    return Disposition.FAILED


class ChargeTotal(msgspec.Struct, omit_defaults=True, gc=False):
    """Charges of one disposition, added up.

    Attributes:
        attempts: how many.
        prompt_tokens, cached_tokens, completion_tokens: billed, as in `Charge`.
        estimated: attempts of which not all counts were reported.
        billed_nothing, billed_whole: attempts that were billed so.
        unpriced: attempts that were billed by a replica without prices.
        cost: in money, of the others; None without any.
    """

    attempts: int = 0
    prompt_tokens: int = 0
    cached_tokens: int = 0
    completion_tokens: int = 0
    estimated: int = 0
    billed_nothing: int = 0
    billed_whole: int = 0
    unpriced: int = 0
    cost: float | None = None

    def add(self, charge: Charge) -> None:
        """Add one attempt's."""
        self.attempts += 1
        self.prompt_tokens += charge.prompt_tokens
        self.cached_tokens += charge.cached_tokens
        self.completion_tokens += charge.completion_tokens
        if charge.estimated:
            self.estimated += 1
        if charge.billed is not Billed.USED:
            if charge.billed is Billed.WHOLE:
                self.billed_whole += 1
            else:
                self.billed_nothing += 1
        if charge.cost is not None:
            self.cost = money((self.cost or 0.0) + charge.cost)
        elif charge.billed is not Billed.NOTHING:
            self.unpriced += 1

    def merge(self, other: "ChargeTotal") -> None:
        """Add another sum."""
        for name in self.__struct_fields__:
            value = getattr(other, name)
            if value is not None:
                setattr(self, name, (getattr(self, name) or 0) + value)
        if self.cost is not None:
            self.cost = money(self.cost)


def costs(charges: Iterable[Charge]) -> dict[Disposition, float]:
    """Money for each disposition there is; empty where nothing has prices."""
    found: dict[Disposition, float] = {}
    for each in charges:
        if each.cost is not None:
            found[each.disposition] = money(found.get(each.disposition, 0.0) + each.cost)
    return found
