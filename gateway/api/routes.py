"""The raced routes as plain ASGI: authenticate, receive the body, parse once, find the model and a permit, race.

FastAPI serves everything else; these routes bypass it because its request handling costs more than the whole race. A
request that is rejected here reaches no replica and gets an error in the form of its API. Units: seconds, bytes.
"""

import asyncio
import contextlib
import itertools
import secrets
from collections.abc import Mapping
from dataclasses import dataclass, field

from msgspec.structs import replace

from gateway.api.admission import Admission, Entry, Permit, RequestSize
from gateway.api.asgi import Receive, Scope, Send
from gateway.api.auth import Keyring
from gateway.api.azure_paths import deployment_of
from gateway.api.body_reader import Arrival, BodyReader, ClientDisconnected
from gateway.api.connections import admit
from gateway.api.dialects.base import ClientApi
from gateway.api.outbox import Outbox
from gateway.api.response import EventStream, JsonAnswer, TellingAnswer, TellingStream, respond_error, serve
from gateway.api.websocket import is_handshake
from gateway.errors import (
    GatewayError,
    Internal,
    MethodNotAllowed,
    ShuttingDown,
    UnsupportedApi,
    UnsupportedUpgrade,
    UpstreamFailed,
)
from gateway.estimation.prefixes import prefix_hashes
from gateway.estimation.tokens import text_tokens
from gateway.events import RequestRejected
from gateway.hedging.contract import RequestFacts
from gateway.hedging.outcomes import Denial
from gateway.inbound.identity import caller_ids
from gateway.inbound.parsed import NumberLimits
from gateway.inbound.request import Inbound, parse
from gateway.race.context import Caller, Model, Runtime
from gateway.race.race import Race
from gateway.routing.affinity import ID_CHARS_MAX
from gateway.routing.replicas import Replica
from providers.base import Api, Call, Headers

_DISCARD_S = 2.0  # a rejected body is read and dropped for this long, so that the sender gets the response
_ENGINE_PATHS = {"/rerank": Api.RERANK, "/v2/rerank": Api.RERANK, "/tokenize": Api.TOKENIZE}  # vLLM's further paths
_DISCARD_BYTES_MAX = 32 * 1024 * 1024
_CLIENT_GONE = 499  # the status in logs of a client that disconnected


@dataclass(frozen=True, slots=True)
class RequestLimits:
    """Limits on client requests.

    Attributes:
        bounds: limits on numbers in a body.
        passed_headers: names of client headers to pass on.
        default_model: name of the model of requests without a known one; None if those are errors.
    """

    bounds: NumberLimits
    passed_headers: frozenset[bytes]
    default_model: str | None = None


@dataclass(frozen=True, slots=True)
class AttemptLimits:
    """Limits on the upstream attempts for one key's requests.

    Attributes:
        hedge: True if requests may be hedged.
        attempts_max: largest number of attempts of a request, hedges and failed ones included.
    """

    hedge: bool
    attempts_max: int


@dataclass(frozen=True, slots=True)
class Serving:
    """The objects built from the settings that serve requests.

    Attributes:
        models: models by public name and by alias.
        keyring: API keys and the models they may use.
        bodies: receives request bodies.
        admission: gives permits to requests.
        counts: the same for requests that only count tokens, whose limits are separate, as at Anthropic.
        limits: limits on client requests.
        attempts: limits on attempts by name of the key, for keys that have some.
    """

    models: Mapping[str, Model]
    keyring: Keyring
    bodies: BodyReader
    admission: Admission
    counts: Admission
    limits: RequestLimits
    attempts: Mapping[str, AttemptLimits] = field(default_factory=dict)

    def model(self, key_name: str, requested: str) -> Model:
        """Return the requested model, or the default one.

        Raises:
            UnknownModel: there is no such model.
            ModelNotAllowed: the key may not use it.
        """
        model = self.models.get(requested)
        if model is None and self.limits.default_model is not None:
            model = self.models[self.limits.default_model]
        if model is None or not self.keyring.may_use(key_name, model.name):
            raise self.keyring.model_error(key_name, requested, self.models)
        return model


