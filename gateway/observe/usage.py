"""Usage since the start of the gateway: tokens and cost by caller's key and model.

Keys and models come from the configuration, which bounds the table. Counts the same as the metrics, from the same
events. Units: requests, tokens, money in the configuration's currency.
"""

from collections.abc import Callable
from datetime import UTC, datetime

import msgspec
from msgspec.structs import replace

from gateway.events import Event, RequestEnded
from gateway.hedging.charges import ChargeTotal, Disposition


class UsageRow(msgspec.Struct, omit_defaults=True):
    """Usage of one model by one key; dispositions without attempts are None.

    Attributes:
        requests: number of requests that reached a replica.
        key: name of the caller's key; None in the total.
        model: public model name; None in the total.
        winner, loser, failed, abandoned: charges with this disposition.
    """

    requests: int
    key: str | None = None
    model: str | None = None
    winner: ChargeTotal | None = None
    loser: ChargeTotal | None = None
    failed: ChargeTotal | None = None
    abandoned: ChargeTotal | None = None


class UsageReport(msgspec.Struct):
    """The selected rows, and their total."""

    since: datetime
    total: UsageRow
    rows: list[UsageRow]


class UsageTable:
    """Adds up all requests that have ended.

    Args:
        now: wall clock, in UTC.
    """

    def __init__(self, now: Callable[[], datetime] = lambda: datetime.now(UTC)) -> None:
        self._since = now()
        self._requests: dict[tuple[str, str], int] = {}
        self._totals: dict[tuple[str, str], dict[Disposition, ChargeTotal]] = {}

    def on_event(self, event: Event) -> None:
        """Add one request (a `gateway.events.Listener`)."""
        if not isinstance(event, RequestEnded):
            return
        row_key = (event.key_name, event.model)
        totals = self._totals.get(row_key)
        if totals is None:
            totals = self._totals[row_key] = {}
            self._requests[row_key] = 0
        self._requests[row_key] += 1
        for attempt in event.attempts:
            disposition = attempt.charge.disposition
            total = totals.get(disposition)
            if total is None:
                total = totals[disposition] = ChargeTotal()
            total.add(attempt.charge)

    def report(self, key: str | None = None, model: str | None = None) -> UsageReport:
        """Return the usage of one key or all keys, on one model or all models."""
        row_keys = [
            (key_name, name)
            for key_name, name in sorted(self._totals)
            if key in (None, key_name) and model in (None, name)
        ]
        total: dict[Disposition, ChargeTotal] = {}
        for row_key in row_keys:
            for disposition, subtotal in self._totals[row_key].items():
                total.setdefault(disposition, ChargeTotal()).merge(subtotal)
        rows = [_row(*row_key, self._requests[row_key], self._totals[row_key]) for row_key in row_keys]
        return UsageReport(self._since, _row(None, None, sum(row.requests for row in rows), total), rows)


def _row(key: str | None, model: str | None, requests: int, sums: dict[Disposition, ChargeTotal]) -> UsageRow:
    """Build a row; the number of unpriced attempts is shown only beside a cost."""
    shown = {
        disposition.value: total if total.cost is not None else replace(total, unpriced=0)
        for disposition, total in sums.items()
    }
    return UsageRow(requests, key, model, **shown)
