"""One request on a client's connection and its response, in callbacks: no task is started for it.

    queued --begin--> receiving --last piece of the body--> answering --response complete--> over
                          '--error--> rejected --response complete--> over

A disconnect leads to `over` from every state. Pieces of a rejected body are read and dropped, within limits: closing
immediately would reset the connection, and the sender would not receive the response. Units: seconds, bytes.
"""

import asyncio
import itertools
import logging
import secrets
from abc import abstractmethod
from collections.abc import Callable, Iterator
from functools import partial
from typing import Final, Protocol

from gateway.admission.admission import Entry
from gateway.admission.body_memory import HeldBody
from gateway.api.body_reader import Arrival, BodyLimits
from gateway.api.dialects.base import ClientApi
from gateway.api.request_head import RequestHead
from gateway.api.response import ResponseWriter, respond_error
from gateway.api.turns import LARGE_MIN, Turn
from gateway.errors import BadRequest, GatewayError, Internal
from gateway.events import RequestRejected
from gateway.race.context import Runtime
from gateway.share.fleet import ASK_WAIT_S
from gateway.traces import Trace
from ttft_gateway.apis.base import Headers
from ttft_gateway.requests.errors import InvalidRequest
from ttft_gateway.requests.headers import caller_ids, listed_in_connection

_LOG = logging.getLogger(__name__)

_DISCARD_S: Final = 2.0  # for which a rejected body is read and dropped
_DISCARD_BYTES_MAX: Final = 32 * 1024 * 1024
_CONTINUE: Final = b"HTTP/1.1 100 Continue\r\n\r\n"


def request_ids() -> Iterator[str]:
    """Return ids of requests for which callers sent none; no other process has them."""
    return map(f"req_{secrets.token_hex(6)}%08x".__mod__, itertools.count(1))


class Admit(Protocol):
    """Protects a connection until the response is complete; `known` if the request has a valid key."""

    def __call__(self, *, known: bool) -> None: ...


class Connection(Protocol):
    """The connection of an exchange: HTTP/1.1 on any transport that pauses its writers.

    Attributes:
        admit: called for a request that is served.
        is_stalled: True while the transport is above its limit for unsent bytes.
        own_headers: headers of every response.
    """

    admit: Admit
    is_stalled: bool
    own_headers: Headers

    @property
    def transport(self) -> asyncio.WriteTransport:
        """The transport that takes the bytes of responses."""

    def pause_body(self) -> None:
        """Stop reading: what has arrived of the body is not needed yet."""

    def resume_body(self) -> None:
        """Read again."""

    def reset(self) -> None:
        """Close the connection now, so that the client gets an error instead of its end."""

    def on_response_complete(self) -> None:
        """The whole response was written, and the next request may begin."""


