"""The options of listening sockets."""

import socket
import sys

import pytest

from gateway.server.http_server import _NOTSENT_LOWAT, _UNSENT_BYTES_MAX, set_options


@pytest.mark.skipif(sys.platform != "linux", reason="the number of the option is Linux's")
def test_what_the_kernel_keeps_is_bounded_with_any_build_of_python(monkeypatch: pytest.MonkeyPatch) -> None:
    """The builds of python-build-standalone, which uv installs, have no name for the option."""
    monkeypatch.delattr(socket, "TCP_NOTSENT_LOWAT", raising=False)
    with socket.socket() as sock:
        set_options(sock)
        assert sock.getsockopt(socket.IPPROTO_TCP, _NOTSENT_LOWAT) == _UNSENT_BYTES_MAX
