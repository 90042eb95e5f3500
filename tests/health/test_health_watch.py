"""The watch: from the events and states of processes to the verdict, its event and its document."""

import asyncio
from collections.abc import Sequence
from typing import Any

import pytest
from msgspec.structs import replace

from gateway.events import Event
from gateway.health.facts import Collected, ProcessFacts
from gateway.health.watch import LOOK_S, Watch
from gateway.health.windows import CountSlot, LastAttempt, ModelSlot
from gateway.observe.process import ProcessValue
from gateway.observe.state import LimitState, PoolState, QuotaState
from gateway.process_events import (
    AcceptingChanged,
    ConfigReloaded,
    HealthChanged,
    HedgingSwitched,
    LearnedFileFailed,
    ReplicaSwitched,
    StateDropped,
    WorkerChanged,
)
from health_cases import NOW_S, A, B, pool
from running import run_virtual

_LOST = "ttft_gateway_log_lines_lost"


class _House:
    """A watch over pretended processes.

    Attributes:
        collected: facts that it gets at the next look.
        events: events that it has emitted.
    """

    def __init__(self) -> None:
        self.collected = Collected([ProcessFacts()], [pool()])
        self.events: list[Event] = []
        self.now_s = 0.0
        self.watch = Watch(self._collect, self.events.append, lambda: self.now_s, lambda: NOW_S)

    async def _collect(self) -> Collected:
        return self.collected

    def look(self, *pools: PoolState, values: Sequence[ProcessValue] = ()) -> str:
        self.collected = replace(self.collected, pools=list(pools) or [pool()], values=list(values))
        return self.look_again()

    def look_again(self) -> str:
        self.now_s += LOOK_S
        return run_virtual(self.watch.look()).sentence


def test_a_change_is_one_event() -> None:
    """The log gets the first sentence and all alerts when the troubles change, and `well` at the end."""
    house = _House()
    assert house.look() == "well"
    broken = pool(replace(A, breaker="open"), B)
    for _ in range(3):
        house.look(broken)
    for _ in range(4):
        house.look()
    assert house.events == [
        HealthChanged(
            10.0, "degraded", "replica a of m fails and gets no requests (no failure is known)", ("TtftReplicaDown",)
        ),
        HealthChanged(35.0, "well", "well", ()),
    ]


def test_looks_follow_each_other() -> None:
    """A reader that comes before the first verdict does not collect beside the look that makes it."""
    under_way, most = 0, 0

    async def collect() -> Collected:
        nonlocal under_way, most
        under_way += 1
        most = max(most, under_way)
        await asyncio.sleep(0.1)
        under_way -= 1
        return Collected([ProcessFacts()], [pool()])

    async def main() -> None:
        watch = Watch(collect, lambda _: None, lambda: 0.0, lambda: NOW_S)
        await asyncio.gather(watch.look(), watch.health())

    run_virtual(main())
    assert most == 1


def test_the_document() -> None:
    """It has the verdict, and the last failure of each replica with its time."""
    house = _House()
    failure = LastAttempt("m", "a", 0.0, NOW_S, "failed", "upstream_error", 503, late=1)
    older = replace(failure, failed_s=NOW_S - 9, status=500, answered_s=NOW_S - 7)
    house.collected = Collected([ProcessFacts(last=[older]), ProcessFacts(last=[failure])], [pool()])
    house.look(pool(replace(A, breaker="open"), B))
    document: dict[str, Any] = run_virtual(house.watch.health())
    assert (document["state"], document["since"]) == ("degraded", "2026-11-28T06:00:05+00:00")
    assert document["sentence"] == document["findings"][0]["sentence"]
    assert document["findings"][0]["runbook"] == "docs/runbook.md#a-replica-is-dead"
    assert document["replicas"] == [
        {
            "model": "m",
            "replica": "a",
            "state": "failing",
            "last_failure": {
                "at": "2026-11-28T06:00:00+00:00",
                "outcome": "failed",
                "error": "upstream_error",
                "status": 503,
            },
        },
        {"model": "m", "replica": "b", "state": "in use", "last_failure": None},
    ]


def test_the_first_reader_gets_a_verdict() -> None:
    """Before the first look the reader causes one."""
    assert run_virtual(_House().watch.health())["state"] == "well"


def test_what_rises_is_compared_with_a_minute_ago() -> None:
    """Lines that were lost before the first look are no trouble; lost lines are one for a minute."""
    house = _House()

    def lost(lines: float) -> str:
        return house.look(values=[ProcessValue(_LOST, "", "counter", lines)])

    assert [lost(100.0), lost(100.0)] == ["well", "well"]
    assert lost(140.0) == "standard output is not writable: 40 log lines were lost in a minute"
    sentences = [lost(140.0) for _ in range(16)]
    assert sentences[10] != "well"
    assert sentences[-1] == "well"


