"""The usage of a provider's quota by several gateways: own usage out, that of the others in. Pure.

The mirror of a quota then counts all that the provider counts. A cool-down after a 429 is one of all. Limits that are
leased are left to the leases.

Units: requests and tokens; seconds of the loop's clock.
"""

from collections.abc import Sequence
from typing import Final

from gateway.limits.bucket import Spend
from gateway.limits.ledger import Ledger
from gateway.pool.rows import USAGE, Row, checked
from gateway.share.words import Answer, Ask, Drop, GaugeAnswer, GaugeAsk, keep_silent

_FORM: Final = "quota1"  # of the row; another meaning of a place is another form
_IDLE_S: Final = 60.0  # without a request, nothing is exchanged
_NOTHING: Final = (0,) * 5


class SharedQuota:
    """The exchange of one quota: a `gateway.share.sync.Part`.

    Args:
        name: name of the quota.
        drop: receives each row that is out of range, and is not used.

    Attributes:
        ledger: its ledger.
    """

    def __init__(self, name: str, ledger: Ledger, drop: Drop = keep_silent) -> None:
        self._name = name
        self._key = f"{_FORM} {name}"
        self._drop = drop
        self.ledger = ledger
        self._base: Spend | None = None  # own usage at the start of the exchange
        self._used: tuple[Spend, float] = (ledger.spent(), 0.0)  # last own usage, and the time of its change
        self._seen: Row | None = None  # last sums of the others
        self._seen_s = 0.0

    def asks(self, now_s: float, period_s: float) -> Sequence[Ask]:
        """Return the usage of this gateway since the start of the exchange."""
        spent = self.ledger.spent()
        if spent != self._used[0] or self._base is None:
            self._used = (spent, now_s)
        self._base = self._base or spent
        if now_s >= self._used[1] + _IDLE_S:
            self._seen = None  # usage by others is then counted anew
            return ()
        own, cooling_s = spent.minus(self._base), self.ledger.cooling_s(now_s)
        row = (own.requests, own.prompt, own.answer, round(1000 * cooling_s), int(cooling_s > 0))
        return (GaugeAsk(self._key, {"": row}),)

    def answered(self, answers: Sequence[Answer], now_s: float) -> None:
        """Count the usage of the others since the last answer, and cool down with them."""
        for answer in answers:
            if isinstance(answer, GaugeAnswer):
                row = answer.others.get("", _NOTHING)
                try:
                    self._put(checked(row, USAGE, max(1, answer.heads - 1)), now_s)
                except ValueError as error:
                    self._drop(f"the usage of {self._name}", str(error))
                    self._seen = None  # usage by others is then counted anew

    def _put(self, row: Row, now_s: float) -> None:
        is_first = self._seen is None
        seen, since_s = row if self._seen is None else self._seen, self._seen_s
        self._seen, self._seen_s = row, now_s
        requests, prompt, answer = (new - old for new, old in zip(row[:3], seen[:3], strict=True))
        if requests >= 0 and (requests or prompt or answer):  # fewer requests: a gateway has gone
            self.ledger.spent_elsewhere(Spend(prompt, answer, requests), now_s, since_s)
        if row[4] > (0 if is_first else seen[4]):
            self.ledger.limited_elsewhere(row[3] / row[4] / 1000, now_s)
