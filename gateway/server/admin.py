"""The admin application: metrics, state, switches for hedging and for replicas, reloads, and a feed of events.

Owns these routes and their access control. The state comes from a view and actions from callables, so that the routes
do not depend on the object graph, or on the number of processes. With an admin key, every route except /healthz
requires it; without a key, a known host.

The only importer of sse-starlette. Its first stream would start a task that checks twice a second, as long as the loop
runs, for the end of a server; it is disabled here, so that only `Admin.close` ends the feed.

Units: seconds, bytes.
"""

import asyncio
import contextlib
import hmac
import math
import re
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Annotated, NamedTuple, Protocol, TypeVar

import msgspec
from fastapi import Depends, FastAPI, Request, Response, params
from sse_starlette.sse import AppStatus, EventSourceResponse, SendTimeoutError
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect
from starlette.responses import StreamingResponse
from starlette.routing import Match, Route
from starlette.types import Receive, Scope, Send

from gateway.api.auth import HostCheck, is_foreign
from gateway.config.settings import Settings
from gateway.errors import (
    BadRequest,
    BodyTooLarge,
    Forbidden,
    GatewayError,
    Internal,
    MethodNotAllowed,
    RequestTimeout,
    Unauthorized,
    UnknownModel,
    UnknownRoute,
)
from gateway.health.history import ModelHistory
from gateway.observe.exposition import CONTENT_TYPE, parts
from gateway.observe.feed import Feed, Subscription
from gateway.observe.metrics import Scrape
from gateway.observe.page import Page
from gateway.observe.state import AdmissionState, PoolState, ShareState
from gateway.observe.usage import UsageReport
from gateway.pages.files import HEADERS, LIVE, page
from gateway.process_events import ConfigReloaded
from gateway.proof.blocks import Block, reports
from gateway.proof.shadow import proof_document
from gateway.proof.tally import Tally
from gateway.share.sync import Reach

_BODY_BYTES_MAX = 4096  # the request bodies have two or three fields
_BODY_S_MAX = 5.0
_SEND_S_MAX = 5.0  # a subscriber that reads nothing for this long is disconnected
_HOURS_MAX = 24  # that are counted one by one
_QUANTILES_MAX = 16  # the description of a model is computed on the loop, between events of streams
_ROUTES = (
    "GET /, /metrics, /admin/health, /admin/history, /admin/models, /admin/usage, /admin/proof, /admin/admission, "
    "/admin/hedging, /admin/replicas, /admin/events, /admin/workers, /admin/share, /healthz and "
    "POST /admin/hedging, /admin/replicas, /admin/blocks, /admin/reload"
)
_SWITCH_SHAPE = 'send {"on": true} or {"on": false}, and "model" for one model only'
_REPLICA_SHAPE = 'send {"replica": "NAME", "out": true} or {"out": false}, and "model" for one model only'
_BLOCK_SHAPE = 'send {"block": "NAME"}'

AppStatus.enable_automatic_graceful_drain = False

_encode = msgspec.json.Encoder().encode

_T = TypeVar("_T")


class _Unprocessable(BadRequest):
    """The body is JSON, but invalid for the route."""

    status = 422
    code = "invalid_value"


class _TooManySubscribers(GatewayError):
    """The feed has its maximum number of subscribers."""

    status = 429
    kind = "rate_limit_error"
    code = "too_many_subscribers"


class _SwitchRequest(msgspec.Struct, forbid_unknown_fields=True):
    """Body of POST /admin/hedging."""

    on: bool
    model: str | None = None


class _ReplicaRequest(msgspec.Struct, forbid_unknown_fields=True):
    """Body of POST /admin/replicas."""

    replica: str
    out: bool
    model: str | None = None


class _BlockRequest(msgspec.Struct, forbid_unknown_fields=True):
    """Body of POST /admin/blocks."""

    block: Annotated[str, msgspec.Meta(min_length=1, max_length=100)]


