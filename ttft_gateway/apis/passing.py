"""A request that is passed on to one replica as bytes. Pure. Units: bytes."""

from typing import Protocol, runtime_checkable

import msgspec

from ttft_gateway.apis.base import Headers, HttpSink, HttpStream
from ttft_gateway.apis.upload import Upload


class PassedCall(msgspec.Struct, frozen=True):
    """A request to pass on to one replica.

    Attributes:
        method: HTTP method.
        path: path below the base URL, with its slash.
        query: query with its question mark; empty for none.
        headers: headers of the caller to pass on.
        body: the body; empty for none.
        model_at: place in the body of the public model name, which the replica's name replaces; None for none.
        is_quoted: True if the place has a JSON string, False for the name as it is.
        hops: number of gateways that the request has gone through.
    """

    method: bytes
    path: bytes
    query: bytes
    headers: Headers
    body: bytes | Upload
    model_at: tuple[int, int] | None = None
    is_quoted: bool = False
    hops: int = 0


@runtime_checkable
class PassingEndpoint(Protocol):
    """A replica that takes requests as they are.

    Attributes:
        model: the replica's name of the model.
    """

    model: str

    def pass_on(self, call: PassedCall, sink: HttpSink) -> HttpStream:
        """Send the request without waiting; the response reaches the sink from a later loop turn."""
