"""Bad input over real sockets: each gets its status and an OpenAI error body, and no replica ever hears of it."""

import asyncio
import contextlib
import json
from collections.abc import AsyncIterator, Sequence
from typing import NamedTuple

import pytest

from gateway.api import http_protocol
from gateway_fixture import Site, serving
from raw_http import ASK, CHAT, Answer, Cut, answer, asking, connect, head, request_bytes
from running import run_real

_BODY_MAX = 100_000
_KEY = "sk-right-right-right"
_GOOD = json.dumps({**ASK, "stream": False}).encode()


@contextlib.asynccontextmanager
async def _gateway(keys: Sequence[object] = (), body_s: float = 30) -> AsyncIterator[Site]:
    """A gateway with a replica that must receive no request while inside."""
    limits = {"request_body_max": f"{_BODY_MAX}B"}
    timeouts = {"request_body": f"{body_s}s"}
    async with serving({"a": {}}, keys=keys, limits=limits, timeouts=timeouts) as site:
        yield site
        assert site.reached == 0
        assert site.replicas["a"].stats.connections_opened == 0


class Case(NamedTuple):
    """A request, and what it must be answered with."""

    payload: bytes
    status: int
    code: str | None = None
    param: str | None = None


def _with(**fields: object) -> bytes:
    return request_bytes(json.dumps({**ASK, **fields}).encode())


