"""The public routes that need no replica: models, health, the contract and its page, and the errors of all other paths.

Each is answered from the head of its request; a body is dropped. Errors have OpenAI's shape and are not logged, as no
replica and no limit of a key is involved, except for an invalid key. Units: Unix seconds in `created`.
"""

import asyncio
import re
from collections.abc import Callable, Collection, Iterator, Sequence
from functools import cache, partial
from pathlib import Path
from typing import Final

import msgspec
import yaml

from gateway.api.dialects.base import ClientApi
from gateway.api.exchange import ClientExchange, Connection
from gateway.api.model_cards import Facts, ModelCards
from gateway.api.request_head import RequestHead
from gateway.api.response import respond
from gateway.api.serving import Serving
from gateway.errors import GatewayError, MethodNotAllowed, Unauthorized, UnknownModel, UnknownRoute
from gateway.pages.files import HEADERS, REFERENCE, load_pages, page
from gateway.race.context import Runtime
from ttft_gateway.apis.base import Headers

_SERVED: Final = (
    "POST /v1/chat/completions, POST /v1/completions, POST /v1/responses, POST /v1/messages, POST /v1/embeddings, "
    "POST /v1/rerank, POST /v1/moderations, POST /v1/tokenize, "
    "GET /v1/models, GET /v1/models/{model}, and the families of `pass_through`; see /docs for all routes"
)
_NAMES: Final = "|".join(re.findall(r"/v1/([\w/]+),", _SERVED))
_near: Final = re.compile(rf"(?:.*/v\d)?/*(?:(?:{_NAMES})/+(?:v1/+)?)?({_NAMES})/*", re.IGNORECASE).fullmatch
_READ: Final = ("GET", "HEAD")
_MODEL: Final = "/v1/models/"
_JSON: Final = "application/json"

_encode = msgspec.json.Encoder().encode


def _unknown(method: str, path: str) -> str:
    """Return the message about a path that does not exist, with the address or the path that was probably meant."""
    if path == "/metrics" or f"{path}/".startswith("/admin/"):
        return f"{method} {path} does not exist at this address; send it to the admin address (`admin_listen`)"
    near = _near(path)
    if near is not None:
        meant = f"/v1/{near[1].lower()}"
        many = path.count("/v1") > 1  # SDKs of Anthropic and Mistral add one
        hint = "the base URL has one /v1 too many" if many else "the base URL of an SDK ends with one /v1"
        return f"{method} {path} does not exist; write {meant} ({hint})"
    return f"{method} {path} does not exist; this address serves {_SERVED}"


@cache
def contract() -> str:
    """Return the text of openapi.yaml, from the installed package or from the checkout."""
    packaged = Path(__file__).parents[1] / "openapi.yaml"
    file = packaged if packaged.is_file() else Path(__file__).resolve().parents[2] / "openapi.yaml"
    return file.read_text(encoding="utf-8")


def load_documents() -> None:
    """Read every file that is served, so that none is left to open."""
    contract()
    load_pages()


@cache
def _contract_json() -> bytes:
    return _encode(yaml.safe_load(contract()))


class PlainExchange(ClientExchange):
    """A request that needs no replica.

    Args:
        answer: answers this request, or raises a `GatewayError`.
    """

    __slots__ = ("_answer_head",)

    def __init__(
        self,
        connection: Connection,
        head: RequestHead,
        routes: "PlainRoutes",
        answer: "Callable[[PlainExchange], None]",
    ) -> None:
        super().__init__(connection, head, routes.runtime, ClientApi(None), routes.serving.bodies, next(routes.ids))
        self._answer_head = answer

    def respond(self, status: int, kind: str, body: bytes, headers: Headers = ()) -> None:
        """Send a whole response with this content type."""
        own = [(b"content-type", kind.encode()), (b"x-request-id", self.request_id.encode())]
        respond(self, status, [*own, *headers], body)

    def respond_later(self, kind: str, make: Callable[[], bytes]) -> None:
        """Send a response with a body that takes long to make, on a thread."""
        making = self._runtime.loop.run_in_executor(None, make)
        making.add_done_callback(partial(self._made, kind))

    def _made(self, kind: str, making: asyncio.Future[bytes]) -> None:
        error = making.exception()
        if self.is_over:
            return  # the client is gone
        if isinstance(error, Exception):
            self._failed(error)
        else:
            self.respond(200, kind, making.result())

    def _open(self) -> None:
        self._drop_body()
        self._answer_head(self)

    def _answer(self, body: bytes) -> None:
        """Do nothing: the body is dropped."""

    def _rejected(self, error: GatewayError) -> None:
        """Report an invalid key: a client that tries keys does it where it costs nothing."""
        if isinstance(error, Unauthorized):
            super()._rejected(error)

    def _abandon(self) -> None:
        """Do nothing: no work is under way."""

    def _release(self) -> None:
        """Do nothing: the request holds nothing."""


