"""One request that is passed on to one replica, and its response: bytes in both directions, with back-pressure.

Another replica follows only where a repeat is safe: nothing was sent because there was no connection, the replica
rejected the request before it did anything (429, 503), or the method is GET; and only while the client has nothing yet
and the body is still held. An upload is sent once.

The response is forwarded as it comes, with a closed list of its headers. The body of an error is held, so that secrets
of the replica can be removed from it. Units: seconds, bytes.
"""

import asyncio
from collections.abc import Sequence
from typing import Final, Protocol

from gateway.api.body_reader import DIGITS_MAX
from gateway.api.dialects.base import ClientApi
from gateway.api.response import ResponseWriter, respond, respond_error
from gateway.errors import GatewayError, ShuttingDown, UnsupportedApi
from gateway.race.failures import client_error
from ttft_gateway.apis.base import Headers, HttpStream
from ttft_gateway.apis.errors import BadStatus, ConnectError, ConnectionCut, TimedOut, UpstreamError, redacted, shown_id
from ttft_gateway.apis.passing import PassedCall, PassingEndpoint
from ttft_gateway.apis.upload import Upload
from ttft_gateway.routing.replicas import Replica

ERROR_BYTES_MAX: Final = 64 * 1024  # of the body of an error; more of it is cut
_PASSED_BACK: Final = frozenset(
    [
        b"content-type",
        b"content-disposition",
        b"content-encoding",
        b"content-range",
        b"accept-ranges",
        b"cache-control",
        b"etag",
        b"last-modified",
        b"location",
        b"retry-after",
        b"retry-after-ms",
        b"openai-processing-ms",
        b"x-should-retry",
    ]
)
_OWN_CREDENTIALS: Final = (401, 403, 407)
_UNDONE: Final = (429, 503)
_ERROR_MIN: Final = 400
_ERROR_MAX: Final = 599


class PassedResponse(Protocol):
    """The exchange that a transfer answers."""

    def cut(self) -> None:
        """End a response that has begun and cannot be completed."""

    def over(self, status: int, error: str | None) -> None:
        """Report the end of the request; called at most once."""


