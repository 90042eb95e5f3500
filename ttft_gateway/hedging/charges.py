"""Usage, billing and cost of each attempt of a request. Pure.

Follows the column `bill` of `outcomes.OUTCOME_EFFECTS`; in doubt, tokens count as billed. A prompt is billed once it
was sent, unless the upstream answered with an error or no connection was made. A cancelled attempt is billed for the
tokens generated so far, or for the whole answer if cancelling does not (or may not) stop billing. Token counts that the
replica reported are used unchanged; all other counts are estimates, are marked as such, and count no token as cached.

Units: tokens; money in the configuration's currency.
"""

import enum
from collections.abc import Iterable, Sequence
from typing import Protocol

import msgspec

from ttft_gateway.apis.base import FastEnum, Usage
from ttft_gateway.hedging.outcomes import OUTCOME_EFFECTS, Bill, Outcome
from ttft_gateway.limits.prices import money
from ttft_gateway.routing.replicas import Replica


class Disposition(FastEnum):
    """Role of an attempt's cost in its finished request; the value is the metric and log label."""

    WINNER = "winner"  # its answer went out
    LOSER = "loser"  # lost its race, or was a backup in a race without a winner: the price of hedging
    FAILED = "failed"  # failed, before or after its answer began
    ABANDONED = "abandoned"  # the client disconnected, or the gateway stopped, before an answer


class Billed(enum.Enum):
    """Extent to which an attempt is billed."""

    NOTHING = "nothing"
    USED = "used"  # the usage up to its end
    WHOLE = "whole"  # cancelled, and billed as if it had run to its end


_SETTLE, _USED = Bill.SETTLE, Billed.USED


class Charge(msgspec.Struct, frozen=True, omit_defaults=True, gc=False):
    """Billed usage and cost of one attempt.

    Attributes:
        disposition: role of this cost in its request.
        billed: extent of the billing; with `NOTHING`, all counts are 0.
        prompt_tokens: prompt tokens, cached ones included.
        cached_tokens: cached prompt tokens.
        completion_tokens: generated tokens, reasoning included.
        estimated: True if the replica did not report all of these counts.
        cost: money; None if the replica has no prices.
    """

    disposition: Disposition
    billed: Billed
    prompt_tokens: int = 0
    cached_tokens: int = 0
    completion_tokens: int = 0
    estimated: bool = False
    cost: float | None = None


class Chargeable(Protocol):
    """The fields of an attempt that billing needs."""

    replica: Replica
    status: int | None
    error: str | None
    usage: Usage | None
    events: int
    empty: bool


def charge(
    attempt: Chargeable, outcome: Outcome, disposition: Disposition, prompt_tokens: float, answer_tokens: float
) -> Charge:
    """Compute the charge for one attempt.

    Args:
        outcome: its outcome; an answer that is about to be complete counts as finished.
        disposition: role of its cost in the request.
        prompt_tokens: estimated tokens of the prompt.
        answer_tokens: estimated tokens of the whole answer.
    """
    prices, usage, bill = attempt.replica.prices, attempt.usage, OUTCOME_EFFECTS[outcome].bill
    whole = False
    if bill is not _SETTLE:
        if bill is Bill.RELEASE or (bill is Bill.PROMPT and not _accepted(attempt)):
            return Charge(disposition, Billed.NOTHING, cost=None if prices is None else 0.0)
        whole = bill is Bill.CATALOG and attempt.replica.bills_cancelled and not attempt.empty
    prompt = completion = None
    cached = 0
    if usage is not None:
        prompt, completion, cached = usage.prompt_tokens, usage.completion_tokens, usage.cached_tokens or 0
        if attempt.replica.tiers is not None:
            prices = attempt.replica.tiers.billed(usage.tier)
    estimated = whole or prompt is None or completion is None
    if prompt is None:
        prompt = round(prompt_tokens)
    if completion is None:
        completion = attempt.events  # most servers send one event per token
    if whole:
        completion = max(completion, round(answer_tokens))
    cost = None if prices is None else prices.cost(prompt, cached, completion)
    return Charge(disposition, Billed.WHOLE if whole else _USED, prompt, cached, completion, estimated, cost)


def _accepted(attempt: Chargeable) -> bool:
    """Return True if the replica may have processed a failed attempt's prompt."""
    return attempt.error != "connect" and (attempt.status is None or attempt.status < 400)


def disposition(outcome: Outcome, *, is_backup: bool, is_won: bool) -> Disposition:
    """Return the disposition of an attempt that did not win.

    Args:
        outcome: outcome of the attempt.
        is_backup: True for a hedge.
        is_won: True if another attempt of the request won.
    """
    if outcome is Outcome.LOST:
        return Disposition.LOSER if is_backup or is_won else Disposition.FAILED
    if outcome in (Outcome.CLIENT_GONE, Outcome.DRAINED):
        return Disposition.LOSER if is_backup else Disposition.ABANDONED
    return Disposition.FAILED


class ChargeTotal(msgspec.Struct, omit_defaults=True, gc=False):
    """Sum of the charges with one disposition.

    Attributes:
        attempts: number of attempts.
        prompt_tokens, cached_tokens, completion_tokens: billed tokens, as in `Charge`.
        estimated: attempts with a count that the replica did not report.
        billed_nothing, billed_whole: attempts that were not billed, and that were billed for the whole answer.
        unpriced: billed attempts on replicas without prices.
        cost: money, without the unpriced attempts; None if no attempt has a price.
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

    def add(self, charges: Sequence[Charge]) -> tuple[int, int, int]:
        """Add the charges of some attempts; return their prompt, cached and completion tokens."""
        prompt_tokens = cached_tokens = completion_tokens = 0
        for charge in charges:
            prompt_tokens += charge.prompt_tokens
            cached_tokens += charge.cached_tokens
            completion_tokens += charge.completion_tokens
            if charge.estimated:
                self.estimated += 1
            billed = charge.billed
            if billed is not Billed.USED:
                if billed is Billed.WHOLE:
                    self.billed_whole += 1
                else:
                    self.billed_nothing += 1
            if charge.cost is not None:
                self.cost = money((self.cost or 0.0) + charge.cost)
            elif billed is not Billed.NOTHING:
                self.unpriced += 1
        self.attempts += len(charges)
        self.prompt_tokens += prompt_tokens
        self.cached_tokens += cached_tokens
        self.completion_tokens += completion_tokens
        return prompt_tokens, cached_tokens, completion_tokens

    def merge(self, other: "ChargeTotal") -> None:
        """Add another total."""
        for name in self.__struct_fields__:
            value = getattr(other, name)
            if value is not None:
                setattr(self, name, (getattr(self, name) or 0) + value)
        if self.cost is not None:
            self.cost = money(self.cost)


def costs(charges: Iterable[Charge]) -> dict[Disposition, float]:
    """Return the cost per disposition; empty if no attempt has a price."""
    totals: dict[Disposition, float] = {}
    for charged in charges:
        if charged.cost is not None:
            totals[charged.disposition] = money(totals.get(charged.disposition, 0.0) + charged.cost)
    return totals