class View(Protocol):
    """The state of a gateway: of one process, or added over several."""

    async def scrape(self) -> Scrape:
        """Return the values of all metrics."""

    async def pools(self) -> list[PoolState]:
        """Return the state of every pool, the pools of a model in a row."""

    async def health(self) -> Mapping[str, object]:
        """Return the verdict, JSON-ready."""

    async def history(self, model: str) -> ModelHistory:
        """Return the last 24 hours of a model."""

    async def admission(self) -> AdmissionState:
        """Return the state of queues, key limits and body memory."""

    async def usage(self, key: str | None, model: str | None) -> UsageReport:
        """Return the usage of a key, None for all, and of a model, None for all."""

    async def proof(self, hours: int | None) -> Mapping[str, Tally]:
        """Return the counts of each measured model, on the last hours, None for all."""

    async def share(self) -> ShareState | None:
        """Return the state of the exchange with others; None if there is no exchange."""

    async def blocks(self, begin: str) -> list[Block]:
        """Begin a block of an experiment, unless it has begun; return the counts of the last ones."""

    async def describe(self, model: str, quantiles: Sequence[float]) -> Mapping[str, object] | None:
        """Return the state of a model as JSON-ready values; None if it does not exist.

        Args:
            quantiles: quantiles of the estimates; none for the default ones.
        """

    def serves(self, model: str) -> bool:
        """Return True if a model has this name."""


class Switch(Protocol):
    """Turns hedging on or off."""

    async def __call__(self, model: str | None, /, *, on: bool) -> Reach | None:
        """Switch an existing model, or every model if None; emits `HedgingSwitched`.

        Returns:
            The processes that were reached, of this gateway or of its fleet; None for a process alone.
        """


class ReplicaSwitch(Protocol):
    """Takes replicas out or in."""

    async def __call__(self, replica: str, model: str | None, /, *, out: bool) -> Reach | None:
        """Switch the replica of this name in one model, or in every model if None; emits `ReplicaSwitched`.

        Returns:
            The workers that were reached; None without workers.

        Raises:
            UnknownReplica: no replica has this name.
            LastReplica: a model would have no replica left; nothing was changed.
        """


class Controls(NamedTuple):
    """The actions of the admin address.

    Attributes:
        switch_hedging: the hedging switch.
        switch_replica: takes replicas out and in.
        reload: reads the configuration again; raises `ReloadFailed`.
        workers: returns the state of the workers as JSON-ready values; None without workers.
    """

    switch_hedging: Switch
    switch_replica: ReplicaSwitch
    reload: Callable[[], Awaitable[ConfigReloaded]]
    workers: Callable[[], Mapping[str, object]] | None = None


