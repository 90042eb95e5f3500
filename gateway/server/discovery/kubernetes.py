"""Reads objects of the Kubernetes API by list and watch, with a service account. Units: seconds, bytes.

A list has a version, and a watch from this version on sends each later change. A watch ends after half a minute and is
opened again at the last version: a watch that hangs is noticed soon, and each one has the present token. A version that
the server has forgotten (410) leads to a new list. While the server is away, the last objects are kept. Each request is
bounded in time and size, and failed requests are repeated more and more slowly.
"""

import asyncio
import contextlib
import re
import ssl
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final, Generic, NamedTuple, TypeVar

import httpx
import msgspec

from gateway.config.discover import KubernetesSettings
from gateway.server.daemon_thread import on_thread, uncancelled
from gateway.server.discovery.endpoint_slices import Metadata, Named
from gateway.server.discovery.failure import SourceFailed

POD_FOLDER: Final = Path("/var/run/secrets/kubernetes.io/serviceaccount")  # where Kubernetes mounts it in a pod
_ANSWER_S_MAX: Final = 10.0  # for a list, and for the head of a watch
_WATCH_S: Final = 30.0  # asked of the server
_WATCH_S_MAX: Final = _WATCH_S + 10.0  # a watch that has not ended hangs
_STEADY_S: Final = 5.0  # a watch that ends earlier counts as failed
_AGAIN_S: Final = 0.25  # before the first repetition; each next one takes twice as long
_STEPS_MAX: Final = 8  # up to 32 s
_STEPS_MAX_ENDED: Final = 3  # up to 1 s, after a watch that has begun or had an old version
_WAIT_S_MAX: Final = 60.0  # of `Retry-After`
_BYTES_MAX: Final = 32_000_000  # of a list; 1,000 endpoints have 0.5 MB
_LINE_BYTES_MAX: Final = 4_000_000  # of an event
_OBJECTS_MAX: Final = 10_000
_ERROR_BYTES_MAX: Final = 100_000
_TEXT_CHARS_MAX: Final = 300  # of an error of the server
_JITTER: Final = 0.5  # of the time before a repetition: the gateways of a fleet do not ask at the same time

_Object = TypeVar("_Object", bound=Named)


class Access(NamedTuple):
    """The API server, and the rights at it.

    Attributes:
        token: token of the service account; None for no login.
        authorities: certificate authorities to trust; None for a server without TLS.
        namespace: namespace of the pod; None outside of a cluster.
    """

    url: str
    token: str | None = None
    authorities: ssl.SSLContext | None = None
    namespace: str | None = None


def read_access(settings: KubernetesSettings, env: Mapping[str, str], folder: Path = POD_FOLDER) -> Access:
    """Read the files of a service account, which Kubernetes replaces from time to time; runs on a thread.

    Raises:
        SourceFailed: a file is missing or invalid, or there is no server.
    """
    host, port = env.get("KUBERNETES_SERVICE_HOST"), env.get("KUBERNETES_SERVICE_PORT", "443")
    url, is_in_pod = settings.url, settings.url is None
    if url is None:
        if not host:
            raise SourceFailed("the gateway runs outside of a cluster; set `url` in the section `kubernetes`")
        url = f"https://[{host}]:{port}" if ":" in host else f"https://{host}:{port}"
    token_file = settings.token_file or (str(folder / "token") if is_in_pod else None)
    ca_file = settings.ca_file or (str(folder / "ca.crt") if is_in_pod else None)
    token = None if token_file is None else _text_of(Path(token_file)).strip()
    if token is not None and not re.fullmatch("[!-~]+", token):
        raise SourceFailed(f"the file {token_file} contains no token")
    authorities = None
    if url.startswith("https:"):
        try:
            authorities = ssl.create_default_context(cafile=ca_file)
        except OSError as error:
            raise SourceFailed(f"the file {ca_file} cannot be used: {error.strerror or error}") from None
    namespace = None
    with contextlib.suppress(OSError, ValueError):
        namespace = (folder / "namespace").read_text(encoding="utf-8").strip()
    return Access(url, token, authorities, namespace)


def _text_of(file: Path) -> str:
    try:
        return file.read_text(encoding="utf-8")
    except FileNotFoundError:
        raise SourceFailed(f"the file {file} does not exist; mount the token of the service account") from None
    except (OSError, ValueError) as error:
        raise SourceFailed(f"the file {file} cannot be read: {getattr(error, 'strerror', None) or 'no text'}") from None


class ApiFailed(SourceFailed):
    """A request to the API server has failed.

    Attributes:
        wait_s: time after which the server accepts the next request.
    """

    def __init__(self, text: str, wait_s: float = 0.0) -> None:
        super().__init__(text)
        self.wait_s = wait_s


