"""The routes that are passed on to one replica as bytes: audio, images, files, batches and others.

A request that leaves nothing at a replica (audio, images) names its model in its body, which is held like every body.
All other families are about objects that one replica has, such as a file: they go to the first replica of the model
that passes the family on, and their bodies are sent while they arrive. A client that sends faster than the replica
reads is paused, so an upload costs a few hundred kilobytes, whatever its size.

None is hedged, and no latency is learned from one. Units: seconds, bytes.
"""

import asyncio
from collections.abc import Iterator, Sequence
from typing import Final

from gateway.api.dialects.base import ClientApi
from gateway.api.exchange import ClientExchange, Connection
from gateway.api.request_head import RequestHead, check_hops
from gateway.api.routes import CLIENT_GONE
from gateway.api.serving import Serving
from gateway.api.transfer import Transfer
from gateway.errors import (
    BadRequest,
    GatewayError,
    MethodNotAllowed,
    Overloaded,
    RequestTimeout,
    ShuttingDown,
    UnsupportedApi,
)
from gateway.events import RequestPassed
from gateway.race.context import Model, Runtime
from gateway.race.failures import unusable
from ttft_gateway.apis.base import Headers
from ttft_gateway.apis.passing import PassedCall
from ttft_gateway.apis.upload import Upload
from ttft_gateway.requests.headers import hops, passed
from ttft_gateway.requests.passed import STATELESS, PassedTarget, named_model, target_of
from ttft_gateway.routing.replicas import Replica

METHODS: Final = ("DELETE", "GET", "POST")
_WAITING_MAX: Final = 256 * 1024  # of an upload that the replica has not read; above it the client is paused
_AT_ONCE_MAX: Final = 256  # each has buffers of up to 1 MB
_RETRY_S: Final = 5.0
_REPLICAS_MAX: Final = 3
_OWN_HEADERS: Final = frozenset([b"content-type", b"content-encoding", b"accept", b"range"])


