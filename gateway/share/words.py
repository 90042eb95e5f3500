"""The messages between gateways that share limits and loads, and the engine that adds them up. Pure.

A *head* is one gateway process. It sends asks in batches and gets one answer for each ask, in the same order. There are
five kinds: `bucket` and `slots` lease what must not be exceeded, `gauge` adds what every head has now, `slice` adds
what was learned, `news` passes on what was switched. An engine may lose everything at any time: asks carry what it
needs to go on. Keys are text, and never contain a secret, a prompt or an answer.

Messages are arrays: a later version may append fields with defaults. Units: seconds; amounts are requests, tokens or
slots.
"""

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Final, Protocol, TypeAlias

from msgspec import Struct

SILENT_S: Final = 5.0  # a head that asks nothing for this long is gone: its gauges and slots are free
BIN_S: Final = 5.0  # length of a bin of a slice
SLICE_S: Final = 120.0  # age at which a bin is dropped
AWAY_SHARE: Final = 0.9  # of a limit: what all heads together use while the engine is away
FORGET_WINDOWS: Final = 1 / (1 - AWAY_SHARE)  # age of an unused bucket at which any hint for it is the full amount
FORGET_S_MAX: Final = 3600.0  # and the longest such age


class BucketAsk(Struct, tag="bucket", array_like=True, frozen=True):
    """Ask for a lease from a bucket that refills continuously and is initially full, or settle one.

    Attributes:
        key: name of the bucket.
        amount: size of the bucket. Where heads differ, the lowest counts.
        window_s: time in which the empty bucket fills; infinite for a bucket that only heads fill.
        want: amount to lease.
        least: smallest lease of use; 0 if any is.
        beyond: amount spent without a lease; negative to give back.
        hint: estimate of the amount left in the bucket, without the head's lease; None if the head has no answer yet.
        epoch: epoch of the last answer; 0 without one, which counts as the present life.
        drained: True if the limit was found used up, whatever the bucket's own count.
        saved: amount that the head was free to spend while the engine was away, and did not; it is not in the hint, and
            counts in a later life of the bucket only.
    """

    key: str
    amount: float
    window_s: float
    want: float = 0.0
    least: float = 0.0
    beyond: float = 0.0
    hint: float | None = None
    epoch: int = 0
    drained: bool = False
    saved: float = 0.0


class BucketAnswer(Struct, tag="bucket", array_like=True, frozen=True):
    """Answer to `BucketAsk`.

    Attributes:
        granted: leased amount, at most `want`; 0 if less than `least` is left.
        left: remaining amount, without all leases; negative after more was spent than leased.
        wait_s: time until `least` is left; 0 if it was granted.
        epoch: number of the bucket's life. Debts and hints of an older life do not count in a later one.
        amount: size that counts, lower than the asked one if another head has a lower limit.
    """

    granted: float
    left: float
    wait_s: float
    epoch: int
    amount: float


class SlotsAsk(Struct, tag="slots", array_like=True, frozen=True):
    """Report the slots of a limit on concurrency that a head holds, and ask for more.

    Attributes:
        key: name of the limit.
        limit: number of slots of all heads.
        held: slots that the head holds, in use or spare; fewer than before give back.
        want: further slots to lease.
        others: slots that other heads held at the last answer; None without one.
    """

    key: str
    limit: int
    held: int
    want: int = 0
    others: int | None = None


class SlotsAnswer(Struct, tag="slots", array_like=True, frozen=True):
    """Answer to `SlotsAsk`.

    Attributes:
        granted: further slots that the head holds now.
        others: slots that other heads hold.
        limit: limit that counts, the lowest of all heads.
        wanted: True if another head lacks slots.
    """

    granted: int
    others: int
    limit: int
    wanted: bool = False