class ClientExchange(ResponseWriter):
    """One request and its response; a subclass checks the head and makes the response.

    Args:
        connection: connection of the client.
        head: head of the request.
        runtime: the loop.
        api: form of the errors.
        bodies: limits on its body.
        own_id: id of a request for which the caller sent none.

    Attributes:
        request_id: the caller's id of the request, else the gateway's.
        gave_id: True if the id is the caller's, and not for this connection only.
        trace_id: id of the request's trace, None if it has no trace.
        trace: place of the request in its trace, None without tracing.
        more_body: True until the last piece of the body has arrived.
    """

    __slots__ = (
        "_api",
        "_arrival",
        "_bodies",
        "_connection",
        "_discarded_bytes",
        "_discarding",
        "_entry",
        "_has_begun",
        "_held",
        "_held_since_s",
        "_is_released",
        "_key_name",
        "_pieces",
        "_turn",
        "gave_id",
        "more_body",
        "request_id",
        "trace",
        "trace_id",
    )

    def __init__(
        self,
        connection: Connection,
        head: RequestHead,
        runtime: Runtime,
        api: ClientApi,
        bodies: BodyLimits,
        own_id: str,
    ) -> None:
        super().__init__(connection.transport, head, connection.own_headers, runtime)
        self._connection = connection
        self._api = api
        self._bodies = bodies
        given_id, self.trace_id = caller_ids(head.by_name)
        self.gave_id = given_id is not None and b"x-request-id" not in listed_in_connection(head.headers)
        self.request_id = given_id or own_id
        self.more_body = True
        self._has_begun = self._is_released = False
        self._pieces: list[bytes] | None = []  # of the body, from the present read; None once no more are awaited
        self.trace: Trace | None = None
        self._key_name: str | None = None  # name of the caller's key, from `_open` on
        self._entry: Entry | None = None  # counts the request against the limits of the key
        self._arrival: Arrival | None = None  # while a body arrives in several reads
        self._held: HeldBody | None = None  # memory of the whole body
        self._held_since_s: float | None = None  # time at which a request began to hold its body
        self._turn: Turn | None = None  # of a large body
        self._discarding: asyncio.TimerHandle | None = None  # ends the response to a rejected body

    # the connection's calls

    def begin(self) -> None:
        """Check the head; the responses to earlier requests are complete."""
        if self._is_released:
            return
        self._has_begun = True
        if self._connection.is_stalled:
            self.stall()
        try:
            self._open()
            if self.head.expects_continue and not self.started:
                self._bodies.check(self.head.by_name)
                self._connection.transport.write(_CONTINUE)
        except Exception as error:
            self._failed(error)

    def on_body(self, piece: bytes) -> None:
        """Keep a piece of the body until `receive`, or drop it if the request is rejected."""
        if self._pieces is not None:
            self._pieces.append(piece)
        elif self._discarding is not None:
            self._discarded_bytes += len(piece)
            if self._discarded_bytes > _DISCARD_BYTES_MAX:
                self._stop_discarding()

    def receive(self) -> None:
        """Take what has arrived of the body; make the response if that is all of it."""
        pieces = self._pieces
        if pieces is None or not self._has_begun:
            return  # rejected, or queued
        try:
            if self.more_body or self._arrival is not None:
                body = self._received(pieces)
                if body is None:
                    return
            else:  # it came with the headers, as nearly always
                self._pieces = None
                body = b"".join(pieces)  # without a copy if there is one
                assert self._key_name is not None
                self._held = self._bodies.hold(self._key_name, len(body), self.head.by_name)
            if len(body) > LARGE_MIN:
                self._turn = self._bodies.turns.take(partial(self._answer_large, body))
            else:
                self._answer(body)
        except Exception as error:
            self._failed(error)

    def _received(self, pieces: list[bytes]) -> bytes | None:
        """Take a part of a body that arrives in several reads; return the whole body with the last one."""
        arrival = self._arrival
        if arrival is None:
            assert self._key_name is not None
            arrival = self._arrival = Arrival(self._bodies, self._key_name, self.head.by_name, self._reject)
        self._pieces = []
        arrival.receive(pieces)
        if self.more_body:
            return None
        body, self._held = arrival.whole()  # an error, such as of memory, leaves the arrival to be closed
        self._arrival = self._pieces = None
        return body

    def _answer_large(self, body: bytes) -> None:
        try:
            self._answer(body)
        except Exception as error:
            self._failed(error)

    def _failed(self, error: Exception) -> None:
        """Respond with the error of a check, or with a 500 after a bug."""
        if isinstance(error, InvalidRequest):
            error = BadRequest(error.message, param=error.param, code=error.code)
        if isinstance(error, GatewayError):
            self._reject(error)
        else:
            self._fail(error)

    def _when_admitted(self, go_on: Callable[[], None]) -> None:
        """Go on when the limits of the key have admitted a request without tokens, unless it is over by then."""
        if self._is_released:
            return
        try:
            if self._entry is None or self._entry.admit(None):
                go_on()
            else:
                self._runtime.loop.call_later(ASK_WAIT_S, self._when_admitted, go_on)
        except Exception as error:
            self._failed(error)

    def client_gone(self) -> None:
        """The client disconnected."""
        if not self._is_released:
            self._abandon()
            self.drop()
            self._end()

    def cut(self) -> None:
        """Close the connection in the middle of the response, so that its client sees that the response is incomplete.

        For a client of HTTP/1.0, such as nginx by default, the end of the connection is the end of the body, so the
        connection is reset.
        """
        self.drop()
        if self.head.version == "1.0":
            self._connection.reset()
        else:
            self._connection.transport.close()

    # the subclass

    @abstractmethod
    def _open(self) -> None:
        """Check everything but the body, and set `_key_name`; raise a `GatewayError` to reject the request.

        A request that is answered here drops its body.
        """

    @abstractmethod
    def _answer(self, body: bytes) -> None:
        """Make the response; raise a `GatewayError` to reject the request."""

    @abstractmethod
    def _abandon(self) -> None:
        """Stop making the response: it cannot be sent."""

    @abstractmethod
    def _release(self) -> None:
        """Release everything that the request holds; called once, and last."""

    # inside

    def _rejected(self, error: GatewayError) -> None:
        """Report a request that is rejected with this error."""
        if self._entry is not None:
            self._entry.reject(error.status)
        now_s, code, limit = self._runtime.loop.time(), error.code or error.kind, error.limit
        key_name, trace_id, trace = self._key_name, self.trace_id, self.trace
        self._runtime.emit(
            RequestRejected(now_s, self.request_id, key_name, error.status, code, None, 0.0, trace_id, trace, limit)
        )

    def _reject(self, error: GatewayError) -> None:
        """Answer with an error."""
        self._rejected(error)
        self._respond_error(error)

    def _respond_error(self, error: GatewayError) -> None:
        self._drop_body()
        respond_error(self, error, self.request_id, self._api, end=not error.closes)
        if not self.ended:
            self._discarded_bytes = 0
            self._discarding = self._runtime.loop.call_later(_DISCARD_S, self._stop_discarding)
        self.flush()

    def _fail(self, error: Exception) -> None:
        """End a request that met a bug."""
        self._runtime.report("race", error)
        _LOG.error("a request met a bug", exc_info=error)
        self._abandon()
        if self.started:
            self.cut()
        else:
            self._respond_error(Internal("the gateway failed; see its log"))

    def _stop_discarding(self) -> None:
        if self._discarding is not None:
            self._discarding.cancel()
            self._discarding = None
            self.end()

    def _completed(self) -> None:
        self._end()
        self._connection.on_response_complete()

    def _drop_body(self) -> None:
        """Release the body of a request that is rejected, or the body that a disconnect has cut short."""
        self._pieces = None
        if self._arrival is not None:
            self._arrival.close()
            self._arrival = None
        if self._turn is not None:
            self._turn.cancel()
        if self._held is not None:
            self._bodies.release(self._held)
            self._held = None

    def _end(self) -> None:
        self._is_released = True
        if self._discarding is not None:
            self._discarding.cancel()
        held, since_s = self._held, self._held_since_s
        if held is not None and since_s is not None:
            self._bodies.release(held, self._runtime.loop.time() - since_s)
            self._held = None
        else:
            self._drop_body()
        self._release()
        self.race = None  # no cycle outlives a request
