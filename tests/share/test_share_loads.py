"""The loads, learned counts and news that the engines pass on: the hub of a host, and a Redis server."""

from hypothesis import given
from hypothesis import strategies as st

import shared_fixtures
from gateway.share.messages import (
    GaugeAnswer,
    News,
    NewsAnswer,
    NewsAsk,
    SliceAnswer,
    SliceAsk,
)
from share_heads import Engines, Heads

server, engines = shared_fixtures.server, shared_fixtures.engines


def test_a_head_gets_the_sums_of_the_others(engines: Engines) -> None:
    """Each head adds its own loads, which are fresh."""
    heads = Heads(engines)
    assert heads.gauge("a", r1=(1, 100), r2=(2, 50)) == GaugeAnswer(1, {})
    assert heads.gauge("b", r1=(3, 10)) == GaugeAnswer(2, {"r1": [1, 100], "r2": [2, 50]})
    assert heads.gauge("a", r1=(0, 0)).others == {"r1": [3, 10]}
    assert heads.gauge("b").others == {}
    assert heads.gauge("a").others == {}


def test_loads_of_a_silent_head_go(engines: Engines) -> None:
    """After 5 s they are not in the sums."""
    heads = Heads(engines)
    heads.gauge("a", r1=(1, 100))
    heads.now_s += 3.0
    heads.gauge("b", r1=(2, 10))
    heads.now_s += 2.0
    assert heads.gauge("c") == GaugeAnswer(2, {"r1": [2, 10]})


def test_rows_may_differ_in_length(engines: Engines) -> None:
    """A later version may add places; another one counts as 0 there."""
    heads = Heads(engines)
    heads.gauge("a", r1=(1, 2))
    heads.gauge("b", r1=(1, 2, 3))
    assert heads.gauge("c").others == {"r1": [2, 4, 3]}
    heads.gauge("b")
    assert heads.gauge("c").others == {"r1": [1, 2, 0]}


@given(
    st.lists(
        st.tuples(st.sampled_from("abcd"), st.dictionaries(st.sampled_from("xyz"), st.integers(0, 9))), max_size=30
    )
)
def test_sums_are_those_of_the_last_values(engines: Engines, steps: list[tuple[str, dict[str, int]]]) -> None:
    """However values come and go, the sums are exact."""
    heads, last = Heads(engines), dict[str, dict[str, int]]()
    for head, counts in steps:
        answer = heads.gauge(head, **{name: (count, 10 * count) for name, count in counts.items()})
        last[head] = counts
        others: dict[str, list[int]] = {}
        for name in "xyz":
            count = sum(values.get(name, 0) for other, values in last.items() if other != head)
            if count:
                others[name] = [count, 10 * count]
        assert answer.others == others


def test_a_slice_adds_by_name_and_bin(engines: Engines) -> None:
    """Heads read the bins that changed since their last ask; a newcomer reads all."""
    heads = Heads(engines)
    assert heads.ask("a", SliceAsk("s", {"e1": 1, "x": 7}), SliceAnswer) == SliceAnswer(200, {200: {"e1": 1, "x": 7}})
    assert heads.ask("b", SliceAsk("s", {"e1": 2}), SliceAnswer).bins == {200: {"e1": 3, "x": 7}}
    heads.now_s += 5.0
    both = heads.ask("a", SliceAsk("s", {"e2": 1}, 200), SliceAnswer)
    assert both == SliceAnswer(201, {200: {"e1": 3, "x": 7}, 201: {"e2": 1}})
    assert heads.ask("a", SliceAsk("s", {}, 201), SliceAnswer).bins == {201: {"e2": 1}}
    assert heads.ask("c", SliceAsk("s", {}), SliceAnswer).bins.keys() == {200, 201}
    assert heads.ask("c", SliceAsk("other", {}), SliceAnswer).bins == {}


def test_bins_are_dropped_after_two_minutes(engines: Engines) -> None:
    """A slice is as long as the window of what is learned."""
    heads = Heads(engines)
    heads.ask("a", SliceAsk("s", {"e1": 1}), SliceAnswer)
    heads.now_s += 115.0
    assert heads.ask("a", SliceAsk("s", {}), SliceAnswer).bins == {200: {"e1": 1}}
    heads.now_s += 5.0
    assert heads.ask("a", SliceAsk("s", {}), SliceAnswer).bins == {}


def test_a_bin_number_of_an_engine_before_reads_all(engines: Engines) -> None:
    """The numbers of an engine with another clock mean nothing."""
    heads = Heads(engines)
    heads.ask("a", SliceAsk("s", {"e1": 1}), SliceAnswer)
    assert heads.ask("b", SliceAsk("s", {}, 9_999), SliceAnswer).bins == {200: {"e1": 1}}


def test_news_reach_every_head_once(engines: Engines) -> None:
    """The publisher sees how many heads have them; later news replace earlier ones of the same name."""
    heads = Heads(engines)

    def ask(head: str, *news: News, after: int = 0) -> NewsAnswer:
        return heads.ask(head, NewsAsk(news, after), NewsAnswer)

    assert ask("b") == NewsAnswer(0, [], 1)
    told = ask("a", News("hedging", "off"), News("cool r1", "", 3.0))
    assert [news.name for news in told.news] == ["hedging", "cool r1"]
    assert told.reached == 0
    heads.now_s += 1.0
    heard = ask("b")
    assert heard.news == [News("hedging", "off", 3599.0), News("cool r1", "", 2.0)]
    assert ask("b", after=heard.number) == NewsAnswer(heard.number, [], 1)
    assert ask("a", after=told.number).reached == 2
    later = ask("a", News("hedging", "on"), after=told.number)
    assert ask("b", after=heard.number).news == [News("hedging", "on")]
    heads.now_s += 2.0
    assert [news.name for news in ask("c").news] == ["hedging"]
    assert ask("c", after=later.number + 5).news != []
