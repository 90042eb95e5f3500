"""An API server of Kubernetes that lists and watches objects, and fails as real servers do.

It keeps a history of changes, so that a watch continues from a version. `FakeTransport` answers httpx in virtual time,
`serve_api` on sockets. Units: seconds.
"""

import asyncio
import contextlib
import copy
import json
import ssl
import threading
from collections.abc import AsyncIterator, Callable, Iterator, Mapping
from typing import Any, NamedTuple
from urllib.parse import parse_qsl, urlsplit

import httpx
import trustme

Object = dict[str, Any]
SLICES = "endpointslices"
_CONDITIONS = {
    "ready": {"ready": True, "serving": True, "terminating": False},
    "waiting": {"ready": False, "serving": False, "terminating": False},
    "terminating": {"ready": False, "serving": True, "terminating": True},
    "ended": {"ready": False, "serving": False, "terminating": True},
    "unknown": {},
}


class Endpoint(NamedTuple):
    """A pod of a Service.

    Attributes:
        state: a key of `_CONDITIONS`.
    """

    address: str
    state: str = "ready"
    zone: str | None = None


class Asked(NamedTuple):
    """A request that was received."""

    path: str
    query: Mapping[str, str]
    token: str | None
    accept: str

    @property
    def is_watch(self) -> bool:
        """True for a watch, False for a list."""
        return "watch" in self.query


class Refusal(NamedTuple):
    """An error to answer with."""

    status: int
    message: str = ""
    headers: Mapping[str, str] = {}


class _Change(NamedTuple):
    """A change of an object; None for an object that does not exist."""

    version: int
    plural: str
    before: Object | None
    after: Object | None

    def line(self, asked: Asked) -> bytes:
        """Return the event of a watch; "" for none. An object that leaves the selector is deleted for the watch."""
        before, after = (None if each is None or not _matches(each, asked) else each for each in self[2:])
        if after is not None:
            return _line("ADDED" if before is None else "MODIFIED", _shown(after, asked))
        if before is None:
            return b""
        deleted = {**before, "metadata": {**before["metadata"], "resourceVersion": str(self.version)}}
        return _line("DELETED", _shown(deleted, asked))


class Cut(Exception):
    """The connection is cut here."""


def endpoint_slice(
    name: str,
    pods: Mapping[str, Endpoint],
    service: str = "vllm",
    ports: Mapping[str | None, int] | None = None,
    address_type: str = "IPv4",
) -> Object:
    """Return an EndpointSlice as the API has it."""
    endpoints = [
        {
            "addresses": [pod.address],
            "conditions": _CONDITIONS[pod.state],
            "targetRef": {"kind": "Pod", "name": each, "namespace": "llm", "uid": f"uid-{each}"},
            "nodeName": "node-1",
            **({} if pod.zone is None else {"zone": pod.zone}),
        }
        for each, pod in pods.items()
    ]
    named = {"http": 8000} if ports is None else ports
    return {
        "apiVersion": "discovery.k8s.io/v1",
        "kind": "EndpointSlice",
        "metadata": {"name": name, "namespace": "llm", "labels": {"kubernetes.io/service-name": service}},
        "addressType": address_type,
        "endpoints": endpoints or None,
        "ports": [{"name": each, "port": port, "protocol": "TCP"} for each, port in named.items()],
    }


def pod(name: str, **labels: str) -> Object:
    """Return a pod as the API has it."""
    labelled = {key.replace("__", "/").replace("_", "-"): value for key, value in labels.items()}
    metadata = {"name": name, "namespace": "llm", "labels": labelled}
    return {"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": {"containers": []}}


