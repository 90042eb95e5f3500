"""The end of one request's race: state of the race, error for the client, outcomes of the attempts, one report.

`race.py` has everything before the end. No state of a race outlives its request, except while an attempt is measured.

Units: seconds of the loop's clock.
"""

from abc import ABC, abstractmethod
from functools import partial

from msgspec.structs import replace

from gateway.errors import GatewayError
from gateway.events import RecoveryResult, Role
from gateway.hedging.contract import RequestFacts
from gateway.hedging.outcomes import Outcome
from gateway.race.attempt import Attempt
from gateway.race.attempts import Attempts
from gateway.race.context import Caller, Client, Model, Runtime
from gateway.race.failures import client_error, final_error, unusable
from gateway.race.lifecycle import ENDED, OUTLIVED, TRANSITIONS, State, Trigger
from gateway.race.recovery import Recovery
from gateway.race.report import ended, no_charge
from gateway.race.retry_plan import GiveUp
from gateway.race.timers import Wakeup
from providers.base import Call, Usage

# Looked up once, because Python 3.11 looks up a member in its class slowly.
_RACING, _STREAMING, _OVER = State.RACING, State.STREAMING, State.OVER
_ABANDONED, _RECOVERY = RecoveryResult.ABANDONED, Role.RECOVERY


class EndOfRace(ABC):
    """State of one request's race, and its end."""

    __slots__ = (
        "_attempts",
        "_client",
        "_deadlines",
        "_model",
        "_paused",
        "_recovery",
        "_runtime",
        "_state",
        "_wakeup",
        "_winner",
    )

    def __init__(
        self, model: Model, call: Call, facts: RequestFacts, client: Client, caller: Caller, runtime: Runtime
    ) -> None:
        self._model = model
        self._client = client
        self._runtime = runtime
        self._attempts = Attempts(model, call, facts, caller, runtime)
        self._state = _RACING
        self._winner: Attempt | None = None  # while STREAMING
        self._recovery: Recovery | None = None  # of the stream that the client reads
        self._paused = False
        self._wakeup = Wakeup(runtime.timers, self._on_time)

    @abstractmethod
    def _on_time(self) -> None:
        """Do everything that is due."""

    def _now(self) -> float:
        return self._runtime.loop.time()

    def _enter(self, trigger: Trigger, state: State) -> None:
        """Enter a state; the table allows it, or there is a bug."""
        assert state in TRANSITIONS[self._state, trigger]
        self._state = state

    def _nothing_left(self, plan: GiveUp) -> None:
        """End the request: no attempt is live and none can be started."""
        error: GatewayError = unusable(plan.wait_s)
        if self._recovery is not None and self._recovery.error is not None:
            error = client_error(self._recovery.error)
        elif self._attempts.errors:
            error = final_error(self._attempts.errors, retry_helps=plan.retry_helps)
        self._fail(Trigger.NOTHING_LEFT, error)

    def _fail(self, trigger: Trigger, error: GatewayError) -> None:
        """End the request with an error."""
        if self._state not in ENDED:
            self._client.fail(error)
            self._attempts.limit = error.limit
            if self._recovery is not None:
                self._recovery.settle(RecoveryResult.FAILED, self._now())
            self._stop(trigger, Outcome.LOST, status=error.status, error=error.code or error.kind)

    def _stop(self, trigger: Trigger, outcome: Outcome, status: int, error: str | None) -> None:
        """End every attempt with one outcome, and the request."""
        if self._state not in ENDED:
            for attempt in self._attempts.sent:
                if not attempt.lives:
                    self._attempts.close(attempt, outcome)
            self._end(trigger, status, error)

    def _end(self, trigger: Trigger, status: int, error: str | None, end_s: float | None = None) -> None:
        """End the request; `end_s`: its end, if an attempt was read on after it."""
        attempts, winner, runtime = self._attempts, self._winner, self._runtime
        loser = attempts.living
        if loser is not None:
            if self._state is _STREAMING and trigger in OUTLIVED:
                self._await_loser(trigger, status, error)
                return
            loser.stop()
        self._enter(trigger, _OVER)
        self._wakeup.cancel()
        for attempt in attempts.sent:
            if attempt.outcome is None:
                attempts.close(attempt, Outcome.LOST)  # an empty answer that was kept in reserve
        if winner is not None and winner.usage is not None and winner.role is not _RECOVERY:
            self._learn_tokens(winner.usage)
        now_s = runtime.loop.time() if end_s is None else end_s
        if self._recovery is not None:
            self._recovery.settle(_ABANDONED, now_s)
        if attempts.errors:
            runtime.safely("outcome", attempts.weigh, None, now_s)
        try:
            report = ended(attempts, winner, self._recovery, now_s, status, error)
        except Exception as bug:  # as in Runtime.safely
            runtime.report("accounting", bug)
            report = ended(attempts, winner, self._recovery, now_s, status, error, no_charge)
        runtime.emit(report)
        attempts.sent, self._winner, self._recovery = [], None, None  # no cycle outlives a request

    def _learn_tokens(self, usage: Usage) -> None:
        """Learn the scale of the model's tokenizer from the reported size of the prompt."""
        text = self._attempts.facts.text
        if usage.prompt_tokens is not None and text is not None:
            self._runtime.safely("tokens", self._model.scale.learn, None, text, usage.prompt_tokens)

    def _await_loser(self, trigger: Trigger, status: int, error: str | None) -> None:
        """Report the request after the end of the attempt that is read on; nothing else happens until then."""
        self._enter(trigger, State.MEASURING)
        self._wakeup.cancel()
        self._attempts.call = replace(self._attempts.call, body=b"", headers=())  # which may be large
        self._attempts.on_loser_ended = partial(self._end, Trigger.MEASURED, status, error, self._now())
