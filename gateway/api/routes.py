"""The raced routes: authenticate, receive the body, parse once, find the model and a permit, race.

A request that is rejected here reaches no replica and gets an error in the form of its API. Units: seconds, bytes.
"""

from collections.abc import Iterator, Mapping

from msgspec.structs import replace

from gateway.admission.admission import Admission, Entry, Permit, RequestSize
from gateway.api.dialects.base import ClientApi
from gateway.api.exchange import ClientExchange, Connection
from gateway.api.request_head import RequestHead, check_hops, deployment_of, is_handshake
from gateway.api.response import EventStream, JsonAnswer, ResponseWriter, TellingAnswer, TellingStream, respond_error
from gateway.api.serving import AttemptLimits, Serving
from gateway.errors import (
    GatewayError,
    MethodNotAllowed,
    NoReplicas,
    ShuttingDown,
    UnsupportedApi,
    UnsupportedUpgrade,
    UpstreamFailed,
)
from gateway.race.context import Caller, Model, Runtime
from gateway.race.race import Race
from ttft_gateway.apis.base import Api, Call
from ttft_gateway.estimation.prefixes import prefix_hashes
from ttft_gateway.estimation.tokens import text_tokens
from ttft_gateway.hedging.contract import RequestFacts
from ttft_gateway.hedging.outcomes import Denial
from ttft_gateway.requests.request import Inbound, parse
from ttft_gateway.routing.affinity import ID_CHARS_MAX
from ttft_gateway.routing.replicas import Replica

_ENGINE_PATHS = {"/rerank": Api.RERANK, "/v2/rerank": Api.RERANK, "/tokenize": Api.TOKENIZE}  # other paths of vLLM
_NO_REPLICAS_RETRY_S = 5.0  # between two look-ups of replicas, by default
CLIENT_GONE = 499  # the status in logs of a client that disconnected


