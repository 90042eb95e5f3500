"""Every example of openapi.yaml, sent to a running gateway over simulated replicas: what it says is what comes."""

import http.client
import json
import os
import select
import signal
import socket
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import MappingProxyType
from typing import Any, NamedTuple
from urllib.parse import urlsplit

import httpx
import pytest
import yaml

from contract_file import NamedError, check, errors, operations, resolved
from gateway.errors import Internal
from served import Served, gateway, replicas

KEY = "sk-contract"
NARROW = "sk-narrow"  # a key that may do next to nothing
MODEL = "llama-70b"
HELLO = [{"role": "user", "content": "Hello"}]
_WAIT_S = 60  # of a loaded machine

FAULTS = {  # model -> what its only replica does
    MODEL: "",
    "limited": "429:openai,1s",
    "waits": "429:openai,60s",
    "resets": "reset",
    "empty": "done",
    "teapot": "status:418",
    "talks-big": "big:200000",
    "wrong-key": "401",
    "firewall": "html",
    "silent": "silence",
}


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    """A gateway with a model for each way that replicas can fail, and one that is fine."""
    profiles = {
        model: {"ttft": "1ms", "faults": [f"{fault} always"] if fault else []} for model, fault in FAULTS.items()
    }
    with replicas(**profiles) as urls, gateway(_config(urls), tmp_path_factory.mktemp("contract")) as running:
        yield running


