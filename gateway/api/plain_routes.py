"""The FastAPI app of the routes that need no speed: models, health, the contract. Errors have OpenAI's shape.

Independent of races and replicas: it gets only names and a readiness flag. Units: Unix seconds in `created`.
"""

import secrets
from collections.abc import Callable, Sequence
from functools import cache
from pathlib import Path

import msgspec
import yaml
from fastapi import FastAPI, Request, Response
from fastapi.responses import JSONResponse, PlainTextResponse
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from gateway.api.error_handlers import answer_errors
from gateway.errors import UnknownModel
from gateway.inbound.headers import caller_ids
from gateway.pages.files import REFERENCE, add_pages
from providers.base import Headers

_SERVED = (
    "POST /v1/chat/completions, POST /v1/completions, POST /v1/responses, POST /v1/messages, POST /v1/embeddings, "
    "POST /v1/rerank, POST /v1/moderations, POST /v1/tokenize, "
    "GET /v1/models, GET /v1/models/{model}; see /docs for all routes"
)

_READ = ["GET", "HEAD"]


@cache
def contract() -> str:
    """Return the text of openapi.yaml, from the installed package or from the checkout."""
    packaged = Path(__file__).parents[1] / "openapi.yaml"
    file = packaged if packaged.is_file() else Path(__file__).resolve().parents[2] / "openapi.yaml"
    return file.read_text(encoding="utf-8")


def plain_app(
    models_of: Callable[[Headers], Sequence[str]], created: int, ready: Callable[[], bool], version: str
) -> FastAPI:
    """Build the app.

    Args:
        models_of: returns the public names of the models that a caller with these headers may use, in the order of the
            configuration; raises `Unauthorized`.
        created: start time of the gateway; OpenAI's SDKs expect a number for each model.
        ready: returns True while new requests are accepted.
    """
    app = FastAPI(title="ttft-gateway", version=version, openapi_url=None, docs_url=None, redoc_url=None)
    text = contract()

    def entry(name: str) -> dict[str, object]:
        return {"id": name, "object": "model", "created": created, "owned_by": "ttft-gateway"}

    @app.api_route("/v1/models", methods=_READ)
    async def list_models(request: Request) -> JSONResponse:
        return JSONResponse({"object": "list", "data": [entry(name) for name in models_of(request.scope["headers"])]})

    @app.api_route("/v1/models/{model:path}", methods=_READ)
    async def get_model(request: Request, model: str) -> JSONResponse:
        models = models_of(request.scope["headers"])
        if model not in models:
            known = ", ".join(models[:20])
            raise UnknownModel(f"model {model[:80]!r} does not exist; use one of: {known}", param="model")
        return JSONResponse(entry(model))

    @app.api_route("/healthz", methods=_READ)
    @app.api_route("/readyz", methods=_READ)
    async def health() -> Response:
        """Reserve the path; `gateway.api.health` answers these methods before they reach this app."""
        return Response(status_code=204)

    @app.options("/")
    async def check() -> Response:
        """Answer HAProxy's default health check."""
        return Response(status_code=204 if ready() else 503, headers={"allow": "OPTIONS"})

    @app.api_route("/openapi.json", methods=_READ)
    def openapi_json() -> Response:  # not async, hence on a thread: reading the YAML takes 0.1 s, the first time
        return Response(_as_json(text), media_type="application/json")

    @app.api_route("/openapi.yaml", methods=_READ)
    async def openapi_yaml() -> PlainTextResponse:
        return PlainTextResponse(text, media_type="application/yaml")

    add_pages(app, REFERENCE)
    answer_errors(app, _SERVED)
    app.add_middleware(_RequestIds)
    return app


@cache
def _as_json(text: str) -> bytes:
    return msgspec.json.encode(yaml.safe_load(text))


class _RequestIds:
    """Gives every response an `x-request-id`, the caller's if it sent one; the id is not logged."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        async def send_with_id(message: Message) -> None:
            if message["type"] == "http.response.start":
                request_id = caller_ids(dict(scope["headers"])).request_id or f"req_{secrets.token_hex(10)}"
                message["headers"] = [*message["headers"], (b"x-request-id", request_id.encode())]
            await send(message)

        await self._app(scope, receive, send_with_id)
