"""Usage since the start of the gateway: tokens and cost by caller's key and model.

The table is bounded: of very many keys, further ones are counted together. `gateway.observe.recorder` feeds it together
with the metrics. Units: requests, tokens, money in the configuration's currency.
"""

from collections import defaultdict
from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from itertools import islice

import msgspec
from msgspec.structs import replace

from gateway.observe.instruments import OTHER
from ttft_gateway.hedging.charges import ChargeTotal, Disposition

_PART_ROWS = 300  # that are dumped in one piece, about 0.5 ms
_ROWS_MAX = 20_000  # keys and models; a row has some 0.5 kB


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


class UsageDump(msgspec.Struct):
    """A table as plain values: requests by key and model, charges by key, model and disposition."""

    requests: list[tuple[str, str, int]]
    totals: list[tuple[str, str, Disposition, ChargeTotal]]


class UsageTable:
    """Adds up all requests that have ended.

    Args:
        now: wall clock, in UTC.

    Attributes:
        since: time of the first count.
        before_read: called before the counts are read.
        requests: number of requests by key and model.
        totals: sums of their charges by key, model and disposition.
    """

    def __init__(self, now: Callable[[], datetime] = lambda: datetime.now(UTC)) -> None:
        self.since = now()
        self.before_read: Callable[[], object] = bool
        self.requests: defaultdict[tuple[str, str], int] = defaultdict(int)
        self.totals: defaultdict[tuple[str, str, Disposition], ChargeTotal] = defaultdict(ChargeTotal)

    def key_in(self, key: str, model: str) -> str:
        """Return the name under which a key is counted: above the bound, further keys of a model are one."""
        return key if len(self.requests) < _ROWS_MAX or (key, model) in self.requests else OTHER

    def dump(self) -> UsageDump:
        """Return everything that was counted."""
        self.before_read()
        requests = [(*row_key, count) for row_key, count in self.requests.items()]
        return UsageDump(requests, [(*row_key, total) for row_key, total in self.totals.items()])

    def dump_parts(self) -> Iterator[UsageDump]:
        """Yield the same in parts of which none takes long."""
        self.before_read()
        requests, totals = iter(list(self.requests.items())), iter(list(self.totals.items()))
        while counts := list(islice(requests, _PART_ROWS)):
            yield UsageDump([(*row_key, count) for row_key, count in counts], [])
        while sums := list(islice(totals, _PART_ROWS)):
            yield UsageDump([], [(*row_key, total) for row_key, total in sums])

    def add(self, dump: UsageDump) -> None:
        """Add what another process has counted."""
        for key, model, count in dump.requests:
            self.requests[key, model] += count
        for key, model, disposition, total in dump.totals:
            self.totals[key, model, disposition].merge(total)

    def report(self, key: str | None = None, model: str | None = None) -> UsageReport:
        """Return the usage of one key or all keys, on one model or all models."""
        self.before_read()
        rows, total = dict[tuple[str, str], dict[Disposition, ChargeTotal]](), dict[Disposition, ChargeTotal]()
        for row_key in sorted(self.requests):
            if key in (None, row_key[0]) and model in (None, row_key[1]):
                rows[row_key] = {}
        for (key_name, name, disposition), subtotal in self.totals.items():
            if (key_name, name) in rows:
                rows[key_name, name][disposition] = subtotal
                total.setdefault(disposition, ChargeTotal()).merge(subtotal)
        counts = [self.requests[row_key] for row_key in rows]
        shown = [_row(*row_key, count, sums) for (row_key, sums), count in zip(rows.items(), counts, strict=True)]
        return UsageReport(self.since, _row(None, None, sum(counts), total), shown)


def _row(key: str | None, model: str | None, requests: int, sums: dict[Disposition, ChargeTotal]) -> UsageRow:
    """Build a row; the number of unpriced attempts is shown only with a cost."""
    shown = {
        disposition.value: total if total.cost is not None else replace(total, unpriced=0)
        for disposition, total in sums.items()
    }
    return UsageRow(requests, key, model, **shown)
