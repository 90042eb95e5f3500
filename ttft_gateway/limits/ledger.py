"""The estimated state of a provider's quota: a mirror of the provider's counting, with tickets for requests under way.

Restricts hedges and advises primaries (docs/provider-quotas.md). Independent of headers, replicas and money; an
unknown limit is unknown, never zero, and blocks nothing. Configured and observed limits coexist, and all of them must
have room, so the lower one wins.

Units: requests and tokens; now_s in seconds, of one clock; windows and resets in seconds.
"""

import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Annotated, Final, NamedTuple

import msgspec

from ttft_gateway.apis.base import RateLimit, Resource
from ttft_gateway.limits.bucket import SHORT_S, Bucket, BucketState, Limit, QuotaBucket, Spend
from ttft_gateway.limits.need import Need
from ttft_gateway.limits.pause import PAUSE_S, PAUSE_S_MAX, Pause
from ttft_gateway.limits.rates import LOCAL, LimitMaker

# Of a configured limit, for primaries: no response shows what other clients use,
_RESERVED: Final = 0.6
_RESERVED_LONG_WINDOW: Final = 0.1  # and for windows over a minute: most of a day's quota is there to be used
_ESTIMATED_S_MIN: Final = 1.0  # minimum cool-down after a 429 without Retry-After
_ESTIMATED_S_MAX: Final = 60.0  # and its maximum: the next request will test the limit
_SMALLER: Final = 0.5  # of a request that exceeded a token limit: smaller ones may still fit, and are sent
_OLD_S: Final = 60.0  # time after the last request from which a stated limit is no reason to send none
_NOTHING: Final = Spend(0, 0, 0)


class Totals(NamedTuple):
    """Whole tokens since the start: reserved = settled + released + under_way, always."""

    reserved: int
    settled: int
    released: int

    @property
    def under_way(self) -> int:
        """Tokens reserved by requests that have not ended."""
        return self.reserved - self.settled - self.released


class PauseState(msgspec.Struct, frozen=True):
    """The time after a 429 as plain values.

    Attributes:
        cooling_s: time until requests may be sent.
        tokens: requests with fewer tokens need not wait for it.
        limited_s: time since the 429 that ended hedging.
        hedges_s: time after it without hedges, where no response shows what is left.
    """

    cooling_s: Annotated[float, msgspec.Meta(ge=0.0, le=PAUSE_S_MAX)]
    tokens: Annotated[float, msgspec.Meta(ge=0.0, le=1e12)]
    limited_s: Annotated[float, msgspec.Meta(ge=0.0, le=2 * PAUSE_S_MAX)]
    hedges_s: Annotated[float, msgspec.Meta(ge=PAUSE_S, le=PAUSE_S_MAX)]


class QuotaTicket(msgspec.Struct, eq=False, gc=False):
    """One request under way with its reservation; settled or released once.

    Attributes:
        number: number of this request at this quota.
        spend: tokens reserved.
        sent_s: time at which the request was sent.
        sent_before: total reserved at this quota up to and including this request.
        is_hedge: True for a hedge, which is no need of primaries.
        is_open: True until the request has ended.
    """

    number: int
    spend: Spend
    sent_s: float
    sent_before: Spend
    is_hedge: bool = False
    is_open: bool = True


