"""Whether a replica stops generating when its client leaves, as far as that can be seen from outside.

It can be where the replica tells how many requests it works on: then a long answer is begun, left after its first
content, and the number watched. That is conclusive only if nobody else uses the replica meanwhile. Whoever bills for
cancelled requests cannot be seen at all. Units: seconds, tokens.
"""

import asyncio
import enum
import re
from collections.abc import Awaitable, Callable
from dataclasses import dataclass

from gateway.cli.probe.stream import STREAM_S_MAX, Recording, within
from providers.base import Stream

LONG_TOKENS = 256  # of an answer that must not be over by itself while it is watched

_WATCH_S_MAX = 2.0
_LOOK_S = 0.02
_CLOSED = "closed by us after the first content"


class CancelResult(enum.Enum):
    """What became of an answer that was left."""

    OBEYED = "obeyed"
    NOT_SEEN = "not seen"  # the replica went on counting it
    UNKNOWN = "unknown"


@dataclass(frozen=True, slots=True)
class CancelTest:
    """The outcome, and why it is that."""

    outcome: CancelResult
    text: str


@dataclass(frozen=True, slots=True)
class TokenCounter:
    """Where a kind of replica tells how many requests it works on.

    Attributes:
        path: below the host, without the base URL's /v1.
        number: finds it in the answer, possibly in several lines that add up.
        needs: what the replica must be started with, "" for nothing.
    """

    path: str
    number: re.Pattern[bytes]
    needs: str = ""

    def read(self, document: bytes) -> float | None:
        """The number; None where it does not stand there."""
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
"""By kind; the others tell nothing."""


async def cancel(
    start: Callable[[], tuple[Recording, Stream]],
    count: Callable[[], Awaitable[float | None]] | None,
    gap_s: float,
    blind: str,
) -> CancelTest:
    """Begin an answer of up to LONG_TOKENS and leave after its first content.

    Args:
        start: sends the request.
        count: asks the replica how many requests it works on, which may be unknown; None: there is no way to ask.
        gap_s: between two tokens, as measured before.
        blind: what to say where the replica does not tell.
    """
    before = await count() if count is not None else None
    recording, stream = start()
    try:
        if not await within(STREAM_S_MAX, recording.settled) or recording.error is not None:
            said = f": {recording.error.message}" if recording.error else ""
            return _unknown(f"the answer that was to be left failed{said}")
        if count is None or before is None:
            return _unknown(f"{_CLOSED}; {blind}")
        during = await count()
        if recording.over.is_set():
            return _unknown("the answer was over before it could be left")
    finally:
        stream.abort()
    if before > 0:
        return _unknown(f"{_CLOSED}; the replica works on {before:g} other requests, so its count says nothing")
    if not during:
        return _unknown(f"{_CLOSED}; the replica did not count it while it ran, so its count says nothing")
    return await _watched(count, gap_s * LONG_TOKENS / 2)


async def _watched(count: Callable[[], Awaitable[float | None]], alone_s: float) -> CancelTest:
    """Watch the number fall after the close; an answer that could be over by itself after `alone_s` proves nothing."""
    loop = asyncio.get_running_loop()
    closed_s = loop.time()
    while (waited_s := loop.time() - closed_s) < _WATCH_S_MAX:
        if await count() == 0:
            waited_s = loop.time() - closed_s
            if waited_s < alone_s:
                return CancelTest(CancelResult.OBEYED, f"the replica let go of it within {1000 * waited_s:.0f} ms")
            return _unknown(f"it was over {1000 * waited_s:.0f} ms after the close, perhaps by itself")
        await asyncio.sleep(_LOOK_S)
    return CancelTest(CancelResult.NOT_SEEN, f"{waited_s:.0f} s after the close the replica still counts it")


def _unknown(text: str) -> CancelTest:
    return CancelTest(CancelResult.UNKNOWN, text)
