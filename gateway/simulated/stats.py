"""Statistics of a simulated server: counters, and a bounded list of records of its latest requests.

Times are seconds of the event loop's clock, which is the same in all processes of one Linux machine.
"""

import dataclasses
import enum
from collections import OrderedDict
from dataclasses import dataclass, field

RECORDS_MAX = 4096


class RequestResult(enum.Enum):
    """Result of a request."""

    COMPLETE = "complete"
    CANCELLED = "cancelled"  # the client disconnected
    BROKEN = "broken"  # a fault closed or reset the connection


@dataclass(slots=True)
class RequestRecord:
    """One request.

    Attributes:
        request_id: `x-request-id` of the request and the response; "sim-N" if the request has none.
        received_s: time at which the request had been read.
        headers_s: time at which the response head was written; None: not yet.
        first_content_s: time at which the first content was written; None: not yet.
        ended_s: time of the last write, or of the client's disconnect; None: not yet.
        ended: result; None: not yet.
        content_events: content events written.
        sha256: hexadecimal hash of all body bytes written, before chunk framing; empty until the end.
    """

    request_id: str
    received_s: float
    headers_s: float | None = None
    first_content_s: float | None = None
    ended_s: float | None = None
    ended: RequestResult | None = None
    content_events: int = 0
    sha256: str = ""

    def show(self) -> dict[str, object]:
        """Return the record as JSON values."""
        return dataclasses.asdict(self) | {"ended": self.ended.value if self.ended else None}


@dataclass(slots=True)
class Stats:
    """Counters since the start or the last reset.

    Attributes:
        requests: completion requests received.
        streams: requests with a 200 and a stream as response.
        complete, cancelled, broken: requests with this result.
        tokens: content events written, and completion tokens of JSON responses.
        paused: pauses in writing because of a slow client.
        in_flight: requests without a result.
        connections_opened: connections accepted.
        connections_open: connections open now.
        records: records of the latest requests by request id, oldest first.
    """

    requests: int = 0
    streams: int = 0
    complete: int = 0
    cancelled: int = 0
    broken: int = 0
    tokens: int = 0
    paused: int = 0
    in_flight: int = 0
    connections_opened: int = 0
    connections_open: int = 0
    records: "OrderedDict[str, RequestRecord]" = field(default_factory=OrderedDict)

    def begin(self, request_id: str, now_s: float) -> RequestRecord:
        """Add a record for a request; a repeated id gets the suffix "#N"."""
        self.requests += 1
        self.in_flight += 1
        name = request_id or f"sim-{self.requests}"
        record = RequestRecord(name if name not in self.records else f"{name}#{self.requests}", now_s)
        self.records[record.request_id] = record
        if len(self.records) > RECORDS_MAX:
            self.records.popitem(last=False)
        return record

    def end(self, record: RequestRecord, ended: RequestResult, now_s: float, sha256: str) -> None:
        """Complete a record."""
        record.ended, record.ended_s, record.sha256 = ended, now_s, sha256
        self.in_flight -= 1
        self.complete += ended is RequestResult.COMPLETE
        self.cancelled += ended is RequestResult.CANCELLED
        self.broken += ended is RequestResult.BROKEN

    def reset(self) -> None:
        """Reset everything except open requests and connections."""
        fresh = Stats(in_flight=self.in_flight, connections_open=self.connections_open)
        for each in dataclasses.fields(self):
            setattr(self, each.name, getattr(fresh, each.name))

    def show(self, *, records: bool) -> dict[str, object]:
        """Return the counters as JSON values, with or without the records."""
        counters = {each.name: getattr(self, each.name) for each in dataclasses.fields(self) if each.name != "records"}
        return counters | ({"records": [record.show() for record in self.records.values()]} if records else {})