class Admin:
    """The admin application.

    Args:
        view: the state that the GET routes show.
        controls: actions of the POST routes.
        settings: returns the settings in force, which have the key and the hosts.
        feed: source of GET /admin/events.

    Attributes:
        app: ASGI application, for its own address.
        on_event: sends an event to all subscribers of the feed (a `gateway.events.Listener`).
    """

    def __init__(
        self, view: View, controls: Controls, settings: Callable[[], Settings], feed: Feed | None = None
    ) -> None:
        self._view = view
        self._controls = controls
        self._settings = settings
        self._hosts = HostCheck()
        self._hosts_of: Settings | None = None  # settings that the check was made for
        self._page = Page()
        self._feed = Feed() if feed is None else feed
        self.on_event = self._feed.on_event
        app = self.app = FastAPI(docs_url=None, redoc_url=None, openapi_url=None, redirect_slashes=False)
        app.add_api_route("/healthz", _healthz, methods=["GET", "HEAD"])
        guarded = [Depends(self._check_key)]
        app.add_api_route(
            "/metrics", self._metrics, methods=["GET", "HEAD"], dependencies=guarded
        )  # scrapers may add any query parameters; `all=1` is the gateway's own
        plain, quantiles, used = ([*guarded, _only_parameters(*names)] for names in ((), ("q",), ("key", "model")))
        app.add_api_route("/admin/models", self._models, dependencies=plain)
        app.add_api_route("/admin/models/{name:path}", self._model, dependencies=quantiles)
        app.add_api_route("/admin/health", self._health, dependencies=plain)
        app.add_api_route("/admin/history/{name:path}", self._history, dependencies=plain)
        app.add_api_route("/admin/usage", self._usage, dependencies=used)
        app.add_api_route("/admin/proof", self._proof, dependencies=[*guarded, _only_parameters("model", "hours")])
        app.add_api_route("/admin/admission", self._admission_route, dependencies=plain)
        app.add_api_route("/admin/hedging", self._hedging, dependencies=plain)
        app.add_api_route("/admin/hedging", self._switch, methods=["POST"], dependencies=plain)
        app.add_api_route("/admin/replicas", self._replicas, dependencies=plain)
        app.add_api_route("/admin/replicas", self._take, methods=["POST"], dependencies=plain)
        app.add_api_route("/admin/blocks", self._blocks, methods=["POST"], dependencies=plain)
        app.add_api_route("/admin/reload", self._reload_route, methods=["POST"], dependencies=plain)
        app.add_api_route("/admin/events", self._events, dependencies=plain)
        app.add_api_route("/admin/workers", self._workers, dependencies=plain)
        app.add_api_route("/admin/share", self._share, dependencies=plain)
        for path, name in LIVE.items():
            app.add_api_route(path, _page(name), methods=["GET", "HEAD"], dependencies=[Depends(self._check_host)])
        _answer_errors(app)

    def close(self) -> None:
        """End all feeds; must be called first when the gateway stops."""
        self._feed.close()

    async def _check_host(self, request: Request) -> None:
        """Admit a request of the live page: its files contain no state, so they need no key."""
        settings = self._settings()
        if settings.admin_key is None:
            if settings is not self._hosts_of:
                self._hosts, self._hosts_of = HostCheck(settings.own_hosts), settings
            self._hosts.check(request.scope["headers"])

    async def _check_key(self, request: Request) -> None:
        key = self._settings().admin_key
        if key is None:
            await self._check_host(request)
            return
        scheme, _, given = request.headers.get("authorization", "").partition(" ")
        expected = key.get_secret_value().encode()
        if scheme.lower() != "bearer" or not hmac.compare_digest(given.strip().encode(), expected):
            raise Unauthorized("the admin key is missing or wrong; send it as `Authorization: Bearer ...`")

    async def _metrics(self, request: Request) -> Response:
        scrape = whole = await self._view.scrape()
        if request.query_params.get("all") != "1":
            scrape = await self._page.bounded(whole)
        if scrape is not whole:
            await whole.discard()
        return StreamingResponse(parts(scrape), media_type=CONTENT_TYPE)

    async def _models(self) -> Response:
        models: dict[str, list[PoolState]] = {}
        for pool in await self._view.pools():
            models.setdefault(pool.model, []).append(pool)
        return _json({"models": [_model_state(model, pools) for model, pools in models.items()]})

    async def _model(self, name: str, request: Request) -> Response:
        described = await self._view.describe(name, _quantiles(request.query_params.getlist("q")))
        if described is None:
            raise _unknown(name)
        return _json(described)

    async def _health(self) -> Response:
        return _json(await self._view.health())

    async def _history(self, name: str) -> Response:
        if not self._view.serves(name):
            raise _unknown(name)
        return _json(await self._view.history(name))

    async def _usage(self, key: str | None = None, model: str | None = None) -> Response:
        if model is not None and not self._view.serves(model):
            raise _unknown(model)
        return _json(await self._view.usage(key, model))

    async def _proof(self, model: str | None = None, hours: str | None = None) -> Response:
        if model is not None and not self._view.serves(model):
            raise _unknown(model)
        if hours is not None and not (re.fullmatch("[0-9]{1,9}", hours) and 1 <= int(hours) <= _HOURS_MAX):
            message = f"found hours={hours[:20]!r}; write a whole number from 1 to {_HOURS_MAX}"
            raise BadRequest(message, param="hours", code="invalid_value")
        tallies = await self._view.proof(None if hours is None else int(hours))
        return _json(proof_document({name: tally for name, tally in tallies.items() if model in (None, name)}))

    async def _admission_route(self) -> Response:
        return _json(await self._view.admission())

    async def _hedging(self) -> Response:
        return await self._switches(None)

    async def _switches(self, reach: Reach | None) -> Response:
        models: dict[str, bool] = {}
        for pool in await self._view.pools():
            models[pool.model] = models.get(pool.model, True) and pool.hedging_on
        return _json({"on": all(models.values()), "models": models, **_reached(reach)})

    async def _switch(self, request: Request) -> Response:
        _check_origin(request)
        switch = _decode(await _read_body(request, _SWITCH_SHAPE), _SwitchRequest, _SWITCH_SHAPE)
        if switch.model is not None and not self._view.serves(switch.model):
            raise _unknown(switch.model)
        return await self._switches(await self._controls.switch_hedging(switch.model, on=switch.on))

    async def _replicas(self) -> Response:
        return await self._every_replica(None)

    async def _every_replica(self, reach: Reach | None) -> Response:
        models: dict[str, dict[str, object]] = {}
        for pool in await self._view.pools():
            shown = models.setdefault(pool.model, {})
            for each in pool.replicas:
                drained = {"draining": True} if each.draining else {}
                shown[each.replica] = {"out": each.out, "in_flight": each.in_flight, **drained}
        return _json({"models": models, **_reached(reach)})

    async def _take(self, request: Request) -> Response:
        _check_origin(request)
        asked = _decode(await _read_body(request, _REPLICA_SHAPE), _ReplicaRequest, _REPLICA_SHAPE)
        if asked.model is not None and not self._view.serves(asked.model):
            raise _unknown(asked.model)
        return await self._every_replica(await self._controls.switch_replica(asked.replica, asked.model, out=asked.out))

    async def _blocks(self, request: Request) -> Response:
        _check_origin(request)
        asked = _decode(await _read_body(request, _BLOCK_SHAPE), _BlockRequest, _BLOCK_SHAPE)
        return _json({"blocks": reports(await self._view.blocks(asked.block))})

    async def _reload_route(self, request: Request) -> Response:
        _check_origin(request)
        done = await self._controls.reload()
        return _json({"models": done.models, "replicas": {"kept": done.kept, "new": done.new, "rekeyed": done.rekeyed}})

    async def _workers(self) -> Response:
        workers = self._controls.workers
        return _json({"workers": []} if workers is None else workers())

    async def _share(self) -> Response:
        shared = await self._view.share()
        return _json({"engine": None} if shared is None else shared)

    async def _events(self) -> Response:
        subscription = self._feed.join()
        if subscription is None:
            raise _TooManySubscribers("the event feed has its maximum number of subscribers; close one first")
        return _EventStream(self._feed, subscription)


