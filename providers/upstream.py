"""Combines an HTTP client, wire protocols and settings to an `Endpoint`, a replica in the form that a race uses.

Writes the requests; response_stream.py reads the responses. Races and retries are not handled here. Units: seconds,
bytes.
"""

import asyncio
from collections.abc import Callable, Mapping

import msgspec

from providers.response_stream import Bounds, ResponseContext, ResponseStream
from providers.stream_support import DEFAULT, UNSTREAMED, StreamSupport
from ttft_gateway.apis.base import (
    HOPS,
    Api,
    Burst,
    Call,
    Headers,
    HttpClient,
    HttpSink,
    HttpStream,
    Request,
    Sink,
    Stream,
    WireProtocol,
)
from ttft_gateway.apis.errors import Unsupported
from ttft_gateway.apis.passing import PassedCall
from ttft_gateway.apis.upload import Upload

_encode = msgspec.json.Encoder().encode
_ACCEPTED = {True: b"text/event-stream", False: b"application/json"}
"""The content types of a stream and of a whole answer."""


class _Served(dict[Api, tuple[WireProtocol, dict[bool, bytes]]]):
    """The protocol of each API, with the heads of its requests for streams and whole answers; made when first used.

    Most replicas use one API of a dozen, and a configuration may have thousands of replicas.
    """

    def __init__(
        self, protocols: Mapping[Api, WireProtocol], heads: Callable[[Api, WireProtocol], dict[bool, bytes]]
    ) -> None:
        super().__init__()
        self._protocols = protocols
        self._heads = heads

    def __missing__(self, api: Api) -> tuple[WireProtocol, dict[bool, bytes]]:
        protocol = self._protocols[api]
        served = self[api] = protocol, self._heads(api, protocol)
        return served


class HttpEndpoint:
    """A `ttft_gateway.apis.base.Endpoint` over HTTP.

    Args:
        client: the client to the replica's origin.
        protocols: the wire protocol for each API that the replica serves.
        path: path of the base URL, without a closing slash.
        headers: headers of every request: host, authorization and so on.
        model: the replica's name of the model.
        bounds: limits on responses.
        query: query string of every request, with its question mark; empty for none.
        burst: opened while a piece of a body is read, None if no caller uses it.
    """

    def __init__(
        self,
        client: HttpClient,
        protocols: dict[Api, WireProtocol],
        path: str,
        headers: Headers,
        model: str,
        bounds: Bounds,
        query: str = "",
        burst: Burst | None = None,
    ) -> None:
        self._client = client
        self.model = model
        self._responses = ResponseContext(bounds, StreamSupport(), burst or Burst())
        lines = b"".join(b"%s: %s\r\n" % header for header in headers)
        self._path, self._query, self._lines = path.encode(), query.encode(), lines
        self._token = token = bytearray()  # its header line
        lines += b"content-type: application/json\r\naccept-encoding: identity\r\n"  # request no compression

        def heads(api: Api, protocol: WireProtocol) -> dict[bool, bytes]:
            # engines serve `/tokenize` next to `/v1`, not below it
            base = path.removesuffix("/v1") if api is Api.TOKENIZE else path
            return {
                stream: b"POST %s HTTP/1.1\r\n%b%baccept: %b\r\n"
                % (f"{base}{protocol.path(api, model, stream=stream)}{query}".encode(), lines, bytes(token), accepted)
                for stream, accepted in _ACCEPTED.items()
            }

        self._heads = heads
        self._served = _Served(protocols, heads)
        self._continuing = _Served({}, heads)

    def continue_with(self, protocols: Mapping[Api, WireProtocol]) -> None:
        """Set the wire protocol for each client API in which the replica continues an answer."""
        self._continuing = _Served(protocols, self._heads)

    def use_token(self, name: bytes, value: bytes) -> None:
        """Send a header with another token from now on; requests under way keep the one that they were sent with."""
        self._token[:] = b"%b: %b\r\n" % (name, value)
        for served in (self._served, self._continuing):
            served.clear()  # heads with the other token

    def open(self, call: Call, sink: Sink) -> Stream:
        """Send the call; see `Endpoint.open`."""
        protocol, heads = (self._continuing if call.continues else self._served)[call.api]
        mode, responses = DEFAULT, self._responses
        if not (call.streaming or call.assemble):
            mode = UNSTREAMED
        elif responses.support.learned:
            mode = responses.support.mode_for(call, asyncio.get_running_loop().time())
        sent_call = call if mode.options else msgspec.structs.replace(call, options=False)
        try:
            body = protocol.build(sent_call, self.model, stream=mode.stream)
        except Unsupported as error:
            return _UnsupportedStream(error, sink)
        head = heads[mode.stream]
        if call.headers:
            head += b"".join(b"%s: %s\r\n" % header for header in call.headers)
        size = sum(map(len, body)) if type(body) is tuple else len(body)
        head += b"%b: %d\r\ncontent-length: %d\r\n\r\n" % (HOPS, call.hops + 1, size)
        stream = ResponseStream(protocol, call, sink, mode, responses)
        stream.exchange = self._client.send(Request(head, body), stream)
        return stream

    def pass_on(self, call: PassedCall, sink: HttpSink) -> HttpStream:
        """Send a request as it is, but for the model's name; see `PassingEndpoint.pass_on`."""
        query = call.query
        if self._query:
            query = self._query if not query else b"%b&%b" % (self._query, query[1:])
        body, framing = call.body, b""
        if isinstance(body, Upload):
            framing = b"transfer-encoding: chunked\r\n" if body.size is None else b"content-length: %d\r\n" % body.size
        else:
            if call.model_at is not None:
                start, end = call.model_at
                name = _encode(self.model) if call.is_quoted else self.model.encode()
                body = b"%b%b%b" % (body[:start], name, body[end:])
            if body or call.method != b"GET":
                framing = b"content-length: %d\r\n" % len(body)
        head = b"%b %b%b%b HTTP/1.1\r\n" % (call.method, self._path, call.path, query)
        given = b"".join(b"%s: %s\r\n" % header for header in (*call.headers, (HOPS, b"%d" % (call.hops + 1))))
        lines = b"%b%b%baccept-encoding: identity\r\n%b" % (self._lines, bytes(self._token), given, framing)
        return self._client.send(Request(b"%b%b\r\n" % (head, lines), body), sink)


class _UnsupportedStream:
    """The `Stream` of a call that this replica does not support: it fails in the next loop turn."""

    def __init__(self, error: Unsupported, sink: Sink) -> None:
        self._timer = asyncio.get_running_loop().call_soon(sink.on_end, error)

    def pause(self) -> None:
        """Do nothing: there is no data."""

    def resume(self) -> None:
        """Do nothing: there is no data."""

    def abort(self) -> None:
        self._timer.cancel()

    def finish(self) -> bool:
        return False
