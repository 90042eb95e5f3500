"""Requests that are aborted while their connection opens, on both event loops: none stays open or counted."""

import asyncio
import ssl
from collections.abc import Callable
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest
import trustme

from gateway.cli.event_loop import AsyncioLoop
from http_clients import client_of
from providers.transport.http1 import Connection
from providers.transport.tls import TlsTransport
from running import run_on
from scripted_http import ASK, OK, Recorder, answering, exchange, serving, until
from ttft_gateway.apis.base import HttpStream

_Loop = Callable[[], asyncio.AbstractEventLoop]


def _loops() -> dict[str, _Loop]:
    if find_spec("uvloop") is None:
        return {"asyncio": AsyncioLoop}
    return {"asyncio": AsyncioLoop, "uvloop": import_module("gateway.cli.uv_loop").UvLoop}


@pytest.mark.parametrize("loop", _loops().values(), ids=_loops())
@pytest.mark.parametrize("kind", ["tcp", "unix socket", "tls, socket open", "tls, handshake over"])
def test_an_abort_while_a_connection_opens_leaves_none(
    loop: _Loop, kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An abort between `connection_made` and the next step of the connecting task closes the socket."""
    authority, path = trustme.CA(), str(tmp_path / "s") if kind == "unix socket" else None
    served, trusting = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER), ssl.create_default_context()
    authority.issue_cert("localhost").configure_cert(served)
    authority.configure_trust(trusting)
    has_tls = kind.startswith("tls")
    aborted: list[HttpStream] = []
    protocol = TlsTransport if kind == "tls, socket open" else Connection
    made: Callable[[Any, asyncio.BaseTransport], None] = protocol.connection_made

    def made_and_aborted(self: asyncio.BaseProtocol, transport: asyncio.BaseTransport) -> None:
        made(self, transport)
        while aborted:
            aborted.pop().abort()

    async def main() -> None:
        async with (
            serving(answering(OK), path=path, tls=served if has_tls else None) as server,
            client_of("wire", server, host="localhost", socket=path, tls=trusting if has_tls else None) as client,
        ):
            aborted.append(client.send(ASK, Recorder()))
            await until(lambda: not aborted)
            if not has_tls:
                await server.gone.wait()
            await until(lambda: client.connections == 0)
            assert (await exchange(client)).body == b"hi"
            assert client.connections == 1

    monkeypatch.setattr(protocol, "connection_made", made_and_aborted)
    run_on(loop, main())
