"""The cost of the exchange for a server, in what can be counted: bytes, batches, rows and bins."""

import gc
from pathlib import Path

import pytest

import shared_fixtures
from exchange_cost import Crowd, exchange_cost
from gateway.share.messages import GaugeAnswer, GaugeAsk, SliceAnswer, SliceAsk
from share_engines import ServerEngine
from ttft_gateway.limits.budget import Credit, CreditBudget

server = shared_fixtures.server


@pytest.mark.parametrize(
    ("crowd", "batch_bytes_max", "batches_per_s_max"),
    [(Crowd(3, 3, 3, "idle"), 400, 4.5), (Crowd(3, 3, 3, "busy"), 740, 20.2)],
    ids=str,
)
def test_a_batch_has_what_has_changed(
    tmp_path: Path, crowd: Crowd, batch_bytes_max: float, batches_per_s_max: float
) -> None:
    """A fleet in which nothing changes asks less often, and sends neither rows nor counts."""
    cost = exchange_cost(tmp_path, crowd)
    assert cost.batch_bytes <= batch_bytes_max
    assert cost.batches_per_s <= batches_per_s_max


def _size(server: ServerEngine, now_s: float, *asks: GaugeAsk | SliceAsk) -> int:
    return server.answer(now_s, "one", asks).size_bytes


def test_rows_that_have_not_changed_are_neither_sent_nor_received(server: ServerEngine) -> None:
    """A batch of a thousand rows of which one changes is as large as a batch of one row."""
    server.lose()
    rows = {f"r{number}": (number, 2 * number) for number in range(1_000)}
    for process in ("one", "two"):
        server.answer(1_000.0, process, [GaugeAsk("g", rows)])
    _size(server, 1_000.1, GaugeAsk("g", rows))
    nothing = _size(server, 1_000.2, GaugeAsk("g", rows))
    server.answer(1_000.3, "two", [GaugeAsk("g", rows | {"r999": (1, 1)})])
    assert nothing < _size(server, 1_000.4, GaugeAsk("g", rows)) <= nothing + 10


def test_zeros_at_the_end_of_a_sum_are_not_sent_and_count_again(server: ServerEngine) -> None:
    """A sum that becomes shorter and longer again is right at each time."""
    server.lose()
    for step, row in enumerate(((1, 2, 0, 0, 5), (1, 2, 0, 0, 0), (1, 0, 0, 0, 0), (1, 0, 0, 7, 0)), 1):
        server.answer(1_000.0 + step, "two", [GaugeAsk("g", {"r": row})])
        [answer] = server.answer(1_000.5 + step, "one", [GaugeAsk("g", {"r": (0, 0, 0, 0, -1)})]).answers
        assert isinstance(answer, GaugeAnswer)
        assert answer.others == {"r": [*row]}


def test_a_change_that_may_wait_is_received_after_the_end_of_the_bin(server: ServerEngine) -> None:
    """Until then it costs the others nothing; a sum that is read for another reason has it, once."""

    def seen(now_s: float, process: str) -> dict[str, list[int]] | None:
        [answer] = server.answer(now_s, process, [GaugeAsk("g", rows[process], versions.get(process, 0))]).answers
        assert isinstance(answer, GaugeAnswer)
        versions[process] = answer.version
        return answer.others

    server.lose()
    versions: dict[str, int] = {}
    rows = {process: {"r": (1,)} for process in ("one", "two", "three")}
    for now_s in (1_000.0, 1_000.1):
        for process in rows:
            seen(now_s, process)
    rows["two"] = {"r": (5,)}
    server.answer(1_000.2, "two", [GaugeAsk("g", rows["two"], later=("r",))])
    assert [seen(1_000.3, "one"), seen(1_001.9, "one")] == [None, None]
    assert seen(1_002.1, "one") == {"r": [6]}
    rows["three"] = {"r": (10,)}
    server.answer(1_002.2, "three", [GaugeAsk("g", rows["three"], later=("r",))])
    rows["two"] = {"r": (6,)}
    assert seen(1_002.3, "two") == {"r": [11]}
    assert seen(1_002.4, "one") == {"r": [16]}
    assert seen(1_002.5, "three") == {"r": [7]}
    assert [seen(1_004.1, process) for process in rows] == [None, None, None]


def test_a_slice_that_is_not_used_is_read_no_more(server: ServerEngine) -> None:
    """A minute after the last ask the server sends its bins no more; a later ask gets all bins that it has."""
    server.lose()
    gauge, slice_ = GaugeAsk("g", {"r": (1,)}), SliceAsk("s", {})
    _size(server, 1_000.0, gauge, slice_)
    sizes = {}
    for second in range(1, 70):
        server.answer(1_000.0 + second, "two", [SliceAsk("s", {"e1": 1})])
        sizes[second] = _size(server, 1_000.5 + second, gauge)
    assert {sizes[second] for second in range(64, 70)} == {min(sizes.values())}
    assert max(sizes[second] for second in range(50, 60)) > min(sizes.values())
    [_, answer] = server.answer(1_070.0, "one", [gauge, slice_]).answers
    assert isinstance(answer, SliceAnswer)
    assert sum(sums["e1"] for sums in answer.bins.values()) == 69


def test_what_an_exchange_replaces_is_not_searched_for_garbage() -> None:
    """Each worker replaces these for each pool, up to ten times a second."""
    asks = GaugeAsk("k", {"a": (1,)}), SliceAsk("k", {"a": 1})
    answers = GaugeAnswer(1, {"a": [1]}), SliceAnswer(1, {1: {"a": 1}})
    parts = Credit(1.0, 2.0), CreditBudget(0.1).own(0.0)
    assert not [each for each in (*asks, *answers, *parts) if gc.is_tracked(each)]
