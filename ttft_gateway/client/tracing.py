"""Spans of OpenTelemetry for the attempts of a race, if the program has imported that API.

Each attempt is a span named "primary" or "backup", below the span that is current at the request, and linked to the
primary's. A span of an instrumented HTTP library is below its attempt's. A span ends with the first event, because the
rest of the answer is the caller's. Without `opentelemetry.trace` in the process, nothing is imported and nothing added.
"""

import sys
from typing import Any, Generic, TypeVar

from ttft_gateway.client.hedger import ClientAttempt, ClientRace, Failure
from ttft_gateway.client.race import RacedAttempts

_T = TypeVar("_T")


def traced(attempts: RacedAttempts[_T]) -> RacedAttempts[_T]:
    """Return attempts with spans; the same object if the program has set no provider of OpenTelemetry."""
    trace: Any = sys.modules.get("opentelemetry.trace")
    if trace is None or isinstance(trace.get_tracer_provider(), trace.ProxyTracerProvider):
        return attempts
    return _TracedAttempts(attempts, trace)


class _TracedAttempts(Generic[_T]):
    """The attempts of one request, each in a span.

    Args:
        trace: the module `opentelemetry.trace`.
    """

    def __init__(self, attempts: RacedAttempts[_T], trace: Any) -> None:
        self._attempts = attempts
        self._trace = trace
        self._tracer = trace.get_tracer("ttft_gateway")
        self._parent = trace.set_span_in_context(trace.get_current_span())
        self._primary: Any = None  # span
        self.race: ClientRace = attempts.race
        self.primary: ClientAttempt = attempts.primary

    async def open(self, attempt: ClientAttempt) -> _T:
        """Send an attempt in a span."""
        trace = self._trace
        links = [] if self._primary is None else [trace.Link(self._primary.get_span_context())]
        span = self._tracer.start_span(
            "backup" if attempt.number else "primary",
            context=self._parent,
            links=links,
            attributes={"ttft.attempt": attempt.number, "ttft.target": attempt.label},
        )
        if not attempt.number:
            self._primary = span
        try:
            with trace.use_span(span, record_exception=False, set_status_on_exception=False):
                return await self._attempts.open(attempt)
        finally:
            won = self.race.winner is attempt
            outcome = attempt.outcome
            span.set_attribute("ttft.result", "won" if won else "cancelled" if outcome is None else outcome.value)
            if attempt.why:
                span.set_attribute("ttft.why", attempt.why)
            span.end()

    def failure(self, error: Exception) -> Failure:
        """Classify an error of `open`."""
        return self._attempts.failure(error)

    async def close(self, opened: _T) -> None:
        """Close a response that is not returned."""
        await self._attempts.close(opened)