class GaugeAsk(Struct, tag="gauge", array_like=True, frozen=True):
    """Replace what a head has now, and ask for the others'.

    Attributes:
        key: name of the gauge; contains the form of its rows.
        rows: integers by name, such as the attempts in flight and the pending prompt tokens of a replica.
    """

    key: str
    rows: Mapping[str, Sequence[int]]


class GaugeAnswer(Struct, tag="gauge", array_like=True, frozen=True):
    """Answer to `GaugeAsk`.

    Attributes:
        heads: number of heads with this gauge, the asking one included.
        others: sums over the rows of the other heads, by name; only rows that are not all 0.
    """

    heads: int
    others: dict[str, list[int]]


class SliceAsk(Struct, tag="slice", array_like=True, frozen=True):
    """Add to the present bin of a slice, and ask for all bins from one on.

    Attributes:
        key: name of the slice; contains the form of its counts.
        added: integers to add, by name; sums are in fixed point, so that every order of additions gives the same bits.
        since: number of the first bin to return, usually `SliceAnswer.now` of the last answer; 0 for all.
    """

    key: str
    added: Mapping[str, int]
    since: int = 0


class SliceAnswer(Struct, tag="slice", array_like=True, frozen=True):
    """Answer to `SliceAsk`.

    Attributes:
        now: number of the present bin. Earlier ones do not change any more.
        bins: sums by name, by number of the bin; those of the asking head included. A bin without any is missing.
    """

    now: int
    bins: dict[int, dict[str, int]]


class News(Struct, array_like=True, frozen=True):
    """Something that was switched or found out.

    Attributes:
        name: name of the thing; later news of the same name replaces earlier news.
        value: its new state.
        left_s: time for which the news is kept.
    """

    name: str
    value: str
    left_s: float = FORGET_S_MAX


class NewsAsk(Struct, tag="news", array_like=True, frozen=True):
    """Publish news, and ask for the news of all heads after a number.

    Attributes:
        news: news to publish.
        after: `NewsAnswer.number` of the last answer; 0 without one.
    """

    news: Sequence[News] = ()
    after: int = 0


class NewsAnswer(Struct, tag="news", array_like=True, frozen=True):
    """Answer to `NewsAsk`.

    Attributes:
        number: number of the last news.
        news: news after the asked number, oldest first; those of the asking head included. All news after a loss.
        reached: number of heads that have asked with `number` as `after`, so that they have all of it.
    """

    number: int
    news: list[News]
    reached: int


Ask: TypeAlias = BucketAsk | SlotsAsk | GaugeAsk | SliceAsk | NewsAsk
Answer: TypeAlias = BucketAnswer | SlotsAnswer | GaugeAnswer | SliceAnswer | NewsAnswer


class Reply(Struct, array_like=True, frozen=True):
    """The answers to a batch.

    Attributes:
        answers: one for each ask, of the same kind and in the same order.
        heads: number of heads that have asked in the last 5 s, the asking one included.
    """

    answers: list[Answer]
    heads: int = 1


Answered: TypeAlias = Callable[[Reply | None], None]
"""Receives the reply to a batch, or None if it is lost: the engine has executed it or not."""


class Engine(Protocol):
    """The connection of one head to the engine."""

    def ask(self, asks: Sequence[Ask], answered: Answered) -> None:
        """Send a batch, and return at once; an empty batch checks that the engine answers.

        `answered` is called once, later, on the event loop, in the order of the batches; with None as soon as it is
        known that there will be no reply. The time limit is the caller's.
        """

    def close(self) -> None:
        """Close the connection; batches without a reply are lost."""


class NamedEngine(Engine, Protocol):
    """An engine as operators see it.

    Attributes:
        kind: "hub" for the supervisor of the host, "redis" for a server.
        fault: reason for which there is no connection; "" with a connection. Without secrets.
    """

    kind: str
    fault: str


def refill(amount: float, window_s: float) -> float:
    """Return the refill of a bucket per second."""
    return 0.0 if window_s == math.inf else amount / window_s
