"""The routes that need no speed: models, health, the contract. A FastAPI app; errors keep OpenAI's shape here, too.

It must not know of races or replicas: it is given names and a readiness flag. Units: Unix seconds in `created`.
"""

from collections.abc import Callable, Sequence
from importlib.resources import files
from pathlib import Path

import msgspec
import yaml
from fastapi import FastAPI, Request, Response
from fastapi.openapi.docs import get_swagger_ui_html
from fastapi.responses import HTMLResponse, JSONResponse, PlainTextResponse
from starlette.exceptions import HTTPException

from gateway.errors import Forbidden, GatewayError, Internal, MethodNotAllowed, UnknownModel, UnknownRoute

SERVED = "POST /v1/chat/completions, POST /v1/completions, GET /v1/models, GET /v1/models/{id}"


def contract() -> str:
    """The text of openapi.yaml, from the installed package or from the checkout."""
    packaged = files("gateway") / "openapi.yaml"
    if packaged.is_file():
        return packaged.read_text(encoding="utf-8")
    return (Path(__file__).resolve().parent.parent / "openapi.yaml").read_text(encoding="utf-8")


def plain_app(
    models: Sequence[str], created: int, key_name: Callable[[Request], str], ready: Callable[[], bool], version: str
) -> FastAPI:
    """Build the app.

    Args:
        models: public names, in the order of the configuration.
        created: when the gateway started; OpenAI's SDKs want a number for each model.
        key_name: name of the caller's key; raises `Unauthorized`.
        ready: whether new requests are welcome.
        version: of the gateway.
    """
    app = FastAPI(title="ttft-gateway", version=version, openapi_url=None, docs_url=None, redoc_url=None)
    entries = {name: {"id": name, "object": "model", "created": created, "owned_by": "ttft-gateway"} for name in models}
    text = contract()
    document = msgspec.json.encode(yaml.safe_load(text))

    @app.get("/v1/models")
    async def list_models(request: Request) -> JSONResponse:
        key_name(request)
        return JSONResponse({"object": "list", "data": list(entries.values())})

    @app.get("/v1/models/{model:path}")
    async def get_model(request: Request, model: str) -> JSONResponse:
        key_name(request)
        if model not in entries:
            known = ", ".join(models[:20])
            raise UnknownModel(f"there is no model {model[:80]!r} here; there are: {known}", param="model")
        return JSONResponse(entries[model])

    @app.get("/healthz")
    async def healthz() -> JSONResponse:
        return JSONResponse({"status": "ok"})

    @app.get("/readyz")
    async def readyz() -> JSONResponse:
        return JSONResponse({"status": "ready"}) if ready() else JSONResponse({"status": "draining"}, 503)

    @app.get("/openapi.json")
    async def openapi_json() -> Response:
        return Response(document, media_type="application/json")

    @app.get("/openapi.yaml")
    async def openapi_yaml() -> PlainTextResponse:
        return PlainTextResponse(text, media_type="application/yaml")

    @app.get("/docs")
    async def docs() -> HTMLResponse:
        return get_swagger_ui_html(openapi_url="openapi.json", title="ttft-gateway")

    app.add_exception_handler(GatewayError, _gateway_error)
    app.add_exception_handler(HTTPException, _http_error)
    app.add_exception_handler(Exception, _unexpected)
    return app


async def _gateway_error(_request: Request, error: Exception) -> Response:
    known = error if isinstance(error, GatewayError) else Internal("the gateway failed")
    headers = {name.decode(): value.decode() for name, value in known.headers()}
    return Response(known.body(), known.status, headers, media_type="application/json")


async def _http_error(request: Request, error: Exception) -> Response:
    """Starlette's own 404 and 405, in OpenAI's shape."""
    status = error.status_code if isinstance(error, HTTPException) else 500
    where = f"{request.method} {request.url.path[:200]}"
    known: GatewayError
    if status == 404:
        known = UnknownRoute(f"{where} does not exist here; this gateway serves {SERVED}")
    elif status == 405:
        known = MethodNotAllowed(f"{where}: the path exists, the method does not; this gateway serves {SERVED}")
    else:
        known = Forbidden(f"{where} was refused")
        known.status = status
    return await _gateway_error(request, known)


async def _unexpected(request: Request, _error: Exception) -> Response:
    return await _gateway_error(request, Internal("the gateway failed; its log says where"))
