"""The messages between gateways that share limits and loads, and the engine that adds them up. Pure.

A gateway process sends asks in batches and gets one answer for each ask, in the same order. There are five kinds:
`bucket` and `slots` lease what must not be exceeded, `gauge` adds what every process has now, `slice` adds what was
learned, `switches` carries what was switched to other hosts. An engine may lose everything at any time: asks carry what
it needs to go on. Keys are text, and never contain a secret, a prompt or an answer.

Messages are arrays: a later version may append fields with defaults. Each field has a range, because a message may be
damaged or forged; what is outside is not decoded. The ranges of rows and sums belong to their readers, as their meaning
does.

Units: seconds; amounts are requests, tokens or slots.
"""

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Annotated, Final, Protocol, TypeAlias

from msgspec import Meta, Struct

from gateway.share.debts import SEGMENTS_MAX
from ttft_gateway.pool.learned import Drop

SILENT_S: Final = 5.0  # a process that asks nothing for this long is gone: its gauges and slots are free
BIN_S: Final = 2.0  # length of a bin of a slice; it is read after its end, and has some hundred names
SLICE_S: Final = 120.0  # age at which a bin is dropped
ASK_LIFE_S: Final = 1.0  # after it, an engine that was late leases nothing any more: the ask was sent again meanwhile
AWAY_SHARE: Final = 0.9  # of a limit: what all processes together use while the engine is away
FORGET_WINDOWS: Final = 10.0  # age at which an unused bucket is forgotten; it is full after one, if nothing is owed
FORGET_S_MAX: Final = 3600.0  # and the longest such age
AGE_S_MAX: Final = 10 * FORGET_S_MAX  # of what a process reports; what is older counts as this old
PROCESSES_MAX: Final = 4_096
NAMES_MAX: Final = 4_096  # names in a gauge or in a bin; a bin has at most the names of about 3,000 bins of a sketch
ROW_MAX: Final = 64  # integers in a row of a gauge
SWITCHES_MAX: Final = 1_024
SWITCH_S_MAX: Final = 30 * 86_400.0
BINS_MAX: Final = math.ceil(SLICE_S / BIN_S)
NAME_CHARS_MAX: Final = 1_024  # of a key or a name, which have several names of the settings, of 128 characters each
_NUMBER_MAX: Final = 2**53  # up to which the numbers of Lua are exact
_AMOUNT_MAX: Final = 1e15  # requests or tokens; more is no limit
_SLOTS_MAX: Final = 2**31

# Comparisons with NaN are false, so that a range excludes it.
Name = Annotated[str, Meta(max_length=NAME_CHARS_MAX)]
Processes = Annotated[int, Meta(ge=0, le=PROCESSES_MAX)]
Number = Annotated[int, Meta(ge=0, le=_NUMBER_MAX)]
Slots = Annotated[int, Meta(ge=0, le=_SLOTS_MAX)]
Amount = Annotated[float, Meta(ge=0.0, le=_AMOUNT_MAX)]
Change = Annotated[float, Meta(ge=-_AMOUNT_MAX, le=_AMOUNT_MAX)]
Duration = Annotated[float, Meta(ge=0.0)]  # infinite where a bucket never fills by itself
Age = Annotated[float, Meta(ge=0.0, le=AGE_S_MAX)]
Integer = Annotated[int, Meta(ge=-(2**63) + 1, le=2**63 - 1)]
Row = Annotated[Sequence[Integer], Meta(max_length=ROW_MAX)]
Sums = Annotated[dict[Name, Integer], Meta(max_length=NAMES_MAX)]


