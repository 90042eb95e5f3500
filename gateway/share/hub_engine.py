"""The engine of one host as its heads reach it: the hub in another process, over a message channel. Pure.

Independent of the channel, which has one method for this. Units: seconds.
"""

from collections.abc import Callable, Sequence
from typing import Final, Protocol

import msgspec

from gateway.share.hub import ShareHub
from gateway.share.words import Answered, Ask, Reply

METHOD: Final = "share"
_REPLY_S_MAX: Final = 30.0  # a reply is late much earlier, but its answers are used

_decode_asks = msgspec.msgpack.Decoder(list[Ask]).decode
_decode_reply = msgspec.msgpack.Decoder(Reply).decode


class Calls(Protocol):
    """The channel to the process with the hub."""

    def call(self, method: str, payload: object, on_reply: Callable[[bytes | None], object], deadline_s: float) -> None:
        """Call a method; `on_reply` is called once, later, with the encoded answer, or None if there is none."""


class HubEngine:
    """The connection of one head; it ends with the channel."""

    kind = "hub"
    fault = ""  # without the channel, the process ends

    def __init__(self, channel: Calls) -> None:
        self._channel = channel

    def ask(self, asks: Sequence[Ask], answered: Answered) -> None:
        """Send a batch."""

        def on_reply(reply: bytes | None) -> None:
            answered(None if reply is None else _decode_reply(reply))

        self._channel.call(METHOD, list(asks), on_reply, _REPLY_S_MAX)

    def close(self) -> None:
        """Do nothing: the channel serves the whole process."""


def answers_of(hub: ShareHub, head: str, now: Callable[[], float]) -> Callable[[bytes], Reply]:
    """Return the method that answers the batches of one head.

    Args:
        now: returns the time of the hub.
    """
    return lambda asks: hub.answer(now(), head, _decode_asks(asks))