class Transfer:
    """A request on its way to a replica and back.

    Args:
        response: writes the response.
        exchange: the exchange of the request.
        api: form of the errors.
        request_id: id of the request.
        call: the request.
        replicas: replicas to try, in this order; at least one.
        total_s: longest duration.
        loop: the loop.

    Attributes:
        replica: the replica that was asked last.
    """

    def __init__(
        self,
        response: ResponseWriter,
        exchange: PassedResponse,
        api: ClientApi,
        request_id: str,
        call: PassedCall,
        replicas: Sequence[Replica],
        total_s: float,
        loop: asyncio.AbstractEventLoop,
    ) -> None:
        self._response, self._exchange = response, exchange
        self._api, self._request_id = api, request_id
        self._call = call
        self._left = list(replicas)
        self.replica = self._left[0]
        self._stream: HttpStream | None = None
        self._status, self._headers = 0, list[tuple[bytes, bytes]]()
        self._size: int | None = None  # of the response's body, if it is stated
        self._error: bytearray | None = None  # body of an error response
        self._paused = False
        self._total_s = total_s
        self._timer = loop.call_later(total_s, self._late)

    def start(self) -> None:
        """Send the request to the next replica."""
        replica = self.replica = self._left.pop(0)
        endpoint = replica.endpoint
        if not isinstance(endpoint, PassingEndpoint):
            self.give_up(UnsupportedApi("the replica's connection cannot pass requests on; use another replica"))
            return
        self._stream = endpoint.pass_on(self._call, self)
        if self._paused:
            self._stream.pause()

    def stop(self) -> None:
        """Drop the request: the client is gone, or its response is complete."""
        self._timer.cancel()
        if self._stream is not None:
            self._stream.abort()
            self._stream = None

    def shut_down(self) -> None:
        """End the request with an error: the gateway stops."""
        self.give_up(ShuttingDown("the gateway is shutting down and its drain period is over; retry"))

    # the response's calls

    def pause(self) -> None:
        """Stop reading: the client is slow."""
        self._paused = True
        if self._stream is not None:
            self._stream.pause()

    def resume(self) -> None:
        """Read again."""
        self._paused = False
        if self._stream is not None:
            self._stream.resume()

    def usage(self) -> None:
        """Return nothing: usage is not read."""

    def give_up(self, error: GatewayError) -> None:
        """End the request with this error, or cut the response if it has begun."""
        self.stop()
        if self._response.started:
            self._exchange.cut()
        else:
            respond_error(self._response, error, self._request_id, self._api)
        self._exchange.over(error.status, error.code or error.kind)

    # the HTTP client's calls

    def on_response(self, status: int, headers: Headers) -> None:
        """Hold the head: a response that is cut before its body can be replaced."""
        secrets = self.replica.secrets
        self._status = status
        self._headers = [
            (name, redacted(value.decode("latin-1"), secrets).encode("latin-1"))
            for name, value in headers
            if name in _PASSED_BACK
        ]
        if (upstream_id := shown_id(headers, secrets)) is not None:
            self._headers.append((b"x-upstream-request-id", upstream_id.encode()))
        if status >= _ERROR_MIN:
            self._error = bytearray()
            return
        length = next((value for name, value in headers if name == b"content-length"), b"")
        self._size = int(length) if length.isdigit() and len(length) <= DIGITS_MAX else None

    def on_body(self, data: bytes) -> None:
        """Forward a piece of the body."""
        if self._error is None:
            self._begin()
            self._response.write(data)
        else:
            self._error += data[: ERROR_BYTES_MAX - len(self._error)]

    def on_close(self, error: UpstreamError | None) -> None:
        """Complete the response, try the next replica, or end with an error."""
        self._stream = None
        if error is None and self._status < _ERROR_MIN:
            self._timer.cancel()
            self._begin()
            self._response.end()
            self._exchange.over(self._status, None)
        elif self._may_repeat(error):
            self._error = None
            self.start()
        elif error is None:
            self._answer_error()
        else:
            error.redact(self.replica.secrets)
            self.give_up(client_error(error))

    # inside

    def _begin(self) -> None:
        """Begin the client's response, once."""
        if not self._response.started:
            self._response.start(self._status, self._own_headers(), self._size)

    def _may_repeat(self, error: UpstreamError | None) -> bool:
        if not self._left or self._response.started or isinstance(self._call.body, Upload):
            return False
        if error is None:
            return self._status in _UNDONE
        is_cut = isinstance(error, ConnectionCut) and self._call.method == b"GET"
        return isinstance(error, ConnectError) or is_cut

    def _answer_error(self) -> None:
        """Send the replica's own error; its rejection of the gateway's key is none of the caller's."""
        status, body = self._status, bytes(self._error or b"")
        if status in _OWN_CREDENTIALS:
            self.give_up(client_error(BadStatus("the upstream rejected the request", status=401)))
            return
        obstacle = None
        if status > _ERROR_MAX:  # it has no class (RFC 9110, 15)
            obstacle = f"the upstream answered with the invalid status {status}"
        elif any(name == b"content-encoding" and value.lower() != b"identity" for name, value in self._headers):
            obstacle = f"the upstream answered with status {status} and a compressed error"  # may quote a secret
        if obstacle is not None:
            self.give_up(client_error(BadStatus(obstacle, status=status)))
            return
        self._timer.cancel()
        shown = redacted(body.decode("latin-1"), self.replica.secrets).encode("latin-1")
        respond(self._response, status, self._own_headers(), shown)
        self._exchange.over(status, "upstream_error")

    def _own_headers(self) -> list[tuple[bytes, bytes]]:
        own = [(b"x-request-id", self._request_id.encode()), (b"x-ttft-replica", self.replica.name.encode())]
        return [*own, *self._headers]

    def _late(self) -> None:
        self.give_up(client_error(TimedOut(f"no complete answer within {self._total_s:g} s")))