class _EventStream(EventSourceResponse):
    """Streams a subscription, and removes it at the end, also after errors."""

    def __init__(self, feed: Feed, subscription: Subscription) -> None:
        super().__init__(subscription, send_timeout=_SEND_S_MAX)
        self._feed = feed
        self._subscription = subscription

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        try:
            with contextlib.suppress(SendTimeoutError):  # the server closes a connection with an incomplete response
                await super().__call__(scope, receive, send)
        finally:
            self._feed.leave(self._subscription)


def _model_state(model: str, pools: Sequence[PoolState]) -> dict[str, object]:
    listed = [replica for pool in pools for replica in pool.replicas if not replica.draining]
    possible = any(replica.never_hedged is None for replica in listed)
    return {"model": model, "hedging_possible": possible, "pools": pools}


def _reached(reach: Reach | None) -> dict[str, int]:
    return {} if reach is None else reach._asdict()


async def _healthz() -> Response:
    return _json({"status": "ok"})


def _only_parameters(*known: str) -> params.Depends:
    """Reject other query parameters: ignoring a misspelt one would answer a different question."""

    async def check(request: Request) -> None:
        unknown = [name for name in request.query_params if name not in known]
        if unknown:
            supported = " and ".join(known) if known else "none"
            message = f"unknown query parameter {unknown[0][:80]!r}; this route takes {supported}"
            raise BadRequest(message, param=unknown[0][:80], code="invalid_value")

    return params.Depends(check)


def _check_origin(request: Request) -> None:
    """Reject requests of foreign web pages: opening a page must not change the gateway."""
    if is_foreign(dict(request.scope["headers"])):
        origin = request.headers.get("origin", "another site")
        raise Forbidden(
            f"requests of web pages from {origin[:80]} are not allowed here; use a page of this address, or no browser"
        )


