"""Gateways with different wire versions share limits by their number while one replaces the other."""

import hashlib
from collections.abc import Iterator
from typing import Final

import pytest

from gateway.share.messages import (
    BucketAnswer,
    BucketAsk,
    GaugeAsk,
    SliceAsk,
    SlotsAnswer,
    SlotsAsk,
    SwitchesAsk,
    SwitchState,
)
from gateway.share.server_rows import ServerRows
from gateway.share.wire import pack, unpack
from redis_server import redis_server
from share_engines import ServerEngine

FORM: Final = (3, "8fd7285f2863b3fd")  # wire version, and the digest of its messages and replies
LIMIT = 600.0
STEP_S = 0.25


@pytest.fixture(scope="module")
def versions(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[ServerEngine, ServerEngine]]:
    """The functions of two versions in one server."""
    with redis_server(tmp_path_factory.mktemp("redis")) as process:
        both = ServerEngine(process.socket, 1), ServerEngine(process.socket)
        yield both
        for each in both:
            each.close()


def test_a_limit_is_divided_by_processes_during_a_rolling_upgrade(versions: tuple[ServerEngine, ServerEngine]) -> None:
    """Four are replaced one by one, back as well, at twice the limit: over by 5 % at most, most of it used."""
    versions[0].lose()
    plan = ["1111", "1112", "1122", "1222", "2222", "2221", "2211", "1111"]
    now_s, true_left, deepest, granted = 1_000.0, LIMIT, 0.0, 0.0
    for number in range(int(20 * len(plan) / STEP_S)):
        now_s += STEP_S
        true_left = min(LIMIT, true_left + STEP_S * LIMIT / 60)
        for place, version in enumerate(plan[int(number * STEP_S / 20)]):
            ask = BucketAsk("key", LIMIT, 60, want=5, least=1)
            [answer] = versions[int(version) - 1].answer(now_s, f"{version}-{place}", [ask]).answers
            assert isinstance(answer, BucketAnswer)
            granted += answer.granted
            true_left -= answer.granted
            deepest = max(deepest, -true_left)
    assert deepest <= 0.05 * LIMIT
    assert granted >= 0.8 * (LIMIT + 20 * len(plan) * LIMIT / 60)


@pytest.mark.parametrize("limit", [1, 3, 10])
def test_slots_are_divided_by_processes(versions: tuple[ServerEngine, ServerEngine], limit: int) -> None:
    """Together the versions have exactly the limit, however it divides."""
    versions[0].lose()
    granted = 0
    for number in range(4):  # a higher limit counts after 5 s
        granted = 0
        for version, process in ((0, "a"), (1, "b"), (1, "c")):
            ask = SlotsAsk("key", limit, 0, limit if number == 3 else 0)
            [answer] = versions[version].answer(1_000.0 + 3 * number, process, [ask]).answers
            assert isinstance(answer, SlotsAnswer)
            granted += answer.granted
    assert granted == limit


def test_another_form_is_another_version(versions: tuple[ServerEngine, ServerEngine]) -> None:
    """Messages and replies have the form of the version: gateways of two forms would load their functions in turn."""
    engine, rows, seen = versions[1], ServerRows(), hashlib.sha256()
    engine.lose()
    asks = (
        BucketAsk("b", LIMIT, 60, want=5, least=1, hint=7.0, hint_age_s=1.0, spent=(2.0, 1.0, 3.0)),
        SlotsAsk("s", 4, 1, 2, 0),
        GaugeAsk("g", {"r": (1, 2)}, later=("r",)),
        SliceAsk("l", {"n": 3}),
        SwitchesAsk([SwitchState("switch", "on")]),
    )
    for second in (1_000, 1_003):
        engine.client.mset({"clock:s": second, "clock:us": 0})
        calls = pack(asks, rows, second, second + 1)
        replies = [engine.client.fcall("ttft3_ask", 1, "ttft3:{test}:processes", "p", *each) for each in calls]
        unpack(asks, replies, rows)
        seen.update(repr((calls, replies)).encode())
    assert (FORM[0], seen.hexdigest()[:16]) == FORM, (
        "raise VERSION in the library; replace the digest only if gateways with either form work together"
    )
