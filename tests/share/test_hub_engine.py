"""The engine of one host, over a channel between two processes."""

import math
from collections.abc import Callable
from functools import partial

import msgspec

from gateway.share.hub import METHOD, HubEngine, ShareHub, answers_of
from gateway.share.messages import (
    Ask,
    BucketAnswer,
    BucketAsk,
    GaugeAnswer,
    Lost,
    Reply,
    SlotsAnswer,
    SlotsAsk,
    SwitchesAsk,
)


def _returned(reply: Reply, _: bytes) -> Reply:
    """Return a reply to any call."""
    return reply


class Channel:
    """A channel that encodes, calls the other side immediately, or loses the call."""

    def __init__(self, answer: Callable[[bytes], Reply] | None) -> None:
        self._answer = answer

    def call(self, method: str, payload: object, on_reply: Callable[[bytes | None], object], deadline_s: float) -> None:
        assert method == METHOD
        assert deadline_s > 1
        answer = self._answer
        on_reply(None if answer is None else msgspec.msgpack.encode(answer(msgspec.msgpack.encode(payload))))


def test_processes_share_the_hub_of_another_process() -> None:
    """Each channel is one process, whatever it writes."""
    hub, replies = ShareHub(), list[Reply | None]()
    asks: list[Ask] = [BucketAsk("k", 10.0, 60.0, 6.0), SlotsAsk("s", 2, 0, 1), SwitchesAsk()]
    for process in ("1", "2", "2"):
        engine = HubEngine(Channel(answers_of(hub, process, lambda: 5.0)), lambda: 5.0)
        engine.ask(asks, replies.append)
        engine.close()
    granted = []
    for reply in replies:
        assert reply is not None
        bucket = reply.answers[0]
        assert isinstance(bucket, BucketAnswer)
        granted.append((reply.processes, bucket.granted, len(reply.answers)))
    assert granted == [(1, 6.0, 3), (2, 4.0, 3), (2, 0.0, 3)]


def test_a_damaged_ask_costs_its_own_answer() -> None:
    """The other asks of its batch are answered, and it is reported."""
    dropped: list[str] = []
    hub, replies = ShareHub(), list[Reply | None]()
    asks: list[Ask] = [SlotsAsk("s", 2, -1, 1), BucketAsk("k", math.inf, 60.0), BucketAsk("k", 10.0, 60.0, 6.0)]
    HubEngine(Channel(answers_of(hub, "1", lambda: 5.0, lambda name, _: dropped.append(name))), lambda: 5.0).ask(
        asks, replies.append
    )
    [reply] = replies
    assert reply is not None
    assert [type(answer) for answer in reply.answers] == [Lost, Lost, BucketAnswer]
    assert dropped == ["ask", "ask"]


def test_a_damaged_reply_is_a_lost_batch() -> None:
    """It is reported, whatever its bytes are."""
    dropped: list[str] = []
    replies: list[Reply | None] = []
    for reply in (Reply([SlotsAnswer(1, -2, 4)]), Reply([], 10**9), Reply([GaugeAnswer(-1, {})])):
        engine = HubEngine(Channel(partial(_returned, reply)), lambda: 5.0)
        engine.drop = lambda name, _: dropped.append(name)
        engine.ask([], replies.append)
    assert replies == [None] * 3
    assert dropped == ["reply"] * 3


def test_a_lost_call_is_a_lost_batch() -> None:
    """The channel has ended, or the other process failed."""
    replies: list[Reply | None] = []
    HubEngine(Channel(None), lambda: 5.0).ask([], replies.append)
    assert replies == [None]