class Ledger:
    """Mirror of one quota.

    Args:
        limits: configured limits; without any, only the limits in responses count.
        new_bucket: makes the bucket of a configured limit.

    Attributes:
        restricts_until_s: end of the time in which primaries may have to wait or to avoid the quota: infinite after its
            first limit is known, else the end of the last cool-down, -inf without a cool-down.
    """

    def __init__(self, limits: Iterable[Limit] = (), new_bucket: Callable[[Limit], QuotaBucket] = Bucket) -> None:
        self._buckets = [new_bucket(limit) for limit in limits]  # observed ones follow
        self._limited_s = self._sent_s = -math.inf
        self._pause = Pause()
        self._needs: dict[QuotaBucket, Need] = {}  # of the limits in responses
        self._cool_until_s = -math.inf
        self._cool_tokens = 0.0  # requests with fewer tokens need not wait for the end of a cool-down
        self.restricts_until_s = math.inf if self._buckets else -math.inf
        self._sent = self._hedged = _NOTHING
        self._corrected: Spend | None = None  # usage less reservations, for other gateways; None if there are none
        self._settled = self._released = 0
        self._unreserved = 0  # settled tokens above the reservations

    @property
    def is_shared(self) -> bool:
        """True if the fleet may have to be asked for more of a limit."""
        return any(bucket.is_shared for bucket in self._buckets)

    # tickets

    def reserve(self, spend: Spend, now_s: float, *, is_hedge: bool = False) -> QuotaTicket:
        """Reserve the usage of a request that is being sent; never rejects, see `room_for_hedge` and `wait_s`."""
        for bucket in self._buckets:
            bucket.take(bucket.cost(spend), now_s)
        self._sent = sent = self._sent.plus(spend)
        self._sent_s = now_s
        if is_hedge:
            self._hedged = self._hedged.plus(spend)
        return QuotaTicket(sent.requests, spend, now_s, sent, is_hedge)

    def settle(self, ticket: QuotaTicket, used: Spend, now_s: float) -> None:
        """Replace the reservation of a request that has ended by its usage."""
        if not ticket.is_open:
            return
        ticket.is_open = False
        spend, used_tokens = ticket.spend, used.prompt + used.answer
        self._settled += used_tokens
        unused = spend.prompt + spend.answer - used_tokens
        if unused >= 0:
            self._released += unused
        else:
            self._unreserved -= unused
        if ticket.is_hedge:
            self._hedged = self._hedged.plus(used.minus(spend))
        if self._buckets or self._corrected is not None:
            self._correct(ticket, used.minus(spend), now_s)

    def release(self, ticket: QuotaTicket, now_s: float) -> None:
        """Give back the reservation of a request that the provider did not count."""
        if not ticket.is_open:
            return
        self.settle(ticket, _NOTHING, now_s)
        for bucket in self._buckets:
            if bucket.observed_by >= ticket.number:
                bucket.was_not_counted(bucket.cost(ticket.spend))

    @property
    def totals(self) -> Totals:
        """Tokens reserved, settled and released since the start."""
        return Totals(self._sent.tokens + self._unreserved, self._settled, self._released)

    # queries

    def room_for_hedge(self, spend: Spend, now_s: float) -> bool:
        """Return True if a hedge that may use `spend` leaves what primaries, of other clients too, will need.

        Of a limit in responses, the need is measured (`Need`). Of a configured limit a share is reserved, and after a
        429 there are no hedges for a time (`Pause`): other clients may use the quota, and nothing shows it.
        """
        if now_s < self._cool_until_s:
            return False
        if self._pause.is_on(now_s) and not self._needs:
            return False  # other clients use the quota, and no response shows how much of it
        return all(
            bucket.left(now_s) - bucket.cost(spend) >= self._reserved(bucket, bucket.cost(spend), now_s)
            for bucket in self._buckets
        )

    def headroom(self, now_s: float) -> float:
        """Return the smallest remaining share of any bucket, at least 0; 1 if no limit is known."""
        return min((max(0.0, bucket.left(now_s) / bucket.amount) for bucket in self._buckets), default=1.0)

    def headroom_for_primary(self, now_s: float) -> float:
        """Return `headroom`, but 1 for limits in responses after a minute without a request: one request renews them.

        A limit of a day would else keep primaries away for hours, although the provider may have raised it.
        """
        if now_s < self._sent_s + _OLD_S or not any(bucket.is_observed for bucket in self._buckets):
            return self.headroom(now_s)
        left = (max(0.0, each.left(now_s) / each.amount) for each in self._buckets if not each.is_observed)
        return min(left, default=1.0)

    def wait_s(self, spend: Spend, now_s: float) -> float:
        """Return the seconds until a primary that may use `spend` may be sent; 0 for now."""
        wait_s = max(0.0, self._cool_until_s - now_s) if spend.tokens >= self._cool_tokens else 0.0
        for bucket in self._buckets:
            if bucket.enforce:
                wait_s = max(wait_s, bucket.wait_s(bucket.cost(spend), now_s))
        return wait_s

    def cooling_s(self, now_s: float) -> float:
        """Return the seconds until a cool-down for all requests ends; 0 without a cool-down."""
        return max(0.0, self._cool_until_s - now_s) if self._cool_tokens == 0.0 else 0.0

    def state(self, now_s: float) -> list[BucketState]:
        """Return a snapshot of every bucket, configured ones first."""
        return [bucket.state(now_s) for bucket in self._buckets]

    # provider's responses

    def cool_down(self, until_s: float) -> None:
        """Send nothing until `until_s`; never shortens a cool-down."""
        self._cool_tokens = 0.0
        self._cool_until_s = max(self._cool_until_s, until_s)
        self.restricts_until_s = max(self.restricts_until_s, until_s)

    def end_cool_down(self) -> None:
        """Send again: a reload tests whether the provider still refuses."""
        self._cool_until_s = -math.inf
        self.restricts_until_s = math.inf if self._buckets else -math.inf

    def rate_limited(
        self, ticket: QuotaTicket, now_s: float, retry_after_s: float | None = None, *, by_tokens: bool = False
    ) -> None:
        """Record a 429: start a cool-down, and reserve more of the quota for primaries, see `room_for_hedge`.

        Args:
            ticket: ticket of the rejected request.
            now_s: arrival time of the response.
            retry_after_s: wait requested by the response; None if it had none. Then the cool-down lasts until the
                limits in the same response have room again; a response without limits starts no cool-down.
            by_tokens: True if a limit on tokens was exceeded: requests of less than half the size go on. If one of
                them is rejected, too, only requests of less than half its size go on, and so on.
        """
        self._limited_s = now_s
        stated = [bucket for bucket in self._buckets if bucket.observed_by == ticket.number]
        estimated_s = max((bucket.wait_s(bucket.cost(ticket.spend), now_s) for bucket in stated), default=0.0)
        if retry_after_s is None and estimated_s > 0:
            retry_after_s = min(max(estimated_s, _ESTIMATED_S_MIN), _ESTIMATED_S_MAX)
        if retry_after_s is not None or by_tokens:
            self._pause.begin(now_s)
        elif not self._pause.on_bare(self._sent.requests, now_s):
            return
        for bucket in self._buckets:
            is_other = by_tokens and bucket.resource is Resource.REQUESTS
            if bucket not in stated and bucket.window_s <= SHORT_S and not is_other:
                bucket.drain(now_s)  # one of the limits is used up, and the response does not state which
        if retry_after_s is not None:
            smaller = _SMALLER * ticket.spend.tokens if by_tokens else 0.0
            if now_s < self._cool_until_s:
                smaller = min(smaller, self._cool_tokens)
            self.cool_down(now_s + retry_after_s)
            self._cool_tokens = smaller

    def observe(self, ticket: QuotaTicket, limits: Sequence[RateLimit], now_s: float) -> None:
        """Correct the mirror by the limits in a response; implausible values are ignored.

        Args:
            ticket: ticket of the answered request.
            limits: limits in its response.
            now_s: arrival time of the response.
        """
        sent_since, waited_s = self._sent.minus(ticket.sent_before), now_s - ticket.sent_s
        for stated in limits:
            bucket = self._observed(stated, now_s)
            if bucket is not None and stated.remaining is not None and 0 <= stated.remaining <= bucket.stated:
                bucket.observe(stated, ticket.number, waited_s, bucket.cost(sent_since), now_s)

    # state over a restart

    def pause(self, now_s: float) -> PauseState | None:
        """Return the time after a 429; None if it no longer has an effect."""
        limited_s = max(0.0, now_s - self._pause.began_s)
        if limited_s >= 2.0 * self._pause.length_s:
            return None
        cooling_s = min(max(0.0, self._cool_until_s - now_s), PAUSE_S_MAX)
        return PauseState(cooling_s, self._cool_tokens, limited_s, self._pause.length_s)

    def restore_pause(self, state: PauseState, elapsed_s: float, now_s: float, wait_s_max: float) -> None:
        """Go on with a recorded time after a 429, unless there was a later one.

        Args:
            elapsed_s: time since it was recorded.
            wait_s_max: longest time without requests.
        """
        limited_s = now_s - elapsed_s - state.limited_s
        if limited_s > self._pause.began_s:
            self._limited_s = limited_s
            self._pause.restore(limited_s, state.hedges_s)
        if state.cooling_s > elapsed_s and self._cool_until_s < now_s:
            self.cool_down(now_s + min(state.cooling_s - elapsed_s, wait_s_max))
            self._cool_tokens = state.tokens

    # limits shared with other gateways

    def spent(self) -> Spend:
        """Return the usage by this gateway's requests since the start; a request under way counts as reserved.

        So does a request that ended before the first call.
        """
        if self._corrected is None:
            self._corrected = _NOTHING
        return self._sent.plus(self._corrected)

    def spent_elsewhere(self, spend: Spend, now_s: float, since_s: float) -> None:
        """Count usage by other gateways after `since_s`; a response received since then contains it."""
        for bucket in self._buckets:
            age_s = bucket.state(now_s).age_s
            if not bucket.is_shared and (age_s is None or age_s > now_s - since_s):
                most = bucket.amount * (1.0 + (now_s - since_s) / bucket.window_s)  # the provider permits no more
                bucket.take(min(bucket.cost(spend), most), now_s)

    def limited_elsewhere(self, cooling_s: float, now_s: float) -> None:
        """Record a 429 that another gateway got, with the seconds until its cool-down ends."""
        self._limited_s = now_s
        self._pause.begin(now_s)
        if cooling_s > 0:
            self.cool_down(now_s + cooling_s)

    # helpers

    def _reserved(self, bucket: QuotaBucket, cost: float, now_s: float) -> float:
        """Return the part of a limit that is reserved for primaries."""
        need = self._needs.get(bucket)
        if need is None:
            return bucket.amount * (_RESERVED if bucket.window_s <= SHORT_S else _RESERVED_LONG_WINDOW)
        limited = now_s < self._limited_s + PAUSE_S
        by_primaries = bucket.cost(self._sent) - bucket.cost(self._hedged)
        return need.reserved(bucket, by_primaries, cost, now_s, limited=limited)

    def _observed(self, stated: RateLimit, now_s: float) -> QuotaBucket | None:
        """Return the bucket of a limit found in responses; None while the limit itself is unknown."""
        same_resource = [bucket for bucket in self._buckets if bucket.resource is stated.resource]
        known = next(
            (bucket for bucket in same_resource if bucket.is_observed and bucket.window_s == stated.window_s), None
        )
        limit = stated.limit
        if limit is None or not 0 < limit < math.inf:
            if known is not None:
                return known
            if not same_resource:
                return None
            # scaled from the configured limit
            limit = same_resource[0].amount * stated.window_s / same_resource[0].window_s
        if known is None and stated.remaining is not None and 0 <= stated.remaining <= limit:
            known = Bucket(Limit(stated.resource, limit, stated.window_s), is_observed=True)
            self._buckets.append(known)
            self._needs[known] = Need(known.cost(self._sent) - known.cost(self._hedged), now_s)
            self.restricts_until_s = math.inf
        if known is not None:
            known.stated = limit
        return known

    def _correct(self, ticket: QuotaTicket, difference: Spend, now_s: float) -> None:
        """Charge the difference to the reservation to every bucket that no later response has corrected."""
        if self._corrected is not None:
            self._corrected = self._corrected.plus(difference)
        for bucket in self._buckets:
            if bucket.observed_by < ticket.number:
                bucket.take(bucket.cost(difference), now_s)


