"""Books a pool's requests on its replicas' quotas: waits, reservations, and what an attempt used. Pure.

The ledgers are shared between pools (`ttft_gateway.limits`); this module maps replicas to ledgers, and requests and
ended attempts to amounts. Independent of how a replica is picked.

Units: seconds of the loop's clock, tokens.
"""

from collections.abc import Mapping, Sequence
from math import ceil
from typing import Annotated, Final

import msgspec

from ttft_gateway.apis.base import RateLimit
from ttft_gateway.hedging.contract import AttemptView, RequestFacts, others_of
from ttft_gateway.hedging.outcomes import Bill
from ttft_gateway.limits.bucket import Spend
from ttft_gateway.limits.ledger import Ledger, PauseState, QuotaTicket
from ttft_gateway.pool.learning import Learning
from ttft_gateway.routing.replicas import COOL_DOWN_S_MAX, Replica
from ttft_gateway.routing.strategies import uncooled

_HEADROOM_MIN: Final = 0.1  # share of a quota below which primaries avoid it while another one has room
_NOT_SENT: Final = "connect"  # the label of an attempt that found no connection


class WaitState(msgspec.Struct, frozen=True):
    """The time after a 429 of one replica as plain values.

    Attributes:
        cooling_s: time until the replica may get requests.
        quota: time after a 429 of its quota; None without an effect.
    """

    cooling_s: Annotated[float, msgspec.Meta(ge=0.0, le=COOL_DOWN_S_MAX)]
    quota: PauseState | None


