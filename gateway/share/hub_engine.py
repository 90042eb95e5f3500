"""The engine of one host as its heads reach it: the hub in another process, over a message channel. Pure.

Independent of the channel, which has one method for this. Units: seconds.
"""

from collections.abc import Callable, Sequence
from typing import Final, Protocol

import msgspec

from gateway.share.hub import ShareHub
from gateway.share.words import Answered, Ask, Drop, Lost, Reply, keep_silent

METHOD: Final = "share"
_REPLY_S_MAX: Final = 30.0  # a reply is late much earlier, but its answers are used

_DAMAGES: Final = (ValueError, RecursionError)  # what msgspec raises for any bytes

_decode_asks = msgspec.msgpack.Decoder(list[Ask]).decode
_decode_raws = msgspec.msgpack.Decoder(list[msgspec.Raw]).decode
_decode_ask: Callable[[msgspec.Raw], Ask] = msgspec.msgpack.Decoder(Ask).decode
_decode_reply = msgspec.msgpack.Decoder(Reply).decode


class Calls(Protocol):
    """The channel to the process with the hub."""

    def call(self, method: str, payload: object, on_reply: Callable[[bytes | None], object], deadline_s: float) -> None:
        """Call a method; `on_reply` is called once, later, with the encoded answer, or None if there is none."""


class HubEngine:
    """The connection of one head; it ends with the channel.

    Attributes: see `gateway.share.words.NamedEngine`.
    """

    kind = "hub"
    fault = ""  # without the channel, the process ends

    def __init__(self, channel: Calls) -> None:
        self.drop: Drop = keep_silent
        self._channel = channel

    def ask(self, asks: Sequence[Ask], answered: Answered) -> None:
        """Send a batch."""

        def on_reply(reply: bytes | None) -> None:
            answered(None if reply is None else self._read(reply))

        self._channel.call(METHOD, list(asks), on_reply, _REPLY_S_MAX)

    def _read(self, reply: bytes) -> Reply | None:
        try:
            return _decode_reply(reply)
        except _DAMAGES as error:
            self.drop("reply", str(error))
            return None

    def close(self) -> None:
        """Do nothing: the channel serves the whole process."""


def answers_of(
    hub: ShareHub, head: str, now: Callable[[], float], drop: Drop = keep_silent
) -> Callable[[bytes], Reply]:
    """Return the method that answers the batches of one head.

    Args:
        now: returns the time of the hub.
        drop: receives damaged asks, whose answers are lost.
    """

    def answer(packed: bytes) -> Reply:
        asks = _undamaged(packed, drop)
        reply = hub.answer(now(), head, [ask for ask in asks if ask is not None])
        answers = iter(reply.answers)
        return Reply([Lost() if ask is None else next(answers) for ask in asks], reply.heads)

    return answer


def _undamaged(packed: bytes, drop: Drop) -> Sequence[Ask | None]:
    """Return the asks of a batch; None for a damaged one."""
    try:
        return _decode_asks(packed)
    except _DAMAGES:
        return [_ask(raw, drop) for raw in _decode_raws(packed)]


def _ask(raw: msgspec.Raw, drop: Drop) -> Ask | None:
    try:
        return _decode_ask(raw)
    except _DAMAGES as error:
        drop("ask", str(error))
        return None
