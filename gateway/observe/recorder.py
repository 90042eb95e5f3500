"""Feeds the counters and histograms from events.

Runs once for every request, so the series of a model and of its replicas are looked up once. Every label value comes
from the configuration or from a closed set: errors may carry an upstream's own code, which is replaced by one word.

Units: seconds, tokens.
"""

from dataclasses import dataclass
from functools import cache

from gateway.errors import GatewayError
from gateway.events import (
    AcceptingChanged,
    AttemptReport,
    ComponentFailed,
    ConfigReloaded,
    Event,
    HedgeFired,
    RequestEnded,
    RequestRejected,
    Result,
    Role,
)
from gateway.hedging.charges import Charge, Disposition
from gateway.hedging.outcomes import Outcome
from gateway.observe.instruments import Counter, Histogram, Instruments
from providers.base import Api, Usage
from providers.errors import UpstreamError

_OPERATIONS = {  # OpenTelemetry's names
    Api.CHAT: "chat",
    Api.COMPLETIONS: "text_completion",
    Api.RESPONSES: "chat",
    Api.MESSAGES: "chat",
    Api.EMBEDDINGS: "embeddings",
    Api.RERANK: "rerank",
    Api.MODERATIONS: "moderations",
    Api.TOKENIZE: "tokenize",
}
_OTHER = "_OTHER"  # OpenTelemetry's name for an error outside of the closed set
_CODES_MAX = 64  # the gateway has fewer; bounds the labels if a code ever contains a client's input
_KEY_SERIES_MAX = 1_000  # names and classes of status; requests of further keys count as _OTHER
_RAISED_CODES = (  # codes set where an error is raised; the rest are in the error classes
    "client_gone",
    "upstream_cut",
    "upstream_empty",
    "upstream_error",
    "upstream_misconfigured",
    "upstream_protocol_error",
    "upstream_rejected",
    "upstream_timeout",
    # the providers' most frequent codes
    "content_filter",
    "context_length_exceeded",
    "insufficient_quota",
    "invalid_request_error",
    "rate_limit_error",
    "rate_limit_exceeded",
    "server_error",
)


