"""The loads, learned counts and switches that the engines pass on: the hub of a host, and a Redis server."""

from collections.abc import Mapping

from hypothesis import given
from hypothesis import strategies as st

import shared_fixtures
from gateway.share.messages import (
    GaugeAnswer,
    GaugeAsk,
    SliceAnswer,
    SliceAsk,
    SwitchesAnswer,
    SwitchesAsk,
    SwitchState,
)
from share_processes import Engines, Processes

server, engines = shared_fixtures.server, shared_fixtures.engines


def test_a_process_gets_the_sums_of_the_others(engines: Engines) -> None:
    """Each process adds its own loads, which are fresh, and gets the sums of the names that it has."""
    processes = Processes(engines)
    assert processes.gauge("a", r1=(1, 100), r2=(2, 50)) == GaugeAnswer(1, {})
    assert processes.gauge("b", r1=(3, 10), r2=(0, 0)) == GaugeAnswer(2, {"r1": [1, 100], "r2": [2, 50]})
    assert processes.gauge("a", r1=(0, 0)).others == {"r1": [3, 10]}
    assert processes.gauge("b", r1=(3, 10), r2=(0, 0)).others == {}
    assert processes.gauge("b", r2=(0, 0)).others == {}
    assert processes.gauge("a", r1=(0, 0)).others == {}


def test_what_has_not_changed_is_not_returned(engines: Engines) -> None:
    """Until any process has other rows, or is gone; after a loss everything is returned."""
    processes = Processes(engines)

    def ask(process: str, rows: Mapping[str, tuple[int, ...]], since: int = 0) -> GaugeAnswer:
        return processes.ask(process, GaugeAsk("pool", rows, since), GaugeAnswer)

    ask("b", {"r1": (3, 10)})
    first = ask("a", {"r1": (1, 2)})
    assert first.others == {"r1": [3, 10]}
    assert ask("a", {"r1": (1, 2)}, first.version) == GaugeAnswer(2, None, first.version)
    assert ask("a", {"r1": (1, 2)}).others == first.others
    second = ask("a", {"r1": (5, 2)})
    assert second.others == first.others
    ask("b", {"r1": (4, 10)})
    third = ask("a", {"r1": (5, 2)}, second.version)
    assert third.version > second.version
    assert third.others == {"r1": [4, 10]}
    processes.now_s += 3.0
    assert ask("a", {"r1": (5, 2)}, third.version).others is None
    processes.now_s += 3.0
    gone = ask("a", {"r1": (5, 2)}, third.version)
    assert (gone.processes, gone.sums({"r1": [4, 10]})) == (1, {})
    processes.lose()
    processes.now_s += 0.1
    assert ask("a", {"r1": (5, 2)}, gone.version).sums({"r1": [4, 10]}) == {}


def test_loads_of_a_silent_process_go(engines: Engines) -> None:
    """After 5 s they are not in the sums."""
    processes = Processes(engines)
    processes.gauge("a", r1=(1, 100))
    processes.now_s += 3.0
    processes.gauge("b", r1=(2, 10))
    processes.now_s += 2.0
    assert processes.gauge("c", r1=(0, 0)) == GaugeAnswer(2, {"r1": [2, 10]})


def test_rows_may_differ_in_length(engines: Engines) -> None:
    """A later version may add places; another one counts as 0 there."""
    processes = Processes(engines)
    processes.gauge("a", r1=(1, 2))
    processes.gauge("b", r1=(1, 2, 3))
    assert processes.gauge("c", r1=(0,)).others == {"r1": [2, 4, 3]}
    processes.gauge("b")
    others = processes.gauge("c", r1=(0,)).others
    assert others is not None
    assert [*others["r1"], 0][:3] == [1, 2, 0]  # a server sends no zeros at the end


