"""Results of a probe, as a table and as JSON. Pure.

Texts from a replica are cleaned before they are shown: no control characters, no key, limited length.
Units: seconds; milliseconds in output.
"""

from collections.abc import Iterator, Mapping, Sequence
from itertools import pairwise
from statistics import median

import msgspec
from msgspec.structs import asdict

from gateway.cli.probe.cancel import CancelTest
from gateway.cli.probe.quirks import Observation, Quirk, is_trap, quirks
from gateway.cli.probe.signs import SignTest
from gateway.cli.probe.stream import Recording

_TEXT_MAX = 300
_LIMITS_MAX = 32
_LIMIT_HEADERS = ("ratelimit", "rate-limit", "tokenlimit", "retry-after")
_TIMES = ("connect", "headers", "byte", "content", "gap")


class Times(msgspec.Struct, frozen=True):
    """Median times; None if not measured.

    Attributes:
        connect_s: time to open a connection, name look-up and TLS included.
        headers_s, byte_s, content_s: times from the written request to the headers, first byte and first content.
        gap_s: time between two content events.
    """

    connect_s: float | None = None
    headers_s: float | None = None
    byte_s: float | None = None
    content_s: float | None = None
    gap_s: float | None = None

    @property
    def trap(self) -> bool | None:
        """True if headers arrive long before content; None if not measured."""
        return None if self.headers_s is None or self.content_s is None else is_trap(self.headers_s, self.content_s)

    def as_ms(self) -> dict[str, float | None]:
        """Return the times in milliseconds, by column of the table."""
        every = zip(_TIMES, (self.connect_s, self.headers_s, self.byte_s, self.content_s, self.gap_s), strict=True)
        return {name: None if value_s is None else round(1000 * value_s, 2) for name, value_s in every}


class ProbeReport(msgspec.Struct, frozen=True):
    """Results of one replica.

    Attributes:
        model, replica, kind: name of the model, name and kind of the replica.
        error: failure and correction; None without failure.
        streams: number of complete answers.
        times: median times of these answers.
        limits: rate-limit headers of the last response.
        cancel: result of the cancel test; None if it was not run.
        quirks: quirks of the streams.
        signs: signs of work, for each API that has them.
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
    signs: Sequence[SignTest] = ()


def cleaned(text: str, secrets: Sequence[str]) -> str:
    """Return a text of a replica without secrets and control characters, and of limited length."""
    for secret in secrets:
        text = text.replace(secret, "****")
    text = "".join(char if char.isprintable() else " " for char in text)
    return f"{text[:_TEXT_MAX]}..." if len(text) > _TEXT_MAX else text


def times_of(recordings: Sequence[Recording]) -> Times:
    """Return the medians of complete answers; of connections, the median of all."""
    complete = [each for each in recordings if each.error is None]
    return Times(
        connect_s=_median(each.connect_s for each in recordings),
        headers_s=_median(_after(each, each.headers_s) for each in complete),
        byte_s=_median(_after(each, each.byte_s) for each in complete),
        content_s=_median(_after(each, each.contents_s[0]) for each in complete),
        gap_s=_median(b_s - a_s for each in complete for a_s, b_s in pairwise(each.contents_s)),
    )


def quirks_of(recordings: Sequence[Recording]) -> list[Quirk]:
    """Return the quirks of complete answers, of their median times, and of connections."""
    found = quirks([_observation(each) for each in recordings if each.error is None])
    times = times_of(recordings)
    if times.trap and times.headers_s is not None and times.content_s is not None:
        lead_ms = 1000 * (times.content_s - times.headers_s)
        text = f"headers arrive {lead_ms:.0f} ms before the first content, so they do not predict it"
        found.insert(0, Quirk("ttfb_trap", text))
    connections = sum(each.connect_s is not None for each in recordings)
    if connections > 1:
        found.append(Quirk("no_keep_alive", f"{len(recordings)} consecutive requests needed {connections} connections"))
    return found


def limits_of(recording: Recording) -> dict[str, str]:
    """Return the rate-limit headers of a response."""
    texts = [(name.decode("latin-1"), value.decode("latin-1")) for name, value in recording.headers]
    found = [(name, value) for name, value in texts if any(part in name for part in _LIMIT_HEADERS)]
    return dict(found[:_LIMITS_MAX])


def table(reports: Sequence[ProbeReport]) -> list[str]:
    """Return a header and a line for each replica."""
    names = [f"{report.model}/{report.replica}" for report in reports]
    width = max(7, *map(len, names))
    rows: list[tuple[str, ...]] = [("ms", *_TIMES, "trap", "cancel")]
    for name, report in zip(names, reports, strict=True):
        times = ["-" if value is None else f"{value:.1f}" for value in report.times.as_ms().values()]
        trap = "-" if report.times.trap is None else "yes" if report.times.trap else "no"
        cancel = "-" if report.cancel is None else report.cancel.outcome.value
        rows.append((name, *times, trap, "FAILED" if report.error else cancel))
    return [f"{name:<{width}}" + "".join(f"{cell:>9}" for cell in cells) for name, *cells in rows]


def details(report: ProbeReport) -> Iterator[str]:
    """Return the results that are not in the table."""
    yield f"{report.model}/{report.replica} ({report.kind})"
    if report.error is not None:
        yield f"  failed: {report.error}"
    if report.limits:
        yield f"  limits: {', '.join(f'{name}: {value}' for name, value in report.limits.items())}"
    if report.cancel is not None:
        yield f"  cancel: {report.cancel.outcome.value}: {report.cancel.text}"
    for sign in report.signs:
        yield f"  sign of work ({sign.api.value}): {sign}"
    for quirk in report.quirks:
        yield f"  {quirk.name}: {quirk.text}"


def as_json(report: ProbeReport) -> dict[str, object]:
    """Return the results as JSON-ready values."""
    cancel = report.cancel
    return {
        "model": report.model,
        "replica": report.replica,
        "kind": report.kind,
        "ok": report.error is None,
        "error": report.error,
        "streams": report.streams,
        **{f"{name}_ms": value for name, value in report.times.as_ms().items()},
        "ttfb_trap": report.times.trap,
        "limits": dict(report.limits),
        "cancel": None if cancel is None else {"outcome": cancel.outcome.value, "text": cancel.text},
        "signs_of_work": {
            sign.api.value: {
                "after_headers_ms": None if sign.after_headers_s is None else round(1000 * sign.after_headers_s, 2),
                "informative": sign.informative,
                "error": sign.error,
            }
            for sign in report.signs
        },
        "quirks": [asdict(quirk) for quirk in report.quirks],
    }


def _observation(recording: Recording) -> Observation:
    return Observation(
        headers=recording.headers,
        body=bytes(recording.body),
        asked_usage=recording.asked_usage,
        contents=len(recording.contents_s),
        reads=recording.reads,
    )


def _after(recording: Recording, time_s: float | None) -> float | None:
    return None if time_s is None else time_s - recording.sent_s


def _median(values: Iterator[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return median(known) if known else None