class BucketAsk(Struct, tag="bucket", array_like=True, frozen=True):
    """Ask for a lease from a bucket that refills continuously and is initially full, or settle one.

    Attributes:
        key: name of the bucket.
        amount: size of the bucket. Where processes differ, the lowest counts.
        window_s: time in which the empty bucket fills; infinite for a bucket that only processes fill.
        want: amount to lease.
        least: smallest lease of use; 0 if any is.
        beyond: amount spent just now without a lease; negative to give back.
        hint: amount that was left at `hint_age_s`; None if the process has no estimate. It counts if the engine has
            lost the bucket since: the bucket had at most as much.
        epoch: epoch of the last answer; 0 before the first.
        drained: True if the limit was found used up, whatever the bucket's own count.
        hint_age_s: age of `hint`.
        spent: amounts that were spent while the engine was away, oldest first: the ages of the start and of the end of
            each segment, and its amount (see `gateway.share.debts`).
        report: number of `spent` in this process, higher than before; it is charged once, however often it is sent
            because the answer was lost. 0 for a report that is charged always.
    """

    key: Name
    amount: Amount
    window_s: Duration
    want: Amount = 0.0
    least: Amount = 0.0
    beyond: Change = 0.0
    hint: Change | None = None
    epoch: Number = 0
    drained: bool = False
    hint_age_s: Age = 0.0
    spent: Annotated[Sequence[Change], Meta(max_length=3 * SEGMENTS_MAX)] = ()
    report: Number = 0


class BucketAnswer(Struct, tag="bucket", array_like=True, frozen=True):
    """Answer to `BucketAsk`.

    Attributes:
        granted: leased amount, at most `want`; 0 if less than `least` is left.
        left: remaining amount, without all leases; negative after more was spent than leased.
        wait_s: time until `least` is left; 0 if it was granted.
        epoch: number that changes when the engine has lost the bucket.
        amount: size that counts, lower than the asked one if another process has a lower limit.
    """

    granted: Amount
    left: Change
    wait_s: Duration
    epoch: Number
    amount: Amount


class SlotsAsk(Struct, tag="slots", array_like=True, frozen=True):
    """Report the slots of a limit on concurrency that a process holds, and ask for more.

    Attributes:
        key: name of the limit.
        limit: number of slots of all processes.
        held: slots that the process holds, in use or spare; fewer than before give back.
        want: further slots to lease.
        others: slots that other processes held at the last answer; None before the first.
    """

    key: Name
    limit: Slots
    held: Slots
    want: Slots = 0
    others: Slots | None = None


class SlotsAnswer(Struct, tag="slots", array_like=True, frozen=True):
    """Answer to `SlotsAsk`.

    Attributes:
        granted: further slots that the process holds now.
        others: slots that other processes hold.
        limit: limit that counts, the lowest of all processes.
        wanted: True if another process lacks slots.
    """

    granted: Slots
    others: Slots
    limit: Slots
    wanted: bool = False


class GaugeAsk(Struct, tag="gauge", array_like=True, frozen=True, gc=False):
    """Replace what a process has now, and ask for the sums over the other processes, of the same names.

    Attributes:
        key: name of the gauge; contains the form of its rows.
        rows: integers by name, such as the attempts in flight and the pending prompt tokens of a replica.
        since: `GaugeAnswer.version` of the last answer; 0 for none.
        later: names of rows of which the others may get the present values later, up to `BIN_S`.
        is_part: True if all rows that are missing are as in the last ask that had an answer.
    """

    key: Name
    rows: Annotated[Mapping[Name, Row], Meta(max_length=NAMES_MAX)]
    since: Number = 0
    later: Annotated[tuple[Name, ...], Meta(max_length=NAMES_MAX)] = ()
    is_part: bool = False


class GaugeAnswer(Struct, tag="gauge", array_like=True, frozen=True, gc=False):
    """Answer to `GaugeAsk`.

    Attributes:
        processes: number of processes with this gauge, the asking one included.
        others: sums over the rows of the other processes, by name; only rows that are not all 0. None if nothing has
            changed since the version that was asked with.
        version: number that changes with every change of the rows of any process.
        is_part: True if `others` has only the sums that have changed since; a row is empty if it is all 0 now.
    """

    processes: Processes
    others: Annotated[dict[Name, Annotated[list[Integer], Meta(max_length=ROW_MAX)]], Meta(max_length=NAMES_MAX)] | None
    version: Number = 0
    is_part: bool = False

    def sums(self, before: Mapping[str, Sequence[int]]) -> Mapping[str, Sequence[int]]:
        """Return all sums; `before` has the sums at the version that was asked with."""
        if self.others is None:
            return before
        return {name: row for name, row in {**before, **self.others}.items() if row} if self.is_part else self.others


