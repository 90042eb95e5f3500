"""The promise about load: the backups of everything that a transport sends stay within its budget, in any outage."""

import heapq
import math
import random
from collections.abc import Callable, Iterable
from functools import partial
from itertools import count

import pytest

from ttft_gateway import Budget, HedgeConfig, Stats
from ttft_gateway.client.asked import Asked, ask
from ttft_gateway.client.first import failure_of
from ttft_gateway.client.hedger import ClientAttempt, ClientRace, Hedger
from ttft_gateway.client.rules import Rules
from ttft_gateway.hedging.outcomes import Outcome

_GAP_S = 0.05  # 20 requests a second
_NEVER_S = 60.0
RULES = Rules(HedgeConfig())
Time = Callable[[random.Random], float]
Kind = Callable[[int], Asked]
OUTAGES: dict[str, Time] = {
    "slow": lambda rng: rng.uniform(3.0, 5.0),
    "silent": lambda _: _NEVER_S,
    "half": lambda rng: 5.0 if rng.random() < 0.5 else 0.2,
    "errors": lambda rng: -rng.uniform(3.0, 5.0),
}
"""Time of an attempt; a negative one ends with an error."""


def _get(number: int, method: str = "GET", path: bytes = b"/", host: str = "h") -> Asked:
    return ask(method, f"https://{host}:443", path, (), b"", 0.01 * (number % 100), RULES)


def _chat(number: int, model: str) -> Asked:
    body = b'{"model":"%b","stream":true,"messages":[{"role":"user","content":"hello"}]}' % model.encode()
    return ask("POST", "https://h:443", b"/v1/chat/completions", (), body, 0.01 * (number % 100), RULES)


KINDS: dict[str, Callable[[int], Kind]] = {
    "models": lambda size: lambda number: _chat(number, f"m{number % size}"),
    "hosts": lambda size: lambda number: _get(number, host=f"h{number % size}"),
    "methods": lambda size: lambda number: _get(number, ("GET", "HEAD", "OPTIONS")[number % min(3, size)]),
    "paths": lambda size: lambda number: _get(number, path=b"/p%d" % (number % size)),
}


class Load:
    """Requests on a clock of the test's own; `hedgers` send them in turn.

    Args:
        time_s: time of an attempt.
    """

    def __init__(self, time_s: Time, seed: int) -> None:
        self.now_s = 0.0
        self.backups = 0
        self._rng = random.Random(seed)
        self._time_s = time_s
        self._events: list[tuple[float, int, Callable[[], None]]] = []
        self._numbers = count()

    def hedger(self, config: HedgeConfig | None = None, budget: Budget | None = None) -> Hedger:
        """Return the policy of one transport."""
        return Hedger(config or HedgeConfig(), (), Stats(), lambda: self.now_s, self._rng.random, budget)

    def send(self, hedgers: Iterable[Hedger], kind: Kind) -> None:
        """Send a request of each hedger, 20 a second, and wait for the last one."""
        for number, hedger in enumerate(hedgers):
            self._at(number * _GAP_S, partial(self._send, hedger, kind(number)))
        while self._events:
            self.now_s, _, act = heapq.heappop(self._events)
            act()

    def _at(self, time_s: float, act: Callable[[], None]) -> None:
        if time_s < math.inf:
            heapq.heappush(self._events, (time_s, next(self._numbers), act))

    def _send(self, hedger: Hedger, asked: Asked) -> None:
        race = hedger.race(asked)
        self._attempt(race, race.begin())
        self._at(race.due_s, lambda: self._due(race))

    def _attempt(self, race: ClientRace, attempt: ClientAttempt) -> None:
        taken_s = self._time_s(self._rng)
        self._at(self.now_s + abs(taken_s), lambda: _answer(race, attempt, is_error=taken_s < 0.0))

    def _due(self, race: ClientRace) -> None:
        if race.is_over or self.now_s < race.due_s:
            return
        backup = race.late()
        if backup is not None:
            self.backups += 1
            self._attempt(race, backup)
        self._at(race.due_s, lambda: self._due(race))


def _answer(race: ClientRace, attempt: ClientAttempt, *, is_error: bool) -> None:
    if is_error:
        race.on_failed(attempt, failure_of(503, ()))
    elif race.on_first(attempt):
        race.on_end(attempt, outcome=Outcome.FINISHED)


@pytest.mark.parametrize("outage", OUTAGES)
@pytest.mark.parametrize(
    ("kind", "size"), [("models", 1), ("models", 400), ("hosts", 400), ("methods", 3), ("paths", 50)]
)
def test_an_outage_of_many_populations_adds_no_more_than_the_budget(outage: str, kind: str, size: int) -> None:
    """Requests of as many models, hosts, methods or paths bring at most 12 % backups, also if only half are late."""
    load = Load(OUTAGES[outage], seed=size)
    load.send([load.hedger()] * 400, KINDS[kind](size))
    assert load.backups <= 48


@pytest.mark.parametrize("outage", OUTAGES)
@pytest.mark.parametrize(("processes", "requests"), [(200, 5), (50, 20), (20, 50)])
def test_short_processes_together_stay_within_the_budget(outage: str, processes: int, requests: int) -> None:
    """Processes that end after a few requests send a tenth of them again in the mean, although none shares a budget."""
    load = Load(OUTAGES[outage], seed=processes)
    hedgers = [load.hedger() for _ in range(processes)]
    load.send([hedger for hedger in hedgers for _ in range(requests)], KINDS["models"](1))
    assert load.backups <= 120


def test_transports_share_a_budget() -> None:
    """Backups of several transports stay within the one budget that they are given, which replaces their settings'."""
    load, budget = Load(OUTAGES["slow"], seed=1), Budget(5)
    hedgers = [load.hedger(HedgeConfig(budget_percent=50), budget) for _ in range(10)]
    load.send(hedgers * 100, KINDS["hosts"](100))
    assert 20 <= load.backups <= 52


def test_a_budget_is_a_percentage() -> None:
    """Another value is rejected."""
    for wrong in (101, -1, math.nan, True, "10"):
        with pytest.raises(ValueError, match="percent is"):
            Budget(wrong)  # type: ignore[arg-type]
