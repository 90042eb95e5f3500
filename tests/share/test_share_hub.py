"""The engines that add up the asks of all processes: the hub of a host, and the functions in a Redis server.

Both pass the same tests, and answer random asks equally.
"""

import itertools
import math
from collections.abc import Callable

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

import gateway.share.hub as hub_module
import shared_fixtures
from gateway.share.hub import ShareHub
from gateway.share.messages import (
    Ask,
    BucketAnswer,
    BucketAsk,
    GaugeAnswer,
    GaugeAsk,
    Lost,
    Reply,
    SliceAnswer,
    SliceAsk,
    SlotsAnswer,
    SlotsAsk,
    SwitchesAnswer,
    SwitchesAsk,
)
from share_processes import Engines, Processes

server, engines = shared_fixtures.server, shared_fixtures.engines


def test_answers_come_in_the_order_of_the_asks(engines: Engines) -> None:
    """One batch may hold every kind."""
    asks: list[Ask] = [
        SwitchesAsk([]),
        BucketAsk("k", 5, 60, want=1, spent=[]),
        SliceAsk("s", {}),
        GaugeAsk("g", {}),
        SlotsAsk("c", 2, 0),
    ]
    reply = engines().answer(5.0, "a", asks)
    kinds = [SwitchesAnswer, BucketAnswer, SliceAnswer, GaugeAnswer, SlotsAnswer]
    assert [type(answer) for answer in reply.answers] == kinds
    assert msgspec.msgpack.decode(msgspec.msgpack.encode(reply), type=Reply) == reply
    assert msgspec.msgpack.decode(msgspec.msgpack.encode(asks), type=list[Ask]) == asks


def test_processes_that_are_silent_for_five_seconds_are_not_counted(engines: Engines) -> None:
    """The reply has the number of processes."""
    hub = engines()
    assert hub.answer(0.0, "a", []).processes == 1
    assert [hub.answer(now_s, "b", []).processes for now_s in (1.5, 3.0, 4.5)] == [2, 2, 2]
    assert hub.answer(5.0, "b", []).processes == 1
    if isinstance(hub, ShareHub):
        assert hub.processes(6.0) == {"b": 1.0}


def test_processes_are_not_silent_while_the_engine_is_stopped(engines: Engines) -> None:
    """After a pause of the engine nothing is free that a process still has."""
    processes = Processes(engines)
    processes.slots("a", 0, 4)
    processes.now_s += 60.0
    assert processes.slots("b", 0, 1).granted == 0
    processes.now_s += 1.9
    processes.slots("b", 0, 1)
    processes.now_s += 1.9
    processes.slots("b", 0, 1)
    processes.now_s += 1.9
    assert processes.slots("b", 0, 1).granted == 1


def test_a_bucket_is_full_at_first_and_refills(engines: Engines) -> None:
    """Processes share one bucket, which the engine's clock fills."""
    processes = Processes(engines)
    assert processes.bucket(want=50).granted == 50
    answer = processes.bucket("b", want=50)
    assert (answer.granted, answer.left) == (10, 0)
    processes.now_s += 7.0
    assert processes.bucket("b", want=50).granted == pytest.approx(7)
    processes.now_s += 1_000.0
    assert processes.bucket().left == 60


def test_less_than_the_least_is_not_granted_and_the_wait_is_stated(engines: Engines) -> None:
    """A process that is refused learns when to ask again."""
    processes = Processes(engines)
    processes.bucket(want=55)
    answer = processes.bucket(want=20, least=8)
    assert (answer.granted, answer.left, answer.wait_s) == (0, 5, 3)
    processes.now_s += 3.0
    assert processes.bucket(want=20, least=8).granted == 8


def test_more_than_the_bucket_holds_is_a_full_bucket(engines: Engines) -> None:
    """A request above the limit gets all of it."""
    assert Processes(engines).bucket(want=1_000, least=1_000).granted == 60


def test_what_was_spent_without_a_lease_is_a_debt(engines: Engines) -> None:
    """No process gets a lease until the debt is repaid."""
    processes = Processes(engines)
    epoch = processes.bucket(want=60).epoch
    processes.bucket(beyond=30, epoch=epoch)
    answer = processes.bucket(want=1, least=1)
    assert (answer.granted, answer.left, answer.wait_s) == (0, -30, 31)


def test_what_is_given_back_is_there_for_others(engines: Engines) -> None:
    """A process that stops needs no lease."""
    processes = Processes(engines)
    epoch = processes.bucket(want=60).epoch
    processes.bucket(beyond=-20, epoch=epoch)
    assert processes.bucket("b", want=60).granted == 20