async def _read_body(request: Request, shape: str) -> bytes:
    """Return the body; its size and time are limited. Errors end with its `shape`."""
    body = bytearray()
    try:
        async with asyncio.timeout(_BODY_S_MAX), contextlib.aclosing(request.stream()) as parts:
            async for part in parts:
                body += part
                if len(body) > _BODY_BYTES_MAX:
                    raise BodyTooLarge(f"the body is larger than {_BODY_BYTES_MAX} bytes; {shape}")
    except TimeoutError:
        raise RequestTimeout(f"the body was not received within {_BODY_S_MAX:g} s") from None
    except ClientDisconnect:
        raise BadRequest(f"the body is incomplete; {shape}") from None
    return bytes(body)


def _decode(body: bytes, kind: type[_T], shape: str) -> _T:
    try:
        return msgspec.json.decode(body, type=kind)
    except msgspec.ValidationError as error:
        raise _Unprocessable(f"{error}; {shape}") from error
    except msgspec.DecodeError as error:
        raise BadRequest(f"the body is not JSON: {error}; {shape}", code="invalid_json") from error


def _quantiles(values: Sequence[str]) -> list[float]:
    """Return the quantiles of `?q=0.5,0.97` or `?q=0.5&q=0.97`."""
    texts = [text.strip() for value in values for text in value.split(",")]
    if len(texts) > _QUANTILES_MAX:
        raise BadRequest(
            f"found {len(texts)} quantiles; send at most {_QUANTILES_MAX}", param="q", code="invalid_value"
        )
    return [_quantile(text) for text in texts]


def _quantile(text: str) -> float:
    try:
        q = float(text)
    except ValueError:
        q = math.nan
    if not 0.0 < q < 1.0:
        raise BadRequest(
            f"found q={text[:20]!r}; write a number between 0 and 1, such as q=0.97", param="q", code="invalid_value"
        )
    return q


def _unknown(model: str) -> UnknownModel:
    return UnknownModel(f"model {model[:80]!r} does not exist; GET /admin/models lists the models", param="model")


def _json(content: object) -> Response:
    return Response(_encode(content), media_type="application/json")


def _page(name: str) -> Callable[[], Response]:
    def file() -> Response:  # not async, hence on a thread: the first time it reads the file
        kind, content = page(name)
        return Response(content, headers={**HEADERS, "content-type": kind})

    return file


def _answer_errors(app: FastAPI) -> None:
    """Give every error its OpenAI body: the gateway's own errors, the framework's 404 and 405, and bugs."""

    async def on_http_exception(request: Request, error: Exception) -> Response:
        """Handle the framework's 404 and 405; it raises nothing else."""
        assert isinstance(error, HTTPException)
        endpoint = f"{request.method} {request.url.path[:200]}"
        if error.status_code != MethodNotAllowed.status:
            where = " (requests for models go to the address in `listen`)" if "/v1/" in endpoint else ""
            return _error_response(UnknownRoute(f"{endpoint} does not exist; this address serves {_ROUTES}{where}"))
        message = f"method {request.method} is not supported at {request.url.path[:200]}; this address serves {_ROUTES}"
        return _error_response(MethodNotAllowed(message, allow=", ".join(sorted(_methods(app, request)))))

    app.add_exception_handler(GatewayError, _on_gateway_error)
    app.add_exception_handler(HTTPException, on_http_exception)
    app.add_exception_handler(Exception, _on_bug)


def _methods(app: FastAPI, request: Request) -> set[str]:
    """Return the methods of all routes with this path; the framework's `Allow` has only the methods of the first."""
    matching = (
        route for route in app.routes if isinstance(route, Route) and route.matches(request.scope)[0] is not Match.NONE
    )
    return {method for route in matching for method in route.methods or ()}


async def _on_gateway_error(_: Request, error: Exception) -> Response:
    assert isinstance(error, GatewayError)
    return _error_response(error)


async def _on_bug(_: Request, __: Exception) -> Response:
    """Answer 500; the server logs the exception."""
    return _error_response(Internal("the gateway failed; see its log"))


def _error_response(error: GatewayError) -> Response:
    headers = {name.decode(): value.decode() for name, value in error.headers()}
    return Response(error.body(), error.status, headers, media_type="application/json")
