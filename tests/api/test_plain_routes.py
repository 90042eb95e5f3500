"""The public routes that need no replica, through a whole gateway on a pretended connection."""

import asyncio
import json
from collections.abc import Sequence

import pytest

from gateway.api.plain_routes import load_documents
from gateway.config.settings import Settings
from gateway.events import Event, RequestRejected
from gateway.pages.files import REFERENCE
from gateway.server.app import Gateway
from pretended_client import Response, connected
from running import run_virtual

load_documents()  # read the files while no loop is running

_REPLICA = {"name": "a", "kind": "vllm", "base_url": "http://127.0.0.1:1/v1"}
_SETTINGS = Settings.model_validate(
    {"models": [{"name": "org/m", "aliases": ["m"], "replicas": [_REPLICA]}, {"name": "n", "replicas": [_REPLICA]}]}
)


def _answers(
    *requests: bytes, draining: bool = False, settings: Settings = _SETTINGS, reported: Sequence[str] = ()
) -> list[Response]:
    """Return the responses to requests that one connection sends, each after the response to the one before.

    Args:
        reported: codes of the errors that are logged and counted; no other event may be.
    """

    async def main() -> list[Response]:
        async with asyncio.TaskGroup() as tasks:
            gateway = Gateway(settings, tasks)
            gateway.public.draining = draining
            events: list[Event] = []
            gateway.hub.listeners.append(events.append)
            client = connected(gateway)
            answers = []
            for request in requests:
                client.send(request)
                answers.append(await client.receive())
            gateway.hub.flush()
            assert [isinstance(event, RequestRejected) and event.code for event in events] == list(reported)
            client.leave()
            gateway.close()
        return answers

    return run_virtual(main())


def _request(method: str, path: str, body: bytes = b"", headers: str = "") -> bytes:
    length = f"content-length: {len(body)}\r\n" if body else ""
    return f"{method} {path} HTTP/1.1\r\nhost: localhost\r\n{length}{headers}\r\n".encode() + body


@pytest.mark.parametrize(
    ("path", "draining", "status", "body"),
    [
        ("/healthz", False, 200, b'{"status":"ok"}'),
        ("/healthz", True, 200, b'{"status":"ok"}'),
        ("/readyz", False, 200, b'{"status":"ready"}'),
        ("/readyz", True, 503, b'{"status":"draining"}'),
    ],
)
def test_health_checks(path: str, status: int, body: bytes, *, draining: bool) -> None:
    """A health check has JSON, a length, and the caller's request id."""
    [answer] = _answers(_request("GET", path, headers="x-request-id: mine\r\n"), draining=draining)
    assert (answer.status, answer.body) == (status, body)
    del answer.headers["date"]
    assert answer.headers == {
        "content-length": str(len(body)),
        "content-type": "application/json",
        "x-request-id": "mine",
    }


def test_models() -> None:
    """Models and aliases are listed in the order of the configuration, and found by names with a slash."""
    every, one, unknown = _answers(*(_request("GET", f"/v1/models{path}") for path in ("", "/org/m", "/org%2Fx")))
    assert [model["id"] for model in json.loads(every.body)["data"]] == ["org/m", "m", "n"]
    assert json.loads(one.body)["id"] == "org/m"
    assert (unknown.status, json.loads(unknown.body)["error"]["code"]) == (404, "model_not_found")


def test_an_invalid_key_is_reported() -> None:
    """An invalid key is logged and counted where no replica is involved, too; health checks take no key."""
    settings = _SETTINGS.model_validate(
        {**_SETTINGS.model_dump(by_alias=True), "keys": [{"name": "k", "key": "right"}]}
    )
    keys = ("wrong", "right", "wrong")
    requests = [_request("GET", "/v1/models", headers=f"authorization: Bearer {key}\r\n") for key in keys]
    check = _request("GET", "/healthz", headers="authorization: Bearer wrong\r\n")
    answers = _answers(*requests, check, settings=settings, reported=["invalid_api_key"] * 2)
    assert [answer.status for answer in answers] == [401, 200, 401, 200]


