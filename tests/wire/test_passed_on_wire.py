"""Files, batches, audio and images over real sockets: bytes in both directions, one replica, bounded memory."""

import asyncio
import contextlib
import gzip
import json
from collections.abc import AsyncIterator, Mapping
from typing import Any

import openai
import pytest

from gateway.api.passed_routes import PassedExchange
from gateway.events import RequestPassed, RequestRejected
from gateway_fixture import Site, fronting
from raw_http import Cut, answer, connect, head, request_bytes
from running import run_real
from scripted_http import read_request, serving, until
from sdk_clients import async_client
from storing import JSON, Received, Reply, storing

CONTENT = bytes(range(256)) * 1200
KEY = "sk-of-the-replica-0123456789"
FILES = {"pass_through": ["audio", "images", "files", "batches"], "recovery": "off"}
FREE_PORT = "http://127.0.0.1:9/v1"  # nothing listens there


@contextlib.asynccontextmanager
async def passing(*replicas: str, model: Mapping[str, object] | None = None, **settings: Any) -> AsyncIterator[Site]:
    """A gateway in front of these base URLs."""
    names = dict(zip("abc", replicas, strict=False))
    own = {name: {"api_key": KEY, "model": "upstream-name"} for name in names}
    async with fronting(names, model={**FILES, **(model or {})}, kind="compatible", own=own, **settings) as site:
        yield site


def active(site: Site) -> set[PassedExchange]:
    """The requests under way."""
    assert site.gateway is not None
    return site.gateway.public.passed.active


def as_openai(received: Received) -> Reply:
    """Answer as OpenAI does."""
    stored = {"id": "file-1", "object": "file", "bytes": 1, "created_at": 1, "filename": "f", "purpose": "batch"}
    match received.method, received.target.partition("?")[0]:
        case "POST", "/v1/files":
            return 200, JSON, json.dumps(stored).encode()
        case "GET", "/v1/files":
            return 200, JSON, json.dumps({"object": "list", "data": [stored], "has_more": False}).encode()
        case "GET", "/v1/files/file-1/content":
            fields = {"content-type": "application/octet-stream", "set-cookie": "a=b", "x-request-id": f"up {KEY}1"}
            return 200, fields, CONTENT
        case "DELETE", "/v1/files/file-1":
            return 200, JSON, b'{"id":"file-1","object":"file","deleted":true}'
        case "POST", "/v1/audio/speech":
            return 200, {"content-type": "audio/mpeg"}, CONTENT
        case "POST", "/v1/audio/transcriptions":
            return 200, JSON, b'{"text":"hello"}'
    return 404, JSON, b'{"error":{"message":"none","type":"invalid_request_error","param":null,"code":null}}'


def test_the_sdk_stores_and_reads_files() -> None:
    """Uploads and downloads are the same bytes, all at the first replica, with its own key and not the caller's."""

    async def main() -> None:
        async with (
            storing(as_openai) as first,
            storing(as_openai) as second,
            passing(first.url, second.url, keys=[{"name": "team", "key": "sk-team"}]) as site,
            async_client(site.url, key="sk-team") as client,
        ):
            stored = await client.files.create(file=("f.jsonl", CONTENT), purpose="batch")
            assert (await client.files.content(stored.id)).content == CONTENT
            assert [each.id async for each in client.files.list(purpose="batch")] == ["file-1"]
            assert (await client.files.delete(stored.id)).deleted
            assert CONTENT in first.requests[0].body
            assert first.requests[2].target.startswith("/v1/files?")
            assert {each.headers["authorization"] for each in first.requests} == {f"Bearer {KEY}"}
            assert not [each for each in first.requests if "sk-team" in str(each.headers)]
            assert (len(first.requests), second.requests) == (4, [])
            passed = [event for event in site.events if isinstance(event, RequestPassed)]
            assert [(each.route, each.status, each.replica, each.key_name) for each in passed] == [
                ("files", 200, "a", "team")
            ] * 4
            with pytest.raises(openai.NotFoundError):
                await client.files.retrieve("file-2")
            raw = await client.files.with_raw_response.content(stored.id)
            assert raw.headers["x-upstream-request-id"] == "up****1"

    run_real(main())


