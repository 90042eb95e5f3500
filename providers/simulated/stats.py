"""What a simulated server has seen: counters, and a bounded list of records of its latest requests.

All times are seconds of the event loop's clock, which on one Linux machine is the same in every process.
"""

import dataclasses
import enum
from collections import OrderedDict
from dataclasses import dataclass, field

RECORDS_MAX = 4096


class Ended(enum.Enum):
    """How a request ended."""

    COMPLETE = "complete"
    CANCELLED = "cancelled"  # the peer left
    BROKEN = "broken"  # the server closed or reset the connection, as a fault said


@dataclass(slots=True)
class RequestRecord:
    """One request.

    Attributes:
        request_id: its `x-request-id`, or "sim-N"; the answer carries it, too.
        received_s: when it had been read.
        headers_s: when the response head was written, None: not yet.
        first_content_s: when the first content was written, None: not yet.
        ended_s: when the last byte was written, or the peer's close was seen; None: not yet.
        ended: how.
        content_events: how many were written.
        sha256: of all body bytes written, before chunk framing; hexadecimal, set at the end.
    """

    request_id: str
    received_s: float
    headers_s: float | None = None
    first_content_s: float | None = None
    ended_s: float | None = None
    ended: Ended | None = None
    content_events: int = 0
    sha256: str = ""

    def show(self) -> dict[str, object]:
        """As JSON."""
        return dataclasses.asdict(self) | {"ended": self.ended.value if self.ended else None}


@dataclass(slots=True)
class Stats:
    """Counters since the start or the last reset.

    Attributes:
        requests: completion requests begun.
        streams: of them answered with a 200 and a stream.
        complete, cancelled, broken: of them ended so.
        tokens: content events written, and completion tokens of JSON answers.
        paused: how often writing had to wait for a slow peer.
        in_flight: requests being answered now.
        connections_opened: ever.
        connections_open: now.
        records: of the latest requests, oldest first, by request id.
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
        """A request has been read; an id that was used before gets its number behind it."""
        self.requests += 1
        self.in_flight += 1
        name = request_id or f"sim-{self.requests}"
        record = RequestRecord(name if name not in self.records else f"{name}#{self.requests}", now_s)
        self.records[record.request_id] = record
        if len(self.records) > RECORDS_MAX:
            self.records.popitem(last=False)
        return record

    def end(self, record: RequestRecord, ended: Ended, now_s: float, sha256: str) -> None:
        """It is over."""
        record.ended, record.ended_s, record.sha256 = ended, now_s, sha256
        self.in_flight -= 1
        self.complete += ended is Ended.COMPLETE
        self.cancelled += ended is Ended.CANCELLED
        self.broken += ended is Ended.BROKEN

    def reset(self) -> None:
        """Everything to zero but what is open now."""
        fresh = Stats(in_flight=self.in_flight, connections_open=self.connections_open)
        for each in dataclasses.fields(self):
            setattr(self, each.name, getattr(fresh, each.name))

    def show(self, *, records: bool) -> dict[str, object]:
        """As JSON, with or without the records."""
        counters = {each.name: getattr(self, each.name) for each in dataclasses.fields(self) if each.name != "records"}
        return counters | ({"records": [record.show() for record in self.records.values()]} if records else {})