class LedgerRegistry(Mapping[str, Ledger]):
    """All ledgers by the name of their quota.

    Args:
        configured: quotas with limits in the configuration.
        previous: registry of the previous configuration; ledgers with unchanged limits go on, and their cool-downs
            end.
        limits: makes the buckets of configured limits.
    """

    def __init__(
        self,
        configured: Mapping[str, Sequence[Limit]],
        previous: "LedgerRegistry | None" = None,
        limits: LimitMaker = LOCAL,
    ) -> None:
        self._limits = limits
        self._configured = {name: tuple(limits) for name, limits in configured.items()}
        self._previous: tuple[dict[str, Ledger], dict[str, tuple[Limit, ...]]] = ({}, {})
        if previous is not None:
            self._previous = (previous._ledgers, previous._configured)
            for ledger in previous.values():
                ledger.end_cool_down()
        self._ledgers: dict[str, Ledger] = {name: self._create(name) for name in configured}
        self._implied: dict[tuple[str, str | None, str], str] = {} if previous is None else dict(previous._implied)

    def __getitem__(self, name: str) -> Ledger:
        return self._ledgers[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._ledgers)

    def __len__(self) -> int:
        return len(self._ledgers)

    def named(self, name: str) -> str:
        """Create the quota that a replica names, with or without configured limits, and return its name."""
        if name not in self._ledgers:
            self._ledgers[name] = self._create(name)
        return name

    def implied(self, base_url: str, host: str, key: str | None, model: str) -> str:
        """Return the name of the quota of a replica that names none.

        Args:
            base_url: base URL of the replica.
            host: host of base_url, for the quota's name.
            key: API key of the replica; never part of the name.
            model: the replica's name of the model.
        """
        identity = (base_url.rstrip("/"), key, model)
        if identity not in self._implied:
            name, number = f"{host}/{model}", 1
            taken = {*self._ledgers, *self._implied.values()}
            while name in taken:  # another key, or another path on the same host
                number += 1
                name = f"{host}/{model}#{number}"
            self._implied[identity] = name
        return self.named(self._implied[identity])

    def rekey(self, base_url: str, model: str, old: str | None, new: str | None) -> None:
        """Carry over a replica's quota, with its name, to a new key; no replica may use the old key any more."""
        url = base_url.rstrip("/")
        name = self._implied.get((url, old, model))
        if name is not None and (url, new, model) not in self._implied:
            self._implied[url, new, model] = self._implied.pop((url, old, model))

    def forget(self, name: str) -> None:
        """Drop a quota that no replica uses any more, unless it is configured."""
        if name not in self._configured:
            self._ledgers.pop(name, None)
            self._implied = {identity: each for identity, each in self._implied.items() if each != name}

    def _create(self, name: str) -> Ledger:
        """Return the previous ledger if its configured limits are unchanged, else a new one."""
        ledgers, configured = self._previous
        limits = self._configured.get(name, ())
        if name in ledgers and configured.get(name, ()) == limits:
            return ledgers[name]
        return Ledger(limits, lambda limit: self._limits.bucket(f"quota:{name}:{limit.resource.value}", limit))
