"""The contract of recovery: another replica continues a broken answer. Data and Protocols, no behaviour."""

from typing import Protocol

import msgspec

from ttft_gateway.apis.base import Call


class Joiner(Protocol):
    """Fits the events of a second stream to what a client already has, so that the client reads one valid stream."""

    @property
    def caught_up(self) -> bool:
        """The second stream has repeated all that the client has: everything from here is new."""

    def feed(self, raw: bytes) -> bytes | None:
        """Take whole events as an attempt would forward them.

        Returns:
            The bytes for the client, often none; None if the events differ from what the client has. Nothing may be
            fed after that.
        """


class Continuation(msgspec.Struct, frozen=True):
    """A request that continues a broken answer.

    Attributes:
        call: the client's call, with the text sent so far as the beginning of the answer.
        joiner: joins the answer to the first stream.
        prefill_tokens: approximate number of tokens in that beginning.
    """

    call: Call
    joiner: Joiner
    prefill_tokens: int


class Transcript(Protocol):
    """The text of one answer that a client has been sent."""

    @property
    def comparable(self) -> bool:
        """The answer so far is only text, which another answer can be compared with."""

    @property
    def tokens(self) -> int:
        """Approximate number of tokens sent."""

    def add(self, raw: bytes) -> None:
        """Take whole events in the order in which they were sent."""

    def joiner(self) -> Joiner:
        """Make a joiner for a second answer to the same call, from its beginning; nothing may be added after this."""

    def continuation(self) -> Continuation | None:
        """Make a request that continues the answer from here; None if a continuation would be wrong."""


class Recoverer(Protocol):
    """Recovers broken streams of one client API; an API without a recoverer has no recovery."""

    def is_deterministic(self, call: Call) -> bool:
        """The call is likely to get the same answer each time."""

    def continuable(self, call: Call) -> bool:
        """No field of the call prevents another replica from continuing its answer."""

    def transcript(self, call: Call) -> Transcript:
        """Make an empty transcript for the answer to a call."""
