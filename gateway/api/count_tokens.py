"""POST /v1/messages/count_tokens: returns the gateway's own estimate of a prompt's tokens.

Agents call it before they send a prompt, to see how full the context is. No replica is involved: the estimate is the
one that quotas and predictions use, scaled by the usage that the model's replicas have reported. It therefore works for
every kind of replica, immediately and free of charge. Units: tokens.
"""

import asyncio
import itertools
import secrets

import msgspec

from gateway.api.admission import Entry
from gateway.api.asgi import Receive, Scope, Send
from gateway.api.body_reader import Arrival, ClientDisconnected
from gateway.api.connections import admit
from gateway.api.dialects.base import ClientApi
from gateway.api.outbox import Outbox
from gateway.api.response import respond, serve
from gateway.api.routes import Serving, answer_error
from gateway.errors import GatewayError, MethodNotAllowed
from gateway.estimation.tokens import text_tokens
from gateway.events import RequestRejected
from gateway.inbound.identity import caller_ids
from gateway.inbound.request import parse_count
from gateway.race.context import Runtime
from providers.base import Headers

PATH = "/v1/messages/count_tokens"

_encode = msgspec.json.Encoder().encode


class TokenCounts:
    """The ASGI application for `PATH`.

    Args:
        serving: models, keys and limits from the settings.
        api: the form of errors.
        runtime: clock and receiver of events.
        tasks: owner of tasks that wait for slow clients.

    Attributes:
        serving: the settings in force; a request keeps those it started with.
    """

    def __init__(self, serving: Serving, api: ClientApi, runtime: Runtime, tasks: asyncio.TaskGroup) -> None:
        self.serving = serving
        self._api = api
        self._runtime = runtime
        self._tasks = tasks
        self._prefix = "req_" + secrets.token_hex(6)
        self._numbers = itertools.count(1)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Handle one request."""
        given_id, trace_id = caller_ids(scope["headers"])
        request_id = given_id or f"{self._prefix}{next(self._numbers):08x}"
        outbox = Outbox(send, self._runtime.loop, self._tasks, self._runtime.burst)
        serving, key_name = self.serving, None
        arrival: Arrival | None = None
        entry: Entry | None = None
        try:
            if scope["method"] != "POST":
                raise MethodNotAllowed(f"method {scope['method']} is not supported at {PATH}; use POST", allow="POST")
            key_name = serving.keyring.name(scope["headers"])
            admit(scope, known=serving.keyring.has_keys)
            entry = serving.counts.enter(key_name)
            arrival = serving.bodies.open(key_name)
            body = await arrival.receive(scope["headers"], receive)
            answer = _encode({"input_tokens": self._count(serving, key_name, body, scope["headers"])})
        except GatewayError as error:
            if entry is not None:
                entry.reject(error.status)
            now_s, code = self._runtime.loop.time(), error.code or error.kind
            self._runtime.emit(RequestRejected(now_s, request_id, key_name, error.status, code, trace_id=trace_id))
            await answer_error(error, outbox, receive, request_id, self._api)
        except ClientDisconnected:
            pass
        else:
            headers = [(b"content-type", b"application/json"), (b"x-request-id", request_id.encode())]
            respond(outbox, 200, headers, answer)
            await serve(None, outbox, receive)
        finally:
            if entry is not None:
                entry.close(0.0)
            if arrival is not None:
                arrival.close()

    def _count(self, serving: Serving, key_name: str, body: bytes, headers: Headers) -> int:
        name, prompt = parse_count(body, headers, serving.limits.default_model)
        model = serving.model(key_name, name)
        return max(1, round(model.scale.tokens(text_tokens(prompt))))
