"""Hedges by llm-routewise in the simulation: the real router, in a process of its own environment.

The router gets a question at each of its checkpoints, with the exact time, and a report of each first token and each
end. Its constants are meant for seconds (it reserves 5 ms for the start of a backup), so times of workloads in
milliseconds are multiplied first. Units: seconds; milliseconds in messages.
"""

import math
import subprocess
from bisect import bisect_right
from collections.abc import Collection, Iterable, Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Final, Self

import msgspec

from streaming_bench.errors import BenchError
from ttft_gateway.hedging.contract import AttemptView, Denied, Forecast, Hedge, HedgeTickets, Primary, RequestFacts
from ttft_gateway.hedging.outcomes import Denial, Outcome
from ttft_gateway.hedging.parameters import HedgeParameters
from ttft_gateway.limits.budget import Ticket
from ttft_gateway.limits.ledger import Ledger
from ttft_gateway.pool.pool import Pool
from ttft_gateway.routing.replicas import BreakerState, Replica

SETUP: Final = "python -m venv peers && peers/bin/pip install llm-routewise==0.2.0"

_DRIVER: Final = Path(__file__).with_name("routewise_driver.py")
_UNSENT_MAX: Final = 1000  # messages that wait for a question
_ROUNDING_MS: Final = 1e-6
_CODES: Final = {Outcome.FINISHED: "completed", Outcome.RATE_LIMITED: "rate_limited", Outcome.TTFT_TIMEOUT: "timeout"}
_CANCELLED: Final = (Outcome.LOST, Outcome.CLIENT_GONE, Outcome.DRAINED)


class PeerError(BenchError):
    """A peer cannot be run."""


class RoutewiseProcess:
    """The router's process.

    Args:
        python: interpreter of an environment with llm-routewise.
        names: names of the providers.
        slo_ms: the router's TTFT target.
        seed: seed of the router's random numbers.

    Attributes:
        checkpoints_ms: times after the start of a request at which the router is asked for a backup.

    Raises:
        PeerError: The environment has no llm-routewise.
    """

    def __init__(self, python: Path, names: Sequence[str], slo_ms: float, seed: int) -> None:
        # -P: files next to the driver must not shadow installed packages.
        options = ["--names", ",".join(names), "--slo-ms", repr(slo_ms), "--seed", str(seed)]
        try:
            self._process = subprocess.Popen(
                [str(python), "-P", str(_DRIVER), *options],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.DEVNULL,
            )
        except OSError as error:
            message = f"cannot start {python}: {error.strerror}; create the environment: {SETUP}"
            raise PeerError(message) from error
        self._unsent: list[list[object]] = []
        self.checkpoints_ms = msgspec.convert(self._read(), list[float])

    def __enter__(self) -> Self:
        return self

    def __exit__(self, _kind: type[BaseException] | None, _error: object, _trace: TracebackType | None) -> None:
        self._close()

    def report(self, *message: object) -> None:
        """Send a message that has no answer, at the latest with the next question."""
        self._unsent.append(list(message))
        if len(self._unsent) >= _UNSENT_MAX:
            self._send()

    def ask(self, *message: object) -> str | None:
        """Return the answer to a question."""
        self._unsent.append(list(message))
        self._send()
        return msgspec.convert(self._read(), str | None)

    def _close(self) -> None:
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.close()  # ends the process
        self._process.wait()
        self._process.stdout.close()

    def _send(self) -> None:
        assert self._process.stdin is not None
        line, self._unsent = msgspec.json.encode(self._unsent), []
        try:
            self._process.stdin.write(line + b"\n")
            self._process.stdin.flush()
        except BrokenPipeError:
            self._read()

    def _read(self) -> object:
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        if not line:
            self._close()
            raise PeerError(f"the process with llm-routewise ended early; check its environment: {SETUP}")
        return msgspec.json.decode(line)


class _Tickets(HedgeTickets, frozen=True):
    """Tickets of a backup, with the number of its request's decision."""

    decision: int = 0


