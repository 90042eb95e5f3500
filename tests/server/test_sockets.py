"""Listening sockets that a process inherits."""

import contextlib
import os
import socket
from collections.abc import Iterator

import pytest

from gateway.config.values import Address
from gateway.server.hot_restart import predecessor
from gateway.server.http_server import ListenError
from gateway.server.sockets import Inherited, InheritError, from_manager, next_owner, opened


@contextlib.contextmanager
def listener(family: socket.AddressFamily = socket.AF_INET) -> Iterator[socket.socket]:
    """A listening socket of another owner."""
    with socket.socket(family) as sock:
        sock.bind(("::1" if family == socket.AF_INET6 else "127.0.0.1", 0))
        sock.listen()
        yield sock


def bound(inherited: Inherited, port: int, host: str = "127.0.0.1") -> socket.socket:
    """Return the socket for an address."""
    return inherited.bound(Address(host, port), socket.getaddrinfo(host, port, type=socket.SOCK_STREAM))


def test_an_inherited_socket_is_used_for_its_address() -> None:
    """Port 0 takes any port of the same host; each socket is used once, and only for its own address."""
    with listener() as first, listener() as second, listener(socket.AF_INET6) as third:
        ports = [sock.getsockname()[1] for sock in (first, second, third)]
        inherited = Inherited([sock.dup() for sock in (first, second, third)])
        with bound(inherited, ports[1]) as sock:
            assert sock.getsockname() == second.getsockname()
        with bound(inherited, 0) as sock:
            assert sock.getsockname() == first.getsockname()
        with bound(inherited, 0) as sock:
            assert sock.getsockname()[1] not in ports
        with bound(inherited, ports[2], "::1") as sock:
            assert sock.getsockname() == third.getsockname()
        with pytest.raises(ListenError, match="already in use"):
            bound(inherited, ports[1])
        inherited.close_rest()


def test_a_socket_of_the_manager_without_an_address_is_an_error() -> None:
    """Its connections would wait for ever; a process that is replaced may have other addresses."""
    with listener() as sock:
        host, port = sock.getsockname()
        Inherited([sock.dup()]).close_rest()
        with pytest.raises(InheritError, match=f"a socket at {host}:{port}, which is neither `listen` nor"):
            Inherited([sock.dup()], is_strict=True).close_rest()


def test_every_process_with_a_socket_sees_which_gateway_was_ready_last(monkeypatch: pytest.MonkeyPatch) -> None:
    """The owner is seen at copies of a socket, without a message; its own gateway and none are no next one."""
    with listener() as sock:
        has_next = next_owner(sock)
        inherited = Inherited([sock.dup()])
        inherited.own()  # owns none of the sockets, as none is in use
        seen = [has_next()]
        with bound(inherited, sock.getsockname()[1]):
            inherited.own()
            seen.append(has_next())
            monkeypatch.setattr(os, "getpid", os.getppid)
            inherited.own()
            seen.append(has_next())
        inherited.own()  # a closed socket is no error
    assert seen == [False, False, True]


def test_variables_for_another_process_are_ignored() -> None:
    """They are removed, so that no child uses them."""
    environ = {"LISTEN_PID": str(os.getpid() + 1), "LISTEN_FDS": "2", "LISTEN_FDNAMES": "a:b", "OTHER": "1"}
    from_manager(environ).close_rest()
    assert environ == {"OTHER": "1"}
    with pytest.raises(InheritError, match="LISTEN_FDS is 'two'; set it to the number of sockets"):
        from_manager({"LISTEN_PID": str(os.getpid()), "LISTEN_FDS": "two"})


def test_other_descriptors_are_errors() -> None:
    """A file, and a socket that does not listen on a TCP address; the message has the descriptor."""
    reading, writing = os.pipe()
    ours, theirs = socket.socketpair()
    number = ours.detach()
    with theirs, pytest.raises(InheritError, match=f"socket {number} .* does not listen on a TCP address"):
        opened([number])
    with pytest.raises(InheritError, match=f"descriptor {reading} is no socket"):
        opened([reading])
    os.close(reading)
    os.close(writing)


@pytest.mark.parametrize("is_held", [True, False])
def test_the_next_process_inherits_that_sockets_are_held(monkeypatch: pytest.MonkeyPatch, *, is_held: bool) -> None:
    """The fact that a service manager holds the sockets goes on with them, and not to a gateway with its own."""
    environ = {"TTFT_GATEWAY_SOCKETS_HELD": "1"}  # of another gateway, which has started this one
    monkeypatch.setattr("gateway.server.hot_restart.signal.signal", lambda *_: None)
    with listener() as sock:
        if is_held:
            monkeypatch.setattr("gateway.server.sockets._FIRST_DESCRIPTOR", os.dup(sock.fileno()))
            environ |= {"LISTEN_PID": str(os.getpid()), "LISTEN_FDS": "1"}
        first = predecessor(environ).inherited
        ours, theirs = socket.socketpair()
        environ["TTFT_GATEWAY_PREDECESSOR"] = f"{theirs.detach()},{os.dup(sock.fileno())}"
        before = predecessor(environ)
        with ours:
            before.report_ready()
        for inherited in (first, before.inherited):
            assert inherited.are_held is is_held
            with contextlib.suppress(InheritError):
                inherited.close_rest()
