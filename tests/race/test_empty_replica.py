"""A replica with valid answers that have no content, in virtual time: it is idle, and does not attract traffic."""

import random

import pytest

from defaults import default_hedging
from gateway.race.race import Race
from pooled import answer, pool, send
from recovering import ask, run
from running import run_virtual
from scripted import DONE, FINISH, RecordingClient, Scripted, ScriptedStream, Step, text
from traffic import poisson
from ttft_gateway.apis.base import Call, Sink
from ttft_gateway.hedging.outcomes import Outcome
from ttft_gateway.pool.pool import Pool
from ttft_gateway.routing.replicas import BreakerState, Replica
from ttft_gateway.routing.strategies import Routing

PER_S = 5.0


class Sometimes(Scripted):
    """A replica with a share of answers that have no content, and come at once."""

    def __init__(self, rng: random.Random, empty: float) -> None:
        super().__init__()
        self._rng = rng
        self._empty = empty
        self.empties = 0

    def open(self, call: Call, sink: Sink) -> ScriptedStream:
        is_empty = self._rng.random() < self._empty
        self.empties += is_empty
        steps: list[Step] = [] if is_empty else [(0.3, text("a")), (1.0, text("b"))]
        end_s = 0.01 if is_empty else 1.5
        self.scripts = ([*steps, (end_s, FINISH), (end_s, DONE), (end_s, None)],)
        return super().open(call, sink)


@pytest.mark.parametrize(
    ("routing", "batches"), [(Routing.PREDICTED, False), (Routing.PREDICTED, True), (Routing.LEAST_IN_FLIGHT, False)]
)
def test_an_empty_replica_costs_few_answers(routing: Routing, *, batches: bool) -> None:
    """In two minutes the replica gives its row of empty answers, then one for each probe, after 15 s at last."""

    async def main() -> list[int]:
        rng = random.Random(1)
        endpoints = [Sometimes(rng, empty) for empty in (1.0, 0.0, 0.0)]
        replicas = [Replica(f"r{n}", each, batches=batches) for n, each in enumerate(endpoints)]
        fleet = Pool("p", replicas, default_hedging(routing=routing))
        await poisson(fleet, 600, PER_S, rng, settle_s=10.0)
        assert fleet.replicas[0].breaker.state is not BreakerState.CLOSED
        return [each.empties for each in endpoints]

    assert 0 < run_virtual(main())[0] <= 20 + 120 / 15


@pytest.mark.parametrize("empty", [0.05, 0.3, 0.6, 0.95])
def test_empty_answers_of_all_replicas_are_no_fault(empty: float) -> None:
    """A model may stop at once: if all replicas have the same share of such answers, next to no row opens a breaker."""
    rng = random.Random(2)
    fleet = pool(None, None, None)
    opened = 0
    for number in range(6_000):
        at_s = 20.0 * number  # longer than a breaker is open
        attempt = send(fleet, number % 3, at_s)
        breaker = attempt.replica.breaker
        if rng.random() < empty:
            fleet.on_end(attempt, Outcome.EMPTY, at_s, None)
        else:
            answer(fleet, attempt, at_s)
        opened += breaker.state is not BreakerState.CLOSED
    assert opened <= 2


def test_the_only_replica_may_give_empty_answers() -> None:
    """Nothing shows that other answers are possible, and a breaker would only turn requests away."""
    fleet = pool(None)
    for number in range(100):
        fleet.on_end(send(fleet, 0, float(number)), Outcome.EMPTY, float(number), None)
    assert fleet.replicas[0].breaker.state is BreakerState.CLOSED


def test_content_of_an_empty_replica_ends_the_row() -> None:
    """A replica that has been repaired is in use after its first content, and a new row begins at 0."""
    fleet = pool(None, None)
    empty, at_s = fleet.replicas[0], 0.0
    while empty.breaker.is_closed(at_s):
        at_s += 1.0
        answer(fleet, send(fleet, 1, at_s), at_s)
        fleet.on_end(send(fleet, 0, at_s), Outcome.EMPTY, at_s, None)
    assert 4 <= fleet.loads.of[empty].empties.count <= 8
    answer(fleet, send(fleet, 0, at_s + 10.0), at_s + 10.0)
    fleet.on_end(send(fleet, 0, at_s + 11.0), Outcome.EMPTY, at_s + 11.0, None)
    assert empty.breaker.is_closed(at_s + 11.0)


@pytest.mark.parametrize("is_empty", [False, True])
def test_an_empty_continuation_is_the_end_unless_the_replica_is_empty(*, is_empty: bool) -> None:
    """A stream may break after its last token; a replica with an empty answer before does not show that it did."""

    def know(race: Race, _client: RecordingClient) -> None:
        loads = race._model.pools[0].loads
        if is_empty:
            loads.on_empty(list(loads.of)[1])

    result = run(ask(), {"faults": ["cut_rst:10 once"]}, {"tokens": 0}, {}, prefills=[False, True, False], during=know)
    assert result.report.status == 200
    assert len(result.read.texts["0.content"].split()) == (20 if is_empty else 10)
    assert [attempt.outcome for attempt in result.report.attempts][1:] == (
        [Outcome.FAILED, Outcome.FINISHED] if is_empty else [Outcome.EMPTY]
    )
