"""Counters and histograms: their implementation, and the list of them.

Plain numbers of the event loop's thread instead of prometheus_client's. A histogram collects observed values, and
counts them later: putting sorted values into buckets costs a third of a search for each. Independent of the events that
feed them (gateway.observe.recorder) and of the scrape format (gateway.observe.exposition). docs/metrics.md describes
each, and which names are OpenTelemetry's.

Units: seconds, tokens, attempts.
"""

from bisect import bisect_right
from collections.abc import Callable, Iterator, Sequence
from functools import cache
from itertools import islice
from typing import Any, Generic, Protocol, TypeVar

MODEL, OPERATION, REPLICA = "gen_ai_request_model", "gen_ai_operation_name", "replica"
OTHER = "_OTHER"  # OpenTelemetry's name for everything outside of a set

# OpenTelemetry's buckets; TTFT extended to the longest wait for a first content, durations to the total timeout.
_TTFT_S = (0.001, 0.005, 0.01, 0.02, 0.04, 0.06, 0.08, 0.1, 0.25, 0.5, 0.75, 1.0, 2.5, 5.0, 7.5, 10.0, 30.0, 120.0)
_DURATION_S = (0.01, 0.02, 0.04, 0.08, 0.16, 0.32, 0.64, 1.28, 2.56, 5.12, 10.24, 20.48, 40.96, 81.92, 600.0)
_PER_TOKEN_S = (0.01, 0.025, 0.05, 0.075, 0.1, 0.15, 0.2, 0.3, 0.4, 0.5, 0.75, 1.0, 2.5)
_OVERHEAD_S = (0.0001, 0.00025, 0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.1, 1.0)
_QUEUE_S = (0.01, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0)
_SHARE_S = (0.0005, 0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1)  # replies after 90 ms are late
_ATTEMPT_S = (0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0)  # few buckets: there are many replicas

_PART_SERIES = 100  # that are dumped or added in one piece, about 0.5 ms
_VALUES_MAX = 256  # that a histogram has observed and not counted

Line = tuple[str, dict[str, str], float]
"""Sample name, labels, value."""

Dump = dict[str, list[tuple[tuple[str, ...], list[float]]]]
"""The series of every metric by its name, each with its label values and numbers, which add up over processes."""


class Series(Protocol):
    """One series of a metric."""

    @property
    def is_shown(self) -> bool:
        """True if it is exported."""

    def show(self) -> None:
        """Export it, also before it has counted anything."""

    def lines(self, name: str, labels: dict[str, str]) -> Iterator[Line]:
        """Return the samples for a scrape."""

    def dump(self) -> list[float]:
        """Return what was counted, as plain numbers."""

    def add(self, numbers: Sequence[float]) -> None:
        """Add what another series has counted."""


class Counter:
    """One series of a counter.

    Args:
        from_zero: True if it is exported before it has counted anything.
    """

    __slots__ = ("_from_zero", "value")

    def __init__(self, *, from_zero: bool = False) -> None:
        self._from_zero = from_zero
        self.value = 0.0

    @property
    def is_shown(self) -> bool:
        return self._from_zero or bool(self.value)

    def show(self) -> None:
        self._from_zero = True

    def lines(self, name: str, labels: dict[str, str]) -> Iterator[Line]:
        if self.is_shown:
            yield f"{name}_total", labels, self.value

    def dump(self) -> list[float]:
        return [self.value]

    def add(self, numbers: Sequence[float]) -> None:
        self.value += numbers[0]