class RacedExchange(ClientExchange):
    """A request for which replicas race."""

    __slots__ = ("_deployment", "_permit", "_race", "_routes", "_serving", "api")

    def __init__(
        self, connection: Connection, head: RequestHead, routes: "RacedRoutes", api: Api, deployment: str | None
    ) -> None:
        serving = routes.serving
        super().__init__(connection, head, routes.runtime, routes.apis[api], serving.bodies, next(routes.ids))
        self.api = api
        self._routes = routes
        self._serving = serving
        if serving.traces is not None:
            trace = self.trace = serving.traces.begin(head.by_name.get(b"traceparent"))
            self.trace_id = trace.trace_id
        self._deployment = deployment
        self._race: Race | None = None
        self._permit: Permit | None = None

    def _open(self) -> None:
        head, serving = self.head, self._serving
        if head.method != "POST" or self._routes.refusing:
            raise self._refusal()
        key_name = self._key_name = serving.keyring.name_of(head)
        if serving.keyring.has_keys:
            self._connection.admit(known=True)
        check_hops(head.by_name)
        if serving.admission.has_limits:
            self._entry = serving.admission.enter(key_name)  # before the body: a key at its limit cannot send any

    def _refusal(self) -> GatewayError:
        """Return the error for a request with another method than POST, or at a gateway that stops."""
        head = self.head
        if self.api is Api.RESPONSES and is_handshake(head):
            return UnsupportedUpgrade(f"WebSocket is not supported at {head.path}; use POST")
        if head.method != "POST":
            message = f"method {head.method} is not supported at {head.path}; use POST"
            return MethodNotAllowed(message, allow="POST")
        return _shutting_down()

    def _answer(self, body: bytes) -> None:
        """Parse the body, build the race, and its permit if the request is limited, and start; none of it waits."""
        routes, serving, key_name, entry = self._routes, self._serving, self._key_name, self._entry
        assert key_name is not None
        if routes.refusing:  # again: the shutdown may have begun while the body arrived
            raise _shutting_down()
        runtime, api, deployment = self._runtime, self.api, self._deployment
        head, limits, arrived_s = self.head, serving.limits, runtime.loop.time()
        default_model = deployment or limits.default_model
        inbound = parse(
            api, body, head.headers, limits.bounds, limits.passed_headers, default_model, head.by_name, key_name
        )
        call = inbound.call
        model = serving.models.get(deployment or call.model)
        if model is None or serving.keyring.has_rules:
            model = serving.model(key_name, deployment or call.model)
        if api not in model.apis:
            raise routes.unsupported(model, deployment or call.model, api)
        request_id, gave_id = self.request_id, self.gave_id
        caller = Caller(request_id, key_name, arrived_s, 0.0, self.trace_id, gave_id, self.trace)
        if gave_id or call.model != model.name:
            call = _adapted(call, model, caller)
        if call.streaming and not inbound.tells_usage:
            client: EventStream | JsonAnswer = EventStream(self, request_id, self._api)
        else:
            client = _other_client(self, request_id, self._api, inbound)
        attempts = serving.attempts.get(key_name) if serving.listed is None else serving.attempts_of(key_name)
        facts = _facts(inbound, model, attempts, key_name, runtime)
        permit = None
        admission = serving.admission
        if admission.has_limits and admission.applies_to(entry, model.name):
            permit = routes.admit(admission, caller, model, call, facts, entry)
            if permit is not None:
                runtime = permit.runtime
        if not serving.keyring.has_keys:
            self._connection.admit(known=False)
        race = self._race = self.race = Race(model, call, facts, client, caller, runtime)
        self._held_since_s = arrived_s
        self._permit = permit
        if permit is None:
            routes.active.add(race)
            race.start()
        else:
            routes.active.add(permit)
            self.headers = permit.headers
            permit.run(race, self._not_started)

    def _not_started(self, error: GatewayError) -> None:
        if not self.started:
            respond_error(self, error, self.request_id, self._api)

    def _abandon(self) -> None:
        running = self._permit or self._race
        if running is not None:
            running.client_gone()

    def _release(self) -> None:
        if self._race is not None:
            self._routes.active.discard(self._permit or self._race)
            self._race = None
        if self._permit is not None:
            self._permit.close()
            self._permit = None
        if self._entry is not None:
            self._entry.reject(CLIENT_GONE)  # counts an unfinished request; without effect after a permit


class RacedRoutes:
    """The requests for `paths`, and for the paths of `deployment_of`.

    Args:
        serving: models, keys and limits from the settings.
        apis: the client APIs to serve.

    Attributes:
        serving: the settings in force; a request uses the settings with which it started.
        apis: the client APIs to serve.
        runtime: clock and receiver of events.
        paths: the API of each path.
        active: requests that run or wait for a permit.
        refusing: True while the gateway shuts down for good.
        ids: source of request ids.
    """

    def __init__(self, serving: Serving, apis: Mapping[Api, ClientApi], runtime: Runtime, ids: Iterator[str]) -> None:
        self.serving = serving
        self.apis = apis
        self.runtime = runtime
        self.active: set[Race | Permit] = set()
        self.refusing = False
        self.paths = {f"/v1/{api.value}": api for api in apis} | _ENGINE_PATHS
        self._targets = {path.encode(): api for path, api in self.paths.items()}
        self.ids = ids

    def open(self, connection: Connection, head: RequestHead) -> RacedExchange | None:
        """Return the exchange for a request, None if its path is not raced."""
        api = self._targets.get(head.target)
        if api is not None:
            return RacedExchange(connection, head, self, api, None)
        path = head.path
        named = (self.paths[path], None) if path in self.paths else deployment_of(path)
        return None if named is None else RacedExchange(connection, head, self, *named)

    def unsupported(self, model: Model, requested: str, api: Api) -> GatewayError:
        """Return the error for a model that does not support this API."""
        if not model.apis:
            return NoReplicas(
                f"model {model.name!r} has no replicas yet; retry later, or check the source in its `discover`",
                retry_after_s=_NO_REPLICAS_RETRY_S,
            )
        supported = ", ".join(f"/v1/{each.value}" for each in self.apis if each in model.apis)
        return UnsupportedApi(f"model {requested!r} is not supported at /v1/{api.value}; use {supported}")

    def admit(
        self, admission: Admission, caller: Caller, model: Model, call: Call, facts: RequestFacts, entry: Entry | None
    ) -> Permit | None:
        """Return a permit for a request, None after a bug."""
        answer_tokens = facts.answer_tokens or model.pools[0].learning.answer_tokens
        size = RequestSize(facts.prompt_tokens, call.choices * answer_tokens, facts.deadline_s)
        try:
            return admission.admit(caller, model.name, size, entry)
        except GatewayError:
            raise
        except Exception as error:  # a bug in a limit must not fail the request
            self.runtime.report("admission", error)
            return None