class RoutewisePool(Pool):
    """Hedges by llm-routewise.

    Args:
        replicas: the providers.
        settings: routing of the primaries.
        ledgers: ledgers of the quotas, which the router ignores.
        process: the router's process.
        scale: factor of all times that the router gets.
        routes: True if the router chooses the primaries, False if the gateway does.
    """

    def __init__(
        self,
        replicas: Sequence[Replica],
        settings: HedgeParameters,
        ledgers: Mapping[str, Ledger],
        process: RoutewiseProcess,
        *,
        scale: float,
        routes: bool,
    ) -> None:
        super().__init__("routewise", replicas, settings, ledgers)
        self._process = process
        self._scale = scale
        self._routes = routes
        self._by_name = {replica.name: replica for replica in replicas}
        self._first_s = process.checkpoints_ms[0] / 1000.0 / scale

    def begin(self, facts: RequestFacts, now_s: float, rand: float) -> Primary | None:
        """Choose the primary, and have the router asked at its first checkpoint."""
        if self._routes and (routed := self._routed(facts, now_s)) is not None:
            return routed
        primary = super().begin(facts, now_s, rand)
        if primary is None:
            return None
        self._primary(primary.forecast, primary.replica, now_s)
        return Primary(primary.replica, primary.forecast, self._first_s)

    def on_sent(
        self, attempt: AttemptView, facts: RequestFacts, tickets: HedgeTickets | None, *, is_first: bool
    ) -> None:
        """Report a primary that the router has not chosen; a failover counts as one."""
        super().on_sent(attempt, facts, tickets, is_first=is_first)
        assert attempt.forecast is not None
        if tickets is None:
            self._primary(attempt.forecast, attempt.replica, attempt.start_s)

    def delay_s(self, attempt: AttemptView, facts: RequestFacts) -> float:
        """Return the first checkpoint; a backup has none."""
        is_backup = attempt.forecast is not None and attempt.forecast.tickets is not None
        return math.inf if is_backup else self._first_s

    def decide(
        self,
        facts: RequestFacts,
        asking: AttemptView,
        live: Iterable[AttemptView],
        tried: Collection[Replica],
        now_s: float,
        rand: float,
    ) -> Hedge | Denied:
        """Ask the router at a checkpoint."""
        assert asking.forecast is not None
        number, checkpoints_ms = asking.forecast.number, self._process.checkpoints_ms
        waited_ms = 1000.0 * self._scale * (now_s - asking.start_s)
        passed = bisect_right(checkpoints_ms, waited_ms + _ROUNDING_MS)
        name = self._process.ask("hedge", now_s, number, checkpoints_ms[max(0, passed - 1)])
        if name is not None:
            return Hedge(self._by_name[name], _Tickets(Ticket(1.0), Ticket(0.0), decision=number), "")
        if passed == len(checkpoints_ms):
            return Denied(Denial.LOW_GAIN, math.inf, "")
        return Denied(Denial.LOW_GAIN, (checkpoints_ms[passed] - waited_ms) / 1000.0 / self._scale, "")

    def on_content(self, attempt: AttemptView, now_s: float) -> BreakerState | None:
        """Report the first token."""
        if attempt.forecast is not None:
            ttft_ms = 1000.0 * self._scale * (now_s - attempt.start_s)
            self._process.report("token", now_s, *self._of(attempt.forecast), ttft_ms)
        return super().on_content(attempt, now_s)

    def on_end(
        self,
        attempt: AttemptView,
        outcome: Outcome,
        now_s: float,
        retry_after_s: float | None,
        *,
        by_tokens: bool = False,
    ) -> BreakerState | None:
        """Report the end."""
        if attempt.forecast is not None:
            code = "cancelled" if outcome in _CANCELLED else _CODES.get(outcome, "server_error")
            self._process.report("end", now_s, *self._of(attempt.forecast), code)
        return super().on_end(attempt, outcome, now_s, retry_after_s, by_tokens=by_tokens)

    def _routed(self, facts: RequestFacts, now_s: float) -> Primary | None:
        """Return a primary of the router's choice; None if it has none."""
        number = next(self.loads.numbers)
        name = self._process.ask("route", now_s, number, round(facts.prompt_tokens))
        if name is None:
            return None
        replica = self._by_name[name]
        load, uncached = self.loads.of[replica], self.loads.uncached(facts, replica, now_s)
        ttft_s = self.learning.predictor.predict(name, uncached, load.pending, now_s)
        forecast = self._sent(number, replica, facts, None, ttft_s, uncached, now_s, is_first=True)
        replica.breaker.on_sent(now_s)
        replica.in_flight += 1
        return Primary(replica, forecast, self._first_s)

    def _primary(self, forecast: Forecast, replica: Replica, now_s: float) -> None:
        self._process.report("primary", now_s, forecast.number, round(forecast.prompt_tokens), replica.name)

    def _of(self, forecast: Forecast) -> tuple[int, int]:
        """Return the number of the request's decision, and the part of the attempt in it."""
        tickets = forecast.tickets
        return (tickets.decision, 1) if isinstance(tickets, _Tickets) else (forecast.number, 0)
