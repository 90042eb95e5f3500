"""The contract of recovery: another replica carries on a broken answer. Data and Protocols, no behaviour.

Three ways lead to one whole answer, and all three give the client one stream of its API:

    continuation   the request has the text so far as the beginning of the answer; the rest is generated
    replay         the same request again; what the client has is compared and skipped
    restart        a replay of which the client gets everything, because it has nothing but thinking

All events are in the form of the client's API, translated or not, so each API has one transcript and one joiner.
"""

from typing import Final, Protocol

import msgspec

from ttft_gateway.apis.base import Call, Prefix

OPEN_CHOICES: Final = (None, "auto", "none")
"""Choices of tools with which an answer may begin with text; with others it begins with a call."""


class Joiner(Protocol):
    """Fits the events of a second stream to what a client already has, so that the client reads one valid stream."""

    @property
    def caught_up(self) -> bool:
        """The second stream has repeated all that the client has: everything from here is new."""

    @property
    def restarted(self) -> bool:
        """The client gets the second stream from its beginning: it had nothing but thinking."""

    @property
    def repeated(self) -> bool:
        """The second stream was to continue the client's text, and has begun it anew: its server ignores the text."""

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
    def restartable(self) -> bool:
        """The client has nothing but thinking, so another answer may be sent after it, whatever it is."""

    @property
    def tokens(self) -> int:
        """Approximate number of tokens sent."""

    def add(self, raw: bytes) -> None:
        """Take whole events in the order in which they were sent."""

    def abandon(self) -> None:
        """Forget the thinking so far: the events that follow are another answer's, from its beginning."""

    def joiner(self) -> Joiner:
        """Make a joiner for a second answer to the same call, from its beginning."""

    def continuation(self) -> Continuation | None:
        """Make a request that continues the answer from here; None if a continuation would be wrong."""


class Recoverer(Protocol):
    """Recovers broken streams of one client API; an API without a recoverer has no recovery.

    Attributes:
        continues: the answers that the API can continue from their beginning, for errors.
    """

    continues: str

    def is_deterministic(self, call: Call) -> bool:
        """The call is likely to get the same answer each time."""

    def prefix(self, call: Call) -> Prefix | None:
        """Return what a replica has to support to continue the answer; None if a field of the call prevents that."""

    def transcript(self, call: Call) -> Transcript:
        """Make an empty transcript for the answer to a call."""
