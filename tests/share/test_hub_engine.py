"""The engine of one host, over a channel between two processes."""

import math
from collections.abc import Callable, Sequence
from functools import partial

import msgspec

from gateway.share.hub import METHOD, HubEngine, ShareHub, answers_of
from gateway.share.messages import (
    Ask,
    BucketAnswer,
    BucketAsk,
    GaugeAnswer,
    GaugeAsk,
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
        self.answer = answer

    def call(self, method: str, payload: object, on_reply: Callable[[bytes | None], object], deadline_s: float) -> None:
        assert method == METHOD
        assert deadline_s > 1
        answer = self.answer
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


def test_rows_that_have_not_changed_are_not_sent_again() -> None:
    """All are sent after a lost reply, to a hub that has lost them, with other names, and until there is an answer."""
    hub, sent = ShareHub(), list[GaugeAsk]()

    def answer(packed: bytes) -> Reply:
        asks = msgspec.msgpack.decode(packed, type=tuple[float, list[Ask]])[1]
        sent.extend(ask for ask in asks if isinstance(ask, GaugeAsk))
        return answers_of(hub, "1", lambda: 5.0)(packed)

    replies = list[Reply | None]()
    channel = Channel(answer)
    engine = HubEngine(channel, lambda: 5.0)

    def exchange(since: int, **rows: list[int]) -> tuple[bool, dict[str, Sequence[int]]]:
        engine.ask([GaugeAsk("g", rows, since)], replies.append)
        return sent[-1].is_part, dict(sent[-1].rows)

    assert exchange(0, a=[1], b=[2]) == (False, {"a": [1], "b": [2]})
    assert exchange(1, a=[1], b=[3]) == (True, {"b": [3]})
    [other] = hub.answer(5.0, "2", [GaugeAsk("g", {"a": [0], "b": [0]})]).answers
    assert isinstance(other, GaugeAnswer)
    assert other.others == {"a": [1], "b": [3]}
    assert exchange(1, a=[1], b=[3], c=[4]) == (False, {"a": [1], "b": [3], "c": [4]})
    assert exchange(1, a=[1], b=[3], c=[4]) == (True, {})
    hub.gone("1")
    assert exchange(1, a=[2], b=[3], c=[4]) == (True, {"a": [2]})
    assert replies[-1] is not None
    assert replies[-1].answers == [Lost()]
    assert exchange(1, a=[2], b=[3], c=[4]) == (False, {"a": [2], "b": [3], "c": [4]})
    channel.answer = None
    exchange(1, a=[5], b=[3], c=[4])
    channel.answer = answer
    assert exchange(1, a=[5], b=[3], c=[4]) == (False, {"a": [5], "b": [3], "c": [4]})
    assert exchange(0, a=[5], b=[3], c=[4]) == (False, {"a": [5], "b": [3], "c": [4]})
