"""The hedgers of one gRPC channel: which methods are hedged, to which targets, and how failures are classified. No I/O.

A method is hedged only if it is named: a server carries out a hedged RPC twice. Failures are classified by status code
and by the server's `grpc-retry-pushback-ms`; codes are their names, such as "UNAVAILABLE".
"""

import math
from collections.abc import Callable, Collection, Iterable, Mapping
from typing import Any, Final

from ttft_gateway.client.asked import HEDGE_HEADER, Asked, Event
from ttft_gateway.client.budget import Budget
from ttft_gateway.client.config import HedgeConfig
from ttft_gateway.client.hedger import ClientAttempt, ClientRace, Failure, Hedger, check_arguments
from ttft_gateway.client.stats import Stats
from ttft_gateway.client.targets import Target
from ttft_gateway.hedging.contract import RequestFacts
from ttft_gateway.hedging.outcomes import Outcome

Method = Callable[..., Any]
"""A method of a stub."""
Methods = Collection[str] | Mapping[str, Mapping[str, Method]]
"""Full names of methods, such as "/package.Service/Method"; as a mapping, each with the same method of other targets by
their names: `stub.Method` of a stub on another channel."""
Pairs = Iterable[tuple[str, str | bytes]]

_SWITCH: Final = HEDGE_HEADER.decode()
_PASSED: Final = frozenset({"baggage", "traceparent", "tracestate"})  # metadata for all targets
PUSHBACK: Final = "grpc-retry-pushback-ms"
_PUSHBACK_S_MAX: Final = 3600.0
_OUTCOMES: Final = {
    "OK": Outcome.FINISHED,
    "CANCELLED": Outcome.CLIENT_GONE,
    "DEADLINE_EXCEEDED": Outcome.TTFT_TIMEOUT,
    "RESOURCE_EXHAUSTED": Outcome.RATE_LIMITED,
    "PERMISSION_DENIED": Outcome.MISCONFIGURED,
    "UNAUTHENTICATED": Outcome.MISCONFIGURED,
    "UNIMPLEMENTED": Outcome.MISCONFIGURED,
    "ABORTED": Outcome.CLIENT_ERROR,  # a conflict, and so the four that follow are results of the request
    "ALREADY_EXISTS": Outcome.CLIENT_ERROR,
    "FAILED_PRECONDITION": Outcome.CLIENT_ERROR,
    "INVALID_ARGUMENT": Outcome.CLIENT_ERROR,
    "NOT_FOUND": Outcome.CLIENT_ERROR,
    "OUT_OF_RANGE": Outcome.CLIENT_ERROR,
}
EMPTY: Final = Failure(Outcome.CLIENT_ERROR)  # a stream without a message: status OK, so no failure of the server


class GrpcPolicy:
    """The hedgers of one channel: one for each set of targets.

    Attributes:
        target: name of the channel's target.
        hedgers: hedger of each method.

    Raises:
        ValueError: a method is no full name, or another target has the name of the channel's target.
    """

    def __init__(
        self,
        target: str,
        methods: Methods,
        config: HedgeConfig,
        stats: Stats,
        metadata: Iterable[str],
        budget: Budget | None = None,
    ) -> None:
        if isinstance(methods, str):
            raise TypeError("methods is a string; use a set of names")
        check_arguments(config, stats, budget)
        self.target = target
        self.hedgers: dict[str, Hedger] = {}
        self._origin = f"grpc://{target}:"
        self._passed = _PASSED | {key.lower() for key in metadata}
        self._others: dict[str, Mapping[str, Method]] = {}
        made: dict[tuple[str, ...], Hedger] = {}
        budget = budget or Budget(config.budget_percent)  # one for all methods
        for method in methods:
            if not method.startswith("/") or method.count("/") != 2:
                raise ValueError(f"method is {method!r}; use a name such as '/package.Service/Method'")
            others = methods[method] if isinstance(methods, Mapping) else {}
            names = (target, *others) if others else ()
            if names not in made:
                # A policy identifies targets by name; their addresses are the channels'.
                targets = [Target(f"http://target-{at}.invalid", name=name) for at, name in enumerate(names)]
                made[names] = Hedger(config, targets, stats, budget=budget)
            self.hedgers[method], self._others[method] = made[names], others

    def enter(self, method: str, timeout_s: float | None) -> tuple[ClientRace, ClientAttempt]:
        """Return the race of an RPC and its primary, counted as sent.

        Args:
            timeout_s: time for the whole RPC; None: no limit.
        """
        hedger = self.hedgers[method]
        race = hedger.race(Asked((self._origin, method), RequestFacts(coin=hedger.rand()), Event.HEADERS))
        return race, race.begin(math.inf if timeout_s is None else timeout_s)

    def other(self, method: str, attempt: ClientAttempt) -> Method | None:
        """Return the method of another target; None: the attempt is for the channel."""
        if attempt.target is None or attempt.label == self.target:
            return None
        return self._others[method][attempt.label]

    def passed(self, metadata: Pairs | None) -> list[tuple[str, str | bytes]]:
        """Return the metadata that another target gets."""
        return [(key, value) for key, value in metadata or () if key.lower() in self._passed]


def switched(metadata: Pairs | None) -> tuple[list[tuple[str, str | bytes]] | None, bool]:
    """Return the metadata without `x-ttft-hedge`, or None if it has none, and True if the switch is off."""
    pairs = list(metadata or ())
    if all(key != _SWITCH for key, _ in pairs):
        return None, False
    return [(key, value) for key, value in pairs if key != _SWITCH], (_SWITCH, "off") in pairs


def failure_of(code: str, pushback: str | bytes | None) -> Failure:
    """Classify a failed attempt.

    Args:
        code: name of its status code.
        pushback: the server's value of `grpc-retry-pushback-ms`, None if absent. A value that is negative or no
            number forbids further attempts of the RPC.
    """
    if pushback is None:
        return Failure(_OUTCOMES.get(code, Outcome.FAILED))
    wait_s = _wait_s(pushback)
    return Failure(Outcome.RATE_LIMITED, wait_s, is_final=wait_s is None)


def outcome_of(code: str) -> Outcome:
    """Return the outcome of a stream that had a message, by the code of its status."""
    outcome = _OUTCOMES.get(code)
    return outcome if outcome in (Outcome.FINISHED, Outcome.CLIENT_GONE) else Outcome.CUT


def _wait_s(pushback: str | bytes) -> float | None:
    text = pushback.decode("latin-1") if isinstance(pushback, bytes) else pushback
    return min(int(text) / 1000, _PUSHBACK_S_MAX) if text.isascii() and text.isdigit() and len(text) < 20 else None