@given(
    st.lists(
        st.tuples(st.sampled_from("abcd"), st.dictionaries(st.sampled_from("xyz"), st.integers(0, 9))), max_size=30
    )
)
def test_sums_are_those_of_the_last_values(engines: Engines, steps: list[tuple[str, dict[str, int]]]) -> None:
    """However values come and go, the sums are exact."""
    processes, last = Processes(engines), dict[str, dict[str, int]]()
    for process, counts in steps:
        answer = processes.gauge(process, **{name: (count, 10 * count) for name, count in counts.items()})
        last[process] = counts
        others: dict[str, list[int]] = {}
        for name in counts:
            count = sum(values.get(name, 0) for other, values in last.items() if other != process)
            if count:
                others[name] = [count, 10 * count]
        assert answer.others == others


def test_a_slice_adds_by_name_and_bin(engines: Engines) -> None:
    """Processes read the bins that have ended since their last ask; a newcomer reads all."""
    processes = Processes(engines)
    assert processes.ask("a", SliceAsk("s", {"e1": 1, "x": 7}), SliceAnswer) == SliceAnswer(500, {})
    assert processes.ask("b", SliceAsk("s", {"e1": 2}), SliceAnswer).bins == {}
    processes.now_s += 2.0
    first = SliceAnswer(501, {500: {"e1": 3, "x": 7}})
    assert processes.ask("a", SliceAsk("s", {"e2": 1}, 500), SliceAnswer) == first
    assert processes.ask("a", SliceAsk("s", {}, 501), SliceAnswer).bins == {}
    assert processes.ask("b", SliceAsk("s", {}, 500), SliceAnswer) == first
    assert processes.ask("c", SliceAsk("s", {}), SliceAnswer) == first
    processes.now_s += 2.0
    assert processes.ask("a", SliceAsk("s", {}, 501), SliceAnswer) == SliceAnswer(502, {501: {"e2": 1}})
    assert processes.ask("c", SliceAsk("s", {}), SliceAnswer).bins.keys() == {500, 501}
    assert processes.ask("c", SliceAsk("other", {}), SliceAnswer).bins == {}


def test_bins_are_dropped_after_two_minutes(engines: Engines) -> None:
    """A slice is as long as the window of what is learned."""
    processes = Processes(engines)
    processes.ask("a", SliceAsk("s", {"e1": 1}), SliceAnswer)
    for age_s, found in ((118.0, {500: {"e1": 1}}), (2.0, {})):
        processes.now_s += age_s
        assert processes.ask("a", SliceAsk("s", {}), SliceAnswer).bins == found
        assert processes.ask("newcomer", SliceAsk("s", {}), SliceAnswer).bins == found


def test_a_bin_number_of_an_engine_before_reads_all(engines: Engines) -> None:
    """The numbers of an engine with another clock mean nothing."""
    processes = Processes(engines)
    processes.ask("a", SliceAsk("s", {"e1": 1}), SliceAnswer)
    processes.now_s += 2.0
    assert processes.ask("b", SliceAsk("s", {}, 9_999), SliceAnswer).bins == {500: {"e1": 1}}


def test_switches_reach_every_process_once(engines: Engines) -> None:
    """The publisher sees how many processes have them; later switches replace earlier ones of the same name."""
    processes = Processes(engines)

    def ask(process: str, *switches: SwitchState, after: int = 0) -> SwitchesAnswer:
        return processes.ask(process, SwitchesAsk(switches, after), SwitchesAnswer)

    assert ask("b") == SwitchesAnswer(0, [], 1)
    told = ask("a", SwitchState("hedging", "off"), SwitchState("cool r1", "", 3.0))
    assert [switches.name for switches in told.switches] == ["hedging", "cool r1"]
    assert told.reached == 0
    processes.now_s += 1.0
    heard = ask("b")
    assert heard.switches == [SwitchState("hedging", "off", 3599.0), SwitchState("cool r1", "", 2.0)]
    assert ask("b", after=heard.number) == SwitchesAnswer(heard.number, [], 1)
    assert ask("a", after=told.number).reached == 2
    later = ask("a", SwitchState("hedging", "on"), after=told.number)
    assert ask("b", after=heard.number).switches == [SwitchState("hedging", "on")]
    processes.now_s += 2.0
    assert [switches.name for switches in ask("c").switches] == ["hedging"]
    assert ask("c", after=later.number + 5).switches != []