def test_a_drained_bucket_has_nothing_left(engines: Engines) -> None:
    """A rejection by the provider empties it; a debt remains."""
    processes = Processes(engines)
    assert processes.bucket(drained=True).left == 0
    assert processes.bucket(beyond=5, epoch=processes.bucket().epoch, drained=True).left == -5


def test_a_lost_bucket_goes_on_from_the_lowest_hint(engines: Engines) -> None:
    """Debts of the life before count once, and what was leased then; a process without a hint changes nothing."""
    processes = Processes(engines)
    old = processes.bucket(want=50).epoch
    processes.lose()
    processes.now_s += 1.0
    answer = processes.bucket("a", beyond=3, hint=10, epoch=old, hint_age_s=1.0)
    assert answer.left == 10 + 1 - 3
    assert answer.epoch != old
    processes.bucket("b", want=2, hint=12, epoch=old, hint_age_s=1.0)
    assert processes.bucket("c").left == 6
    assert processes.bucket("d", hint=7, epoch=old, hint_age_s=2.0).left == 6 - (11 - 9)
    assert processes.bucket("a", hint=0, epoch=answer.epoch).left == 4


def test_a_hint_that_is_older_than_a_full_bucket_costs_nothing(engines: Engines) -> None:
    """After an outage of a window, whatever was left before it."""
    processes = Processes(engines)
    old = processes.bucket(want=50).epoch
    processes.lose()
    processes.now_s += 100.0
    processes.bucket("a", hint=40, epoch=old, hint_age_s=100.0)
    assert processes.bucket("b", hint=0, epoch=old, hint_age_s=90.0).left == 60


@pytest.mark.parametrize("keeps", [True, False])
def test_what_was_spent_while_the_engine_was_away_is_charged_at_its_time(engines: Engines, keeps: bool) -> None:
    """What a full bucket has wasted since pays for it, in any order; the engine may have lost its data."""
    for order in ("abc", "cab"):
        processes = Processes(engines)
        old = processes.bucket(want=60).epoch
        if not keeps:
            processes.lose()
        processes.now_s += 180.0
        spent = {"a": [180.0, 0.0, 90.0], "b": [100.0, 80.0, 40.0], "c": [10.0, 10.0, 20.0, 5.0, 5.0, 20.0]}
        answers = [
            processes.bucket(process, hint=0, epoch=old, hint_age_s=180.0, spent=spent[process]) for process in order
        ]
        # 40 before b, which leaves 10; 45 before c, which takes 20 twice; a takes half of the refill
        assert answers[-1].left == pytest.approx(10)


def test_what_was_spent_while_a_lost_bucket_was_away_is_charged_at_its_time(engines: Engines) -> None:
    """Also if the first that asks for it has never seen it: at half of the limit nothing is owed."""
    hub, asks = engines(), [BucketAsk("k", 60.0, 60.0, spent=(180.0, 0.0, 45.0), report=1)]
    for process in "ab":
        [answer] = hub.answer(1000.0, process, asks).answers
        assert isinstance(answer, BucketAnswer)
        assert answer.left == pytest.approx(60.0)


def test_what_is_given_back_to_a_full_bucket_pays_for_what_was_spent_before(engines: Engines) -> None:
    """The bucket would have been full earlier; of 35, the 25 that are wasted afterwards cost nothing."""
    processes = Processes(engines)
    epoch = processes.bucket("a", want=10).epoch
    processes.now_s += 30.0
    processes.bucket("a", beyond=-10, epoch=epoch)
    assert processes.bucket("b", spent=[25.0, 25.0, 35.0]).left == pytest.approx(50)


def test_a_process_that_was_cut_off_alone_locks_nobody_out_for_long(engines: Engines) -> None:
    """The others had the whole limit meanwhile: of what it owes, a quarter of the limit counts."""
    processes = Processes(engines)
    for _ in range(600):
        processes.now_s += 1.0
        processes.bucket("a", want=1)
    assert processes.bucket("b", spent=[600.0, 0.0, 500.0]).left == -15


def test_a_process_that_has_started_alone_supposes_a_used_up_limit(engines: Engines) -> None:
    """What was spent before its start is unknown."""
    processes = Processes(engines)
    processes.bucket("a")
    processes.now_s += 100.0
    answer = processes.bucket("b", hint=0, hint_age_s=20.0, spent=[15.0, 5.0, 8.0])
    assert answer.left == 20 - 8
    assert processes.bucket("a").left == 12


