"""The place of a request in a trace: callers' headers, sampling, the ids of attempts."""

import itertools
import random

import pytest
from msgspec.structs import replace

from gateway.traces import Trace, TraceStart, attempt_id
from inbound_bodies import chat, read

_TRACE, _SPAN = "0af7651916cd43dd8448eb211c80319c", "b7ad6b7169203331"


def _start(share: float = 0.0) -> TraceStart:
    return TraceStart(share, random.Random(1).getrandbits)


@pytest.mark.parametrize(("flags", "sampled"), [("01", True), ("00", False), ("03", True), ("02", False)])
@pytest.mark.parametrize("share", [0.0, 1.0])
def test_a_callers_decision_is_respected(flags: str, *, sampled: bool, share: float) -> None:
    """A request of a caller's trace has its trace id, its span as parent, and its decision, whatever the share."""
    trace = _start(share).begin(f" 00-{_TRACE}-{_SPAN}-{flags}\t".encode())
    assert (trace.trace_id, trace.parent_id, trace.sampled) == (_TRACE, _SPAN, sampled)
    assert trace.span_id != _SPAN


@pytest.mark.parametrize(
    "header",
    [
        "",
        "00-1",
        f"00-{_TRACE}-{_SPAN}",
        f"00-{_TRACE}-{_SPAN}-01-more",
        f"ff-{_TRACE}-{_SPAN}-01",
        f"00-{'0' * 32}-{_SPAN}-01",
        f"00-{_TRACE}-{'0' * 16}-01",
        f"00-{_TRACE.upper()}-{_SPAN}-01",
        f"00-{_TRACE}-{_SPAN}-01, 00-{_TRACE}-{_SPAN}-01",
    ],
)
def test_an_invalid_header_begins_a_trace(header: str) -> None:
    """A header that is no valid `traceparent` counts as none."""
    trace = _start(1.0).begin(header.encode())
    assert trace.trace_id != _TRACE
    assert trace.parent_id is None


def test_a_later_version_may_have_more_fields() -> None:
    """The four fields of version 00 are read from a later version."""
    assert _start().begin(f"cc-{_TRACE}-{_SPAN}-01-more".encode()).trace_id == _TRACE


def test_traces_are_sampled_by_their_id() -> None:
    """A tenth of the traces that begin here is sampled, by the lower half of the id: all gateways decide alike."""
    start = _start(0.1)
    traces = [start.begin(None) for _ in range(10_000)]
    assert sum(trace.sampled for trace in traces) == pytest.approx(1_000, rel=0.1)
    assert all(trace.sampled is (int(trace.trace_id[16:], 16) < round(0.1 * 2**64)) for trace in traces)
    assert len({trace.trace_id for trace in traces}) == len(traces)
    assert all(_start(1.0).begin(None).sampled for _ in range(100))


@pytest.mark.parametrize("bits", [0, 2**62 - 1])
def test_ids_are_valid_at_their_limits(bits: int) -> None:
    """Ids are never zero; attempts have ids of 16 digits, which differ."""
    numbers = itertools.chain([bits], itertools.repeat(0))
    trace = TraceStart(1.0, lambda _: next(numbers)).begin(None)
    ids = [trace.span_id, *(attempt_id(trace.span_id, number) for number in range(5))]
    assert len(set(ids)) == 6
    assert all(len(each) == 16 and int(each, 16) for each in ids)
    assert int(trace.trace_id, 16) == 1


@pytest.mark.parametrize(("parent", "passed"), [(_SPAN, [b"x-tenant", b"tracestate"]), (None, [b"x-tenant"])])
def test_each_attempt_carries_its_own_span(parent: str | None, passed: list[bytes]) -> None:
    """The call of an attempt names the attempt's span as parent of the replica's spans; other headers go on.

    Without a valid `traceparent`, a `tracestate` has no meaning.
    """
    call = replace(read(chat()).call, headers=((b"x-tenant", b"t"), (b"tracestate", b"a=1")))
    trace = Trace(_TRACE, "00000000000000aa", parent, sampled=parent is None)
    for number, span in enumerate(("00000000000000ab", "00000000000000ac")):
        *others, own = trace.carried_by(call, number).headers
        assert own == (b"traceparent", f"00-{_TRACE}-{span}-0{int(parent is None)}".encode())
        assert [name for name, _ in others] == passed