def _adapted(call: Call, model: Model, caller: Caller) -> Call:
    """Return a call with the model's own name, and the caller's id."""
    headers = call.headers
    if caller.gave_id:
        headers = (*headers, (b"x-request-id", caller.request_id.encode()))
    return replace(call, model=model.name, headers=headers)


def _pinned(previous_id: str, model: Model, key_name: str, api: Api) -> Replica | None:
    """Return the replica that has the stored answer to continue, None if it is unknown.

    Raises:
        UpstreamFailed: the answer belongs to another key, or the id is too long to be one; the API's error for an
            unknown id.
    """
    stored = model.stored_answers.find(previous_id)
    if stored is None and len(previous_id) <= ID_CHARS_MAX:
        return None
    if stored is None or stored.key_name != key_name:
        thread = api is Api.MESSAGES
        raise UpstreamFailed(
            f"Previous {'message' if thread else 'response'} with id {previous_id[:ID_CHARS_MAX]!r} not found.",
            status=404,
            kind="invalid_request_error",
            param="thread.previous_message_id" if thread else "previous_response_id",
            code=None if thread else "previous_response_not_found",
            details='{"error_code":"thread_not_found"}' if thread else None,
        )
    return model.replica(stored.replica) if stored.model == model.name else None


def _facts(
    inbound: Inbound, model: Model, attempts: AttemptLimits | None, key_name: str, runtime: Runtime
) -> RequestFacts:
    """Build the facts that policies get about a request; without the prompt's size if an estimate fails.

    Raises:
        UpstreamFailed: see `_pinned`.
    """
    prompt, call, previous_id, times = inbound.prompt, inbound.call, inbound.previous_id, inbound.times
    text, tokens = None, 0.0
    prefixes: tuple[int, ...] = ()
    try:
        text = text_tokens(prompt)
        tokens, prefixes = model.scale.tokens(text), prefix_hashes(prompt)
    except Exception as error:  # a bug in an estimate must not fail the request
        runtime.report("estimates", error)
    hedge_off = Denial.OFF if inbound.stored and model.stores_by_default else inbound.hedge_off
    attempts_max = None
    if attempts is not None:
        attempts_max = attempts.attempts_max
        hedge_off = hedge_off or (None if attempts.hedge else Denial.KEY)
    return RequestFacts(
        tokens,
        len(prompt),
        prefixes,
        text,
        call.max_tokens,
        hedge_off,
        times.deadline_s,
        inbound.hedge_off is None or call.timed,  # `parse` allows hedges of timed calls only
        call.api,
        None if previous_id is None else _pinned(previous_id, model, key_name, call.api),
        runtime.rand(),
        attempts_max,
        times.ttft_target_s,
        times.read_timeout_s,
        times.silence_s,
        times.total_s,
    )


def _other_client(
    response: ResponseWriter, request_id: str, api: ClientApi, inbound: Inbound
) -> EventStream | JsonAnswer:
    """Return the client of a race with an answer that is not streamed, or that reports usage."""
    if inbound.call.streaming:
        return TellingStream(response, request_id, api)
    answer = TellingAnswer if inbound.tells_usage else JsonAnswer
    return answer(response, request_id, api, inbound.call)


def _shutting_down() -> ShuttingDown:
    return ShuttingDown("the gateway is shutting down; retry")