def form(*fields: tuple[str, bytes], boundary: str = "b0undary") -> bytes:
    """A form with a file, in the order of these fields."""
    parts = [
        f'--{boundary}\r\nContent-Disposition: form-data; name="{name}"'.encode()
        + (b'; filename="a.mp3"\r\nContent-Type: audio/mpeg' if name == "file" else b"")
        + b"\r\n\r\n"
        + value
        + b"\r\n"
        for name, value in fields
    ]
    return b"".join(parts) + f"--{boundary}--\r\n".encode()


def test_the_sdk_speaks_and_transcribes() -> None:
    """The replica gets its own name of the model, in JSON and anywhere in a form, and the rest as it was sent."""

    async def main() -> None:
        async with storing(as_openai) as one, passing(one.url) as site, async_client(site.url) as client:
            spoken = await client.audio.speech.create(model="m", voice="alloy", input="hello")
            assert spoken.content == CONTENT
            assert json.loads(one.requests[0].body) == {"model": "upstream-name", "voice": "alloy", "input": "hello"}
            heard = await client.audio.transcriptions.create(model="m", file=("a.mp3", CONTENT))
            assert heard.text == "hello"
            assert b'name="model"\r\n\r\nupstream-name\r\n' in one.requests[1].body
            last = form(("file", CONTENT), ("model", b"m"))
            fields = {"content-type": "multipart/form-data; boundary=b0undary"}
            async with answer(site.port, request_bytes(last, "/v1/audio/transcriptions", headers=fields)) as got:
                assert got.status == 200
                assert got.headers["x-ttft-replica"] == "a"
            assert one.requests[2].body == form(("file", CONTENT), ("model", b"upstream-name"))

    run_real(main())


def test_another_replica_follows_where_a_repeat_is_safe() -> None:
    """A refused connection and a 429 lead to the next replica; a file is nowhere else, and gets an error."""

    def limited(_: Received) -> Reply:
        return 429, JSON, b"{}"

    async def main() -> None:
        async with storing(limited) as busy, storing() as well:
            async with passing(FREE_PORT, busy.url, well.url) as site:
                async with answer(site.port, request_bytes(b'{"model":"m"}', "/v1/images/generations")) as got:
                    assert (got.status, got.headers["x-ttft-replica"]) == (200, "c")
                async with answer(site.port, request_bytes(b"{}", "/v1/files")) as got:
                    assert (got.status, got.error(await got.body())["code"]) == (502, "upstream_error")
            assert (len(busy.requests), len(well.requests)) == (1, 1)

    run_real(main())


def test_a_request_that_was_sent_is_not_sent_again() -> None:
    """A replica that dies after it has the request costs an error: its effect is unknown."""

    def dies(_: Received) -> Reply:
        raise RuntimeError

    async def main() -> None:
        async with storing(dies) as dead, storing() as well, passing(dead.url, well.url) as site:
            async with answer(site.port, request_bytes(b'{"model":"m"}', "/v1/audio/speech")) as got:
                assert (got.status, got.error(await got.body())["code"]) == (502, "upstream_cut")
            async with answer(site.port, request_bytes(b"", "/v1/audio/voices", "GET")) as got:
                assert (got.status, got.headers["x-ttft-replica"]) == (200, "b")
            assert [each.method for each in well.requests] == ["GET"]

    run_real(main())


def test_a_response_that_is_cut_looks_cut() -> None:
    """A client can see that a download is incomplete."""

    def cut(_: Received) -> Reply:
        return 200, {"content-length": "999999", "connection": "close"}, CONTENT

    async def main() -> None:
        request = request_bytes(b"", "/v1/files/file-1/content", "GET")
        async with storing(cut) as one, passing(one.url) as site, answer(site.port, request) as got:
            assert got.status == 200
            with pytest.raises(Cut):
                await got.body()

    run_real(main())