class FakeKubernetes:
    """The objects of a namespace, and what happens to requests for them.

    Attributes:
        asked: requests that were received.
        refusals: answers to the next requests.
        is_away: True if no connection is accepted.
        is_hung: True if no request and no watch is answered.
        answer_s: time before each answer.
        is_cutting: True if a watch is cut in the middle of its next event.
        bookmarks: True if watches send bookmarks.
    """

    def __init__(self) -> None:
        self.asked: list[Asked] = []
        self.refusals: list[Refusal] = []
        self.is_away = self.is_hung = self.is_cutting = False
        self.answer_s = 0.0
        self.bookmarks = True
        self._version = 100
        self._oldest = 100  # version from which on the history is kept
        self._objects: dict[tuple[str, str], Object] = {}
        self._history: list[_Change] = []
        self._generation = 0
        self._news = asyncio.Event()

    def put(self, plural: str, given: Object) -> None:
        """Create or replace an object."""
        named = (plural, given["metadata"]["name"])
        self._version += 1
        found = copy.deepcopy(given)
        found["metadata"]["resourceVersion"] = str(self._version)
        self._record(plural, self._objects.get(named), found)
        self._objects[named] = found

    def delete(self, plural: str, name: str) -> None:
        """Delete an object."""
        self._version += 1
        self._record(plural, self._objects.pop((plural, name)), None)

    def pods(self, **pods: Endpoint) -> None:
        """Replace the only EndpointSlice of the Service `vllm`; `_` in names is a hyphen."""
        self.put(SLICES, endpoint_slice("vllm-1", {name.replace("_", "-"): each for name, each in pods.items()}))

    def names(self, plural: str) -> set[str]:
        """Return the names of the objects of a kind."""
        return {name for kind, name in self._objects if kind == plural}

    def compact(self) -> None:
        """Forget the history: watches from an earlier version get 410."""
        self._version += 1
        self._oldest = self._version
        self._history.clear()

    def restart(self) -> None:
        """Cut all watches; the objects stay."""
        self._generation += 1
        self._wake()

    def expire(self) -> None:
        """End all watches with an event of type ERROR: their version is too old."""
        self.compact()
        self._wake()

    def _record(self, plural: str, before: Object | None, after: Object | None) -> None:
        self._history.append(_Change(self._version, plural, before, after))
        self._wake()

    def _wake(self) -> None:
        self._news.set()
        self._news = asyncio.Event()

    async def answer(self, target: str, headers: Mapping[str, str]) -> tuple[int, dict[str, str], AsyncIterator[bytes]]:
        """Answer a request: status, headers, and the body in pieces, which raise `Cut` if the connection is cut."""
        url = urlsplit(target)
        query = dict(parse_qsl(url.query))
        asked = Asked(url.path, query, headers.get("authorization"), headers.get("accept", ""))
        self.asked.append(asked)
        await asyncio.sleep(self.answer_s)
        while self.is_hung:
            await asyncio.sleep(1.0)
        if self.refusals:
            status, message, more = self.refusals.pop(0)
            text = json.dumps({"kind": "Status", "status": "Failure", "message": message, "code": status})
            return status, dict(more), _whole(text)
        if "PartialObject" in asked.accept and asked.is_watch is ("PartialObjectMetadataList" in asked.accept):
            return 406, {}, _whole('{"kind":"Status","code":406,"message":"only lists can be lists"}')
        plural = url.path.rpartition("/")[2]
        if not asked.is_watch:
            return 200, {}, _whole(json.dumps(self._list(plural, asked)))
        if int(query["resourceVersion"]) < self._oldest:
            return (
                410,
                {},
                _whole('{"kind":"Status","code":410,"reason":"Expired","message":"too old resource version"}'),
            )
        return 200, {}, self._watch(plural, asked)

    def _list(self, plural: str, asked: Asked) -> Object:
        items = [each for (kind, _), each in self._objects.items() if kind == plural and _matches(each, asked)]
        metadata = {"resourceVersion": str(self._version)}
        return {"kind": "List", "metadata": metadata, "items": [_shown(each, asked) for each in items] or None}

    async def _watch(self, plural: str, asked: Asked) -> AsyncIterator[bytes]:
        loop, generation = asyncio.get_running_loop(), self._generation
        seen, end_s = int(asked.query["resourceVersion"]), loop.time() + float(asked.query["timeoutSeconds"])
        is_marked = False
        while True:
            if seen < self._oldest:
                yield _line("ERROR", {"kind": "Status", "code": 410, "reason": "Expired"})
                return
            for change in [each for each in self._history if each.version > seen]:
                seen = change.version
                if change.plural == plural and (line := change.line(asked)):
                    if self.is_cutting:
                        self.is_cutting = False
                        yield line[: len(line) // 2]
                        raise Cut
                    yield line
            if self._generation != generation or self.is_away:
                raise Cut
            left_s = end_s - loop.time()
            if left_s <= 0 and not self.is_hung:
                return
            if self.bookmarks and not is_marked and left_s <= 2.0:
                is_marked = True
                yield _line("BOOKMARK", {"kind": "EndpointSlice", "metadata": {"resourceVersion": str(self._version)}})
            with contextlib.suppress(TimeoutError):
                wait_s = 1.0 if left_s <= 0 else left_s - 2.0 if left_s > 2.0 and self.bookmarks else left_s
                async with asyncio.timeout(wait_s):
                    await self._news.wait()
            while self.is_hung:
                await asyncio.sleep(1.0)


def _line(kind: str, found: Object) -> bytes:
    return json.dumps({"type": kind, "object": found}).encode() + b"\n"


def _matches(found: Object, asked: Asked) -> bool:
    labels = found["metadata"].get("labels", {})
    wanted = [each.partition("=") for each in asked.query["labelSelector"].split(",")]
    return all(labels.get(name, "-") == value if equal else name in labels for name, equal, value in wanted)


def _shown(found: Object, asked: Asked) -> Object:
    return {"metadata": found["metadata"]} if "as=PartialObjectMetadata" in asked.accept else found


async def _whole(text: str) -> AsyncIterator[bytes]:
    yield text.encode()


class FakeTransport(httpx.AsyncBaseTransport):
    """Answers the requests of an httpx client without sockets."""

    def __init__(self, cluster: FakeKubernetes) -> None:
        self._cluster = cluster

    async def handle_async_request(self, request: httpx.Request) -> httpx.Response:
        if self._cluster.is_away:
            raise httpx.ConnectError("Connection refused")
        status, headers, body = await self._cluster.answer(str(request.url), request.headers)
        return httpx.Response(status, headers=headers, stream=_Pieces(body))


class _Pieces(httpx.AsyncByteStream):
    def __init__(self, body: AsyncIterator[bytes]) -> None:
        self._body = body

    async def __aiter__(self) -> AsyncIterator[bytes]:
        try:
            async for piece in self._body:
                yield piece
        except Cut:
            raise httpx.ReadError("cut") from None


@contextlib.asynccontextmanager
async def serve_api(cluster: FakeKubernetes, port: int = 0, tls: ssl.SSLContext | None = None) -> AsyncIterator[int]:
    """Serve the API on a port of this machine while inside; yields the port."""
    connections: set[asyncio.Task[None] | None] = set()

    async def respond(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        connections.add(asyncio.current_task())
        try:
            head = (await reader.readuntil(b"\r\n\r\n")).decode().split("\r\n")
            fields = (line.partition(":") for line in head[1:] if line)
            headers = {name.lower(): value.strip() for name, _, value in fields}
            if cluster.is_away:
                raise Cut
            status, more, body = await cluster.answer(head[0].split(" ")[1], headers)
            shown = "".join(f"{name}: {value}\r\n" for name, value in more.items())
            start = f"HTTP/1.1 {status} X\r\ncontent-type: application/json\r\nconnection: close\r\n{shown}"
            writer.write(f"{start}transfer-encoding: chunked\r\n\r\n".encode())
            async for piece in body:
                writer.write(b"%x\r\n%b\r\n" % (len(piece), piece))
                await writer.drain()
            writer.write(b"0\r\n\r\n")
            await writer.drain()
        except (Cut, OSError, asyncio.IncompleteReadError):
            writer.transport.abort()
        finally:
            writer.close()
            connections.discard(asyncio.current_task())

    server = await asyncio.start_server(respond, "127.0.0.1", port, ssl=tls)
    try:
        yield server.sockets[0].getsockname()[1]
    finally:
        server.close()
        cluster.restart()
        await asyncio.gather(*(each for each in connections if each is not None))


class ServedKubernetes(NamedTuple):
    """An API server on a thread, with TLS.

    Attributes:
        url: its URL.
        authority: its certificate authority, in PEM form.
    """

    url: str
    authority: bytes
    cluster: FakeKubernetes
    loop: asyncio.AbstractEventLoop

    def put_pods(self, **pods: tuple[str, str]) -> None:
        """Replace the pods of the Service `vllm`, each by its URL and state, in EndpointSlices of their own."""

        def put() -> None:
            for name in self.cluster.names(SLICES) - {f"slice-{each}" for each in pods}:
                self.cluster.delete(SLICES, name)
            for name, (url, state) in pods.items():
                end = urlsplit(url)
                endpoints = {name: Endpoint(end.hostname or "", state)}
                self.cluster.put(SLICES, endpoint_slice(f"slice-{name}", endpoints, ports={"http": end.port or 0}))

        self.do(put)

    def do(self, act: Callable[[], object]) -> None:
        """Call something on the server's thread, and wait for it."""
        done = threading.Event()
        self.loop.call_soon_threadsafe(act)
        self.loop.call_soon_threadsafe(done.set)
        done.wait()


@contextlib.contextmanager
def kubernetes() -> Iterator[ServedKubernetes]:
    """An API server while inside."""
    cluster, ready, loop = FakeKubernetes(), threading.Event(), asyncio.new_event_loop()
    authority, tls, enough = trustme.CA(), ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER), asyncio.Event()
    authority.issue_cert("127.0.0.1").configure_cert(tls)
    ports: list[int] = []

    async def serve() -> None:
        async with serve_api(cluster, tls=tls) as port:
            ports.append(port)
            ready.set()
            await enough.wait()
            cluster.is_away, cluster.is_hung = True, False

    def run() -> None:
        with asyncio.Runner(loop_factory=lambda: loop) as runner:
            runner.run(serve())

    thread = threading.Thread(target=run, name="API server")
    thread.start()
    ready.wait()
    try:
        yield ServedKubernetes(f"https://127.0.0.1:{ports[0]}", authority.cert_pem.bytes(), cluster, loop)
    finally:
        loop.call_soon_threadsafe(enough.set)
        thread.join()