class PassedExchange(ClientExchange):
    """A request that is passed on."""

    __slots__ = (
        "_is_held_up",
        "_model",
        "_routes",
        "_serving",
        "_size",
        "_start_s",
        "_target",
        "_timer",
        "_transfer",
        "_upload",
    )

    def __init__(self, connection: Connection, head: RequestHead, routes: "PassedRoutes", target: PassedTarget) -> None:
        serving = routes.serving
        is_upload = target.family not in STATELESS and head.method == "POST"
        bodies = serving.uploads if is_upload else serving.bodies
        super().__init__(connection, head, routes.runtime, ClientApi(None), bodies, next(routes.ids))
        self._routes = routes
        self._serving = serving
        self._target = target
        self._upload = Upload(self._announced(), self._on_room) if is_upload else None
        self._size = 0  # bytes of the upload so far
        self._is_held_up = False  # the client is paused, because the replica does not read
        self._timer: asyncio.TimerHandle | None = None  # checks that the upload goes on
        self._model = ""
        self._transfer: Transfer | None = None
        self._start_s = routes.runtime.loop.time()

    def shut_down(self) -> None:
        """End the request: the gateway stops."""
        if self._transfer is not None:
            self._transfer.shut_down()

    # ClientExchange

    def _open(self) -> None:
        head, serving, routes = self.head, self._serving, self._routes
        if head.method not in METHODS:
            message = f"method {head.method} is not supported at {head.path[:200]}; use {', '.join(METHODS)}"
            raise MethodNotAllowed(message, allow=", ".join(METHODS))
        if routes.refusing:
            raise ShuttingDown("the gateway is shutting down; retry")
        key_name = self._key_name = serving.keyring.name_of(head)
        self._connection.admit(known=serving.keyring.has_keys)
        check_hops(head.by_name)
        if serving.admission.has_limits:
            self._entry = serving.admission.enter(key_name)
        if len(routes.active) >= _AT_ONCE_MAX:
            text = f"the gateway is at its limit of {_AT_ONCE_MAX} requests that are passed on at a time"
            raise Overloaded(f"{text}; retry in {_RETRY_S:g} s", _RETRY_S, closes=True)
        if self._upload is not None:
            self._bodies.check(head.by_name)
            self._timer = self._runtime.loop.call_later(self._bodies.body_s, self._check_progress, 0)
            self._send(self._model_for(key_name, None), self._upload)

    def receive(self) -> None:
        """Take what has arrived of the body: of an upload, pass it on."""
        pieces, upload = self._pieces, self._upload
        if upload is None or not self._has_begun:
            super().receive()
            return
        if pieces is None:
            return
        self._pieces = [] if self.more_body else None
        for piece in pieces:
            self._size += len(piece)
            upload.feed(piece)
        if not self.more_body:
            upload.complete()
        elif self._size > self._bodies.bytes_max:
            self._refuse(self._bodies.too_large())
        elif upload.waiting > _WAITING_MAX and not self._is_held_up:
            self._is_held_up = True
            self._connection.pause_body()

    def _answer(self, body: bytes) -> None:
        key_name, limits, head = self._key_name, self._serving.limits, self.head
        assert key_name is not None
        if self._routes.refusing:
            raise ShuttingDown("the gateway is shutting down; retry")
        named = named_model(body, head.by_name, limits.default_model, limits.bounds)
        model = self._model_for(key_name, named.name)
        self._send(model, named.body, named.at, is_quoted=named.is_quoted)

    def _rejected(self, error: GatewayError) -> None:
        if self._transfer is None:
            super()._rejected(error)
            return
        if self._entry is not None:
            self._entry.reject(error.status)
        self._transfer.stop()
        self.over(error.status, error.code)

    def _abandon(self) -> None:
        transfer = self._transfer
        if transfer is not None:
            transfer.stop()
            self.over(CLIENT_GONE, "client_gone")

    def _release(self) -> None:
        self._routes.active.discard(self)
        if self._timer is not None:
            self._timer.cancel()
        if self._entry is not None:
            self._entry.close(0.0)
        self._transfer = self._upload = None

    # the transfer's calls

    def over(self, status: int, error: str | None) -> None:
        """Report the end of the request, once."""
        transfer, self._transfer = self._transfer, None
        if transfer is not None:
            now_s = self._runtime.loop.time()
            self._runtime.emit(
                RequestPassed(
                    now_s,
                    self.request_id,
                    self._key_name or "",
                    self._model,
                    self._target.family,
                    self.head.method,
                    status,
                    error,
                    transfer.replica.name,
                    now_s - self._start_s,
                    self.trace_id,
                )
            )

    # inside

    def _refuse(self, error: GatewayError) -> None:
        """End a request with an upload that goes no further; without effect after its end."""
        if self._transfer is None:
            return
        if self.started:
            self._transfer.give_up(error)
        else:
            self._failed(error)

    def _announced(self) -> int | None:
        """Return the length of the body from the head; None if it comes in chunks."""
        by_name = self.head.by_name
        return None if b"transfer-encoding" in by_name else int(by_name.get(b"content-length", b"0"))

    def _model_for(self, key_name: str, requested: str | None) -> Model:
        """Return the model of a request: the one that it names, else the one that passes its family on.

        Raises:
            GatewayError: there is no such model, or there are several.
        """
        family, serving = self._target.family, self._serving
        if requested is not None:
            model = serving.model(key_name, requested)
            if family not in model.pass_through:
                raise UnsupportedApi(_not_passed(family, f"by model {model.name!r}"))
            return model
        every = {model.name: model for model in serving.models.values() if family in model.pass_through}
        found = [model for name, model in every.items() if serving.keyring.may_use(key_name, name)]
        default = [model for model in found if model.name == serving.limits.default_model]
        if not found:
            raise UnsupportedApi(_not_passed(family, "by any model" if not every else "by any model of this key"))
        if len(found) > 1 and not default:
            names = ", ".join(model.name for model in found[:20])
            raise BadRequest(
                f"several models pass on /v1/{family} ({names}), and the request names none; "
                "list it in `pass_through` of one of them, or make one the `default_model`",
                param="model",
                code="missing_required_parameter",
            )
        return (default or found)[0]

    def _send(
        self, model: Model, body: bytes | Upload, model_at: tuple[int, int] | None = None, *, is_quoted: bool = False
    ) -> None:
        """Start the transfer."""
        head, target, serving = self.head, self._target, self._serving
        self._model = model.name
        now_s = self._runtime.loop.time()
        attempts = serving.attempts_of(self._key_name or "")
        replicas = _candidates(model, now_s, is_stateless=target.family in STATELESS)
        if not replicas:
            raise unusable(None)
        count = _REPLICAS_MAX if attempts is None else min(_REPLICAS_MAX, attempts.attempts_max)
        call = PassedCall(
            head.method.encode(),
            target.path,
            target.query,
            self._passed_headers(),
            body,
            model_at,
            is_quoted,
            hops(head.by_name),
        )
        self.race = self._transfer = Transfer(
            self, self, self._api, self.request_id, call, replicas[:count], model.timeouts.total_s, self._runtime.loop
        )
        self._held_since_s = now_s
        self._routes.active.add(self)
        self._when_admitted(self._start)

    def _start(self) -> None:
        if self._transfer is not None:
            self._transfer.start()

    def _passed_headers(self) -> Headers:
        headers = passed(self.head.headers, self._serving.limits.passed_headers | _OWN_HEADERS)
        return (*headers, (b"x-request-id", self.request_id.encode())) if self.gave_id else headers

    def _on_room(self) -> None:
        if self._is_held_up:
            self._is_held_up = False
            self._connection.resume_body()

    def _check_progress(self, before: int) -> None:
        """Reject an upload of which nothing has arrived for a while, although the replica reads it."""
        if not self.more_body or self.is_over:
            return
        if self._size == before and not self._is_held_up:
            wait_s = self._bodies.body_s
            self._refuse(RequestTimeout(f"nothing of the request body arrived for {wait_s:g} s; send it faster"))
            return
        self._timer = self._runtime.loop.call_later(self._bodies.body_s, self._check_progress, self._size)