class PlainRoutes:
    """The requests for all paths that no other exchange has.

    Args:
        serving: models, keys and limits from the settings.
        models_of: returns the public names of the models that a caller with these headers may use, in the order of the
            configuration; raises `Unauthorized`.
        created: start time of the gateway; OpenAI's SDKs expect a number for each model.
        ready: returns True while new requests are accepted.
        runtime: the loop.
        ids: source of request ids.

    Attributes:
        serving: the settings in force.
        runtime, ids: the same.
    """

    def __init__(
        self,
        serving: Serving,
        models_of: Callable[[Headers], Sequence[str]],
        created: int,
        ready: Callable[[], bool],
        runtime: Runtime,
        ids: Iterator[str],
    ) -> None:
        self.serving = serving
        self.runtime = runtime
        self.ids = ids
        self._models_of = models_of
        self._created = created
        self._ready = ready
        self._cards = ModelCards(runtime.loop)
        self._reads: dict[str, Callable[[PlainExchange], None]] = {
            "/v1/models": self._list_models,
            "/healthz": _healthz,
            "/readyz": self._readyz,
            "/openapi.json": lambda exchange: exchange.respond_later(_JSON, _contract_json),
            "/openapi.yaml": lambda exchange: exchange.respond(200, "application/yaml", contract().encode()),
            **{path: partial(_page, name) for path, name in REFERENCE.items()},
        }

    @property
    def paths(self) -> Collection[str]:
        """Paths that are read with GET or HEAD."""
        return (*self._reads, _MODEL + "{model}")

    def open(self, connection: Connection, head: RequestHead) -> PlainExchange:
        """Return the exchange for a request."""
        return PlainExchange(connection, head, self, self._answer)

    def open_preflight(self, connection: Connection, head: RequestHead, headers: Headers) -> PlainExchange:
        """Return the exchange for a preflight request, which is answered with these headers."""
        return PlainExchange(connection, head, self, lambda exchange: respond(exchange, 204, [*headers], b""))

    def _answer(self, exchange: PlainExchange) -> None:
        head = exchange.head
        method, path = head.method, head.path
        read = self._get_model if path.startswith(_MODEL) and path != _MODEL else self._reads.get(path)
        if read is not None and method in _READ:
            read(exchange)
        elif path == "/" and method == "OPTIONS":  # HAProxy's default health check
            respond(exchange, 204 if self._ready() else 503, [(b"allow", b"OPTIONS")], b"")
        elif read is not None or path == "/":
            message = f"method {method} is not supported at {path[:200]}; this address serves {_SERVED}"
            raise MethodNotAllowed(message, allow="OPTIONS" if read is None else ", ".join(_READ))
        else:
            raise UnknownRoute(_unknown(method, path[:200]))

    def _list_models(self, exchange: PlainExchange) -> None:
        names = self._models_of(exchange.head.headers)
        self._respond_with(exchange, names, lambda entries: {"object": "list", "data": entries})

    def _get_model(self, exchange: PlainExchange) -> None:
        model = exchange.head.path.removeprefix(_MODEL)
        models = self._models_of(exchange.head.headers)
        if model not in models:
            known = ", ".join(models[:20])
            raise UnknownModel(f"model {model[:80]!r} does not exist; use one of: {known}", param="model")
        self._respond_with(exchange, [model], lambda entries: entries[0])

    def _respond_with(
        self, exchange: PlainExchange, names: Sequence[str], document: Callable[[list[dict[str, object]]], object]
    ) -> None:
        """Send a document with the entries of these models, once their replicas have replied."""
        models = {name: self.serving.models[name] for name in names}

        def send() -> None:
            if not exchange.is_over:  # else the client is gone
                entries = [self._entry(name, self._cards.facts(model)) for name, model in models.items()]
                exchange.respond(200, _JSON, _encode(document(entries)))

        self._cards.ask(list(models.values()), send)

    def _entry(self, name: str, facts: Facts) -> dict[str, object]:
        return {"id": name, "object": "model", "created": self._created, "owned_by": "ttft-gateway", **facts}

    def _readyz(self, exchange: PlainExchange) -> None:
        if self._ready():
            exchange.respond(200, _JSON, b'{"status":"ready"}')
        else:
            exchange.respond(503, _JSON, b'{"status":"draining"}')


def _healthz(exchange: PlainExchange) -> None:
    exchange.respond(200, _JSON, b'{"status":"ok"}')


def _page(name: str, exchange: PlainExchange) -> None:
    kind, content = page(name)
    exchange.respond(200, kind, content, [(key.encode(), value.encode()) for key, value in HEADERS.items()])