class RacedRoutes:
    """The ASGI application for `paths`.

    Args:
        serving: models, keys and limits from the settings.
        apis: the client APIs to serve.
        tasks: owner of tasks that wait for slow clients.

    Attributes:
        serving: the settings in force; a request keeps those it started with.
        paths: the API by path, without Azure's paths.
        active: requests that run or wait for a permit.
        refusing: True while the gateway shuts down for good.
    """

    def __init__(
        self,
        serving: Serving,
        apis: Mapping[Api, ClientApi],
        runtime: Runtime,
        tasks: asyncio.TaskGroup,
    ) -> None:
        self.serving = serving
        self._apis = apis
        self.paths = {f"/v1/{api.value}": api for api in apis} | _ENGINE_PATHS
        self._runtime = runtime
        self._tasks = tasks
        self._prefix = "req_" + secrets.token_hex(6)
        self._numbers = itertools.count(1)
        self.active: set[Race | Permit] = set()
        self.refusing = False

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Handle one request."""
        given_id, trace_id = caller_ids(scope["headers"])
        request_id = given_id or f"{self._prefix}{next(self._numbers):08x}"
        outbox = Outbox(send, self._runtime.loop, self._tasks, self._runtime.burst)
        path, deployment = scope["path"], None
        if path in self.paths:
            api = self.paths[path]
        else:
            named = deployment_of(path)
            assert named is not None
            api, deployment = named
        serving, key_name = self.serving, None
        arrival: Arrival | None = None
        entry: Entry | None = None
        held_s: float | None = None
        try:
            if api is Api.RESPONSES and is_handshake(scope):
                raise UnsupportedUpgrade(f"WebSocket is not supported at {scope['path']}; use POST")
            if scope["method"] != "POST":
                raise MethodNotAllowed(
                    f"method {scope['method']} is not supported at {scope['path']}; use POST", allow="POST"
                )
            self._require_open()
            key_name = serving.keyring.name(scope["headers"])
            admit(scope, known=True, applies=serving.keyring.has_keys)
            entry = serving.admission.enter(key_name)  # before the body: a key at its limit cannot send any
            arrival = serving.bodies.open(key_name)
            body = await arrival.receive(scope["headers"], receive)
            self._require_open()  # again: the shutdown may have begun while the body arrived
            arrived_s = self._runtime.loop.time()
            caller = Caller(request_id, key_name, arrived_s, 0.0, trace_id, given_id is not None)
            race, permit = self._race(serving, api, body, scope["headers"], caller, outbox, entry, deployment)
            admit(scope, known=False, applies=not serving.keyring.has_keys)
        except GatewayError as error:
            if entry is not None:
                entry.reject(error.status)
            self._emit_rejected(request_id, key_name, trace_id, error)
            await answer_error(error, outbox, receive, request_id, self._apis[api])
        except ClientDisconnected:
            pass
        else:
            await self._run(race, permit, outbox, receive, request_id, self._apis[api])
            held_s = self._runtime.loop.time() - arrived_s
        finally:
            if entry is not None:
                entry.reject(_CLIENT_GONE)  # counts an unfinished request; without effect after a permit
            if arrival is not None:
                arrival.close(held_s)

    def _require_open(self) -> None:
        if self.refusing:
            raise ShuttingDown("the gateway is shutting down; retry")

    async def _run(
        self, race: Race, permit: Permit | None, outbox: Outbox, receive: Receive, request_id: str, api: ClientApi
    ) -> None:
        running = race if permit is None else permit

        def reject(error: GatewayError) -> None:
            if not outbox.started:
                respond_error(outbox, error, request_id, api)

        self.active.add(running)
        try:
            if permit is None:
                race.start()
            else:
                outbox.headers = permit.headers
                permit.run(race, reject)
            await serve(running, outbox, receive)
        except Exception as error:
            self._runtime.report("race", error)
            running.client_gone()
            if not outbox.started:
                await answer_error(Internal("the gateway failed; see its log"), outbox, receive, request_id, api)
        finally:
            self.active.discard(running)
            if permit is not None:
                permit.close()

    def _race(
        self,
        serving: Serving,
        api: Api,
        body: bytes,
        headers: Headers,
        caller: Caller,
        outbox: Outbox,
        entry: Entry | None,
        deployment: str | None,
    ) -> tuple[Race, Permit | None]:
        """Parse the body and build the race, and its permit if the request is limited; none of it waits."""
        limits = serving.limits
        default_model = deployment or limits.default_model
        inbound = parse(api, body, headers, limits.bounds, limits.passed_headers, default_model)
        call = inbound.call
        model = self._model(serving, caller.key_name, deployment or call.model, api)
        if call.model != model.name:
            call = replace(call, model=model.name)
        if caller.gave_id:
            call = replace(call, headers=(*call.headers, (b"x-request-id", caller.request_id.encode())))
        client: EventStream | JsonAnswer
        if call.streaming:
            stream = TellingStream if inbound.tells_usage else EventStream
            client = stream(outbox, caller.request_id, self._apis[api])
        else:
            answer = TellingAnswer if inbound.tells_usage else JsonAnswer
            client = answer(outbox, caller.request_id, self._apis[api], call)
        if api is Api.RESPONSES:
            call = replace(call, owner=caller.key_name)
        previous_id = inbound.previous_id
        pinned = None if previous_id is None else self._pinned(previous_id, model, caller.key_name)
        facts = self._facts(inbound, model, serving.attempts.get(caller.key_name), pinned)
        permit = self._admit(serving.admission, caller, model, call, facts, entry)
        race = Race(model, call, facts, client, caller, self._runtime if permit is None else permit.runtime)
        outbox.race = race
        return race, permit

    def _model(self, serving: Serving, key_name: str, requested: str, api: Api) -> Model:
        """Return the requested model, if the key may use it and it supports this API."""
        model = serving.model(key_name, requested)
        if api not in model.apis:
            supported = ", ".join(f"/v1/{each.value}" for each in self._apis if each in model.apis)
            raise UnsupportedApi(f"model {requested!r} is not supported at /v1/{api.value}; use {supported}")
        return model

    def _admit(
        self, admission: Admission, caller: Caller, model: Model, call: Call, facts: RequestFacts, entry: Entry | None
    ) -> Permit | None:
        """Return a permit for a request, None if it needs none."""
        if not admission.applies_to(entry, model.name):
            return None
        answer_tokens = facts.answer_tokens or model.pools[0].learning.answer_tokens
        size = RequestSize(facts.prompt_tokens, call.choices * answer_tokens, facts.deadline_s)
        try:
            return admission.admit(caller, model.name, size, entry)
        except GatewayError:
            raise
        except Exception as error:  # a bug in a limit must not fail the request
            self._runtime.report("admission", error)
            return None

    def _pinned(self, previous_id: str, model: Model, key_name: str) -> Replica | None:
        """Return the replica that has the stored answer to continue, None if it is unknown.

        Raises:
            UpstreamFailed: the answer belongs to another key, or the id is too long to be one; the error is that of
                OpenAI for an unknown id.
        """
        kept = model.kept.find(previous_id)
        if kept is None and len(previous_id) <= ID_CHARS_MAX:
            return None
        if kept is None or kept.key_name != key_name:
            raise UpstreamFailed(
                f"Previous response with id {previous_id[:ID_CHARS_MAX]!r} not found.",
                status=404,
                kind="invalid_request_error",
                param="previous_response_id",
                code="previous_response_not_found",
            )
        return model.replica(kept.replica) if kept.model == model.name else None

    def _facts(
        self, inbound: Inbound, model: Model, attempts: AttemptLimits | None, pinned: Replica | None
    ) -> RequestFacts:
        """Build the facts that policies get about a request; without the prompt's size if an estimate fails."""
        prompt, text, tokens = inbound.prompt, None, 0.0
        prefixes: tuple[int, ...] = ()
        try:
            text = text_tokens(prompt)
            tokens, prefixes = model.scale.tokens(text), prefix_hashes(prompt)
        except Exception as error:  # a bug in an estimate must not fail the request
            self._runtime.report("estimates", error)
        hedge_off = Denial.OFF if inbound.stored and model.keeps else inbound.hedge_off
        attempts_max = None
        if attempts is not None:
            attempts_max = attempts.attempts_max
            hedge_off = hedge_off or (None if attempts.hedge else Denial.KEY)
        return RequestFacts(
            prompt_tokens=tokens,
            prompt_bytes=len(prompt),
            prefixes=prefixes,
            text=text,
            answer_tokens=inbound.call.max_tokens,
            hedge_off=hedge_off,
            deadline_s=inbound.deadline_s,
            timed=inbound.call.timed,
            api=inbound.call.api,
            pinned=pinned,
            coin=self._runtime.rand(),
            attempts_max=attempts_max,
        )

    def _emit_rejected(self, request_id: str, key_name: str | None, trace_id: str | None, error: GatewayError) -> None:
        now_s, code = self._runtime.loop.time(), error.code or error.kind
        self._runtime.emit(RequestRejected(now_s, request_id, key_name, error.status, code, trace_id=trace_id))


async def answer_error(error: GatewayError, outbox: Outbox, receive: Receive, request_id: str, api: ClientApi) -> None:
    """Send an error response.

    If the body was not read, the end of the response is held back while the rest of the body is read and dropped,
    within limits: closing at once would reset the connection, and the sender would never see the response.
    """
    respond_error(outbox, error, request_id, api, end=not error.closes)
    if outbox.failed:
        return
    await asyncio.sleep(0)  # sends it before receive(), which would answer `Expect: 100-continue` with a 100
    size = 0
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(_DISCARD_S):
            while size <= _DISCARD_BYTES_MAX:
                message = await receive()
                if message["type"] == "http.disconnect":
                    return
                size += len(message.get("body", b""))
    outbox.end()
    await serve(None, outbox, receive)