class Recorder:
    """Feeds the counters and histograms from events, with the series of each model looked up once."""

    def __init__(self, instruments: Instruments) -> None:
        self._instruments = instruments
        self._models: dict[tuple[str, Api], _ModelSeries] = {}
        self._codes: set[str | None] = set()
        self._keys: dict[tuple[str, int], Counter] = {}

    def on_event(self, event: Event) -> None:
        """Count one event (a `gateway.events.Listener`)."""
        if isinstance(event, RequestEnded):
            key = (event.model, event.api)
            series = self._models.get(key)
            if series is None:
                series = self._models[key] = _ModelSeries(self._instruments, event.model, _OPERATIONS[event.api])
            series.record(event)
            self._count_key(event.key_name, event.status)
        elif isinstance(event, HedgeFired):
            self._instruments.hedges_fired.at(event.model).value += 1
        elif isinstance(event, RequestRejected):
            if len(self._codes) < _CODES_MAX:
                self._codes.add(event.code)
            code = event.code if event.code in self._codes else _OTHER
            self._instruments.rejected.at(code or "").value += 1
            if event.key_name is not None:
                self._count_key(event.key_name, event.status)
            if event.queued_s and event.model is not None:
                self._instruments.queue.at(event.model).observe(event.queued_s)
        elif isinstance(event, ComponentFailed):
            self._instruments.component_failures.at(event.component).value += 1
        elif isinstance(event, ConfigReloaded):
            self._instruments.reloads.at("applied" if event.error is None else "rejected").value += 1
        elif isinstance(event, AcceptingChanged) and not event.accepting:
            self._instruments.accept_stops.at().value += 1

    def _count_key(self, key_name: str, status: int) -> None:
        series = self._keys.get((key_name, status // 100))
        if series is None:
            name = key_name if len(self._keys) < _KEY_SERIES_MAX else _OTHER
            series = self._instruments.key_requests.at(name, f"{status // 100}xx")
            if name is key_name:
                self._keys[(key_name, status // 100)] = series
        series.value += 1


@dataclass(frozen=True, slots=True)
class _EndSeries:
    requests: Counter
    duration: Histogram
    ttft: Histogram


class _ModelSeries:
    """The series of one model under one API."""

    __slots__ = ("_call", "_instruments", "_overhead", "_per_token", "_replicas", "_series_by_end")

    def __init__(self, instruments: Instruments, model: str, operation: str) -> None:
        self._instruments = instruments
        self._call = (operation, model)
        self._overhead = instruments.overhead.at()
        self._per_token = instruments.per_token.at(operation, model)
        self._series_by_end: dict[tuple[int, str, Result], _EndSeries] = {}
        self._replicas: dict[str, _ReplicaSeries] = {}

    def record(self, event: RequestEnded) -> None:
        end = self._end_series(event)
        end.requests.value += 1
        end.duration.observe(event.total_s)
        self._overhead.observe(event.gateway_s)
        if event.ttft_s is not None:
            end.ttft.observe(event.ttft_s)
            tokens = event.usage.completion_tokens if event.usage is not None else None
            if tokens is not None and tokens > 1 and event.error is None:
                self._per_token.observe((event.total_s - event.ttft_s) / (tokens - 1))
        for attempt in event.attempts:
            replica = self._replicas.get(attempt.replica)
            if replica is None:
                replica = self._replicas[attempt.replica] = _ReplicaSeries(
                    self._instruments, *self._call, attempt.replica
                )
            replica.record(attempt)
            if attempt.role is Role.BACKUP:
                self._instruments.hedges.at(self._call[1], _hedge_result(attempt, event.winner)).value += 1
        for reason in event.denials:
            self._instruments.denials.at(self._call[1], reason.value).value += 1
        for recovery in event.recoveries:
            labels = (recovery.kind.value, recovery.result.value)
            self._instruments.recoveries.at(self._call[1], *labels).value += 1
        if event.queued_s:
            self._instruments.queue.at(event.model).observe(event.queued_s)
        if event.malformed:
            self._instruments.malformed.at(self._call[1]).value += event.malformed

    def _end_series(self, event: RequestEnded) -> _EndSeries:
        error = event.error or ""
        if error and error not in _known_errors():
            error = _OTHER
        key = (event.status // 100, error, event.result)
        end = self._series_by_end.get(key)
        if end is None:
            result = event.result.value
            end = self._series_by_end[key] = _EndSeries(
                self._instruments.requests.at(*self._call, f"{key[0]}xx", error, result),
                self._instruments.duration.at(*self._call, error),
                self._instruments.ttft.at(*self._call, result),
            )
        return end


class _ReplicaSeries:
    """The series of one replica of a model under one API."""

    __slots__ = ("_attempts", "_charges", "_content", "_headers", "_instruments", "_labels")

    def __init__(self, instruments: Instruments, operation: str, model: str, replica: str) -> None:
        self._instruments = instruments
        self._labels = (operation, model, replica)
        self._headers = instruments.headers.at(model, replica)
        self._content = instruments.content.at(model, replica)
        self._attempts: dict[tuple[Role, Outcome], Counter] = {}
        self._charges: dict[Disposition, _ChargeSeries] = {}

    def record(self, attempt: AttemptReport) -> None:
        key = (attempt.role, attempt.outcome)
        count = self._attempts.get(key)
        if count is None:
            names = (attempt.role.value, attempt.outcome.value)
            count = self._attempts[key] = self._instruments.attempts.at(*self._labels[1:], *names)
        count.value += 1
        if attempt.headers_s is not None:
            self._headers.observe(attempt.headers_s)
        if attempt.work_s is not None:
            self._instruments.work.at(*self._labels[1:]).observe(attempt.work_s)
        if attempt.content_s is not None:
            self._content.observe(attempt.content_s)
        if attempt.outcome is Outcome.LOST:
            self._instruments.wasted.at(*self._labels[1:]).value += 1
            self._instruments.wasted_s.at(*self._labels[1:]).value += attempt.end_s
        if attempt.usage is not None:
            self._record_usage(attempt.usage)
        charge = attempt.charge
        charges = self._charges.get(charge.disposition)
        if charges is None:
            labels = (*self._labels[1:], charge.disposition.value)
            charges = self._charges[charge.disposition] = _ChargeSeries(self._instruments, labels)
        charges.record(charge)

    def _record_usage(self, usage: Usage) -> None:
        instruments = self._instruments
        if usage.prompt_tokens:
            instruments.input.at(*self._labels).value += usage.prompt_tokens
        if usage.cached_tokens:
            instruments.cached.at(*self._labels).value += usage.cached_tokens
        if usage.completion_tokens:
            instruments.output.at(*self._labels).value += usage.completion_tokens
        if usage.reasoning_tokens:
            instruments.reasoning.at(*self._labels).value += usage.reasoning_tokens


class _ChargeSeries:
    __slots__ = ("_cached", "_completion", "_instruments", "_labels", "_prompt")

    def __init__(self, instruments: Instruments, labels: tuple[str, str, str]) -> None:
        self._instruments = instruments
        self._labels = labels
        self._prompt = instruments.billed.at(*labels, "prompt")
        self._cached = instruments.billed.at(*labels, "cached_prompt")
        self._completion = instruments.billed.at(*labels, "completion")

    def record(self, charge: Charge) -> None:
        self._prompt.value += charge.prompt_tokens - charge.cached_tokens
        self._cached.value += charge.cached_tokens
        self._completion.value += charge.completion_tokens
        if charge.cost is not None:
            self._instruments.cost.at(*self._labels).value += charge.cost


def _hedge_result(backup: AttemptReport, winner: str | None) -> str:
    """Return won, lost, failed, or abandoned (before the race was decided)."""
    if backup.outcome is Outcome.LOST:
        return "lost"
    if backup.replica == winner or backup.outcome is Outcome.CUT:  # another replica may have continued its answer
        return "won"
    return "abandoned" if backup.outcome in (Outcome.CLIENT_GONE, Outcome.DRAINED) else "failed"


@cache
def _known_errors() -> frozenset[str]:
    """Return every label and code of an error class, and _RAISED_CODES."""
    known = set(_RAISED_CODES)
    classes: list[type[GatewayError | UpstreamError]] = [GatewayError, UpstreamError]
    while classes:
        error_class = classes.pop()
        classes += error_class.__subclasses__()
        label = error_class.label if issubclass(error_class, UpstreamError) else error_class.code
        if label is not None:
            known.add(label)
    return frozenset(known)