class _Expired(Exception):
    """The server has forgotten the version of a watch."""


class Api:
    """The API of a cluster.

    Args:
        access: reads address and login; called for each request.
        transport: sends the requests; None for sockets.
    """

    def __init__(
        self, access: Callable[[], Awaitable[Access]], transport: httpx.AsyncBaseTransport | None = None
    ) -> None:
        self._access = access
        self._transport = transport

    @contextlib.asynccontextmanager
    async def open(self, wanted: "Wanted[_Object]", query: Mapping[str, str]) -> AsyncIterator[httpx.Response]:
        """Send a request, and yield its response with status 200.

        Raises:
            ApiFailed: the server rejects the request.
            SourceFailed: there is no login or no namespace.
            httpx.HTTPError: the server is away.
        """
        access = await self._access()
        headers = {"accept": wanted.accept(is_watch="watch" in query), "accept-encoding": "identity"}
        if access.token is not None:
            headers["authorization"] = f"Bearer {access.token}"
        verify = access.authorities if access.authorities is not None else False
        client = httpx.AsyncClient(verify=verify, trust_env=False, timeout=_WATCH_S_MAX, transport=self._transport)
        url, params = access.url + wanted.path(access.namespace), {"labelSelector": wanted.selector, **query}
        async with client, client.stream("GET", url, params=params, headers=headers) as response:
            if response.status_code != 200:
                raise await _rejection(response)
            yield response


def cluster_api(settings: KubernetesSettings, env: Mapping[str, str]) -> Api:
    """Return the API of the cluster in the settings, or of the one that the gateway runs in."""
    reading: asyncio.Future[Access] | None = None

    async def access() -> Access:
        nonlocal reading
        if reading is None or reading.done():  # one thread at most, also on a disk that hangs
            reading = on_thread(lambda: read_access(settings, env), "read service account")
        return await uncancelled(reading)

    return Api(access)


class _Status(msgspec.Struct):
    """An error of the API server."""

    message: str = ""


async def _rejection(response: httpx.Response) -> Exception:
    """Return the error for a response with another status than 200."""
    if response.status_code == 410:
        return _Expired()
    content = b""
    async for chunk in response.aiter_bytes():
        content += chunk
        if len(content) > _ERROR_BYTES_MAX:
            break
    try:
        message = msgspec.json.decode(content, type=_Status).message
    except msgspec.DecodeError:
        message = ""
    after = response.headers.get("retry-after", "")
    wait_s = min(float(after), _WAIT_S_MAX) if re.fullmatch("[0-9]{1,9}", after) else 0.0
    text = "".join(each for each in " ".join(message.split()) if each.isprintable())[:_TEXT_CHARS_MAX]
    return ApiFailed(f"the API server answers {response.status_code}" + (f": {text}" if text else ""), wait_s)


@dataclass(frozen=True, slots=True)
class Wanted(Generic[_Object]):
    """The objects to read.

    Attributes:
        group: beginning of the path.
        plural: name of their kind in paths.
        namespace: their namespace; None for the namespace of the gateway's pod.
        selector: labels that they have.
        form: type of an object.
        only_metadata: True if the API server leaves out everything but metadata.
    """

    group: str
    plural: str
    namespace: str | None
    selector: str
    form: type[_Object]
    only_metadata: bool = False

    def accept(self, *, is_watch: bool) -> str:
        """Return the media type of a list, or of the objects in a watch."""
        kind = "PartialObjectMetadata" if is_watch else "PartialObjectMetadataList"
        return f"application/json;as={kind};g=meta.k8s.io;v=v1" if self.only_metadata else "application/json"

    def path(self, own_namespace: str | None) -> str:
        """Return the path of the objects.

        Raises:
            SourceFailed: there is no namespace.
        """
        namespace = self.namespace or own_namespace
        if namespace is None:
            raise SourceFailed("the namespace is unknown outside of a pod; write SERVICE.NAMESPACE")
        return f"{self.group}/namespaces/{namespace}/{self.plural}"


class _List(msgspec.Struct):
    metadata: Metadata
    items: list[msgspec.Raw] | None = None


class _Event(msgspec.Struct):
    type: str
    object: msgspec.Raw