@pytest.mark.parametrize("until_s", [999.0, 1_000.0])
def test_nothing_is_leased_to_an_ask_that_is_too_old(engines: Engines, until_s: float) -> None:
    """It was sent again meanwhile; what is only reported counts."""
    hub = engines()
    asks: list[Ask] = [BucketAsk("k", 5, 60, want=1), SlotsAsk("c", 2, 0, 1), GaugeAsk("g", {"r": [1]})]
    answers = hub.answer(1_000.0, "a", asks, until_s).answers
    kinds = [Lost, Lost] if until_s < 1_000 else [BucketAnswer, SlotsAnswer]
    assert [type(answer) for answer in answers] == [*kinds, GaugeAnswer]


def test_a_bucket_that_only_processes_fill(engines: Engines) -> None:
    """With an infinite window nothing refills."""
    processes = Processes(engines)
    epoch = processes.bucket(hint=0, window_s=math.inf).epoch
    processes.now_s += 500.0
    assert processes.bucket(want=1, least=1, window_s=math.inf).wait_s == math.inf
    processes.bucket(beyond=-3, epoch=epoch, window_s=math.inf)
    assert processes.bucket(want=5, window_s=math.inf).granted == 3


def test_of_two_limits_the_lower_one_counts_while_processes_have_it(engines: Engines) -> None:
    """During a rolling change of a limit, the lower one holds."""
    processes = Processes(engines)
    assert processes.bucket("a", amount=60).amount == 60
    assert processes.bucket("b", amount=30).amount == 30
    assert processes.bucket("a", want=60, amount=60).granted == 30
    processes.now_s += 5.0
    assert processes.bucket("a", amount=60).amount == 60


def test_a_clock_that_steps_back_gives_nothing(engines: Engines) -> None:
    """Nothing is refilled, and nothing fails."""
    processes = Processes(engines)
    processes.bucket(want=60)
    processes.now_s -= 100.0
    assert processes.bucket().left == 0


@given(
    st.lists(
        st.tuples(st.sampled_from("abc"), st.floats(0, 3), st.floats(0, 100), st.floats(0, 50), st.floats(-5, 30)),
        max_size=60,
    )
)
def test_no_more_is_granted_than_one_bucket_allows(
    engines: Engines,
    steps: list[tuple[str, float, float, float, float]],
) -> None:
    """All that is granted, charged to one bucket of the same size, never leaves it in debt."""
    processes, true_left = Processes(engines), 60.0
    epoch = processes.bucket().epoch
    for process, wait_s, want, least, beyond in steps:
        processes.now_s += wait_s
        true_left = min(60.0, true_left + wait_s)
        answer = processes.bucket(process, want, least, beyond, epoch=epoch)
        true_left = min(60.0, true_left - beyond) - answer.granted
        assert true_left == pytest.approx(answer.left, abs=1e-6)
        assert answer.granted == 0 or true_left >= -1e-6
        assert answer.granted == 0 or answer.granted >= min(least, 60.0) - 1e-6  # rounding


def test_slots_are_leased_up_to_the_limit(engines: Engines) -> None:
    """A process that lacks slots is shown to those that hold them."""
    processes = Processes(engines)
    assert processes.slots("a", 0, 3) == SlotsAnswer(3, 0, 4)
    assert processes.slots("b", 0, 3) == SlotsAnswer(1, 3, 4)
    assert processes.slots("a", 3) == SlotsAnswer(0, 1, 4, wanted=True)
    assert processes.slots("a", 1).granted == 0
    assert processes.slots("b", 1, 2) == SlotsAnswer(2, 1, 4)


def test_slots_of_a_process_that_is_gone_are_free(engines: Engines) -> None:
    """After 5 s of silence, or immediately when its connection to a hub ends."""
    processes = Processes(engines)
    processes.slots("a", 0, 4)
    for pause_s in (1.7, 1.7, 1.5):
        processes.now_s += pause_s
        assert processes.slots("b", 0, 1).granted == 0
    processes.now_s += 0.1
    assert processes.slots("b", 0, 1).granted == 1
    processes.slots("b", 0)
    processes.slots("a", 0, 4)
    if isinstance(processes.hub, ShareHub):
        processes.hub.gone("a")
        assert processes.slots("b", 0, 4).granted == 4


def test_after_a_loss_slots_in_use_are_not_leased_again(engines: Engines) -> None:
    """The first process states what the others had; it counts until they have asked, at most 5 s."""
    processes = Processes(engines)
    assert processes.slots("a", 1, 4, others=2) == SlotsAnswer(1, 2, 4)
    assert processes.slots("b", 2, 1, others=1) == SlotsAnswer(0, 2, 4, wanted=True)
    assert processes.slots("b", 1) == SlotsAnswer(0, 2, 4, wanted=True)
    assert processes.slots("a", 2, 4).granted == 1
    processes = Processes(engines)
    processes.slots("a", 1, others=2)
    processes.now_s += 5.0
    assert processes.slots("a", 1, 4).granted == 3


