"""Combines an HTTP client, wire protocols and settings to an `Endpoint`, a replica in the form that a race uses.

Writes the requests; response_stream.py reads the responses. Races and retries are not handled here. Units: seconds,
bytes.
"""

import asyncio

import msgspec

from providers.base import Api, Burst, Call, Headers, HttpClient, Request, Sink, Stream, WireProtocol
from providers.errors import Unsupported
from providers.response_stream import Bounds, ResponseContext, ResponseStream
from providers.stream_support import DEFAULT, UNSTREAMED, StreamSupport

_ACCEPT = {True: b"text/event-stream", False: b"application/json"}


class HttpEndpoint:
    """A `providers.base.Endpoint` over HTTP.

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
        self._protocols = protocols
        self._model = model
        self._responses = ResponseContext(bounds, StreamSupport(), burst or Burst())
        lines = b"".join(b"%s: %s\r\n" % header for header in headers)
        fixed = b"content-type: application/json\r\naccept-encoding: identity\r\n"  # request no compression
        # engines serve `/tokenize` beside `/v1`, not below it
        bases = {api: path.removesuffix("/v1") if api is Api.TOKENIZE else path for api in protocols}
        targets = {api: bases[api] + protocol.path(api) + query for api, protocol in protocols.items()}
        self._heads = {
            api: b"POST %s HTTP/1.1\r\n" % target.encode() + lines + fixed for api, target in targets.items()
        }

    def open(self, call: Call, sink: Sink) -> Stream:
        """Send the call; see `Endpoint.open`."""
        protocol = self._protocols[call.api]
        in_events = call.streaming or call.assemble
        mode, support = DEFAULT if in_events else UNSTREAMED, self._responses.support
        if support.learned and in_events:
            mode = support.mode_for(call, asyncio.get_running_loop().time())
        sent_call = call if mode.options else msgspec.structs.replace(call, options=False)
        try:
            body = protocol.build(sent_call, self._model, stream=mode.stream)
        except Unsupported as error:
            return _UnsupportedStream(error, sink)
        head = self._heads[call.api]
        if call.headers:
            head += b"".join(b"%s: %s\r\n" % header for header in call.headers)
        size = sum(map(len, body)) if type(body) is tuple else len(body)
        head += b"accept: %s\r\ncontent-length: %d\r\n\r\n" % (_ACCEPT[mode.stream], size)
        stream = ResponseStream(protocol, call, sink, mode, self._responses)
        stream.exchange = self._client.send(Request(head, body), stream)
        return stream


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