class PassedRoutes:
    """The requests that are passed on.

    Args:
        serving: models, keys and limits from the settings.
        runtime: clock and receiver of events.

    Attributes:
        serving: the settings in force; a request uses the settings with which it started.
        runtime: clock and receiver of events.
        active: requests under way.
        refusing: True while the gateway shuts down for good.
        ids: source of request ids.
    """

    def __init__(self, serving: Serving, runtime: Runtime, ids: Iterator[str]) -> None:
        self.serving = serving
        self.runtime = runtime
        self.active: set[PassedExchange] = set()
        self.refusing = False
        self.ids = ids

    @property
    def paths(self) -> tuple[str, ...]:
        """Forms of the paths that are passed on."""
        return ("/v1/{family}", "/v1/{family}/{path}")

    def open(self, connection: Connection, head: RequestHead) -> PassedExchange | None:
        """Return the exchange for a request, None if its path is not passed on."""
        target = target_of(head.target)
        return None if target is None else PassedExchange(connection, head, self, target)


def _candidates(model: Model, now_s: float, *, is_stateless: bool) -> Sequence[Replica]:
    """Return the replicas to try, in order: of a family with state, the first one that is not taken out."""
    usable = [replica for replica in model.replicas if not replica.out]
    if not is_stateless:
        return usable[:1]
    usable = [replica for replica in usable if replica.boundary == usable[0].boundary]
    ordered: list[Replica] = []
    for pool in model.pools:
        fit = [each for each in pool.replicas if each.breaker.is_closed(now_s) and not each.backup_only]
        ordered += sorted(fit, key=lambda replica: replica.in_flight / replica.weight)
    fit = [replica for replica in ordered if replica in usable]
    return [*fit, *(replica for replica in usable if replica not in fit)]


def _not_passed(family: str, whose: str) -> str:
    return f"/v1/{family} is not passed on {whose}; add `pass_through: [{family}]` to a model"
