"""What a probe found out about a replica, as a table for people and as JSON. Pure.

Texts that come from a replica are cleaned before they are shown: no control characters, no key, not too long.
Units: seconds inside, milliseconds where they are shown.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from itertools import pairwise
from statistics import median

from gateway.cli.probe.cancel import CancelTest
from gateway.cli.probe.quirks import Observation, Quirk, is_trap, quirks
from gateway.cli.probe.stream import Recording

_TEXT_MAX = 300
_LIMITS_MAX = 32
_LIMIT_HEADERS = ("ratelimit", "rate-limit", "tokenlimit", "retry-after")
_TIMES = ("connect", "headers", "byte", "content", "gap")


@dataclass(frozen=True, slots=True)
class Times:
    """Medians; None: not measured.

    Attributes:
        connect_s: a new connection, name look-up and TLS included.
        headers_s, byte_s, content_s: head, first byte of the body and first content, after the request was written.
        gap_s: between two content events.
    """

    connect_s: float | None = None
    headers_s: float | None = None
    byte_s: float | None = None
    content_s: float | None = None
    gap_s: float | None = None

    def shown(self) -> dict[str, float | None]:
        """In milliseconds, by the name of the table's column."""
        every = zip(_TIMES, (self.connect_s, self.headers_s, self.byte_s, self.content_s, self.gap_s), strict=True)
        return {name: None if value_s is None else round(1000 * value_s, 2) for name, value_s in every}


@dataclass(frozen=True, slots=True)
class ProbeReport:
    """What was found out about one replica.

    Attributes:
        model, replica, kind: which one it is.
        error: how it failed and what to do, None if it did not.
        streams: whole answers that were measured.
        times: of them.
        limits: rate-limit headers as they came last.
        cancel: what became of the answer that was left, None if there was none.
        quirks: of its streams.
    """

    model: str
    replica: str
    kind: str
    error: str | None
    streams: int
    times: Times
    limits: Mapping[str, str]
    cancel: CancelTest | None
    quirks: Sequence[Quirk]

    @property
    def trap(self) -> bool | None:
        """Whether headers come long before content; None: not measured."""
        times = self.times
        return None if times.headers_s is None or times.content_s is None else is_trap(times.headers_s, times.content_s)


def cleaned(text: str, secrets: Sequence[str]) -> str:
    """A text of a replica as it may be shown."""
    for secret in secrets:
        text = text.replace(secret, "****")
    text = "".join(char if char.isprintable() else " " for char in text)
    return f"{text[:_TEXT_MAX]}..." if len(text) > _TEXT_MAX else text


def times_of(recordings: Sequence[Recording]) -> Times:
    """The medians of whole answers; connections count in any case."""
    whole = [each for each in recordings if each.error is None]
    return Times(
        connect_s=_median(each.connect_s for each in recordings),
        headers_s=_median(_after(each, each.headers_s) for each in whole),
        byte_s=_median(_after(each, each.byte_s) for each in whole),
        content_s=_median(_after(each, each.contents_s[0]) for each in whole),
        gap_s=_median(b_s - a_s for each in whole for a_s, b_s in pairwise(each.contents_s)),
    )


def quirks_of(recordings: Sequence[Recording]) -> list[Quirk]:
    """What is particular about whole answers, and about connections."""
    found = quirks([_seen(each) for each in recordings if each.error is None])
    connections = sum(each.connect_s is not None for each in recordings)
    if connections > 1:
        found.append(Quirk("no_keep_alive", f"{len(recordings)} requests in turn took {connections} connections"))
    return found


def limits_of(recording: Recording) -> dict[str, str]:
    """The rate-limit headers of an answer."""
    texts = [(name.decode("latin-1"), value.decode("latin-1")) for name, value in recording.headers]
    found = [(name, value) for name, value in texts if any(part in name for part in _LIMIT_HEADERS)]
    return dict(found[:_LIMITS_MAX])


def table(reports: Sequence[ProbeReport]) -> list[str]:
    """A line for each replica below a header."""
    names = [f"{report.model}/{report.replica}" for report in reports]
    width = max(7, *map(len, names))
    rows: list[tuple[str, ...]] = [("ms", *_TIMES, "trap", "cancel")]
    for name, report in zip(names, reports, strict=True):
        times = ["-" if value is None else f"{value:.1f}" for value in report.times.shown().values()]
        trap = "-" if report.trap is None else "yes" if report.trap else "no"
        cancel = "-" if report.cancel is None else report.cancel.outcome.value
        rows.append((name, *times, trap, "FAILED" if report.error else cancel))
    return [f"{name:<{width}}" + "".join(f"{cell:>9}" for cell in cells) for name, *cells in rows]


def details(report: ProbeReport) -> Iterator[str]:
    """What the table has no room for."""
    yield f"{report.model}/{report.replica} ({report.kind})"
    if report.error is not None:
        yield f"  failed: {report.error}"
    if report.limits:
        yield f"  limits: {', '.join(f'{name}: {value}' for name, value in report.limits.items())}"
    if report.cancel is not None:
        yield f"  cancel: {report.cancel.outcome.value}: {report.cancel.text}"
    for quirk in report.quirks:
        yield f"  {quirk.name}: {quirk.text}"


def as_json(report: ProbeReport) -> dict[str, object]:
    """The same for programs."""
    cancel = report.cancel
    return {
        "model": report.model,
        "replica": report.replica,
        "kind": report.kind,
        "ok": report.error is None,
        "error": report.error,
        "streams": report.streams,
        **{f"{name}_ms": value for name, value in report.times.shown().items()},
        "ttfb_trap": report.trap,
        "limits": dict(report.limits),
        "cancel": None if cancel is None else {"outcome": cancel.outcome.value, "text": cancel.text},
        "quirks": [asdict(quirk) for quirk in report.quirks],
    }


def _seen(recording: Recording) -> Observation:
    return Observation(
        headers=recording.headers,
        body=bytes(recording.body),
        asked_usage=recording.asked_usage,
        headers_s=_after(recording, recording.headers_s) or 0.0,
        content_s=_after(recording, recording.contents_s[0]) or 0.0,
        contents=len(recording.contents_s),
        reads=recording.reads,
    )


def _after(recording: Recording, time_s: float | None) -> float | None:
    return None if time_s is None else time_s - recording.sent_s


def _median(values: Iterator[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return median(known) if known else None