class Histogram:
    """One series of a histogram.

    Args:
        bounds: upper bounds of the buckets, rising; a value equal to a bound is in its bucket.
    """

    __slots__ = ("_bounds", "_cumulated", "_sum", "_values")
    is_shown = True

    def __init__(self, bounds: tuple[float, ...]) -> None:
        self._bounds = bounds
        self._cumulated = [0] * (len(bounds) + 1)
        self._sum = 0.0
        self._values: list[float] = []

    def show(self) -> None:
        """Do nothing: it is exported from its first observation on."""

    def observe(self, *values: float) -> None:
        """Take values; they are counted later."""
        self._values += values
        if len(self._values) >= _VALUES_MAX:
            self._fold()

    def _fold(self) -> None:
        """Count the observed values."""
        values, total = self._values, self._sum
        if values:
            for value in values:  # sum() of Python 3.12 rounds otherwise
                total += value
            self._sum = total
            values.sort()
            for index, bound in enumerate(self._bounds):
                self._cumulated[index] += bisect_right(values, bound)
            self._cumulated[-1] += len(values)
            values.clear()

    def lines(self, name: str, labels: dict[str, str]) -> Iterator[Line]:
        self._fold()
        counts, total = self._cumulated.copy(), self._sum  # a consistent copy: a scrape may pause between two lines
        for bound, count in zip(_bound_labels(self._bounds), counts, strict=True):
            yield f"{name}_bucket", {**labels, "le": bound}, count
        yield f"{name}_count", labels, counts[-1]
        yield f"{name}_sum", labels, total

    def dump(self) -> list[float]:
        self._fold()
        return [*self._cumulated, self._sum]

    def add(self, numbers: Sequence[float]) -> None:
        *counts, total = numbers
        self._cumulated = [own + int(count) for own, count in zip(self._cumulated, counts, strict=True)]
        self._sum += total


@cache
def _bound_labels(bounds: tuple[float, ...]) -> tuple[str, ...]:
    """Return bounds as label values; cached, because there are only the sets above."""
    return (*map(repr, bounds), "+Inf")


T = TypeVar("T", bound=Series)


class Family(Generic[T]):
    """A metric with its series.

    Attributes:
        name: name without a counter's `_total`.
        text: help text, one line.
        kind: "counter" or "histogram".
        labels: names of the labels.
        lines_max: number of samples of a series, at most.
    """

    def __init__(
        self, name: str, text: str, kind: str, make: Callable[[], T], labels: tuple[str, ...], lines_max: int = 1
    ) -> None:
        self.name, self.text, self.kind, self.labels, self.lines_max = name, text, kind, labels, lines_max
        self._make = make
        self._series: dict[tuple[str, ...], T] = {}
        self._owned: dict[tuple[str, str | None], list[tuple[str, ...]]] = {}  # by model and replica
        self._model_at = labels.index(MODEL) if MODEL in labels else None
        self._replica_at = labels.index(REPLICA) if REPLICA in labels else None

    def at(self, *values: str) -> T:
        """Return the series with these label values, created on first use."""
        series = self._series.get(values)
        if series is None:
            series = self._series[values] = self._make()
            if self._model_at is not None:
                replica = None if self._replica_at is None else values[self._replica_at]
                self._owned.setdefault((values[self._model_at], replica), []).append(values)
        return series

    def forget(self, model: str, replica: str | None) -> None:
        """Drop the series of a replica, with None the series of a model that are of no replica."""
        for values in self._owned.pop((model, replica), ()):
            del self._series[values]

    def all(self) -> list[T]:
        """Return all series."""
        return list(self._series.values())

    def items(self) -> Iterator[tuple[tuple[str, ...], T]]:
        """Yield the series that are here now with their label values; one that is dropped meanwhile is left out."""
        for values in tuple(self._series):
            if (series := self._series.get(values)) is not None:
                yield values, series

    def drop_parts(self) -> Iterator[None]:
        """Drop all series; yields after each part, because all at once would hold the event loop."""
        for held in (self._owned, self._series):
            while held:
                for _ in range(min(_PART_SERIES, len(held))):
                    held.popitem()
                yield

    @property
    def count(self) -> int:
        """Number of series."""
        return len(self._series)

    def has(self, values: tuple[str, ...]) -> bool:
        """Return True if there is a series with these label values."""
        return values in self._series

    def share(self, other: "Family[Any]") -> None:
        """Use the series that the same metric has elsewhere, instead of own ones."""
        self._series = dict(other.items())

    def lines(self) -> Iterator[Line | None]:
        """Return the samples of all series, and None after each; a new series is in the next scrape."""
        for values, series in self.items():
            if series.is_shown:
                yield from series.lines(self.name, dict(zip(self.labels, values, strict=True)))
            yield None

    def dump(self) -> list[tuple[tuple[str, ...], list[float]]]:
        """Return the numbers of all series."""
        return [(values, series.dump()) for values, series in self._series.items()]

    def dump_parts(self) -> Iterator[list[tuple[tuple[str, ...], list[float]]]]:
        """Yield the same in parts."""
        items = self.items()
        while part := list(islice(items, _PART_SERIES)):
            yield [(values, series.dump()) for values, series in part]

    def add(self, rows: Sequence[tuple[tuple[str, ...], list[float]]]) -> None:
        """Add the numbers of series with the same labels."""
        for values, numbers in rows:
            self.at(*values).add(numbers)


