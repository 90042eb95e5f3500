"""Finds what the engines of a model state about it: fields of `GET /v1/models` in which all of its replicas agree.

Replicas are asked when a caller asks, each once in ten minutes, so a gateway without such callers sends nothing.
The caller waits for the replies, at most for a second; what comes later is known the next time. Only engines of one's
own are asked: providers state no length.

Units: seconds of the loop's clock, bytes.
"""

import asyncio
from collections.abc import Callable, Sequence
from typing import Final

import msgspec

from gateway.race.context import Model
from ttft_gateway.apis.base import Headers, HttpStream
from ttft_gateway.apis.errors import UpstreamError
from ttft_gateway.apis.passing import PassedCall, PassingEndpoint
from ttft_gateway.routing.replicas import Replica

Facts = dict[str, int | str]
"""Fields of a model's entry: `max_model_len` in tokens, `owned_by`, `root`."""

_CALL: Final = PassedCall(b"GET", b"/models", b"", ((b"accept", b"application/json"),), b"")
_WAIT_S: Final = 1.0  # of a caller
_REPLY_S: Final = 5.0  # of a replica, for a caller to come
_KNOWN_S: Final = 600.0  # an engine changes its model with a restart
_AGAIN_S: Final = 30.0  # after a failure
_ASKED_MAX: Final = 64  # replicas for one caller; the next one gets the others asked
_BEGUN: Final = 8  # in one turn of the loop, some 1 ms
_CARDS_MAX: Final = 50_000
_REPLY_BYTES_MAX: Final = 1024 * 1024
_TEXT_MAX: Final = 256
_OK: Final = 200


class _Entry(msgspec.Struct):
    id: str
    max_model_len: int | None = None
    owned_by: str | None = None
    root: str | None = None


class _Listing(msgspec.Struct):
    data: list[_Entry]


_decode = msgspec.json.Decoder(_Listing).decode


class _Card(msgspec.Struct):
    """The statement of one replica.

    Attributes:
        due_s: time from which it is asked again.
        facts: its last reply; None before one.
    """

    due_s: float
    facts: Facts | None = None


class ModelCards:
    """The replies of all replicas."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._cards: dict[str, _Card] = {}  # by `Replica.source`

    def ask(self, models: Sequence[Model], then: Callable[[], None]) -> None:
        """Ask the replicas of these models for what is not known, and call `then`: after a second at most."""
        now_s = self._loop.time()
        due = self._due(models, now_s)
        if not due:
            then()
            return
        if len(self._cards) + len(due) > _CARDS_MAX:  # of replicas that have left
            self._cards.clear()
        wait = _Wait(self._loop, len(due), then)
        replies = []
        for replica in due:
            card = self._cards.setdefault(replica.source, _Card(0.0))
            card.due_s = now_s + _AGAIN_S
            replies.append(_Reply(self._loop, replica, card, wait.on_reply))
        self._begin(replies)

    def facts(self, model: Model) -> Facts:
        """Return the fields in which all replicas of a model agree; none while one of them has not replied."""
        agreed: Facts | None = None
        for replica in model.replicas:
            card = self._cards.get(replica.source)
            if card is None or card.facts is None:
                return {}
            if agreed is None or agreed == card.facts:
                agreed = card.facts
            else:
                agreed = {name: value for name, value in agreed.items() if (name, value) in card.facts.items()}
        return agreed or {}

    def _due(self, models: Sequence[Model], now_s: float) -> list[Replica]:
        """Return the replicas to ask; one is asked for all with the same source."""
        due: dict[str, Replica] = {}
        for model in models:
            for replica in model.replicas:
                if replica.source not in due and self._is_due(replica, now_s):
                    due[replica.source] = replica
                    if len(due) == _ASKED_MAX:
                        return list(due.values())
        return list(due.values())

    def _is_due(self, replica: Replica, now_s: float) -> bool:
        card = self._cards.get(replica.source)
        if card is not None and now_s < card.due_s:
            return False
        return replica.batches and replica.locked is None and isinstance(replica.endpoint, PassingEndpoint)

    def _begin(self, replies: list["_Reply"]) -> None:
        """Send some of the requests now, and the others in later turns of the loop: each may open a connection."""
        for _ in range(min(_BEGUN, len(replies))):
            replies.pop().begin()
        if replies:
            self._loop.call_soon(self._begin, replies)


class _Wait:
    """A caller that waits for a number of replies."""

    def __init__(self, loop: asyncio.AbstractEventLoop, replies: int, then: Callable[[], None]) -> None:
        self._then: Callable[[], None] | None = then
        self._open = replies
        self._timer = loop.call_later(_WAIT_S, self._end)

    def on_reply(self) -> None:
        """Count one reply, or failure."""
        self._open -= 1
        if not self._open:
            self._end()

    def _end(self) -> None:
        then, self._then = self._then, None
        self._timer.cancel()
        if then is not None:
            then()


class _Reply:
    """One request to a replica, and its reply (`HttpSink`)."""

    def __init__(
        self, loop: asyncio.AbstractEventLoop, replica: Replica, card: _Card, then: Callable[[], None]
    ) -> None:
        self._loop = loop
        self._replica = replica
        self._card = card
        self._then = then
        self._status = 0
        self._body = bytearray()
        self._stream: HttpStream | None = None
        self._timer = loop.call_later(_REPLY_S, self._give_up)

    def begin(self) -> None:
        """Send the request."""
        endpoint = self._replica.endpoint
        assert isinstance(endpoint, PassingEndpoint)
        self._stream = endpoint.pass_on(_CALL, self)

    def on_response(self, status: int, headers: Headers) -> None:
        """Note the status."""
        self._status = status

    def on_body(self, data: bytes) -> None:
        """Hold a piece; give up on a body without end."""
        self._body += data
        if len(self._body) > _REPLY_BYTES_MAX:
            self._give_up()

    def on_close(self, error: UpstreamError | None) -> None:
        """Read the reply."""
        self._timer.cancel()
        if error is None and self._status == _OK:
            facts = stated(bytes(self._body), self._replica)
            if facts is not None:
                self._card.facts, self._card.due_s = facts, self._loop.time() + _KNOWN_S
        self._then()

    def _give_up(self) -> None:
        self._timer.cancel()
        if self._stream is not None:
            self._stream.abort()
        self._then()


def stated(body: bytes, replica: Replica) -> Facts | None:
    """Return the facts in a replica's list of models; None if the list has no entry for the model.

    An engine with one model may list it under another name than it is asked by.
    """
    try:
        listed = _decode(body).data
    except msgspec.MsgspecError:
        return None
    endpoint = replica.endpoint
    name = endpoint.model if isinstance(endpoint, PassingEndpoint) else ""
    entry = next((each for each in listed if each.id == name), listed[0] if len(listed) == 1 else None)
    if entry is None:
        return None
    facts: Facts = {}
    if entry.max_model_len is not None and entry.max_model_len > 0:
        facts["max_model_len"] = entry.max_model_len
    for key, text in (("owned_by", entry.owned_by), ("root", entry.root)):
        if text and len(text) <= _TEXT_MAX and not any(secret in text for secret in replica.secrets):
            facts[key] = text
    return facts
