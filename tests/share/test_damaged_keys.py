"""Keys of a server that were damaged or forged there, by whoever can write to it."""

import math
from collections.abc import Callable
from typing import Final

import pytest
from msgspec.msgpack import encode
from msgspec.structs import replace
from redis import Redis

import shared_fixtures
from gateway.share.messages import (
    Ask,
    BucketAnswer,
    BucketAsk,
    GaugeAnswer,
    GaugeAsk,
    Lost,
    SliceAnswer,
    SliceAsk,
    SlotsAnswer,
    SlotsAsk,
    SwitchesAsk,
    SwitchState,
)
from share_engines import ServerEngine

server = shared_fixtures.server
PREFIX: Final = "ttft3:{test}:"
ASKS: Final[tuple[Ask, ...]] = (
    BucketAsk("k", 60.0, 60.0, want=5.0),
    SlotsAsk("k", 4, 0, 2),
    GaugeAsk("k", {"r": (1, 2)}),
    SliceAsk("k", {"e1": 1}),
    SwitchesAsk([SwitchState("hedging", "off")]),
)
KEYS: Final = (
    "b:k",
    "c:k",
    "c:k:lacking",
    "of:process",
    "switches",
    "switches:number",
    "switches:read",
    "epoch",
    "processes",
)


def _text(client: Redis, key: str) -> None:
    client.delete(key)
    client.set(key, b"\xc1 no message")


def _list(client: Redis, key: str) -> None:
    client.delete(key)
    client.rpush(key, "x")


def _hash(client: Redis, key: str) -> None:
    """Write what a hash of an engine has, as texts that are no numbers."""
    client.delete(key)
    for field in ("@process", "sum", "limit", "e1"):
        client.hset(key, field, "x")
    client.hset(key, "hedging", encode("x"))


@pytest.mark.parametrize("damage", [_text, _list, _hash])
@pytest.mark.parametrize("key", [*(PREFIX + key for key in KEYS), "ttft:{test}:live"])
def test_a_damaged_key_costs_what_it_had(server: ServerEngine, key: str, damage: Callable[[Redis, str], None]) -> None:
    """Every ask is answered, with and without the key, and the next batch as well."""
    server.lose()
    server.answer(1_000.0, "process", ASKS)
    damage(server.client, key)
    for now_s in (1_000.1, 1_000.2):
        reply = server.answer(now_s, "process", ASKS)
        assert [type(answer).__name__[:-6] for answer in reply.answers] == [type(ask).__name__[:-3] for ask in ASKS]
        assert reply.processes == 1


def test_rows_and_sums_return_after_the_server_has_lost_them(server: ServerEngine) -> None:
    """Each process sends all its rows again, and gets no sums before the others have sent theirs, too."""
    server.lose()
    processes = ("one", "two")
    asks: list[Ask] = [GaugeAsk("k", {"r": (1, 2)}), SliceAsk("s", {"e1": 1})]
    for process in (*processes, *processes):
        server.answer(1_000.0, process, asks)
    server.lose_rows()
    for process in processes:
        assert server.answer(1_000.1, process, asks).answers == [Lost(), Lost()]
    for process in processes:
        assert server.answer(1_000.2, process, asks).answers[0] == Lost()
    for process in processes:
        gauge, slices = server.answer(1_002.2, process, asks).answers
        assert isinstance(gauge, GaugeAnswer)
        assert (gauge.processes, gauge.others) == (2, {"r": [1, 2]})
        assert slices == SliceAnswer(501, {500: {"e1": 2}})


@pytest.mark.parametrize(
    "change",
    [
        *([1, 1, 2, value] for value in (math.inf, math.nan, "x")),
        *([1, 1, place, 1] for place in (0, -1, 2.5, 66, 10**9, "x")),
        *([1, 1, 2], ["x"], [1, -1], [1, "x"]),
    ],
)
def test_a_message_that_is_out_of_range_adds_nothing(server: ServerEngine, change: list[object]) -> None:
    """All rows are sent again: a part of the message may have been added."""
    server.lose()
    ask = GaugeAsk("k", {"r": (1, 2)})
    server.answer(1_000.0, "one", [ask])
    message = encode((0, 1, 0, 0, change, []))
    server.client.fcall("ttft3_ask", 1, f"{PREFIX}processes", "forger", "inf", encode([]), message)
    for now_s in (1_000.1, 1_000.2):
        server.answer(now_s, "one", [ask])
    [answer] = server.answer(1_001.5, "one", [ask]).answers
    assert isinstance(answer, GaugeAnswer)
    assert (answer.processes, answer.others) == (1, {})


def test_an_older_backup_gives_back_nothing_that_a_gateway_has_seen_used(server: ServerEngine) -> None:
    """A server that starts with older data, or a replica that lags, goes on from what was left in the last answer.

    What a gateway saw before the backup says nothing: more may have been given back since.
    """

    def left(
        now_s: float, process: str, want: float, *, beyond: float = 0.0, seen: BucketAnswer | None = None
    ) -> float:
        ask = BucketAsk("k", 120.0, 60.0, want, beyond=beyond)
        if seen is not None:
            ask = replace(ask, hint=seen.left, epoch=seen.epoch, hint_age_s=now_s - seen_s[process])
        [answer] = server.answer(now_s, process, [ask]).answers
        assert isinstance(answer, BucketAnswer)
        answers[process], seen_s[process] = answer, now_s
        return answer.left

    server.lose()
    answers: dict[str, BucketAnswer] = {}
    seen_s: dict[str, float] = {}
    assert left(1_000.0, "old", 110.0) == 10.0
    assert left(1_001.0, "one", 0.0, beyond=-100.0) == 112.0
    backup = {key: server.client.dump(key) or b"" for key in server.client.keys("ttft*")}
    assert left(1_002.0, "one", 100.0) == 14.0
    before = dict(answers)
    server.client.flushall()
    for key, value in backup.items():
        server.client.restore(key, 0, value)
    server.lose_rows()
    assert left(1_003.0, "old", 0.0, seen=before["old"]) == 116.0
    assert left(1_004.0, "one", 0.0, seen=before["one"]) == 18.0
    assert left(1_005.0, "old", 0.0, seen=answers["old"]) == 20.0


def test_a_process_that_ended_before_the_clock_went_back_is_not_counted_for_longer(server: ServerEngine) -> None:
    """Its slots are free 5 s later, as after any end."""
    server.lose()
    server.answer(5_000.0, "ended", [SlotsAsk("c", 4, 0, 3)])
    reply = server.answer(1_000.0, "one", [SlotsAsk("c", 4, 0, 4)])
    assert (reply.processes, reply.answers[0]) == (2, SlotsAnswer(1, 3, 4))
    for second in range(1, 7):
        reply = server.answer(1_000.0 + second, "one", [SlotsAsk("c", 4, 1, 3)])
    assert (reply.processes, reply.answers[0]) == (1, SlotsAnswer(3, 0, 4))


def test_pools_that_are_used_now_and_then_do_not_lose_the_rows_of_others(server: ServerEngine) -> None:
    """Numbers of rows that no process has stay, so that a thousand models with few requests each cost nobody a loss."""
    server.lose()
    for turn in range(8):
        asks = [GaugeAsk(f"k{number}", {"r": (1,)}) for number in range(turn % 4, 1_000, 4)]
        answers = [server.answer(1_000.0 + 6 * turn + late, "one", asks).answers for late in (0.0, 3.0)]
        assert not [answer for each in answers for answer in each if isinstance(answer, Lost)]
