"""The headers of a caller on their way: its ids in answer, log and upstream request, and the headers passed on."""

import asyncio
import json

import pytest
from pydantic import TypeAdapter, ValidationError

from gateway.config.request_values import PassedHeader
from gateway.events import RequestEnded, RequestRejected
from gateway_fixture import fronting, serving
from raw_http import ASK, answer, request_bytes
from running import run_real
from scripted_http import read_request
from scripted_http import serving as scripted

_TRACE = "0af7651916cd43dd8448eb211c80319c"
_PARENT = f"00-{_TRACE}-b7ad6b7169203331-01"
_WHOLE = json.dumps({**ASK, "stream": False}).encode()


@pytest.mark.parametrize("body", [_WHOLE, json.dumps(ASK).encode()])
def test_a_callers_id_is_kept(body: bytes) -> None:
    """The caller's `x-request-id` is in the answer, at the replica and in the log, its trace id in the log."""

    async def main() -> None:
        async with serving({"a": {}}) as site:
            headers = {"x-request-id": "call-1", "traceparent": _PARENT}
            async with answer(site.port, request_bytes(body, headers=headers)) as got:
                await got.body()
                assert (got.headers["x-request-id"], got.headers["x-upstream-request-id"]) == ("call-1", "call-1")
            (ended,) = [event for event in site.events if isinstance(event, RequestEnded)]
            assert (ended.request_id, ended.trace_id) == ("call-1", _TRACE)

    run_real(main())


@pytest.mark.parametrize("path", ["/v1/chat/completions", "/v1/messages/count_tokens", "/v1/models", "/nowhere"])
def test_an_error_has_the_callers_id(path: str) -> None:
    """A request that no replica receives keeps its id, too, in the answer and in the log."""

    async def main() -> None:
        async with serving({"a": {}}) as site:
            headers = {"x-request-id": "call-1", "traceparent": _PARENT}
            async with answer(site.port, request_bytes(b"{", path, headers=headers)) as got:
                assert (got.status // 100, got.headers["x-request-id"]) == (4, "call-1")
            logged = [event for event in site.events if isinstance(event, RequestRejected)]
            assert [(event.request_id, event.trace_id) for event in logged] in ([], [("call-1", _TRACE)])

    run_real(main())


def test_an_id_of_another_form_is_replaced() -> None:
    """An id that could forge a log line or a header is neither answered, nor logged, nor sent to a replica."""

    async def main() -> None:
        async with serving({"a": {}}) as site:
            async with answer(site.port, request_bytes(_WHOLE, headers={"x-request-id": "a b"})) as got:
                await got.body()
            (ended,) = [event for event in site.events if isinstance(event, RequestEnded)]
            assert got.headers["x-request-id"] == ended.request_id
            assert ended.request_id.startswith("req_")
            assert got.headers["x-upstream-request-id"].startswith("sim-")

    run_real(main())


def test_named_headers_are_passed_to_the_replica() -> None:
    """A replica receives llm-d's objectives and the headers of `pass_headers`, in any case, and no credential."""
    received: list[bytes] = []

    async def replica(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        received.append((await read_request(reader))[0])
        writer.write(b"HTTP/1.1 500 Oh\r\ncontent-length: 0\r\nconnection: close\r\n\r\n")

    async def main() -> None:
        keys = [{"name": "team", "key": "sk-of-the-caller"}]
        slo = {"x-llm-d-slo-ttft-ms": "800", "X-LLM-D-SLO-TPOT-MS": "soon"}
        own = {"x-other": "1", "cookie": "c=1", "authorization": "Bearer sk-of-the-caller", "x-ttft-target": "1s"}
        headers = {"X-Tenant": "blue", **slo, **own}
        async with scripted(replica) as server:
            urls = {"a": f"http://127.0.0.1:{server.port}/v1"}
            async with (
                fronting(urls, kind="vllm", keys=keys, pass_headers=["x-tenant"]) as site,
                answer(site.port, request_bytes(_WHOLE, headers=headers)) as got,
            ):
                assert got.status == 500
        lines = received[0].split(b"\r\n")
        assert {b"x-tenant: blue", b"x-llm-d-slo-ttft-ms: 800", b"x-llm-d-slo-tpot-ms: soon"} <= set(lines)
        own_names = (b"x-other", b"cookie", b"sk-of-the-caller", b"x-ttft-target")
        assert not [name for name in own_names if name in received[0]]

    run_real(main())


@pytest.mark.parametrize(
    ("connection", "hidden"),
    [
        (["x-tenant"], {"x-tenant"}),
        (["close, X-TENANT ,\ttraceparent"], {"x-tenant", "traceparent"}),
        (["x-tenant", "keep-alive"], {"x-tenant"}),
        (["keep-alive", "anthropic-beta, x-request-id"], {"anthropic-beta", "x-request-id"}),
        (["keep-alive"], set()),
        (["Keep-Alive, Upgrade"], set()),
        (["close"], set()),
        (["x-tenant-b, , tenant"], set()),
        ([], set()),
    ],
)
def test_headers_of_the_connection_stay_at_the_gateway(connection: list[str], hidden: set[str]) -> None:
    """A replica receives no header that is named in a `Connection` header of the caller (RFC 9110, 7.6.1)."""
    received: list[bytes] = []
    given = {"x-tenant": "blue", "traceparent": _PARENT, "anthropic-beta": "b-1", "x-request-id": "call-1"}

    async def replica(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        received.append((await read_request(reader))[0])
        writer.write(b"HTTP/1.1 500 Oh\r\ncontent-length: 0\r\nconnection: close\r\n\r\n")

    async def main() -> None:
        lines = "".join(f"Connection: {value}\r\n" for value in connection).encode()
        payload = request_bytes(_WHOLE, headers=given).replace(b"\r\n", b"\r\n" + lines, 1)
        async with scripted(replica) as server:
            urls = {"a": f"http://127.0.0.1:{server.port}/v1"}
            async with (
                fronting(urls, kind="vllm", pass_headers=["x-tenant"]) as site,
                answer(site.port, payload) as got,
            ):
                assert (got.status, got.headers["x-request-id"]) == (500, "call-1")
        lacking = {name for name, value in given.items() if f"\r\n{name}: {value}\r\n".encode() not in received[0]}
        assert lacking == hidden

    run_real(main())


@pytest.mark.parametrize("name", ["authorization", "Cookie", "x-goog-api-key", "x-auth-token", "proxy-authorization"])
def test_no_credential_can_be_passed(name: str) -> None:
    """The configuration rejects names of headers that carry credentials."""
    with pytest.raises(ValidationError):
        TypeAdapter(PassedHeader).validate_python(name)
