"""The raced routes as plain ASGI: receive the body, parse once, authenticate, find the model, start the race.

FastAPI serves everything else; these paths go past it because its request handling costs more than the whole race.
Whatever is refused here reaches no replica and is answered with an OpenAI error body. Units: seconds, bytes.
"""

import asyncio
import contextlib
import hashlib
import itertools
import secrets
from collections.abc import Awaitable, Mapping
from dataclasses import dataclass

from gateway.client_api import ClientApi
from gateway.errors import (
    BodyTooLarge,
    GatewayError,
    Internal,
    MethodNotAllowed,
    ShuttingDown,
    SlowSender,
    Unauthorized,
    UnknownModel,
    UnsupportedApi,
)
from gateway.estimation.prefixes import prefix_hashes
from gateway.estimation.tokens import text_tokens
from gateway.events import PartFailed, RequestRefused
from gateway.hedging.terms import Facts
from gateway.inbound import Inbound, parse
from gateway.inbound_asked import Bounds
from gateway.race import Race
from gateway.request import Caller, Host, Model
from gateway.response import Begun, EventStream, JsonAnswer, Message, Outbox, Receive, Scope, Send, respond_error, serve
from providers.base import Api, Call, Headers

_DISCARD_S = 2.0  # a refused body is read on for so long, so that the sender gets to read the answer
_DISCARD_BYTES_MAX = 32 * 1024 * 1024
_DIGITS_MAX = 18  # of a content-length


@dataclass(frozen=True, slots=True)
class Limits:
    """Limits on what a client may send.

    Attributes:
        body_bytes_max: of a request body.
        body_s: until the body must have arrived.
        bounds: on numbers in it.
        passed_headers: client headers to pass on.
    """

    body_bytes_max: int
    body_s: float
    bounds: Bounds
    passed_headers: frozenset[bytes]


class _ClientLeft(Exception):  # never leaves this file
    """The client went away before its request was complete."""


class Keyring:
    """The callers' keys, kept only as SHA-256 digests, so that looking one up takes the same time for any guess.

    Args:
        keys: key -> name. Empty: everybody is "anonymous".
    """

    def __init__(self, keys: Mapping[str, str]) -> None:
        self._names = {hashlib.sha256(key.encode()).digest(): name for key, name in keys.items()}

    def name(self, headers: Headers) -> str:
        """Name of the caller's key.

        Raises:
            Unauthorized: no key, or one that is not known.
        """
        if not self._names:
            return "anonymous"
        key = _key(headers)
        if not key:
            raise Unauthorized(
                "no API key was given; send it as the header `Authorization: Bearer YOUR_KEY` or `x-api-key: YOUR_KEY`"
            )
        name = self._names.get(hashlib.sha256(key).digest())
        if name is None:
            raise Unauthorized("the API key is not one of this gateway's keys")
        return name


def _key(headers: Headers) -> bytes:
    """The key a caller sent, in OpenAI's header or, without that, in Anthropic's; empty when there is none."""
    given = dict(headers)
    scheme, _, key = given.get(b"authorization", b"").partition(b" ")
    return key.strip() if scheme.lower() == b"bearer" else given.get(b"x-api-key", b"").strip()