class Collection(Generic[_Object]):
    """Objects of the API, as they are now.

    Attributes:
        objects: the objects by name.
        is_listed: True after the first list.
        fault: the reason for which there is no list or watch; None if there is.
    """

    def __init__(self, api: Api, wanted: Wanted[_Object]) -> None:
        self._api = api
        self._wanted = wanted
        self._version: str | None = None  # None if the next request must be a list
        self.objects: dict[str, _Object] = {}
        self.is_listed = False
        self.fault: str | None = None

    async def list(self) -> None:
        """Read all objects.

        Raises:
            SourceFailed: the server does not answer as expected.
        """
        content = bytearray()
        try:
            async with asyncio.timeout(_ANSWER_S_MAX), self._api.open(self._wanted, {}) as response:
                async for chunk in response.aiter_bytes():
                    content += chunk
                    if len(content) > _BYTES_MAX:
                        raise ApiFailed(f"the list of the API server is larger than {_BYTES_MAX:,} bytes")
            found = msgspec.json.decode(content, type=_List)
            objects = [msgspec.json.decode(each, type=self._wanted.form) for each in found.items or ()]
        except _FAULTS as error:
            raise _failed(error) from None
        self.objects = {each.metadata.name: each for each in objects}
        self._version, self.is_listed, self.fault = found.metadata.resource_version, True, None

    async def follow(self, changed: Callable[[], None], rand: Callable[[], float]) -> None:
        """Follow the changes of the objects, without an end.

        Args:
            changed: called after each change of `objects` or `fault`, and when a watch begins.
            rand: returns random numbers from 0 to 1.
        """
        loop, failures = asyncio.get_running_loop(), 0
        while True:
            begin_s, wait_s, steps_max = loop.time(), 0.0, _STEPS_MAX
            is_old = self._version is not None
            try:
                if self._version is None:
                    await self.list()
                    changed()
                await self._watch(self._version or "", changed)
                steps_max = _STEPS_MAX_ENDED  # changes are missed until the next watch
            except _Expired:
                self._version = None
                if is_old:
                    steps_max = _STEPS_MAX_ENDED
            except SourceFailed as error:  # the server may have lost its state: the next request is a list
                self._version, self.fault, wait_s = None, str(error), getattr(error, "wait_s", 0.0)
                changed()
            failures = 0 if loop.time() - begin_s >= _STEADY_S else min(failures + 1, steps_max)
            if failures:
                again_s = _AGAIN_S * 2 ** (failures - 1)
                await asyncio.sleep(max(wait_s, again_s) * (1 + _JITTER * rand()))

    async def _watch(self, version: str, changed: Callable[[], None]) -> None:
        """Take changes until the watch ends or is cut.

        Raises:
            SourceFailed: there is no watch.
            _Expired: the server has forgotten the version.
        """
        query = {"watch": "true", "allowWatchBookmarks": "true", "timeoutSeconds": f"{_WATCH_S:.0f}"}
        async with contextlib.AsyncExitStack() as stack:
            try:
                async with asyncio.timeout(_ANSWER_S_MAX):
                    opened = self._api.open(self._wanted, {**query, "resourceVersion": version})
                    response = await stack.enter_async_context(opened)
            except _FAULTS as error:
                raise _failed(error) from None
            self.fault = None
            changed()
            try:
                async with asyncio.timeout(_WATCH_S_MAX):
                    await self._take_changes(response, changed)
            except httpx.HTTPError:  # cut: opened again where it was
                pass
            except (TimeoutError, msgspec.DecodeError, _Expired):
                self._version = None

    async def _take_changes(self, response: httpx.Response, changed: Callable[[], None]) -> None:
        rest = b""
        async for chunk in response.aiter_bytes():
            *lines, rest = (rest + chunk).split(b"\n")
            if len(rest) > _LINE_BYTES_MAX or len(self.objects) > _OBJECTS_MAX:
                raise _Expired
            if sum(self._apply(line) for line in lines if line.strip()):
                changed()

    def _apply(self, line: bytes) -> bool:
        """Take an event of a watch; return True if it has changed an object."""
        event = msgspec.json.decode(line, type=_Event)
        if event.type == "ERROR":
            raise _Expired
        found = msgspec.json.decode(event.object, type=self._wanted.form)
        name = found.metadata.name
        self._version = found.metadata.resource_version
        if event.type == "DELETED":
            self.objects.pop(name, None)
        elif event.type in ("ADDED", "MODIFIED"):
            self.objects[name] = found
        return event.type != "BOOKMARK"


_FAULTS: Final = (TimeoutError, httpx.HTTPError, httpx.InvalidURL, msgspec.DecodeError, _Expired)


def _failed(error: Exception) -> Exception:
    """Return the error of a request; a forgotten version stays one."""
    if isinstance(error, _Expired):
        return error
    if isinstance(error, TimeoutError):
        return ApiFailed(f"the API server has not answered within {_ANSWER_S_MAX:g} s")
    if isinstance(error, msgspec.DecodeError):
        return ApiFailed(f"the answer of the API server is not valid: {error}")
    return ApiFailed(f"the API server cannot be reached: {str(error) or type(error).__name__}")