class Quotas:
    """The quotas of one pool.

    Args:
        ledgers: ledgers by quota name; not every quota has one.
        learning: has the usual length of answers.

    Attributes:
        of: ledgers by replica, for replicas that have one.
    """

    def __init__(self, replicas: Sequence[Replica], ledgers: Mapping[str, Ledger], learning: Learning) -> None:
        self._replicas = replicas
        self.of = {each: ledgers[each.quota] for each in replicas if each.quota is not None and each.quota in ledgers}
        self._learning = learning

    @property
    def is_shared(self) -> bool:
        """True if the fleet may have to be asked for more of a quota."""
        return any(ledger.is_shared for ledger in self.of.values())

    def ledger_of(self, replica: Replica) -> Ledger:
        """Return the ledger of a replica; the first 429, or limit in a response, makes the one that is missing."""
        ledger = self.of.get(replica)
        if ledger is None:
            ledger = Ledger()
            self.of |= dict.fromkeys(self._sharing(replica), ledger)
        return ledger

    # before an attempt

    def without_wait(self, candidates: Sequence[Replica], facts: RequestFacts, now_s: float) -> list[Replica]:
        """Return the candidates that need not wait for their provider."""
        if not self.of:
            return uncooled(candidates, now_s)
        return [replica for replica in candidates if self.wait_s(replica, facts, now_s) <= 0]

    def wait_s(self, replica: Replica, facts: RequestFacts, now_s: float) -> float:
        """Return the time until a replica may get this request: after a Retry-After, or a limit of its quota."""
        ledger = self.of.get(replica)
        own_s = max(0.0, replica.breaker.cooling_until_s - now_s)
        if ledger is None or now_s >= ledger.restricts_until_s:
            return own_s
        return max(own_s, ledger.wait_s(self._spend(facts, replica), now_s))

    def with_headroom(self, candidates: Sequence[Replica], now_s: float) -> Sequence[Replica]:
        """Return the candidates with headroom in their quota, or all candidates if none has headroom."""
        if not self.of:
            return candidates
        return [each for each in candidates if self._has_headroom(each, now_s)] or candidates

    def is_free(self, replica: Replica, facts: RequestFacts, now_s: float) -> bool:
        """Return True if the replica need not wait for its provider, and its quota has headroom."""
        return self.wait_s(replica, facts, now_s) <= 0 and self._has_headroom(replica, now_s)

    def has_room(self, replica: Replica, facts: RequestFacts, now_s: float) -> bool:
        """Return True if its quota has room for a hedge."""
        ledger = self.of.get(replica)
        return ledger is None or ledger.room_for_hedge(self._spend(facts, replica), now_s)

    def with_room(self, candidates: Sequence[Replica], facts: RequestFacts, now_s: float) -> Sequence[Replica]:
        """Return the candidates of which the quota has room for a hedge, or all candidates if none has room."""
        if not self.of:
            return candidates
        return [each for each in candidates if self.has_room(each, facts, now_s)] or candidates

    def headroom(self, replica: Replica, now_s: float) -> float:
        """Return the share of its quota that is left; 1 without a ledger."""
        ledger = self.of.get(replica)
        return 1.0 if ledger is None or now_s >= ledger.restricts_until_s else ledger.headroom(now_s)

    # attempts

    def reserve(
        self, replica: Replica, facts: RequestFacts, now_s: float, *, is_hedge: bool = False
    ) -> QuotaTicket | None:
        """Reserve the amount of a request; None if the replica has no ledger."""
        ledger = self.of.get(replica)
        return None if ledger is None else ledger.reserve(self._spend(facts, replica), now_s, is_hedge=is_hedge)

    def observe(self, attempt: AttemptView, limits: Sequence[RateLimit], now_s: float) -> None:
        """Pass the rate limits of response headers to the ledger."""
        ledger, ticket = self._open(attempt)
        if ledger is not None and ticket is not None:
            ledger.observe(ticket, limits, now_s)

    def close(self, attempt: AttemptView, ticket: QuotaTicket, bill: Bill, now_s: float) -> None:
        """Settle the ticket of an attempt that ended: release what it did not use."""
        ledger = self.of[attempt.replica]
        if bill is Bill.RELEASE or attempt.error == _NOT_SENT:
            ledger.release(ticket, now_s)
        else:
            ledger.settle(ticket, _used(attempt, ticket.spend, bill), now_s)

    def rate_limited(
        self, attempt: AttemptView, now_s: float, retry_after_s: float | None, *, by_tokens: bool = False
    ) -> None:
        """Let the quota, and all replicas that share it, wait after a 429 for its Retry-After, up to 5 minutes.

        Where nothing is known of a quota, a 429 without Retry-After makes its ledger.

        Args:
            by_tokens: True for a 429 about tokens: only the quota waits, and not for much smaller requests.
        """
        _, ticket = self._open(attempt)
        if attempt.replica not in self.of and retry_after_s is not None:
            for replica in self._sharing(attempt.replica):
                replica.breaker.on_rate_limited(now_s, retry_after_s)
            return
        ledger = self.ledger_of(attempt.replica)
        wait_s = None if retry_after_s is None else min(retry_after_s, COOL_DOWN_S_MAX)
        if ticket is None:  # sent before the ledger was made
            ledger.limited_elsewhere(wait_s or 0.0, now_s)
        else:
            ledger.rate_limited(ticket, now_s, wait_s, by_tokens=by_tokens)
            if by_tokens:
                retry_after_s = None
        replica = attempt.replica
        is_bare = retry_after_s is None and not by_tokens  # perhaps a limit on requests in flight
        if not (is_bare and replica.breaker.on_refusal(now_s, attempt.start_s, others_of(attempt))):
            replica.breaker.on_rate_limited(now_s, retry_after_s)

    # state over a restart

    def state(self, replica: Replica, now_s: float) -> WaitState | None:
        """Return the time after a 429 as plain values; None if it has no effect any more."""
        ledger, cooling_s = self.of.get(replica), replica.breaker.cooling_until_s - now_s
        quota = None if ledger is None else ledger.pause(now_s)
        if quota is None and cooling_s <= 0.0:
            return None
        return WaitState(min(max(0.0, cooling_s), COOL_DOWN_S_MAX), quota)

    def restore(self, replica: Replica, state: WaitState, elapsed_s: float, now_s: float) -> None:
        """Go on with the time after a 429, as if no request had come since then; never shortens a wait."""
        if state.cooling_s > elapsed_s:
            replica.breaker.cool_down(now_s + state.cooling_s - elapsed_s)
        if state.quota is not None:
            self.ledger_of(replica).restore_pause(state.quota, elapsed_s, now_s, COOL_DOWN_S_MAX)

    # helpers

    def _sharing(self, replica: Replica) -> list[Replica]:
        """Return the replicas that share the quota of this one, which is among them."""
        return [each for each in self._replicas if each is replica or replica.quota == each.quota is not None]

    def _has_headroom(self, replica: Replica, now_s: float) -> bool:
        """Return True if a primary need not avoid the quota of a replica."""
        ledger = self.of.get(replica)
        if ledger is None or now_s >= ledger.restricts_until_s:
            return True
        return ledger.headroom_for_primary(now_s) >= _HEADROOM_MIN

    def _open(self, attempt: AttemptView) -> tuple[Ledger | None, QuotaTicket | None]:
        return self.of.get(attempt.replica), None if attempt.forecast is None else attempt.forecast.quota

    def _spend(self, facts: RequestFacts, replica: Replica) -> Spend:
        """Return the amount that a provider may count against its limits when the request arrives."""
        limit, p90 = facts.answer_tokens, self._learning.answer_tokens
        answer = p90 if limit is None or (limit > p90 and not replica.counts_max_tokens) else limit
        return Spend(ceil(facts.prompt_tokens), ceil(answer))


def _used(attempt: AttemptView, reserved: Spend, bill: Bill) -> Spend:
    """Estimate the amount that an ended attempt took of its quota."""
    usage, replica = attempt.usage, attempt.replica
    if usage is not None and usage.prompt_tokens is not None:
        prompt, answer = usage.prompt_tokens, usage.completion_tokens or 0
    else:
        prompt, answer = reserved.prompt, reserved.answer
        if bill is Bill.PROMPT or (bill is Bill.CATALOG and not replica.bills_cancelled):
            answer = min(answer, attempt.events)  # cancelled, or failed: an event is about a token
    if replica.counts_max_tokens:
        answer = max(answer, reserved.answer)  # counted beforehand, and not given back
    return Spend(prompt, answer)