class SliceAsk(Struct, tag="slice", array_like=True, frozen=True, gc=False):
    """Add to the present bin of a slice, and ask for the bins from one on that have ended.

    Attributes:
        key: name of the slice; contains the form of its counts.
        added: integers to add, by name; sums are in fixed point, so that every order of additions gives the same bits.
        since: number of the first bin to return, usually `SliceAnswer.now` of the last answer; 0 for all.
    """

    key: Name
    added: Annotated[Mapping[Name, Integer], Meta(max_length=NAMES_MAX)]
    since: Number = 0


class SliceAnswer(Struct, tag="slice", array_like=True, frozen=True, gc=False):
    """Answer to `SliceAsk`.

    Attributes:
        now: number of the present bin, which got what was added. Earlier ones do not change any more.
        bins: sums by name, by number of the earlier bins; additions by the asking process included. Empty bins are
            missing.
    """

    now: Number
    bins: Annotated[dict[Number, Sums], Meta(max_length=BINS_MAX)]


class SwitchState(Struct, array_like=True, frozen=True):
    """The state of something that was switched.

    Attributes:
        name: name of the thing; a later switch of the same name replaces an earlier one.
        value: its new state.
        left_s: time until the engine drops the switch.
    """

    name: Name
    value: Name
    left_s: Annotated[float, Meta(ge=0.0, le=SWITCH_S_MAX)] = FORGET_S_MAX


class SwitchesAsk(Struct, tag="switches", array_like=True, frozen=True):
    """Publish switches, and ask for the switches of all processes after a number.

    Attributes:
        switches: switches to publish.
        after: `SwitchesAnswer.number` of the last answer; 0 before the first.
    """

    switches: Annotated[Sequence[SwitchState], Meta(max_length=SWITCHES_MAX)] = ()
    after: Number = 0


class SwitchesAnswer(Struct, tag="switches", array_like=True, frozen=True):
    """Answer to `SwitchesAsk`.

    Attributes:
        number: number of the last switch.
        switches: switches after the asked number, oldest first, switches by the asking process included; all of them
            after a loss.
        reached: number of processes that have asked with `number` as `after`, so that they have all switches.
    """

    number: Number
    switches: Annotated[list[SwitchState], Meta(max_length=SWITCHES_MAX)]
    reached: Processes


class Lost(Struct, tag="lost", array_like=True, frozen=True):
    """Stands for a damaged answer, or the answer to a damaged or old ask: the engine has executed the ask or not."""


Ask: TypeAlias = BucketAsk | SlotsAsk | GaugeAsk | SliceAsk | SwitchesAsk
Answer: TypeAlias = BucketAnswer | SlotsAnswer | GaugeAnswer | SliceAnswer | SwitchesAnswer | Lost


class Reply(Struct, array_like=True, frozen=True):
    """The answers to a batch.

    Attributes:
        answers: one for each ask, of the same kind and in the same order, or `Lost`.
        processes: number of processes that have asked in the last 5 s, the asking one included.
        now_s: time of the engine's clock.
        size_bytes: bytes of the batch and of the reply in a network; 0 on one host.
    """

    answers: list[Answer]
    processes: Processes = 1
    now_s: float = 0.0
    size_bytes: Number = 0


Answered: TypeAlias = Callable[[Reply | None], None]
"""Receives the reply to a batch, or None if it is lost: the engine has executed it or not."""


class Engine(Protocol):
    """The connection of one process to the engine."""

    def ask(self, asks: Sequence[Ask], answered: Answered) -> None:
        """Send a batch without waiting; an empty batch checks that the engine answers.

        `answered` is called once, later, on the event loop, in the order of the batches; with None as soon as no
        reply can come any more. The time limit is the caller's.
        """

    def close(self) -> None:
        """Close the connection; batches without a reply are lost."""


class NamedEngine(Engine, Protocol):
    """An engine as operators see it.

    Attributes:
        kind: "hub" for the supervisor of the host, "redis" for a server.
        fault: reason for which there is no connection; "" with a connection. Without secrets.
        drop: receives what is dropped of replies; replaced by the owner of the process.
        is_rejected: True while the engine answers, and rejects the login or the rights of this process.
        carries_switches: False for the hub: the supervisor itself switches all its workers.
        batch_exchanges: number of exchanges with asks that fill a batch; a pool has two, for loads and samples.
    """

    kind: str
    fault: str
    is_rejected: bool
    carries_switches: bool
    batch_exchanges: int
    drop: Drop


def keep_silent(_name: str, _fault: str) -> None:
    """Report nothing (a `Drop`)."""