@pytest.mark.parametrize(
    ("path", "action"),
    [
        ("/metrics", "at this address; send it to the admin address (`admin_listen`)"),
        ("/admin", "at this address; send it to the admin address (`admin_listen`)"),
        ("/admin/models", "at this address; send it to the admin address (`admin_listen`)"),
        ("/chat/completions", "; write /v1/chat/completions (the base URL of an SDK ends with one /v1)"),
        ("/v1/v1/chat/completions", "; write /v1/chat/completions (the base URL has one /v1 too many)"),
        ("/v1chat/completions", "; write /v1/chat/completions (the base URL of an SDK ends with one /v1)"),
        ("/v1/v1/messages", "; write /v1/messages (the base URL has one /v1 too many)"),
        ("/v1/messages/v1/messages", "; write /v1/messages (the base URL has one /v1 too many)"),
        ("/models", "; write /v1/models (the base URL of an SDK ends with one /v1)"),
        ("/v1/models/", "; write /v1/models (the base URL of an SDK ends with one /v1)"),
        ("/v1/chat/completions/", "; write /v1/chat/completions (the base URL of an SDK ends with one /v1)"),
        ("/v1/chat/completions/chat/completions", "; write /v1/chat/completions (the base URL of an SDK ends with one"),
        ("/v1/chat/completions/models", "; write /v1/models (the base URL of an SDK ends with one /v1)"),
        ("/openai/v1/responses", "; write /v1/responses (the base URL of an SDK ends with one /v1)"),
        ("/V1/Embeddings", "; write /v1/embeddings (the base URL of an SDK ends with one /v1)"),
        ("/v1/threads/thread_1/messages", "; this address serves POST /v1/chat/completions, "),
        ("/administrators", "; this address serves POST /v1/chat/completions, "),
    ],
)
def test_a_path_that_does_not_exist(path: str, action: str) -> None:
    """The error has the address or the path that was probably meant, otherwise all paths."""
    (answer,) = _answers(_request("GET", path))
    error = json.loads(answer.body)["error"]
    assert (answer.status, error["code"]) == (404, "unknown_url")
    assert error["message"].startswith(f"GET {path} does not exist{'' if action[0] == ';' else ' '}{action}")


@pytest.mark.parametrize("path", ["/openapi.yaml", *REFERENCE])
def test_documents(path: str) -> None:
    """A document is served whole, and a page with its policy."""
    (answer,) = _answers(_request("GET", path))
    assert answer.status == 200
    assert answer.headers["content-length"] == str(len(answer.body))
    assert ("content-security-policy" in answer.headers) == (path in REFERENCE)


@pytest.mark.parametrize(
    ("method", "path", "status", "allow"),
    [
        ("POST", "/v1/models", 405, "GET, HEAD"),
        ("DELETE", "/v1/models/m", 405, "GET, HEAD"),
        ("POST", "/readyz", 405, "GET, HEAD"),
        ("GET", "/", 405, "OPTIONS"),
        ("GET", "/nowhere", 404, None),
        ("GET", "/readyz/", 404, None),
        ("POST", "/v1/engines", 404, None),
    ],
)
def test_other_methods_and_paths(method: str, path: str, status: int, allow: str | None) -> None:
    """Each gets an error with the methods that are allowed, and its connection serves the next request."""
    error, after = _answers(_request(method, path, b"a body"), _request("GET", "/healthz"))
    assert (error.status, error.headers.get("allow"), after.status) == (status, allow, 200)
    assert json.loads(error.body)["error"]["message"].startswith(f"{method} {path}" if status == 404 else "method ")


@pytest.mark.parametrize(("draining", "status"), [(False, 204), (True, 503)])
def test_the_check_of_haproxy(status: int, *, draining: bool) -> None:
    """OPTIONS of / reports readiness."""
    [answer] = _answers(_request("OPTIONS", "/"), draining=draining)
    assert (answer.status, answer.headers["allow"], answer.body) == (status, "OPTIONS", b"")
    assert ("content-length" in answer.headers) == (status != 204)


def test_a_body_is_dropped() -> None:
    """A body changes nothing, is not waited for, and is not held; a client that asks first is not told to send it."""
    head, body = _request("GET", "/healthz", b"x" * 100, "expect: 100-continue\r\n")[:-100], b"x" * 100
    first, second = _answers(head, body + _request("GET", "/readyz"))
    assert (first.status, second.body) == (200, b'{"status":"ready"}')
