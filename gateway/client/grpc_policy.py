"""The hedgers of one gRPC channel: which methods are hedged, to which targets, and what another target may get. No I/O.

A method is hedged only if it is named: a server carries out a hedged RPC twice.
"""

from collections.abc import Callable, Collection, Iterable, Mapping
from typing import Any, Final

from gateway.client.asked import HEDGE_HEADER, Asked, Event
from gateway.client.attempt import ClientAttempt
from gateway.client.config import HedgeConfig
from gateway.client.hedger import ClientRace, Hedger
from gateway.client.stats import Stats
from gateway.client.targets import Target
from gateway.hedging.contract import RequestFacts

Methods = Collection[str] | Mapping[str, Mapping[str, Callable[..., Any]]]
"""Full names of methods, such as "/package.Service/Method"; as a mapping, each with the same method of other targets by
their names: `stub.Method` of a stub on another channel."""
Pairs = Iterable[tuple[str, Any]]

_SWITCH: Final = HEDGE_HEADER.decode()
_PASSED: Final = frozenset({"baggage", "traceparent", "tracestate"})  # metadata for all targets


class GrpcPolicy:
    """The hedgers of one channel: one for each set of targets.

    Attributes:
        target: name of the channel's target.
        hedgers: hedger of each method.

    Raises:
        ValueError: a method is no full name, or another target has the name of the channel's target.
    """

    def __init__(
        self, target: str, methods: Methods, config: HedgeConfig, stats: Stats, metadata: Iterable[str]
    ) -> None:
        if isinstance(methods, str):
            raise TypeError("methods is a string; use a set of names")
        self.target = target
        self.hedgers: dict[str, Hedger] = {}
        self._origin = f"grpc://{target}:"
        self._passed = _PASSED | {key.lower() for key in metadata}
        self._others: dict[str, Mapping[str, Callable[..., Any]]] = {}
        made: dict[tuple[str, ...], Hedger] = {}
        for method in methods:
            if not method.startswith("/") or method.count("/") != 2:
                raise ValueError(f"method is {method!r}; use a name such as '/package.Service/Method'")
            others = methods[method] if isinstance(methods, Mapping) else {}
            names = (target, *others) if others else ()
            if names not in made:
                made[names] = Hedger(config, _targets(names), stats)
            self.hedgers[method], self._others[method] = made[names], others

    def enter(self, method: str) -> tuple[ClientRace, ClientAttempt]:
        """Return the race of an RPC and its primary, counted as sent."""
        hedger = self.hedgers[method]
        race = hedger.race(Asked((self._origin, method), RequestFacts(coin=hedger.rand()), Event.HEADERS))
        return race, race.begin()

    def other(self, method: str, attempt: ClientAttempt) -> Callable[..., Any] | None:
        """Return the method of another target; None: the attempt is for the channel."""
        if attempt.target is None or attempt.label == self.target:
            return None
        return self._others[method][attempt.label]

    def passed(self, metadata: Pairs | None) -> list[tuple[str, Any]]:
        """Return the metadata that another target gets."""
        return [(key, value) for key, value in metadata or () if key.lower() in self._passed]


def switched(metadata: Pairs | None) -> tuple[list[tuple[str, Any]] | None, bool]:
    """Return the metadata without `x-ttft-hedge`, or None if it has none, and True if the switch is off."""
    pairs = list(metadata or ())
    if all(key != _SWITCH for key, _ in pairs):
        return None, False
    return [(key, value) for key, value in pairs if key != _SWITCH], (_SWITCH, "off") in pairs


def _targets(names: Iterable[str]) -> list[Target]:
    """Return the targets of a policy; it identifies them by name, and their addresses are the channels'."""
    return [Target(f"http://target-{number}.invalid", name=name) for number, name in enumerate(names)]