CASES = {
    "no body": Case(request_bytes(b""), 400),
    "not JSON": Case(request_bytes(b'{"model": "m", '), 400),
    "not an object": Case(request_bytes(b"[1, 2]"), 400),
    "not UTF-8": Case(request_bytes(b'{"model": "m", "messages": [{"role": "user", "content": "\xff"}]}'), 400),
    "too deep": Case(request_bytes(b'{"model": "m", "messages": ' + b"[" * 50_000), 400),
    "a key twice": Case(
        request_bytes(b'{"model": "m", "model": "m", "messages": [{"role": "user"}]}'), 400, None, "model"
    ),
    "no model": Case(asking(model=None), 400, param="model"),
    "an unknown model": Case(_with(model="gpt-9"), 404, "model_not_found", "model"),
    "no messages": Case(asking(messages=None), 400, param="messages"),
    "messages of a wrong type": Case(_with(messages="hello"), 400, param="messages"),
    "stream of a wrong type": Case(_with(stream="yes"), 400, param="stream"),
    "n of a wrong type": Case(_with(n="2"), 400, param="n"),
    "too many choices": Case(_with(n=99), 400, param="n"),
    "no choice": Case(_with(n=0), 400, param="n"),
    "no tokens": Case(_with(max_tokens=0), 400, param="max_tokens"),
    "too many tokens": Case(_with(max_completion_tokens=10**9), 400, param="max_completion_tokens"),
    "options of a stream without a stream": Case(
        _with(stream=False, stream_options={"include_usage": True}), 400, param="stream_options"
    ),
    "too large": Case(request_bytes(_GOOD + b" " * _BODY_MAX), 413, "request_too_large"),
    "an unknown route": Case(request_bytes(_GOOD, "/v1/engines"), 404, "unknown_url"),
    "no route at all": Case(request_bytes(_GOOD, "/v1"), 404, "unknown_url"),
    "a wrong method": Case(request_bytes(b"", method="GET"), 405, "method_not_allowed"),
    "a wrong method elsewhere": Case(request_bytes(_GOOD, "/v1/models"), 405, "method_not_allowed"),
    "a header bomb": Case(request_bytes(_GOOD, headers={"x-bomb": "x" * 100_000}), 431, "headers_too_large"),
    "many headers": Case(
        request_bytes(_GOOD, headers={f"x-{n}": "x" * 100 for n in range(1000)}), 431, "headers_too_large"
    ),
    "an endless path": Case(request_bytes(_GOOD, CHAT + "?" + "x" * 100_000), 414, "uri_too_long"),
    "a header that never ends": Case(
        request_bytes(_GOOD, headers={"x-bomb": "x" * 5_000_000}), 431, "headers_too_large"
    ),
    "not HTTP": Case(b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03\r\n\r\n", 400, "invalid_http"),
    "two lengths": Case(
        b"POST /v1/chat/completions HTTP/1.1\r\nhost: localhost\r\ncontent-length: 5\r\ncontent-length: 6\r\n\r\nhello",
        400,
    ),
    "a length that is none": Case(
        b"POST /v1/chat/completions HTTP/1.1\r\nhost: localhost\r\ncontent-length: many\r\n\r\n", 400, "invalid_http"
    ),
}


async def _check(got: Answer, case: Case) -> None:
    error = got.error(await got.body())
    assert got.status == case.status
    assert got.headers["content-type"] == "application/json"
    assert error["message"]
    assert error["type"]
    assert error["param"] == case.param
    assert case.code in (None, error["code"])


def test_bad_input_is_refused_in_openais_form(subtests: pytest.Subtests) -> None:
    """Whatever is wrong gets its status, code and param, and no replica is asked."""

    async def main() -> None:
        async with _gateway() as site:
            for name, case in CASES.items():
                with subtests.test(name):
                    async with answer(site.port, case.payload) as got:
                        await _check(got, case)

    run_real(main())


def test_a_refused_request_leaves_its_connection_usable() -> None:
    """After a 400 with a body that was read, the same connection serves the next request."""

    async def main() -> None:
        async with serving({"a": {"tokens": 3}}) as site:
            reader, writer = await connect(site.port)
            loop = asyncio.get_running_loop()
            for payload, status in ((_with(n=99), 400), (request_bytes(_GOOD), 200), (_with(model="x"), 404)):
                writer.write(payload)
                got = await head(reader, writer, loop.time())
                assert got.status == status
                assert json.loads(await got.body())
            writer.close()
            await writer.wait_closed()

    run_real(main())


def test_a_body_over_the_limit_is_refused_before_it_is_all_read() -> None:
    """A declared length is refused immediately, chunks as soon as they are too many; then the connection ends."""
    piece = b"x" * (_BODY_MAX // 2)

    async def send(port: int, framing: str, pieces: bytes) -> None:
        reader, writer = await connect(port)
        writer.write(f"POST {CHAT} HTTP/1.1\r\nhost: localhost\r\n{framing}\r\n\r\n".encode() + pieces)
        await _check(await head(reader, writer, 0.0), Case(b"", 413, "request_too_large"))
        assert await reader.read() == b""
        writer.close()
        await writer.wait_closed()

    async def main() -> None:
        async with _gateway() as site, asyncio.TaskGroup() as tasks:
            tasks.create_task(send(site.port, "content-length: 50000000", piece))
            tasks.create_task(
                send(site.port, "transfer-encoding: chunked", (b"%x\r\n%b\r\n" % (len(piece), piece)) * 3)
            )

    run_real(main())


def test_who_asks_before_sending_a_large_body_is_not_told_to_go_on() -> None:
    """With `Expect: 100-continue` the first thing to come is the 413."""

    async def main() -> None:
        async with _gateway() as site:
            payload = request_bytes(b"", headers={"content-length": "50000000", "expect": "100-continue"})
            async with answer(site.port, payload) as got:
                await _check(got, Case(b"", 413, "request_too_large"))

    run_real(main())


def test_a_head_in_pieces_is_as_large_as_its_pieces_together() -> None:
    """A head over the bound is refused although no single read brings that much."""

    async def main() -> None:
        async with _gateway() as site:
            payload = request_bytes(_GOOD, headers={"x-bomb": "x" * 70_000})
            reader, writer = await connect(site.port)
            for piece in (payload[:40_000], payload[40_000:]):
                writer.write(piece)
                await asyncio.sleep(0.05)
            await _check(await head(reader, writer, 0.0), Case(b"", 431, "headers_too_large"))
            writer.transport.abort()

    run_real(main())


def test_a_sender_that_goes_on_still_gets_to_read_the_refusal() -> None:
    """Who sends all of a large body before reading anything finds the 413 there, not a reset."""

    async def main() -> None:
        async with _gateway() as site:
            payload = request_bytes(_GOOD + b" " * 5_000_000)
            reader, writer = await connect(site.port)
            for start in range(0, len(payload), 100_000):
                writer.write(payload[start : start + 100_000])
                await writer.drain()
            await _check(await head(reader, writer, 0.0), Case(b"", 413, "request_too_large"))
            writer.transport.abort()

    run_real(main())


def test_a_slow_sender_is_told_so() -> None:
    """A body that does not arrive in time is a 408, although bytes keep trickling in."""

    async def main() -> None:
        async with _gateway(body_s=0.2) as site:
            reader, writer = await connect(site.port)
            payload = request_bytes(_GOOD)

            async def trickle() -> None:
                with contextlib.suppress(ConnectionError):
                    for byte in payload[:-10]:
                        if writer.is_closing():  # uvloop rejects writes to a closed transport
                            return
                        writer.write(bytes([byte]))
                        await asyncio.sleep(0.002)

            async with asyncio.TaskGroup() as tasks:
                tasks.create_task(trickle())
                await _check(await head(reader, writer, 0.0), Case(b"", 408, "request_timeout"))
                writer.transport.abort()

    run_real(main())


def test_slow_headers_are_told_so(monkeypatch: pytest.MonkeyPatch) -> None:
    """A head that does not arrive in time is a 408, and its connection ends."""
    monkeypatch.setattr(http_protocol, "HEAD_S_MAX", 0.1)

    async def main() -> None:
        async with _gateway() as site:
            reader, writer = await connect(site.port)
            writer.write(request_bytes(_GOOD)[:40])
            await _check(await head(reader, writer, 0.0), Case(b"", 408, "request_timeout"))
            assert await reader.read() == b""
            writer.close()
            await writer.wait_closed()

    run_real(main())


def test_a_client_that_leaves_in_the_middle_of_its_request_is_no_request() -> None:
    """Half a body and then nothing reaches no replica, and leaves nothing behind."""

    async def main() -> None:
        async with _gateway() as site:
            _, writer = await connect(site.port)
            writer.write(request_bytes(_GOOD)[:-5])
            await asyncio.sleep(0.05)
            writer.close()
            await writer.wait_closed()
            async with answer(site.port, request_bytes(b"", "/healthz", "GET")) as got:
                assert got.status == 200
            assert not site.events

    run_real(main())


def test_a_pipelined_request_waits_its_turn() -> None:
    """Two requests in one write get two answers, in order."""

    async def main() -> None:
        async with serving({"a": {"ttft": "10ms", "tokens": 3}}) as site:
            reader, writer = await connect(site.port)
            writer.write(request_bytes(_GOOD) + asking())
            first = await head(reader, writer, 0.0)
            assert json.loads(await first.body())["object"] == "chat.completion"
            second = await head(reader, writer, 0.0)
            assert (await second.body()).endswith(b"data: [DONE]\n\n")
            writer.close()
            await writer.wait_closed()

    run_real(main())


def test_a_wrong_key_is_a_401() -> None:
    """No key, a wrong one and nonsense are refused alike, on raced routes and on the others."""

    async def main() -> None:
        async with _gateway(keys=[{"name": "team", "key": _KEY}]) as site:
            for given in (None, "Bearer", "Bearer ", "Bearer wrong", "Bearer clé", _KEY, f"Basic {_KEY}"):
                headers = {"authorization": given} if given else {}
                for path, method in ((CHAT, "POST"), ("/v1/models", "GET")):
                    async with answer(site.port, request_bytes(_GOOD, path, method, headers)) as got:
                        await _check(got, Case(b"", 401, "invalid_api_key"))

    run_real(main())


def test_a_key_is_taken_in_either_header() -> None:
    """A key may come as a bearer token or, as Anthropic's SDKs send it, as `x-api-key`, on every route."""

    async def main() -> None:
        keys = [{"name": "team", "key": _KEY}]
        async with serving({"a": {"ttft": "1ms", "tokens": 1}}, keys=keys) as site:
            for headers in ({"authorization": f"Bearer {_KEY}"}, {"x-api-key": _KEY}):
                for path, method in ((CHAT, "POST"), ("/v1/models", "GET")):
                    async with answer(site.port, request_bytes(_GOOD, path, method, headers)) as got:
                        assert got.status == 200

    run_real(main())


def test_a_connection_cut_in_the_head_is_no_request() -> None:
    """Half a head and then nothing gets no answer and reaches no replica."""

    async def main() -> None:
        async with _gateway() as site:
            reader, writer = await connect(site.port)
            writer.write(request_bytes(_GOOD)[:30])
            writer.write_eof()
            with contextlib.suppress(Cut):
                assert (await head(reader, writer, 0.0)).status == 400
            writer.close()
            await writer.wait_closed()

    run_real(main())


HEALTH_CHECKS = {
    b"OPTIONS / HTTP/1.0\r\n\r\n": b"HTTP/1.1 204 ",  # HAProxy's default
    b"HEAD /readyz HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\n\r\n": b"HTTP/1.1 200 ",
    b"HEAD /v1/models HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\n\r\n": b"HTTP/1.1 200 ",
}


def test_health_checks_without_a_body() -> None:
    """The default checks of load balancers pass: HEAD, and OPTIONS over HTTP/1.0 without a host."""

    async def main() -> None:
        async with serving({"a": {"ttft": "1ms"}}) as site:
            for request, status in HEALTH_CHECKS.items():
                reader, writer = await connect(site.port)
                writer.write(request)
                answer_bytes = await reader.read()
                writer.transport.abort()
                assert answer_bytes.startswith(status)
                assert answer_bytes.endswith(b"\r\n\r\n")

    run_real(main())