@pytest.mark.parametrize(
    ("ask", "later_s"),
    [
        (lambda key: BucketAsk(key, 1, 1, want=1), 0.0),
        (lambda key: SlotsAsk(key, 1, 0, 1), 0.0),
        (lambda key: GaugeAsk(key, {"r": (1, 1)}), 0.0),
        (lambda key: SliceAsk(key, {"n": 1}), 2.0),
    ],
    ids=["bucket", "slots", "gauge", "slice"],
)
def test_the_least_recently_used_key_makes_room(
    ask: Callable[[str], Ask], later_s: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    """No table grows without a bound."""
    monkeypatch.setattr(hub_module, "KEYS_MAX", 3)
    hub = ShareHub()
    first = hub.answer(0.0, "a", [ask("k1")]).answers
    hub.answer(0.0, "b", [ask("k2"), ask("k3"), ask("k1")])
    hub.answer(0.0, "a", [ask("k4")])
    assert hub.answer(later_s, "c", [ask("k1")]).answers != first
    table = next(each for each in vars(hub).values() if isinstance(each, dict) and "k1" in each)
    assert list(table) == ["k3", "k4", "k1"]


def test_processes_and_names_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    """The oldest goes, or the new one is not taken."""
    for name in ("PROCESSES_MAX", "NAMES_MAX", "ROW_MAX"):
        monkeypatch.setattr(hub_module, name, 2)
    processes = Processes(ShareHub)
    for process in "abc":
        processes.gauge(process, r=(1, 1))
    assert processes.gauge("c", r=(0, 0)) == GaugeAnswer(2, {"r": [1, 1]})
    processes.gauge("c", r1=(1, 1), r2=(1, 1))
    assert processes.gauge("b", r1=(0, 0)).others == {}
    processes.gauge("c", r=(1, 1, 1))
    assert processes.gauge("b", r=(0, 0)).others == {}
    processes.ask("a", SliceAsk("s", {"x": 1, "y": 1, "z": 1}), SliceAnswer)
    processes.now_s += 2.0
    assert processes.ask("a", SliceAsk("s", {}), SliceAnswer).bins[500] == {"x": 1, "y": 1}


def test_a_host_gets_the_sums_that_have_changed() -> None:
    """An empty row stands for zeros; also of a name that the process did not have, and of a process that has gone."""
    processes = Processes(ShareHub)

    def ask(process: str, since: int, **rows: tuple[int, ...]) -> GaugeAnswer:
        return processes.ask(process, GaugeAsk("pool", rows, since), GaugeAnswer)

    ask("b", 0, r1=(1, 1), r2=(2, 2), r3=(3, 3))
    first = ask("a", 0, r1=(0, 0), r2=(0, 0))
    assert (first.others, first.is_part) == ({"r1": [1, 1], "r2": [2, 2]}, False)
    ask("b", 0, r1=(1, 1), r2=(4, 2), r3=(5, 3))
    second = ask("a", first.version, r1=(0, 0), r2=(0, 0))
    assert (second.others, second.is_part) == ({"r2": [4, 2]}, True)
    assert second.sums(first.others or {}) == {"r1": [1, 1], "r2": [4, 2]}
    third = ask("a", second.version, r1=(0, 0), r2=(0, 0), r3=(1, 1))
    assert third.others == {"r3": [5, 3]}
    ask("b", 0, r1=(0, 0), r3=(5, 3))
    fourth = ask("a", third.version, r1=(0, 0), r2=(0, 0), r3=(1, 1))
    assert fourth.others == {"r1": [], "r2": []}
    assert fourth.sums({"r1": [1, 1], "r2": [4, 2], "r3": [5, 3]}) == {"r3": [5, 3]}
    assert isinstance(processes.hub, ShareHub)
    processes.hub.gone("b")
    assert ask("a", fourth.version, r1=(0, 0), r3=(1, 1)).others == {"r1": [], "r3": []}


def test_epochs_differ() -> None:
    """A bucket that is born again in the same millisecond has another epoch."""
    hub, epochs = ShareHub(), set[int]()
    for number, _ in itertools.product(range(5), range(2)):
        [answer] = hub.answer(1.0, "a", [BucketAsk(f"k{number}", 1, 1)]).answers
        assert isinstance(answer, BucketAnswer)
        epochs.add(answer.epoch)
    assert len(epochs) == 5
