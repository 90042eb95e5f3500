"""Test of cancellation: does a replica stop generating when the client disconnects?

The test needs a replica that reports its number of running requests. It starts a long answer, disconnects after the
first content, and polls that number. A fall of the number proves nothing if the answer would have ended by then: the
same request, not cancelled, must run for longer. The result is conclusive only if the replica has no other client
during the test. The billing of cancelled requests cannot be observed. Units: seconds, tokens.
"""

import asyncio
import enum
import re
from collections.abc import Awaitable, Callable

import msgspec

from gateway.cli.fetch import within
from gateway.cli.probe.stream import STREAM_S_MAX, Recording
from ttft_gateway.apis.base import Stream

LONG_TOKENS = 256  # of the long answer

_POLL_S_MAX = 2.0
_POLL_INTERVAL_S = 0.02
_OUTLASTS = 2.0  # duration of an answer that is not cancelled, as a multiple of the cancelled one's
_CLOSED = "closed after the first content"


class CancelResult(enum.Enum):
    """Result of a cancel test."""

    OBEYED = "obeyed"
    NOT_SEEN = "not seen"  # the replica still counted the request
    UNKNOWN = "unknown"


class CancelTest(msgspec.Struct, frozen=True):
    """Result of a cancel test, and the reason."""

    outcome: CancelResult
    text: str


class TokenCounter(msgspec.Struct, frozen=True):
    """Source of a replica's number of running requests.

    Attributes:
        path: path of the document, relative to the base URL without /v1.
        number: pattern of the number; several matches are added up.
        needs: option that the replica must be started with, "" for none.
    """

    path: str
    number: re.Pattern[bytes]
    needs: str = ""

    def read(self, document: bytes) -> float | None:
        """Return the number; None if the document does not contain it."""
        found = self.number.findall(document)
        try:
            return sum(map(float, found)) if found else None
        except ValueError:
            return None


def _metric(name: str) -> re.Pattern[bytes]:
    return re.compile(rb"^%b(?:\{.*\})? (\S+)$" % name.encode(), re.MULTILINE)


COUNTERS = {
    "vllm": TokenCounter("/metrics", _metric("vllm:num_requests_running")),
    "sglang": TokenCounter("/metrics", _metric("sglang:num_running_reqs"), "--enable-metrics"),
    "tgi": TokenCounter("/metrics", _metric("tgi_batch_current_size")),
    "llamacpp": TokenCounter("/metrics", _metric("llamacpp:requests_processing"), "--metrics"),
    "simulated": TokenCounter("/sim/stats?records=0", re.compile(rb'"in_flight":\s*(\d+)')),
}
"""Counter of each kind that has one."""


async def cancel(
    start: Callable[[], tuple[Recording, Stream]],
    count: Callable[[], Awaitable[float | None]] | None,
    no_count: str,
) -> CancelTest:
    """Start an answer of up to LONG_TOKENS, and disconnect after the first content.

    Args:
        start: sends the request; called again for an answer that is not cancelled.
        count: returns the replica's number of running requests, None if unknown; None if the kind has no counter.
        no_count: explanation for the case that the number is unknown.
    """
    before = await count() if count is not None else None
    recording, stream = start()
    try:
        if not await within(STREAM_S_MAX, recording.settled) or recording.error is not None:
            reason = f": {recording.error.message}" if recording.error else ""
            return _unknown(f"the answer for the test failed{reason}")
        begun_s = asyncio.get_running_loop().time()
        if count is None or before is None:
            return _unknown(f"{_CLOSED}; {no_count}")
        during = await count()
        if recording.over.is_set():
            return _unknown("the answer ended before the connection could be closed")
    finally:
        stream.abort()
    if before > 0:
        return _unknown(f"{_CLOSED}; the replica has {before:g} other requests, so its count is not conclusive")
    if not during:
        return _unknown(
            f"{_CLOSED}; the replica did not count the request while it ran, so its count is not conclusive"
        )
    stopped_s = await _stopped_s(count)
    if stopped_s is None:
        text = f"the replica still counts the request {_POLL_S_MAX:.0f} s after the close"
        return CancelTest(CancelResult.NOT_SEEN, text)
    if await _outlasts(start, _OUTLASTS * (asyncio.get_running_loop().time() - begun_s)):
        return CancelTest(CancelResult.OBEYED, f"the replica stopped within {1000 * stopped_s:.0f} ms")
    return _unknown(
        f"the request ended {1000 * stopped_s:.0f} ms after the close, and without a close it takes no longer"
    )


async def _stopped_s(count: Callable[[], Awaitable[float | None]]) -> float | None:
    """Return the time from now until the replica counts no request; None if that takes too long."""
    loop = asyncio.get_running_loop()
    closed_s = loop.time()
    while loop.time() < closed_s + _POLL_S_MAX:
        if await count() == 0:
            return loop.time() - closed_s
        await asyncio.sleep(_POLL_INTERVAL_S)
    return None


async def _outlasts(start: Callable[[], tuple[Recording, Stream]], least_s: float) -> bool:
    """Return True if an answer that is not cancelled goes on for this time after its first content."""
    recording, stream = start()
    try:
        await within(STREAM_S_MAX, recording.settled)
        return not await within(least_s, recording.over)
    finally:
        stream.abort()


def _unknown(text: str) -> CancelTest:
    return CancelTest(CancelResult.UNKNOWN, text)