class RacedRoutes:
    """The ASGI application for `paths`.

    Args:
        models: by public name.
        keyring: who may call.
        limits: on requests.
        apis: what is served.
        host: what races share.
        tasks: owner of tasks that wait for slow clients.

    Attributes:
        paths: what is served where.
        active: races under way.
        refusing: set while the gateway shuts down for good.
    """

    def __init__(
        self,
        models: Mapping[str, Model],
        keyring: Keyring,
        limits: Limits,
        apis: Mapping[Api, ClientApi],
        host: Host,
        tasks: asyncio.TaskGroup,
    ) -> None:
        self._models = models
        self._keyring = keyring
        self._limits = limits
        self._apis = apis
        self.paths = {f"/v1/{api.value}": api for api in apis}
        self._host = host
        self._tasks = tasks
        self._prefix = "req_" + secrets.token_hex(6)
        self._numbers = itertools.count(1)
        self.active: set[Race] = set()
        self.refusing = False

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve one request."""
        request_id = f"{self._prefix}{next(self._numbers):08x}"
        outbox = Outbox(send, self._host.loop, self._tasks)
        api = self.paths[scope["path"]]
        key_name = None
        try:
            if scope["method"] != "POST":
                raise MethodNotAllowed(f"{scope['method']} {scope['path']} does not exist; use POST", allow="POST")
            if self.refusing:
                raise ShuttingDown("the gateway is shutting down; try another one")
            key_name = self._keyring.name(scope["headers"])
            body = await self._body(scope["headers"], receive)
            caller = Caller(request_id, key_name, self._host.loop.time())
            race = self._race(api, body, scope["headers"], caller, outbox)
        except GatewayError as error:
            self._refused(request_id, key_name, error)
            await _answer(error, outbox, receive, request_id, self._apis[api])
            return
        except _ClientLeft:
            return
        await self._run(race, outbox, receive, request_id, self._apis[api])

    async def _run(self, race: Race, outbox: Outbox, receive: Receive, request_id: str, api: ClientApi) -> None:
        self.active.add(race)
        try:
            race.start()
            await serve(race, outbox, receive)
        except Exception as error:
            self._host.emit(PartFailed(self._host.loop.time(), "race", type(error).__name__))
            race.client_gone()
            if not outbox.started:
                await _answer(Internal("the gateway failed; its log says where"), outbox, receive, request_id, api)
        finally:
            self.active.discard(race)

    def _race(self, api: Api, body: bytes, headers: Headers, caller: Caller, outbox: Outbox) -> Race:
        """Everything that needs no waiting between the body and the race."""
        inbound = parse(api, body, headers, self._limits.bounds, self._limits.passed_headers)
        call = inbound.call
        model = self._model(call)
        client: EventStream | JsonAnswer
        if call.streaming:
            client = EventStream(outbox, caller.request_id, self._apis[api])
        else:
            client = JsonAnswer(outbox, caller.request_id, self._apis[api], call)
        race = Race(model, call, self._facts(inbound, model), client, caller, self._host)
        outbox.race = race
        return race

    def _model(self, call: Call) -> Model:
        """The model asked for, if it can be asked in this API."""
        model = self._models.get(call.model)
        if model is None:
            known = ", ".join(sorted(self._models)[:20])
            raise UnknownModel(f"there is no model {call.model[:80]!r} here; there are: {known}", param="model")
        if call.api not in model.apis:
            able = ", ".join(f"/v1/{api.value}" for api in self._apis if api in model.apis)
            raise UnsupportedApi(f"the model {call.model!r} cannot be asked at /v1/{call.api.value}, only at {able}")
        return model

    def _facts(self, inbound: Inbound, model: Model) -> Facts:
        """What the policies may know of a request; nothing of its prompt's size where an estimate fails."""
        prompt, text, tokens = inbound.prompt, None, 0.0
        prefixes: tuple[int, ...] = ()
        try:
            text = text_tokens(prompt)
            tokens, prefixes = model.scale.tokens(text), prefix_hashes(prompt)
        except Exception as error:  # whatever it is, it must not cost the caller an answer
            self._host.emit(PartFailed(self._host.loop.time(), "estimates", type(error).__name__))
        return Facts(
            prompt_tokens=tokens,
            prompt_bytes=len(prompt),
            prefixes=prefixes,
            text=text,
            answer_tokens=inbound.call.max_tokens,
            hedge_off=inbound.hedge_off,
            deadline_s=inbound.deadline_s,
            timed=inbound.call.timed,
            api=inbound.call.api,
            coin=self._host.rand(),
        )

    async def _body(self, headers: Headers, receive: Receive) -> bytes:
        """The whole request body, within its limits of size and time."""
        limit = self._limits.body_bytes_max
        for name, value in headers:
            if name == b"content-length" and (len(value) > _DIGITS_MAX or int(value) > limit):
                found = int(value[:_DIGITS_MAX])
                raise BodyTooLarge(f"the request body has {found} bytes; this gateway takes {limit} at most")
        receiving = receive()
        try:
            waiting_for = receiving.send(None)
        except StopIteration as came:  # with the headers, as nearly always: no timer is needed
            if not came.value.get("more_body", False):
                return _piece(came.value, limit)
            begun: Awaitable[Message] = _already(came.value)
        else:
            begun = Begun(receiving, waiting_for)
        try:
            async with asyncio.timeout(self._limits.body_s):
                return await self._rest(await begun, receive)
        except TimeoutError:
            raise SlowSender(f"the request body did not arrive within {self._limits.body_s:g} s") from None

    async def _rest(self, message: Message, receive: Receive) -> bytes:
        """The body of a request that does not come in one piece."""
        pieces, size = [], 0
        while True:
            pieces.append(_piece(message, self._limits.body_bytes_max - size))
            size += len(pieces[-1])
            if not message.get("more_body", False):
                return b"".join(pieces)
            message = await receive()

    def _refused(self, request_id: str, key_name: str | None, error: GatewayError) -> None:
        self._host.emit(
            RequestRefused(self._host.loop.time(), request_id, key_name, error.status, error.code or error.kind)
        )


async def _already(message: Message) -> Message:
    return message


def _piece(message: Message, room: int) -> bytes:
    """The bytes in one message from the server.

    Raises:
        BodyTooLarge: they are more than there is room for.
    """
    if message["type"] == "http.disconnect":
        raise _ClientLeft
    body = message.get("body", b"")
    if len(body) > room:
        raise BodyTooLarge("the request body is larger than this gateway takes; see limits.request_body_max")
    return bytes(body)


async def _answer(error: GatewayError, outbox: Outbox, receive: Receive, request_id: str, api: ClientApi) -> None:
    """Answer with an error and let it leave.

    Where the body was not read, the answer's end is held back while what still comes is read and dropped, within
    bounds: closing at once would reset the connection, and the sender would never see the answer.
    """
    respond_error(outbox, error, request_id, api, end=not error.closes)
    await asyncio.sleep(0)  # it leaves first: who waits with `Expect: 100-continue` must not be told to go on
    size = 0
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(_DISCARD_S):
            while size <= _DISCARD_BYTES_MAX:
                message = await receive()
                if message["type"] == "http.disconnect":
                    return
                size += len(message.get("body", b""))
    outbox.end()
    while (await receive())["type"] != "http.disconnect":
        pass
