"""WebSocket handshakes over real sockets: they get the status after which Codex uses HTTP; other upgrades do not."""

import asyncio
import json

import pytest

from gateway.events import RequestRejected
from gateway_fixture import serving
from raw_http import answer, connect, head, request_bytes
from running import run_real

_PATH = "/v1/responses"
_KEY = "sk-right-right-right"
_GOOD = json.dumps({"model": "m", "input": "hello"}).encode()
_CODEX = {  # its handshake, without tracing and metadata
    "Host": "test",
    "Connection": "Upgrade",
    "Upgrade": "websocket",
    "Sec-WebSocket-Version": "13",
    "Sec-WebSocket-Key": "YOtrF/JjWTi+xv11AKnDaw==",
    "openai-beta": "responses_websockets=2026-02-06",
}
_UPGRADE = {"Connection": "upgrade", "Upgrade": "websocket"}
_THROUGH_NGINX = {"Connection": "close", "Sec-WebSocket-Key": "YOtrF/JjWTi+xv11AKnDaw=="}  # with nginx's defaults


def _get(headers: dict[str, str], path: str = _PATH, version: str = "1.1") -> bytes:
    lines = "".join(f"{name}: {value}\r\n" for name, value in headers.items())
    return f"GET {path} HTTP/{version}\r\n{lines}\r\n".encode()


_REJECTED = {
    "as Codex sends it": _get(_CODEX),
    "with a key": _get({**_CODEX, "authorization": f"Bearer {_KEY}"}),
    "with an unknown key": _get({**_CODEX, "authorization": "Bearer sk-wrong"}),
    "with a query": _get(_CODEX, f"{_PATH}?api-version=1"),
    "in other letters and among others": _get({**_CODEX, "Upgrade": "h2c, WebSocket"}),
    "without the key of a handshake": _get({"Host": "test", **_UPGRADE}),
    "through a proxy without upgrades": _get({"Host": "test", **_THROUGH_NGINX}),
    "through a proxy with HTTP/1.0": _get(_THROUGH_NGINX, version="1.0"),
}
_UNCHANGED = {
    "no upgrade": (_get({"Host": "test"}), 405, "method_not_allowed"),
    "another protocol": (_get({"Host": "test", **_UPGRADE, "Upgrade": "h2c"}), 405, "method_not_allowed"),
    "an upgrade in HTTP/1.0": (_get(_UPGRADE, version="1.0"), 405, "method_not_allowed"),
    "another API": (_get(_CODEX, "/v1/chat/completions"), 405, "method_not_allowed"),
    "no route": (_get(_CODEX, "/v1/realtime"), 404, "unknown_url"),
    "a body": (request_bytes(b"[]", _PATH, headers={**_UPGRADE, "Upgrade": "h2c"}), 400, "invalid_type"),
    "a body and a WebSocket": (request_bytes(b"[]", _PATH, headers=_UPGRADE), 400, "invalid_type"),
}


def test_a_handshake_gets_the_status_after_which_codex_uses_http(subtests: pytest.Subtests) -> None:
    """It gets a 426 with or without a key, the connection ends, and the log has one line of it."""

    async def main() -> None:
        async with serving({"a": {}}, keys=[{"name": "team", "key": _KEY}]) as site:
            for name, payload in _REJECTED.items():
                with subtests.test(name):
                    site.events.clear()
                    async with answer(site.port, payload) as got:
                        error = got.error(await got.body())
                        assert (got.status, error["code"]) == (426, "unsupported_upgrade")
                        assert error["message"] == "WebSocket is not supported at /v1/responses; use POST"
                        assert (got.headers["upgrade"], got.headers["connection"]) == ("HTTP/1.1", "upgrade, close")
                        assert await got.reader.read() == b""
                    (rejected,) = [event for event in site.events if isinstance(event, RequestRejected)]
                    assert (rejected.status, rejected.code) == (426, "unsupported_upgrade")
            assert site.reached == 0

    run_real(main())


def test_other_requests_with_an_upgrade_are_answered_as_before(subtests: pytest.Subtests) -> None:
    """Other protocols, other paths and requests with a body get no 426."""

    async def main() -> None:
        async with serving({"a": {}}) as site:
            for name, (payload, status, code) in _UNCHANGED.items():
                with subtests.test(name):
                    async with answer(site.port, payload) as got:
                        error = got.error(await got.body())
                        assert (got.status, error["code"]) == (status, code)
                        assert "upgrade" not in got.headers
            assert site.reached == 0

    run_real(main())


def test_a_request_after_the_handshake_is_served() -> None:
    """The POST that Codex sends next, on a connection of its own, gets its answer."""

    async def main() -> None:
        async with serving({"a": {"tokens": 3}}) as site:
            loop = asyncio.get_running_loop()
            for payload, status in ((_get(_CODEX), 426), (request_bytes(_GOOD, _PATH), 200)):
                reader, writer = await connect(site.port)
                writer.write(payload)
                got = await head(reader, writer, loop.time())
                assert got.status == status
                assert json.loads(await got.body())
                writer.close()
                await writer.wait_closed()
            assert site.reached == 1

    run_real(main())
