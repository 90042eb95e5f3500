"""Feeds the counters, the histograms and the usage table from events.

Events wait, so that requests and attempts with the same labels are counted together: at the latest when anything is
read. Every label value comes from the configuration or from a closed set: errors may carry an upstream's own code,
which is replaced by one word.

Units: seconds, tokens.
"""

from collections import defaultdict
from collections.abc import Iterable, Sequence
from functools import cache

from gateway.errors import GatewayError
from gateway.events import (
    AttemptReport,
    ComponentFailed,
    Event,
    HedgeFired,
    PreviousKeyUsed,
    RequestEnded,
    RequestPassed,
    RequestRejected,
    Result,
    Role,
)
from gateway.observe.instruments import OTHER, Counter, Instruments
from gateway.observe.usage import UsageTable
from gateway.process_events import AcceptingChanged, ConfigReloaded, ShareAway
from ttft_gateway.apis.base import Api
from ttft_gateway.apis.errors import UpstreamError
from ttft_gateway.hedging.charges import Disposition
from ttft_gateway.hedging.measure import Shadow
from ttft_gateway.hedging.outcomes import Outcome

OPERATIONS = {  # OpenTelemetry's names
    Api.CHAT: "chat",
    Api.COMPLETIONS: "text_completion",
    Api.RESPONSES: "chat",
    Api.MESSAGES: "chat",
    Api.EMBEDDINGS: "embeddings",
    Api.RERANK: "rerank",
    Api.MODERATIONS: "moderations",
    Api.TOKENIZE: "tokenize",
}
_CODES_MAX = 64  # the gateway has fewer; bounds the labels if a code ever contains a client's input
_WAITING_MAX = 256  # events, of about 1 kB; counting them takes 0.2 ms of the loop's time
_MODELS_MAX = 8  # of the events that wait: the first event of a model takes 0.07 ms, and with it a batch 2 ms
_KEY_SERIES_MAX = 1_000  # names and classes of status; requests of further keys count as _OTHER
_RAISED_CODES = (  # codes set where an error is raised; all others are in the error classes
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
    """Feeds the counters, the histograms and the usage table; the series of a combination of labels are looked up once.

    Args:
        instruments: counters and histograms.
        usage: usage table.
    """

    def __init__(self, instruments: Instruments, usage: UsageTable) -> None:
        self._instruments = instruments
        self._usage = usage
        self._requests: dict[str, dict[tuple[Api, int, str | None, Result], _RequestSeries]] = {}
        self._attempts: dict[tuple[str, str], dict[tuple[Api, Role, Outcome, Disposition], _AttemptSeries]] = {}
        self._codes: set[str | None] = set()
        self._keys: dict[tuple[str, int], Counter] = {}
        self._waiting: list[Event] = []
        self._models: set[str] = set()  # of the requests that wait
        self._bug: Exception | None = None  # raised while events were counted; the hub reports it with the next batch
        self._last_reload_successful = True
        instruments.before_read = usage.before_read = self._count

    @property
    def last_reload_successful(self) -> bool:
        """False if the last reload was rejected; True before the first."""
        self._count()
        return self._last_reload_successful

    def on_events(self, events: Iterable[Event]) -> None:
        """Take the events of a batch (a `gateway.observe.hub.Collector`)."""
        known = len(self._waiting)
        self._waiting.extend(events)
        self._models |= {event.model for event in self._waiting[known:] if type(event) is RequestEnded}
        if len(self._waiting) >= _WAITING_MAX or len(self._models) >= _MODELS_MAX:
            self._count()
        bug, self._bug = self._bug, None
        if bug is not None:
            raise bug

    def forget(self, model: str, replica: str | None) -> None:
        """Drop the series of a replica that was removed, after its last request; with None the model's own series."""
        families = self._instruments.families()  # counts what waits
        if replica is None:
            self._requests.pop(model, None)
        else:
            self._attempts.pop((model, replica), None)
        for family in families:
            family.forget(model, replica)

    def _count(self) -> None:
        """Count the events that wait; a bug costs the events with the same labels, and no reader."""
        events, self._waiting, self._models = self._waiting, [], set()
        rare: list[Event] = []
        requests: defaultdict[tuple[str, str, Api, int, str | None, Result], list[RequestEnded]] = defaultdict(list)
        attempts: defaultdict[tuple[str, str, Api, str, Role, Outcome, Disposition], list[AttemptReport]]
        attempts = defaultdict(list)
        for event in events:
            if type(event) is RequestEnded:
                key, model, api = event.key_name, event.model, event.api
                requests[key, model, api, event.status, event.error, event.result].append(event)
                for attempt in event.attempts:
                    disposition = attempt.charge.disposition
                    attempts[key, model, api, attempt.replica, attempt.role, attempt.outcome, disposition].append(
                        attempt
                    )
            else:
                rare.append(event)
        for labels, alike in requests.items():
            try:
                self._count_requests(alike, *labels)
            except Exception as error:  # a bug
                self._bug = error
        for attempt_labels, reports in attempts.items():
            try:
                self._count_attempts(reports, *attempt_labels)
            except Exception as error:  # a bug
                self._bug = error
        for event in rare:
            try:
                self._on_rare_event(event)
            except Exception as error:  # a bug
                self._bug = error

    def _count_requests(
        self,
        events: Sequence[RequestEnded],
        key_name: str,
        model: str,
        api: Api,
        status: int,
        error: str | None,
        result: Result,
    ) -> None:
        """Count requests that have these labels."""
        status_class = status // 100
        if error and error not in _known_errors():
            error = OTHER
        of_model = self._requests.get(model)
        if of_model is None:
            of_model = self._requests[model] = {}
        key = (api, status_class, error, result)
        series = of_model.get(key)
        if series is None:
            series = of_model[key] = _RequestSeries(self._instruments, model, *key)
        series.count.value += len(events)
        series.duration.observe(*[event.total_s for event in events])
        series.overhead.observe(*[event.gateway_s for event in events])
        series.ttft.observe(*[event.ttft_s for event in events if event.ttft_s is not None])
        for event in events:
            ttft_s, tokens = event.ttft_s, 0 if event.usage is None else event.usage.completion_tokens or 0
            if tokens > 1 and ttft_s is not None and error is None:
                series.per_token.observe((event.total_s - ttft_s) / (tokens - 1))
            if event.denials or event.recoveries or event.queued_s or event.malformed or event.shadow:
                self._on_troubled_request(event)
            if len(event.attempts) > 1:
                self._on_hedges(event)
            if event.usual_cost is not None:
                self._instruments.usual_cost.at(model).value += event.usual_cost
        self._usage.requests[self._usage.key_in(key_name, model), model] += len(events)
        self._key_series(key_name, status_class).value += len(events)

    def _count_attempts(
        self,
        attempts: Sequence[AttemptReport],
        key_name: str,
        model: str,
        api: Api,
        replica: str,
        role: Role,
        outcome: Outcome,
        disposition: Disposition,
    ) -> None:
        """Count attempts that have these labels."""
        of_replica = self._attempts.get((model, replica))
        if of_replica is None:
            of_replica = self._attempts[model, replica] = {}
        series = of_replica.get((api, role, outcome, disposition))
        if series is None:
            series = _AttemptSeries(self._instruments, model, api, replica, role, outcome, disposition)
            of_replica[api, role, outcome, disposition] = series
        series.count.value += len(attempts)
        series.headers.observe(*[attempt.headers_s for attempt in attempts if attempt.headers_s is not None])
        series.content.observe(*[attempt.content_s for attempt in attempts if attempt.content_s is not None])
        for usage in [attempt.usage for attempt in attempts if attempt.usage is not None]:
            series.input.value += usage.prompt_tokens or 0
            series.cached.value += usage.cached_tokens or 0
            series.output.value += usage.completion_tokens or 0
            series.reasoning.value += usage.reasoning_tokens or 0
        row = self._usage.key_in(key_name, model)
        charges, total = [attempt.charge for attempt in attempts], self._usage.totals[row, model, disposition]
        prompt_tokens, cached_tokens, completion_tokens = total.add(charges)
        series.billed_prompt.value += prompt_tokens - cached_tokens
        series.billed_cached.value += cached_tokens
        series.billed_completion.value += completion_tokens
        for cost in [charge.cost for charge in charges if charge.cost is not None]:
            self._instruments.cost.at(model, replica, disposition.value).value += cost
        for work_s in [attempt.work_s for attempt in attempts if attempt.work_s is not None]:
            self._instruments.work.at(model, replica).observe(work_s)
        if outcome is Outcome.LOST:
            self._on_losers(attempts, model, replica)

    def _on_losers(self, attempts: Sequence[AttemptReport], model: str, replica: str) -> None:
        for attempt in attempts:
            self._instruments.wasted.at(model, replica).value += 1
            self._instruments.wasted_s.at(model, replica).value += attempt.end_s
            if attempt.empty:
                self._instruments.wasted_completions.at(model, replica).value += 1

    def _on_hedges(self, event: RequestEnded) -> None:
        for attempt in event.attempts:
            if attempt.role is Role.BACKUP:
                self._instruments.hedges.at(event.model, _hedge_result(attempt, event.winner)).value += 1

    def _on_shadow(self, event: RequestEnded, shadow: Shadow) -> None:
        """Count a hedge that was not sent; a request without a first token has no wait."""
        self._instruments.shadow.at(event.model, shadow.reason.value).value += 1
        self._instruments.shadow_tokens.at(event.model).value += shadow.tokens
        first_s = event.ttft_s if event.work_s is None else event.work_s
        if first_s is not None:
            self._instruments.shadow_wait.at(event.model).observe(max(0.0, first_s - (event.shadow_s or 0.0)))

    def _on_rare_event(self, event: Event) -> None:
        if isinstance(event, HedgeFired):
            self._instruments.hedges_fired.at(event.model, event.primary).value += 1
        elif isinstance(event, RequestPassed):
            status_class = event.status // 100
            self._instruments.passed.at(event.model, event.route, f"{status_class}xx").value += 1
            self._key_series(event.key_name, status_class).value += 1
        elif isinstance(event, RequestRejected):
            if len(self._codes) < _CODES_MAX:
                self._codes.add(event.code)
            code = event.code if event.code in self._codes else OTHER
            self._instruments.rejected.at(code or "").value += 1
            if event.key_name is not None:
                self._key_series(event.key_name, event.status // 100).value += 1
            if event.queued_s and event.model is not None:
                self._instruments.queue.at(event.model).observe(event.queued_s)
        elif isinstance(event, PreviousKeyUsed):
            previous = self._instruments.previous_keys
            is_named = previous.count < _KEY_SERIES_MAX or previous.has((event.key,))
            previous.at(event.key if is_named else OTHER).value += 1
        elif isinstance(event, ComponentFailed):
            self._instruments.component_failures.at(event.component).value += 1
        elif isinstance(event, ConfigReloaded):
            self._last_reload_successful = event.error is None
            self._instruments.reloads.at("applied" if self._last_reload_successful else "rejected").value += 1
        elif isinstance(event, AcceptingChanged) and not event.accepting:
            self._instruments.accept_stops.at().value += 1
        elif isinstance(event, ShareAway):
            self._instruments.share_aways.at().value += 1

    def _on_troubled_request(self, event: RequestEnded) -> None:
        instruments, model = self._instruments, event.model
        for reason in event.denials:
            instruments.denials.at(model, reason.value).value += 1
        for recovery in event.recoveries:
            if recovery.guard is None:
                instruments.recoveries.at(model, recovery.kind.value, recovery.result.value).value += 1
            else:
                instruments.guards.at(model, recovery.guard.value, recovery.result.value).value += 1
        if event.queued_s:
            instruments.queue.at(model).observe(event.queued_s)
        instruments.malformed.at(model).value += event.malformed
        if event.shadow is not None:
            self._on_shadow(event, event.shadow)

    def _key_series(self, key_name: str, status_class: int) -> Counter:
        """Return the series of a key's requests; above the bound, the requests of all further keys have one series."""
        series = self._keys.get((key_name, status_class))
        if series is None:
            name = key_name if len(self._keys) < _KEY_SERIES_MAX else OTHER
            series = self._instruments.key_requests.at(name, f"{status_class}xx")
            if name is key_name:
                self._keys[(key_name, status_class)] = series
        return series


class _RequestSeries:
    """The series that count the requests of one model with one API, status, error and result."""

    def __init__(
        self, instruments: Instruments, model: str, api: Api, status_class: int, error: str | None, result: Result
    ) -> None:
        call, error = (OPERATIONS[api], model), error or ""
        self.count = instruments.requests.at(*call, f"{status_class}xx", error, result.value)
        self.duration = instruments.duration.at(*call, error)
        self.ttft = instruments.ttft.at(*call, result.value)
        self.overhead = instruments.overhead.at()
        self.per_token = instruments.per_token.at(*call)


class _AttemptSeries:
    """The series that count the attempts at one replica with one API, role, outcome and disposition."""

    def __init__(
        self,
        instruments: Instruments,
        model: str,
        api: Api,
        replica: str,
        role: Role,
        outcome: Outcome,
        disposition: Disposition,
    ) -> None:
        call, billed = (OPERATIONS[api], model, replica), (model, replica, disposition.value)
        self.count = instruments.attempts.at(model, replica, role.value, outcome.value)
        self.headers = instruments.headers.at(model, replica)
        self.content = instruments.content.at(model, replica)
        self.input = instruments.input.at(*call)
        self.cached = instruments.cached.at(*call)
        self.output = instruments.output.at(*call)
        self.reasoning = instruments.reasoning.at(*call)
        self.billed_prompt = instruments.billed.at(*billed, "prompt")
        self.billed_cached = instruments.billed.at(*billed, "cached_prompt")
        self.billed_completion = instruments.billed.at(*billed, "completion")


def _hedge_result(backup: AttemptReport, winner: str | None) -> str:
    """Return won, lost, failed, or abandoned (before the race was decided)."""
    if backup.outcome is Outcome.LOST:
        return "lost"
    if backup.replica == winner or backup.outcome in (Outcome.CUT, Outcome.SILENT):
        return "won"  # another replica may have continued its answer
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
