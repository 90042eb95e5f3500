"""Gives the FastAPI apps' errors OpenAI's shape: the gateway's own errors, the framework's 404 and 405, and bugs.

Used by the public and by the admin address, and independent of their routes. No units.
"""

from fastapi import FastAPI, Request, Response
from starlette.exceptions import HTTPException
from starlette.routing import Match, Route

from gateway.errors import GatewayError, Internal, MethodNotAllowed, UnknownRoute


def answer_errors(app: FastAPI, served: str) -> None:
    """Give every error of an app its OpenAI body.

    Args:
        served: the app's routes, as a message lists them after "this address serves".
    """

    async def on_http_exception(request: Request, error: Exception) -> Response:
        """Handle the framework's 404 and 405; it raises nothing else."""
        assert isinstance(error, HTTPException)
        endpoint = f"{request.method} {request.url.path[:200]}"
        if error.status_code != MethodNotAllowed.status:
            return _response(UnknownRoute(f"{endpoint} does not exist; this address serves {served}"))
        message = f"method {request.method} is not supported at {request.url.path[:200]}; this address serves {served}"
        return _response(MethodNotAllowed(message, allow=", ".join(sorted(_methods(app, request)))))

    app.add_exception_handler(GatewayError, _on_gateway_error)
    app.add_exception_handler(HTTPException, on_http_exception)
    app.add_exception_handler(Exception, _on_bug)


def _methods(app: FastAPI, request: Request) -> set[str]:
    """Return the methods of all routes with this path; the framework's own `Allow` has only those of the first."""
    matching = (
        route for route in app.routes if isinstance(route, Route) and route.matches(request.scope)[0] is not Match.NONE
    )
    return {method for route in matching for method in route.methods or ()}


async def _on_gateway_error(_: Request, error: Exception) -> Response:
    assert isinstance(error, GatewayError)
    return _response(error)


async def _on_bug(_: Request, __: Exception) -> Response:
    """Answer 500; the server logs the exception."""
    return _response(Internal("the gateway failed; see its log"))


def _response(error: GatewayError) -> Response:
    headers = {name.decode(): value.decode() for name, value in error.headers()}
    return Response(error.body(), error.status, headers, media_type="application/json")
