"""Keys of a server that were damaged or forged there, by whoever can write to it."""

from collections.abc import Callable
from typing import Final

import pytest
from msgspec.msgpack import encode
from redis import Redis

import shared_fixtures
from gateway.share.messages import Ask, BucketAsk, GaugeAnswer, GaugeAsk, SliceAsk, SlotsAsk, SwitchesAsk, SwitchState
from share_engines import ServerEngine

server = shared_fixtures.server
PREFIX: Final = "ttft2:{test}:"
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
    "g:k",
    "g:k:seen",
    "s:k:200",
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
    client.hset(key, "sums", encode({"r": [1, "x"]}))
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


def test_rows_return_after_their_gauge_was_deleted(server: ServerEngine) -> None:
    """Each process writes its row again with its next ask, although the row has not changed."""
    server.lose()
    ask = GaugeAsk("k", {"r": (1, 2)})
    for _ in range(2):
        server.answer(1_000.0, "one", [ask])
        server.answer(1_000.0, "two", [ask])
        server.client.delete(f"{PREFIX}g:k", f"{PREFIX}g:k:seen")
    server.answer(1_000.1, "one", [ask])
    [answer] = server.answer(1_000.1, "two", [ask]).answers
    assert isinstance(answer, GaugeAnswer)
    assert (answer.processes, answer.others) == (2, {"r": [1, 2]})