def _counter(name: str, text: str, *labels: str, from_zero: bool = False) -> Family[Counter]:
    return Family(name, text, "counter", lambda: Counter(from_zero=from_zero), labels)


def _histogram(name: str, text: str, bounds: tuple[float, ...], *labels: str) -> Family[Histogram]:
    return Family(name, text, "histogram", lambda: Histogram(bounds), labels, len(bounds) + 3)


def _attempt_time(event: str, text: str) -> Family[Histogram]:
    name = f"ttft_gateway_attempt_{event}_seconds"
    return _histogram(name, f"Time from an attempt's start to {text}", _ATTEMPT_S, MODEL, REPLICA)


class Instruments:
    """Every counter and histogram, in the order of docs/metrics.md.

    Attributes:
        before_read: called before the metrics are read.
    """

    def __init__(self) -> None:
        self.before_read: Callable[[], object] = bool
        call, attempt = (OPERATION, MODEL), (MODEL, REPLICA)
        self.ttft = _histogram(
            "gen_ai_server_time_to_first_token_seconds", "Time from arrival to first content", _TTFT_S, *call, "result"
        )
        self.duration = _histogram(
            "gen_ai_server_request_duration_seconds",
            "Time from arrival to the end of the response",
            _DURATION_S,
            *call,
            "error_type",
        )
        self.per_token = _histogram(
            "gen_ai_server_time_per_output_token_seconds",
            "Mean time per output token after the first",
            _PER_TOKEN_S,
            *call,
        )
        self.overhead = _histogram(
            "ttft_gateway_overhead_seconds",
            "Time from arrival to the first attempt, without the time in a queue",
            _OVERHEAD_S,
        )
        self.requests = _counter(
            "ttft_gateway_requests", "Requests that reached a replica", *call, "status_class", "error_type", "result"
        )
        self.passed = _counter(
            "ttft_gateway_passed_requests", "Requests passed on to one replica", MODEL, "route", "status_class"
        )
        self.rejected = _counter("ttft_gateway_rejected_requests", "Requests rejected by the gateway", "code")
        self.queue = _histogram(
            "ttft_gateway_queue_seconds", "Time in the model's queue, of queued requests", _QUEUE_S, MODEL
        )
        self.malformed = _counter("ttft_gateway_malformed_events", "Malformed upstream events that were skipped", MODEL)
        self.hedges_fired = _counter(
            "ttft_gateway_hedges_fired", "Backups started, by the replica that was late", MODEL, REPLICA
        )
        self.hedges = _counter("ttft_gateway_hedges", "Backups that have ended", MODEL, "result")
        self.shadow = _counter("ttft_gateway_shadow_hedges", "Hedges that were decided and not sent", MODEL, "reason")
        self.shadow_tokens = _counter("ttft_gateway_shadow_tokens", "Tokens that they would have cost", MODEL)
        self.shadow_wait = _histogram(
            "ttft_gateway_shadow_wait_seconds", "Time from a hedge that was not sent to the first token", _TTFT_S, MODEL
        )
        self.denials = _counter("ttft_gateway_hedges_denied", "Late requests that were denied a hedge", MODEL, "reason")
        self.recoveries = _counter(
            "ttft_gateway_recoveries", "Attempts to continue a broken stream", MODEL, "kind", "result"
        )
        self.guards = _counter(
            "ttft_gateway_guards", "Attempts sent beside a stream that was silent or slow", MODEL, "cause", "result"
        )
        self.attempts = _counter(
            "ttft_gateway_attempts", "Upstream attempts that have ended", *attempt, "role", "outcome"
        )
        self.headers = _attempt_time("headers", "its response headers")
        self.work = _attempt_time("work", "the sign of work that was timed as its first token")
        self.content = _attempt_time("content", "its first content")
        self.wasted = _counter("ttft_gateway_wasted_attempts", "Attempts that lost their race", *attempt)
        completed = "Attempts that lost their race after the end of their answer"
        self.wasted_completions = _counter("ttft_gateway_wasted_completions", completed, *attempt)
        lost = "Time spent by attempts that lost their race"
        self.wasted_s = _counter("ttft_gateway_wasted_seconds", lost, *attempt, from_zero=True)
        self._add_of_tokens()
        self._add_of_the_gateway()

    def _add_of_tokens(self) -> None:
        """Add the metrics of usage and money."""
        call, attempt = (OPERATION, MODEL), (MODEL, REPLICA)
        usage = "gen_ai_client_inference_usage"
        self.input = _counter(f"{usage}_input_tokens", "Prompt tokens, including cached ones", *call, REPLICA)
        self.cached = _counter(f"{usage}_cache_read_input_tokens", "Cached prompt tokens", *call, REPLICA)
        self.output = _counter(f"{usage}_output_tokens", "Completion tokens, including reasoning", *call, REPLICA)
        self.reasoning = _counter(f"{usage}_reasoning_output_tokens", "Reasoning tokens", *call, REPLICA)
        billed = (*attempt, "disposition")
        tokens, cost = "Tokens that are, or may be, billed", "Cost of the billed tokens, on replicas with prices"
        self.billed = _counter("ttft_gateway_billed_tokens", tokens, *billed, "token", from_zero=True)
        self.cost = _counter("ttft_gateway_cost", cost, *billed, from_zero=True)
        usual = "Cost of the answers on the usual tier of their provider, on replicas with tiers"
        self.usual_cost = _counter("ttft_gateway_usual_cost", usual, MODEL, from_zero=True)

    def _add_of_the_gateway(self) -> None:
        """Add the metrics that belong to no attempt."""
        self.key_requests = _counter("ttft_gateway_key_requests", "Requests by key", "key", "status_class")
        self.previous_keys = _counter(
            "ttft_gateway_previous_key_requests", "Requests with the previous secret of a key", "key"
        )
        self.reloads = _counter("ttft_gateway_config_reloads", "Reloads of the configuration", "result")
        self.accept_stops = _counter("ttft_gateway_accept_stops", "Times that accepting connections began to fail")
        self.component_failures = _counter(
            "ttft_gateway_component_failures", "Exceptions in components, which were bypassed", "component"
        )
        self.share_asks = _counter("ttft_gateway_share_asks", "Batches of asks by result", "result", from_zero=True)
        self.share_ask = _histogram("ttft_gateway_share_ask_seconds", "Time to the replies that came in time", _SHARE_S)
        self.share_aways = _counter(
            "ttft_gateway_share_away", "Times at which the engine was found to be away", from_zero=True
        )

    def dump(self) -> Dump:
        """Return everything that was counted."""
        return {family.name: family.dump() for family in self.families()}

    def dump_parts(self) -> Iterator[Dump]:
        """Yield everything that was counted, in parts of which none takes long; together they are no one moment."""
        for family in self.families():
            for rows in family.dump_parts():
                yield {family.name: rows}

    def add(self, dump: Dump) -> None:
        """Add what another process has counted."""
        for _ in self.add_parts(dump):
            pass

    def add_parts(self, dump: Dump) -> Iterator[None]:
        """Do the same; yields after each part, so that the event loop can go on."""
        for family in self.families():
            rows = dump.get(family.name, ())
            for begin in range(0, len(rows), _PART_SERIES):
                family.add(rows[begin : begin + _PART_SERIES])
                yield

    def drop_parts(self) -> Iterator[None]:
        """Drop everything that was counted; yields after each part, so that the event loop can go on."""
        for family in self.families():
            yield from family.drop_parts()

    def families(self) -> Iterator[Family[Counter] | Family[Histogram]]:
        """Return all metrics."""
        self.before_read()
        return (each for each in vars(self).values() if isinstance(each, Family))
