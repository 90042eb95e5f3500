"""Runs the router of llm-routewise, in an environment of its own, for the simulation in another process.

Reads one JSON line after the other: a list of messages, in the order of their (virtual) times. If the last message is
a question, one JSON line is the answer. Started by routewise.py as a script; it needs no package but llm-routewise.

Messages: `["route", now_s, id, tokens]` and `["hedge", now_s, id, elapsed_ms]` are questions, answered by the name of a
provider or null. `["primary", now_s, id, tokens, provider]` states the provider of a request that the router did not
choose. `["token", now_s, id, part, ttft_ms]` and `["end", now_s, id, part, code]` report an attempt; part 0 is the
primary, 1 the backup; the code is "completed", "cancelled" or an error code of the router. Units: seconds,
milliseconds.
"""

import argparse
import json
import sys
import uuid
from typing import Any

import llm_routewise
from llm_routewise import facade

PRICE = 1.0  # the same for all: nothing but latency distinguishes them


class Reservation:
    """The capacity that an attempt holds, of which there is no limit."""

    def release(self) -> None:
        """Ignore the end of the attempt."""


class Driver:
    """A router and its open decisions.

    Attributes:
        now_s: time of the current message.
        checkpoints_ms: times after the start of a request at which the router is asked for a backup.
    """

    def __init__(self, names: list[str], slo_ms: float, seed: int) -> None:
        self.now_s = 0.0
        providers = [llm_routewise.Provider(name, PRICE, PRICE) for name in names]
        self._router = llm_routewise.Router(providers, slo_ms=slo_ms, seed=seed, clock=lambda: self.now_s)
        self._names = names
        self.checkpoints_ms = tuple(1000.0 * each for each in facade.hedge_checkpoints_for_slo(slo_ms))
        self._open: dict[int, tuple[Any, set[int]]] = {}  # decisions, and the parts of them that have not ended

    def handle(self, message: list[Any]) -> str | None:
        """Return the answer to a question; None to a report."""
        kind, self.now_s, request, *rest = message
        if kind == "route":
            return self._route(request, *rest)
        if kind == "primary":
            self._primary(request, *rest)
        if kind == "primary" or request not in self._open:
            return None
        decision, parts = self._open[request]
        if kind == "hedge":
            backup = decision.hedge_now(elapsed_ms=rest[0])
            if backup is None:
                return None
            parts.add(1)
            return str(backup.provider)
        part, fact = rest
        if part in parts:
            attempt = decision.primary if part == 0 else decision.backups[0]
            self._report(kind, attempt, fact, request, part)
        return None

    def _report(self, kind: str, attempt: facade.Attempt, fact: float | str, request: int, part: int) -> None:
        if kind == "token":
            attempt.first_token(ttft_ms=fact, adopted=True)
            return
        if fact == "completed":
            attempt.completed(output_tokens=1)
        elif fact == "cancelled":
            attempt.cancelled()
        else:
            attempt.failed(kind="health", code=fact)
        parts = self._open[request][1]
        parts.discard(part)
        if not parts:
            del self._open[request]

    def _route(self, request: int, tokens: int) -> str | None:
        """Let the router choose the provider; None if it has none."""
        try:
            decision = self._router.route(input_tokens=tokens, estimated_output_tokens=1)
        except llm_routewise.NoProviderError:
            return None
        self._open[request] = (decision, {0})
        return str(decision.provider)

    def _primary(self, request: int, tokens: int, provider: str) -> None:
        """Make the decision that `route` makes, for a provider that the router did not choose."""
        decision = facade.Decision(
            router=self._router,
            provider=provider,
            weights={provider: 1.0},
            expected_cost_usd=0.0,
            expected_latency_ms=None,
            checkpoints_ms=self.checkpoints_ms,
            trace={},
            input_tokens=tokens,
            estimated_cached_tokens=dict.fromkeys(self._names, 0),
            predicted_output_tokens=1.0,
            original_exclude=frozenset(),
            primary_attempt_id=uuid.uuid4().hex,
            primary_reservation=Reservation(),
            primary_lease_generation=None,
        )
        self._open[request] = (decision, {0})


def main() -> None:
    """Print the schedule of checkpoints, then answer until the input ends."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--names", required=True)
    parser.add_argument("--slo-ms", type=float, required=True)
    parser.add_argument("--seed", type=int, required=True)
    given = parser.parse_args()
    driver = Driver(given.names.split(","), given.slo_ms, given.seed)
    print(json.dumps(driver.checkpoints_ms), flush=True)
    for line in sys.stdin:
        answer = None
        messages = json.loads(line)
        for message in messages:
            answer = driver.handle(message)
        if messages[-1][0] in ("route", "hedge"):
            print(json.dumps(answer), flush=True)


if __name__ == "__main__":
    main()