@pytest.mark.parametrize("framing", [b"content-length: 9\r\n", b"transfer-encoding: chunked\r\n"])
def test_a_response_that_is_cut_before_its_body_is_an_error(framing: bytes) -> None:
    """A replica that dies after its status costs a 502, and a GET goes to the next replica."""

    async def cut(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await read_request(reader)
        writer.write(b"HTTP/1.1 200 OK\r\n%b\r\n" % framing)

    async def main() -> None:
        async with (
            serving(cut) as dead,
            storing() as well,
            passing(f"http://127.0.0.1:{dead.port}/v1", well.url) as site,
        ):
            async with answer(site.port, request_bytes(b'{"model":"m"}', "/v1/audio/speech")) as got:
                assert (got.status, got.error(await got.body())["code"]) == (502, "upstream_cut")
            async with answer(site.port, request_bytes(b"", "/v1/audio/voices", "GET")) as got:
                assert (got.status, got.headers["x-ttft-replica"]) == (200, "b")

    run_real(main())


def test_a_response_to_http_1_0_that_is_cut_is_reset() -> None:
    """Where the end of the connection ends the body, a cut is a reset: a proxy cannot take it for a whole answer."""
    speech = request_bytes(b'{"model":"m"}', "/v1/audio/speech").replace(b"HTTP/1.1", b"HTTP/1.0", 1)

    async def cut(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await read_request(reader)
        writer.write(b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n4\r\nhalf\r\n")

    async def main() -> None:
        async with serving(cut) as server, passing(f"http://127.0.0.1:{server.port}/v1") as site:
            reader, writer = await connect(site.port)
            writer.write(speech)
            with pytest.raises(ConnectionResetError):
                await reader.read()
            writer.transport.abort()

    run_real(main())


@pytest.mark.parametrize("chunked", [False, True], ids=["with a length", "in chunks"])
def test_an_upload_waits_for_the_replica(chunked: bool) -> None:
    """While the replica does not read, the client is paused and the gateway holds a bounded part; then all arrives."""

    async def main() -> None:
        async with storing() as one, passing(one.url) as site:
            one.reads.clear()
            body = CONTENT * 64
            reader, writer = await connect(site.port)
            framing = {"transfer-encoding": "chunked"} if chunked else {"content-length": str(len(body))}
            fields = {"host": "localhost", "content-type": "application/octet-stream", **framing}
            lines = "".join(f"{name}: {value}\r\n" for name, value in fields.items())
            writer.write(f"POST /v1/files HTTP/1.1\r\n{lines}\r\n".encode())
            writer.write(b"%x\r\n%b\r\n0\r\n\r\n" % (len(body), body) if chunked else body)
            running = active(site)
            await until(lambda: any(each._is_held_up for each in running))
            (exchange,) = running
            assert exchange._upload is not None
            held = exchange._upload.waiting
            assert held < 1_000_000
            one.reads.set()
            got = await head(reader, writer, 0.0)
            assert got.status == 200
            assert one.requests[0].body == body
            assert await got.body() == body
            writer.close()

    run_real(main())


def test_a_download_waits_for_the_client() -> None:
    """While the client does not read, the replica is not read either."""

    async def main() -> None:
        big = CONTENT * 100
        async with storing(lambda _: (200, {}, big)) as one, passing(one.url) as site:
            request = request_bytes(b"", "/v1/files/f/content", "GET")
            async with answer(site.port, request, receive_bytes=65536) as got:
                (exchange,) = active(site)
                await until(lambda: exchange._stalled)
                assert (
                    exchange._transport.get_write_buffer_size() < len(big) / 3
                )  # one turn of the loop reads some megabytes
                assert await got.body() == big

    run_real(main())


def test_an_upload_over_the_bound() -> None:
    """An announced one reaches no replica; one in chunks ends there and gets the same error."""

    async def main() -> None:
        async with storing() as one, passing(one.url, limits={"upload_max": "200kB"}) as site:
            async with answer(site.port, request_bytes(CONTENT, "/v1/files")) as got:
                assert (got.status, got.error(await got.body())["code"]) == (413, "request_too_large")
            assert one.requests == []
            reader, writer = await connect(site.port)
            writer.write(b"POST /v1/files HTTP/1.1\r\nhost: localhost\r\ntransfer-encoding: chunked\r\n\r\n1\r\nx\r\n")
            await until(lambda: one.body_bytes == 1)
            writer.write(b"%x\r\n%b\r\n" % (len(CONTENT), CONTENT))
            got = await head(reader, writer, 0.0)
            assert (got.status, got.error(await got.body())["code"]) == (413, "request_too_large")
            await until(lambda: one.left == 1)
            writer.close()
            assert one.requests == []

    run_real(main())


def test_an_upload_that_stops_is_given_up() -> None:
    """A client that sends nothing more gets a 408, and one that leaves ends the request to the replica."""

    async def main() -> None:
        async with storing() as one, passing(one.url, timeouts={"request_body": "200ms"}) as site:
            start = b"POST /v1/files HTTP/1.1\r\nhost: localhost\r\ncontent-length: 100\r\n\r\npart"
            async with answer(site.port, start) as got:
                assert (got.status, got.error(await got.body())["code"]) == (408, "request_timeout")
            await until(lambda: one.left == 1)
            _, writer = await connect(site.port)
            writer.write(start)
            await until(lambda: one.body_bytes == 8)
            writer.transport.abort()
            await until(lambda: one.left == 2)
            assert not active(site)

    run_real(main())


@pytest.mark.parametrize("status", [400, 401, 403, 500])
def test_no_secret_of_a_replica_is_shown(status: int) -> None:
    """Errors and headers that quote the key come without it; the gateway's dead key is not the caller's fault."""

    def quoting(_: Received) -> Reply:
        text = json.dumps({"error": {"message": f"bad key {KEY}", "type": "t", "param": None, "code": None}})
        return status, {**JSON, "etag": KEY, "x-debug": KEY}, text.encode()

    async def main() -> None:
        request = request_bytes(b"", "/v1/files", "GET")
        async with storing(quoting) as one, passing(one.url) as site, answer(site.port, request) as got:
            error = got.error(await got.body())
            assert KEY not in str(error) + str(got.headers)
            assert got.status == (502 if status in (401, 403) else status)
            assert "bad key ****" in error["message"] or status in (401, 403)

    run_real(main())


def test_a_compressed_error_is_not_passed_back() -> None:
    """The gateway asks for no compression, and cannot remove a key from compressed text."""

    def quoting(_: Received) -> Reply:
        return 400, {**JSON, "content-encoding": "gzip"}, gzip.compress(KEY.encode())

    async def main() -> None:
        request = request_bytes(b"", "/v1/files", "GET")
        async with storing(quoting) as one, passing(one.url) as site, answer(site.port, request) as got:
            message = got.error(await got.body())["message"]
            assert (got.status, message) == (400, "the upstream answered with status 400 and a compressed error")
            assert "content-encoding" not in got.headers
            assert not active(site)

    run_real(main())


@pytest.mark.parametrize("status", [204, 304])
def test_a_response_without_a_body_has_no_framing(status: int) -> None:
    """The next response on the same connection is read: after a 204 and a 304 come no bytes (RFC 9112, 6.3)."""

    def bodiless(_: Received) -> Reply:
        return status, {"etag": '"1"', "connection": "close"}, b""

    async def main() -> None:
        async with storing(bodiless) as one, passing(one.url) as site:
            reader, writer = await connect(site.port)
            for _ in range(2):
                writer.write(request_bytes(b"", "/v1/files", "GET"))
                first, *lines = (await reader.readuntil(b"\r\n\r\n")).lower().split(b"\r\n")
                assert first.split()[1] == str(status).encode()
                assert not [line for line in lines if line.startswith((b"transfer-encoding", b"content-length"))]
            writer.transport.abort()

    run_real(main())


def test_a_redirect_keeps_its_target() -> None:
    """A download that the replica has elsewhere is found there."""

    def elsewhere(_: Received) -> Reply:
        return 302, {"location": "https://storage.example/v?sig=1"}, b""

    async def main() -> None:
        request = request_bytes(b"", "/v1/videos/v1/content", "GET")
        videos = {"pass_through": ["videos"]}
        async with storing(elsewhere) as one, passing(one.url, model=videos) as site, answer(site.port, request) as got:
            assert (got.status, got.headers["location"]) == (302, "https://storage.example/v?sig=1")

    run_real(main())


def test_an_invalid_status_is_an_error() -> None:
    """A status of no class ends the request with a 502, as it does on other routes."""

    def odd(_: Received) -> Reply:
        return 700, JSON, b"{}"

    async def main() -> None:
        request = request_bytes(b"", "/v1/files", "GET")
        async with storing(odd) as one, passing(one.url) as site, answer(site.port, request) as got:
            assert (got.status, got.error(await got.body())["message"]) == (
                502,
                "the upstream answered with the invalid status 700",
            )
            assert not active(site)

    run_real(main())


REFUSED: dict[str, tuple[str, str, bytes, int, str]] = {
    "no model passes it on": ("GET", "/v1/vector_stores", b"", 404, "unsupported_api"),
    "a model that does not pass it on": ("POST", "/v1/audio/speech", b'{"model":"plain"}', 404, "unsupported_api"),
    "an unknown model": ("POST", "/v1/audio/speech", b'{"model":"x"}', 404, "model_not_found"),
    "no model": ("POST", "/v1/images/generations", b'{"prompt":"x"}', 400, "missing_required_parameter"),
    "no JSON": ("POST", "/v1/images/generations", b"{", 400, "invalid_json"),
    "another method": ("PUT", "/v1/files", b"", 405, "method_not_allowed"),
    "a way up": ("GET", "/v1/files/../organization/users", b"", 404, "unknown_url"),
    "an escaped way up": ("GET", "/v1/files/%2e%2e/organization", b"", 404, "unknown_url"),
    "an account's administration": ("GET", "/v1/organization/users", b"", 404, "unknown_url"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_is_not_passed_on(name: str) -> None:
    """Each is an error with its reason, and reaches no replica."""
    method, path, body, status, code = REFUSED[name]

    async def main() -> None:
        async with storing() as one:
            plain = {
                "name": "plain",
                "pass_through": ["batches"],
                "replicas": [{"name": "p", "kind": "compatible", "base_url": one.url}],
            }
            async with passing(one.url, beside=[plain]) as site:
                async with answer(site.port, request_bytes(body, path, method)) as got:
                    assert (got.status, got.error(await got.body())["code"]) == (status, code)
                assert one.requests == []

    run_real(main())


def test_the_rights_and_limits_of_a_key() -> None:
    """A key uses the models it may; of several models the default one is used, and none without it; limits count."""

    async def main() -> None:
        keys = [
            {"name": "all", "key": "sk-all"},
            {"name": "other", "key": "sk-other", "models": ["other"]},
            {"name": "few", "key": "sk-few", "models": ["m"], "requests_per_min": 1},
        ]
        async with storing() as one, storing() as two:
            other = {
                "name": "other",
                "pass_through": ["files"],
                "replicas": [{"name": "o", "kind": "compatible", "base_url": two.url}],
            }
            async with passing(one.url, beside=[other], keys=keys) as site:

                async def ask(key: str) -> tuple[int, str | None]:
                    fields = {"authorization": f"Bearer {key}"}
                    async with answer(site.port, request_bytes(b"", "/v1/files", "GET", fields)) as got:
                        return got.status, got.headers.get("x-ttft-replica")

                assert await ask("sk-all") == (400, None)
                assert await ask("sk-other") == (200, "o")
                assert await ask("sk-few") == (200, "a")
                assert await ask("sk-few") == (429, None)
                assert await ask("sk-none") == (401, None)
                codes = [event.code for event in site.events if isinstance(event, RequestRejected)]
                assert codes == ["missing_required_parameter", "rate_limit_exceeded", "invalid_api_key"]
            request = request_bytes(b"", "/v1/files", "GET")
            async with (
                passing(one.url, beside=[other], default_model="other") as site,
                answer(site.port, request) as got,
            ):
                assert got.headers["x-ttft-replica"] == "o"

    run_real(main())


def test_a_replica_that_is_taken_out_holds_no_new_file() -> None:
    """The next replica of the list takes over while an operator has taken the first one out."""

    async def main() -> None:
        async with storing() as one, storing() as two, passing(one.url, two.url) as site:
            assert site.gateway is not None
            site.gateway.in_force.topology.replicas["m", "a"].out = True
            async with answer(site.port, request_bytes(b"x", "/v1/files")) as got:
                assert got.headers["x-ttft-replica"] == "b"

    run_real(main())