@pytest.fixture(scope="module")
def hasty(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    """A gateway that waits for nothing, before a replica that says nothing."""
    timeouts = {"ttft_failover": "300ms", "ttft_max": "300ms", "request_body": "300ms"}
    with (
        replicas(silent={"faults": ["silence always"]}) as urls,
        gateway({**_config(urls), "timeouts": timeouts}, tmp_path_factory.mktemp("hasty")) as running,
    ):
        yield running


_CHAT_ONLY = {"name": "a", "kind": "simulated", "apis": ["chat/completions"]}


def _config(urls: Mapping[str, str]) -> dict[str, Any]:
    bases = {**urls, "absent": "http://127.0.0.1:1/v1"}  # nobody listens there
    return {
        "keys": [
            {"name": "contract", "key": KEY},
            {"name": "narrow", "key": NARROW, "models": ["absent"], "tokens_per_min": 1},
        ],
        "models": [
            {"name": model, "replicas": [{"name": "a", "kind": "simulated", "base_url": base}]}
            for model, base in bases.items()
        ]
        + [{"name": "chat-only", "replicas": [{**_CHAT_ONLY, "base_url": next(iter(urls.values()))}]}]
        + [{"name": "undiscovered", "discover": {"file": "absent.yaml"}}],
        "limits": {"event_max": "100kB"},
        "drain_timeout": "300ms",
    }


class Asked(NamedTuple):
    """A request: a JSON body, or bytes for what is no JSON; None for GET without a body."""

    body: object = None
    path: str = "/v1/chat/completions"
    method: str = "POST"
    headers: Mapping[str, str] = MappingProxyType({})


def chat(**fields: object) -> Asked:
    """A chat completion with some fields changed; None takes one out."""
    body = {"model": MODEL, "messages": HELLO, **fields}
    return Asked({name: value for name, value in body.items() if value is not None})


ERRORS: dict[str, Asked] = {  # code -> a request that gets it
    "invalid_json": Asked(b'{"model": "llama-70b", "messages": [}'),
    "duplicate_key": Asked(b'{"model": "llama-70b", "messages": [{"role": "user"}], "model": "other"}'),
    "object_above_max_properties": chat(**{f"key{number}": 0 for number in range(200)}),
    "missing_required_parameter": chat(messages=None),
    "invalid_type": chat(messages="Hello"),
    "invalid_value": chat(stream_options={"include_usage": True}),
    "unsupported_value": Asked(b"model=llama-70b", headers={"content-type": "application/x-www-form-urlencoded"}),
    "empty_string": chat(model=""),
    "empty_array": chat(messages=[]),
    "array_above_max_length": Asked({"model": MODEL, "prompt": ["Hello"] * 2049}, "/v1/completions"),
    "integer_below_min_value": chat(max_tokens=0),
    "integer_above_max_value": chat(n=17),
    "invalid_api_key": Asked({}, headers={"authorization": "Bearer wrong"}),
    "model_not_found": chat(model="gpt-17"),
    "no_replicas": chat(model="undiscovered"),
    "unsupported_api": Asked({"model": "chat-only", "prompt": "Hello"}, "/v1/completions"),
    "model_not_found 403": chat()._replace(headers={"authorization": f"Bearer {NARROW}"}),
    "rate_limit_exceeded": chat(model="absent")._replace(headers={"authorization": f"Bearer {NARROW}"}),
    "unsupported_parameter": Asked({"model": "chat-only", "input": "Hello", "store": True}, "/v1/responses"),
    "previous_response_not_found": Asked(
        {"model": MODEL, "input": "Hello", "previous_response_id": "r" * 300}, "/v1/responses"
    ),
    "unknown_url": Asked({}, "/v1/engines"),
    "method_not_allowed": Asked(method="GET"),
    "unsupported_upgrade": Asked(None, "/v1/responses", "GET", {"connection": "upgrade", "upgrade": "websocket"}),
    "request_too_large": Asked(b"[" + b" " * 10_000_001),
    "upstream_rate_limited": chat(model="waits"),
    "upstream_error": chat(model="absent"),
    "upstream_cut": chat(model="resets"),
    "upstream_empty": chat(model="empty"),
    "upstream_protocol_error": chat(model="talks-big"),
    "upstream_misconfigured": chat(model="wrong-key"),
    "upstream_rejected": chat(model="firewall"),
    "upstream_timeout": chat(model="silent"),
    "loop_detected": chat()._replace(headers={"x-ttft-hops": "4"}),
}


def send(served: Served, asked: Asked) -> httpx.Response:
    """Ask the gateway, with a good key unless another header is given."""
    content = asked.body if isinstance(asked.body, bytes | None) else json.dumps(asked.body).encode()
    headers = {"authorization": f"Bearer {KEY}", "content-type": "application/json", **asked.headers}
    return httpx.request(asked.method, served.url + asked.path, content=content, headers=headers, timeout=_WAIT_S)


def send_bytes(served: Served, data: bytes) -> httpx.Response:
    """Send what httpx would not."""
    url = urlsplit(served.url)
    with socket.create_connection((url.hostname or "", url.port or 0), timeout=_WAIT_S) as sock:
        for start in range(0, len(data), 8192):  # until it answers: what it has not read when it closes is a reset
            sock.sendall(data[start : start + 8192])
            if select.select([sock], [], [], 0.02)[0]:
                break
        answer = http.client.HTTPResponse(sock)
        answer.begin()
        return httpx.Response(answer.status, headers=answer.getheaders(), content=answer.read())


def check_answer(response: dict[str, Any], answer: httpx.Response) -> None:
    """Assert that headers and body are as a response of the contract says."""
    described = {name: resolved(header) for name, header in response.get("headers", {}).items()}
    for name, header in described.items():
        assert name in answer.headers or not header.get("required", False), name
        if name in answer.headers:
            number = header["schema"].get("type") in ("integer", "number")
            check(header["schema"], json.loads(answer.headers[name]) if number else answer.headers[name])
    told = {name for name in answer.headers if name.startswith(("x-", "retry-after", "allow", "www-"))}
    assert told <= described.keys() | {"x-request-id", "x-accel-buffering"}
    media = answer.headers["content-type"].partition(";")[0]
    check_body(media, response["content"][media], answer.text)


_READ: dict[str, Callable[[str], object]] = {"application/json": json.loads, "application/yaml": yaml.safe_load}


def check_body(media: str, content: dict[str, Any], text: str) -> None:
    """Assert that a body is as its media type and schema say."""
    if media == "text/event-stream":
        described = resolved(content["schema"])["properties"]
        *events, rest = text.split("\n\n")
        assert rest == ""
        data = described["data"]
        if "anyOf" in data:  # the last one is a constant
            done, data = data["anyOf"]
            assert events.pop() == f"data: {done['const']}"
        for event in events:
            *before, last = event.splitlines()
            value = json.loads(last.removeprefix("data: "))
            check(data["contentSchema"], value)
            assert before == ([f"event: {value['type']}"] if "event" in described else [])
    else:
        check(content["schema"], _READ.get(media, str)(text))


HASTY = {"upstream_timeout", "request_timeout"}  # had of a gateway that waits for nothing
OTHERWISE = {
    "forbidden",
    "context_length_exceeded",
    "internal_error",
    "gateway_shutting_down",
    "limits_unavailable",
    "overloaded",
    "unknown_host",
}  # have tests of their own
BYTES: dict[str, bytes] = {  # code -> bytes that get it
    "invalid_http": b"HELLO\r\n\r\n",
    "headers_too_large": b"GET /healthz HTTP/1.1\r\nx-long: %b\r\n\r\n" % (b"a" * 500_000),
    "uri_too_long": b"GET /%b HTTP/1.1\r\nhost: gateway\r\n\r\n" % (b"%41" * 3_000),
    "request_timeout": (
        b"POST /v1/completions HTTP/1.1\r\nhost: gateway\r\nauthorization: Bearer %b\r\ncontent-length: 9\r\n\r\n"
        % KEY.encode()
    ),
}


def _cases() -> Iterator[Any]:
    """Every request example of every operation, as test parameters."""
    for path, method, operation in operations():
        if "{family}" in path:
            continue  # bodies and answers are the replica's: tests/wire/test_passed_on_wire.py
        for name, example in _request_examples(operation):
            yield pytest.param(path, method, operation, example, id=f"{method} {path} {name}")


def _request_examples(operation: dict[str, Any]) -> Iterator[tuple[str, object]]:
    if "requestBody" not in operation:
        yield "without a body", None
        return
    for name, example in operation["requestBody"]["content"]["application/json"]["examples"].items():
        yield name, example["value"]


@pytest.mark.parametrize(("path", "method", "operation", "body"), list(_cases()))
def test_a_request_example_gets_the_answer_it_promises(
    served: Served, path: str, method: str, operation: dict[str, Any], body: Any
) -> None:
    """Each example request is good by its own schema, and is answered with a 200 as the contract describes it."""
    for parameter in map(resolved, operation.get("parameters", ())):
        path = path.replace(f"{{{parameter['name']}}}", str(parameter.get("example")))
    if body is not None:
        check(operation["requestBody"]["content"]["application/json"]["schema"], body)
    answer = send(served, Asked(body, path, method))
    assert answer.status_code == 200, answer.text
    check_answer(operation["responses"]["200"], answer)
    media = "text/event-stream" if body and body.get("stream") else next(iter(operation["responses"]["200"]["content"]))
    assert answer.headers["content-type"].partition(";")[0] == media


@pytest.mark.parametrize(
    "operation", [pytest.param(operation, id=f"{method} {path}") for path, method, operation in operations()]
)
def test_an_answer_example_is_as_its_schema_says(operation: dict[str, Any]) -> None:
    """What is shown as an answer could be one."""
    for response in map(resolved, operation["responses"].values()):
        for media, content in response["content"].items():
            shown = [example["value"] for example in content.get("examples", {}).values()]
            for value in [*shown, *([content["example"]] if "example" in content else [])]:
                check_body(media, content, value if isinstance(value, str) else json.dumps(value))


@pytest.mark.parametrize("error", [pytest.param(error, id=f"{error.code} {error.component}") for error in errors()])
def test_an_error_example_is_what_is_answered(served: Served, hasty: Served, error: NamedError) -> None:
    """Each named error can be had, with the status, type, param and headers that the contract gives it."""
    if error.code in OTHERWISE:
        return
    asked = ERRORS.get(f"{error.code} {error.status}") or ERRORS.get(error.code)
    if error.code == "upstream_rate_limited":
        send(served, chat(model="waits"))  # is told to wait, for those that come later
    site = hasty if error.code in HASTY else served
    answer = send(site, asked) if asked is not None else send_bytes(site, BYTES[error.code])
    check_answer(error.response, answer)
    body = answer.json()["error"]
    assert (answer.status_code, body["code"]) == (error.status, error.code), answer.text
    assert {**body, "message": ""} == {**error.example["error"], "message": ""}


@pytest.mark.parametrize(
    ("model", "status", "key", "code"), [("limited", 429, "429", "upstream_rate_limited"), ("teapot", 418, "4XX", None)]
)
def test_an_error_of_a_replica_is_passed_on(
    served: Served, model: str, status: int, key: str, code: str | None
) -> None:
    """What a replica says of itself reaches the client with its own status, code and time to wait."""
    answer = send(served, chat(model=model))
    assert (answer.status_code, answer.json()["error"]["code"]) == (status, code)
    assert answer.headers.get("retry-after") == ("1" if status == 429 else None)
    responses = {path: operation["responses"] for path, _, operation in operations()}["/v1/chat/completions"]
    check_answer(resolved(responses[key]), answer)


def test_a_bug_is_shown_as_it_is_told() -> None:
    """The example of a 500 is what the gateway says of its bugs; there is none to ask for."""
    [example] = [error.example for error in errors() if error.code == "internal_error"]
    assert json.loads(Internal(example["error"]["message"]).body()) == example


def test_overloaded(tmp_path: Path) -> None:
    """A model that has all it takes says so to the next request, and when to come back."""
    response = resolved(next(operations())[2]["responses"]["503"])
    with replicas(silent={"faults": ["silence always"]}) as urls:
        replica = {"name": "a", "kind": "simulated", "base_url": urls["silent"]}
        model = {"name": "silent", "concurrency": 1, "queue": {"max": 0}, "replicas": [replica]}
        with (
            gateway({"models": [model], "timeouts": {"commit_status_after": "10ms"}}, tmp_path) as running,
            httpx.Client(timeout=_WAIT_S) as client,
            client.stream("POST", running.url + "/v1/chat/completions", json=chat(model="silent", stream=True).body),
        ):  # its headers are there: it has its place
            refused = send(running, chat(model="silent"))
    check_answer(response, refused)
    assert (refused.status_code, refused.json()["error"]["code"]) == (503, "overloaded")
    assert (refused.headers["retry-after"], refused.headers["retry-after-ms"]) == ("5", "5000")
    assert "x-should-retry" not in refused.headers


def test_shutting_down(tmp_path: Path) -> None:
    """A gateway that stops answers so: /readyz immediately, and a request that outlives the drain."""
    described = {(path, method): operation["responses"] for path, method, operation in operations()}
    with (
        replicas(silent={"faults": ["silence always"]}) as urls,
        gateway(_config(urls), tmp_path) as running,
        ThreadPoolExecutor(1) as threads,
        httpx.Client(timeout=_WAIT_S) as client,  # one connection: it accepts none for long
    ):
        waiting = threads.submit(send, running, chat(model="silent"))
        while '"in_flight":1' not in client.get(running.admin_url + "/admin/models").text:
            pass
        assert client.get(running.url + "/readyz").status_code == 200
        os.kill(running.pid, signal.SIGTERM)
        while (ready := client.get(running.url + "/readyz")).status_code == 200:
            pass
        refused = waiting.result()
    assert (ready.status_code, refused.status_code) == (503, 503)
    check_answer(described["/readyz", "GET"]["503"], ready)
    check_answer(resolved(described["/v1/chat/completions", "POST"]["503"]), refused)
    [example] = [error.example for error in errors() if error.code == "gateway_shutting_down"]
    assert refused.json() == example
