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
        self._sums: dict[tuple[str, str], dict[Disposition, ChargeTotal]] = {}

    def on_event(self, event: Event) -> None:
        """Add one request (a `gateway.events.Listener`)."""
        if not isinstance(event, RequestEnded):
            return
        place = (event.key_name, event.model)
        sums = self._sums.get(place)
        if sums is None:
            sums = self._sums[place] = {}
            self._requests[place] = 0
        self._requests[place] += 1
        for attempt in event.attempts:
            disposition = attempt.charge.disposition
            found = sums.get(disposition)
            if found is None:
                found = sums[disposition] = ChargeTotal()
            found.add(attempt.charge)

    def report(self, key: str | None = None, model: str | None = None) -> UsageReport:
        """Return the usage of one key or all keys, on one model or all models."""
        places = [place for place in sorted(self._sums) if key in (None, place[0]) and model in (None, place[1])]
        total: dict[Disposition, ChargeTotal] = {}
        for place in places:
            for disposition, each in self._sums[place].items():
                total.setdefault(disposition, ChargeTotal()).merge(each)
        rows = [_row(*place, self._requests[place], self._sums[place]) for place in places]
        return UsageReport(self._since, _row(None, None, sum(row.requests for row in rows), total), rows)


def _row(key: str | None, model: str | None, requests: int, sums: dict[Disposition, ChargeTotal]) -> UsageRow:
    """Build a row; the number of unpriced attempts is shown only beside a cost."""
    shown = {
        disposition.value: each if each.cost is not None else replace(each, unpriced=0)
        for disposition, each in sums.items()
    }
    return UsageRow(requests, key, model, **shown)