def test_usage_by_others_is_counted_once() -> None:
    """Of two limits of a resource the shorter one counts, and two processes see the same usage."""
    house = _House()

    def used(others_s: float) -> str:
        limits = tuple(
            LimitState("tokens", window_s, 100.0, 40.0, observed=True, enforced=False, age_s=1.0, others_s=value_s)
            for window_s, value_s in ((86_400.0, 9_999.0), (60.0, others_s))
        )
        quotas = (QuotaState("openai", 0.0, limits, 0, 0, 0),)
        return house.look(pool(quotas=quotas), pool(model="n", quotas=quotas))

    assert used(0.0) == "well"
    used(26.0)
    used(30.0)
    assert used(30.0) == "other clients use 50% of the tokens of quota openai; 40% is left"


@pytest.mark.parametrize(
    ("event", "words"),
    [
        (WorkerChanged(0.0, 2, 77, ready=False, reason="was ended by SIGKILL"), "worker 2 at 06:00:00: was ended by"),
        (ConfigReloaded(0.0, 1, 2, 0, "line 3 is wrong"), "the configuration was rejected at 06:00:00"),
        (AcceptingChanged(0.0, "0.0.0.0:80", accepting=False, error="Too many open files"), "Too many open files"),
    ],
)
def test_events_of_the_process_are_troubles(event: Event, words: str) -> None:
    """A worker that has ended, a rejected reload and a failing listener are in the verdict at once."""
    house = _House()
    house.watch.on_events([event])
    assert words in house.look()


def test_events_end_troubles() -> None:
    """A good reload, and a listener that accepts again for a minute, are the end."""
    house = _House()
    house.watch.on_events([ConfigReloaded(0.0, 1, 2, 0, "line 3 is wrong")])
    house.watch.on_events([AcceptingChanged(0.0, "0.0.0.0:80", accepting=False, error="Too many open files")])
    house.look()
    house.watch.on_events([ConfigReloaded(6.0, 1, 2, 0)])
    house.watch.on_events([AcceptingChanged(6.0, "0.0.0.0:80", accepting=True)])
    sentences = [house.look() for _ in range(17)]
    assert "Too many open files" in sentences[5]
    assert sentences[-1] == "well"


def test_faults_have_their_reasons() -> None:
    """The learned file and damaged state are described as the event did."""
    house = _House()
    house.watch.on_events([LearnedFileFailed(0.0, "learned.json", "No space left on device")])
    house.watch.on_events([StateDropped(0.0, "share", "m/a", "level is -1")])
    dropped = ProcessValue("ttft_gateway_state_dropped", "", "counter", 0.0, {"source": "share"})
    file = ProcessValue("ttft_gateway_learned_file_up", "", "gauge", 0.0)
    house.look(values=[dropped, file])
    house.look(values=[dropped._replace(value=2.0), file])
    document: dict[str, Any] = run_virtual(house.watch.health())
    assert [each["sentence"] for each in document["findings"]] == [
        "what the gateway has learned cannot be kept: No space left on device",
        "damaged state from share was dropped 2 times in a minute (m/a: level is -1)",
    ]


def test_the_history_has_slots_states_and_switches() -> None:
    """Slots of two processes are added; a switch is kept with its time."""
    house = _House()
    slots = [CountSlot(int(NOW_S // 5), 1, models={"m": ModelSlot(requests=1)})]
    house.collected = Collected([ProcessFacts(slots), ProcessFacts(slots)], [])
    house.watch.on_events([HedgingSwitched(1.0, None, on=False)])
    house.watch.on_events([ReplicaSwitched(2.0, "m", "a", out=True)])
    house.look(pool(replace(A, out=True), B))
    day = run_virtual(house.watch.history("m"))
    assert day.requests[-1] == 2
    assert {name: states[-1] for name, states in day.states.items()} == {"a": "o", "b": "."}
    assert [(each.at_s - NOW_S, each.replica, each.on) for each in day.switches] == [
        (1.0, None, False),
        (2.0, "a", False),
    ]


def test_a_defect_costs_one_judgement(caplog: pytest.LogCaptureFixture) -> None:
    """The watch goes on after an exception, which is logged once."""
    house = _House()
    looks = 0

    async def collect() -> Collected:
        nonlocal looks
        looks += 1
        if looks < 3:
            raise ValueError("a defect")
        if looks > 3:
            raise SystemExit
        return house.collected

    watch = Watch(collect, house.events.append, lambda: 0.0, lambda: NOW_S)
    with pytest.raises(SystemExit):
        run_virtual(watch.run())
    assert len(caplog.records) == 1
