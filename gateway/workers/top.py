"""The top process: imports everything, then only forks the supervisor and the workers, and waits for them.

It never has an event loop or a thread, because a fork would copy a part of them. Signals are for it: it passes them on
to the supervisor, and replaces workers that end. Units: seconds.
"""

import contextlib
import gc
import os
import select
import signal
import socket
import sys
import tempfile
import time
import traceback
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Final

import msgspec

from gateway.config.values import Address
from gateway.server.http_server import cannot_listen, listening
from gateway.server.notify import notify
from gateway.workers.messages import ToSupervisor, ToTop

_STABLE_S: Final = 5.0  # a worker that served for this long is replaced immediately when it ends
_DELAY_S_MAX: Final = 30.0  # between two starts of a worker that ends again and again
_KILL_S: Final = 5.0  # from a second signal, or from the end of the supervisor, to SIGKILL
_PACKET_BYTES_MAX: Final = 4096
_PASSED: Final = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)

_encode = msgspec.msgpack.Encoder().encode
_decode = msgspec.msgpack.Decoder(ToTop).decode


class ForkFailed(Exception):
    """The system does not allow another process; the message contains the reason."""


@dataclass
class _Slot:
    """One worker of the configured number.

    Attributes:
        process: id of its process; 0 while there is none.
        ready_s: time since which it serves; None before.
        failures: number of processes in a row that ended soon.
        due_s: time of the next start; None while a process runs.
    """

    number: int
    process: int = 0
    ready_s: float | None = None
    failures: int = 0
    due_s: float | None = None


Child = Callable[[], int]
"""Runs in a forked process; returns its exit code."""


@dataclass(frozen=True, slots=True)
class Children:
    """Functions of the forked processes.

    Attributes:
        supervisor: given its socket to the top process.
        worker: given its number, and its sockets to the supervisor.
    """

    supervisor: Callable[[socket.socket], int]
    worker: Callable[[int, socket.socket, socket.socket], int]


def bind(address: Address) -> socket.socket:
    """Return a listening socket.

    Raises:
        ListenError: the address is in use or not local.
    """
    try:
        found = socket.getaddrinfo(*address, type=socket.SOCK_STREAM)
    except OSError as error:
        raise cannot_listen(address, error) from error
    return listening(address, found)


def lock_file() -> int:
    """Return a descriptor of a new file without a name, for locks between forked processes."""
    with tempfile.TemporaryFile() as file:
        return os.dup(file.fileno())


class Top:
    """The top process.

    Args:
        workers: number of workers.
        children: functions of the forked processes.
        inherited: listening sockets, which stay open in the supervisor only.
        drain_s: time for the requests of the workers if the supervisor ends unexpectedly.
    """

    def __init__(self, workers: int, children: Children, inherited: list[socket.socket], drain_s: float) -> None:
        self._slots = [_Slot(number) for number in range(1, workers + 1)]
        self._children = children
        self._inherited = inherited
        self._drain_s = drain_s
        self._control, self._theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self._supervisor = 0
        self._code: int | None = None  # of the supervisor, once it has ended
        self._is_stopping = False
        self._kill_s: float | None = None
        self._signals = 0

    def run(self) -> int:
        """Run until all processes have ended; return the exit code.

        Raises:
            ForkFailed: the system does not allow the processes.
        """
        gc.collect()
        gc.freeze()  # what the processes share is not copied by their garbage collections
        with _signal_pipe() as received:
            self._supervisor = _fork(lambda: self._children.supervisor(self._theirs), [self._control])
            self._theirs.close()
            self._control.setblocking(False)  # a supervisor that hangs must not stop this process
            for sock in self._inherited:
                sock.close()
            try:
                for slot in self._slots:
                    self._start(slot)
            except ForkFailed as error:
                _report("error", str(error))
                self._is_stopping = True
                self._control.close()  # the supervisor then ends, and with it the other workers
            while self._code is None or any(slot.process for slot in self._slots):
                self._wait(received)
                self._reap()
                self._replace()
                self._kill()
        return self._code

    def _wait(self, received: int) -> None:
        """Wait for a signal, a message or the next thing to do."""
        due = [slot.due_s for slot in self._slots if slot.due_s is not None and not self._is_stopping]
        due += [] if self._kill_s is None else [self._kill_s]
        timeout_s = max(0.0, min(due) - _now_s()) if due else None
        watched: list[int | socket.socket] = [received, *([self._control] if self._control.fileno() >= 0 else [])]
        found, _, _ = select.select(watched, [], [], timeout_s)
        if received in found:
            for number in os.read(received, 64):
                self._on_signal(number)
        if self._control in found:
            self._on_message()

    def _on_signal(self, number: int) -> None:
        if number not in _PASSED:
            return
        if number != signal.SIGHUP:
            self._is_stopping = True
            self._signals += 1
            if self._signals == 2:
                self._kill_s = _now_s() + _KILL_S
        self._send(ToSupervisor(signal=number))

    def _on_message(self) -> None:
        try:
            content = self._control.recv(_PACKET_BYTES_MAX)
        except OSError:
            content = b""
        if not content:  # the supervisor has ended, which is seen by its process id
            self._control.close()
            return
        message = _decode(content)
        if message.notify:
            notify(message.notify)
        if message.stopping_s is not None:
            self._is_stopping = True
            self._kill_s = self._kill_s or _now_s() + message.stopping_s + _KILL_S
        for slot in self._slots:
            if message.ready and slot.process == message.ready:
                slot.ready_s = _now_s()

    def _send(self, message: ToSupervisor, sockets: list[socket.socket] | None = None) -> None:
        with contextlib.suppress(OSError):  # the supervisor has ended
            socket.send_fds(self._control, [_encode(message)], [sock.fileno() for sock in sockets or []])

    def _start(self, slot: _Slot) -> None:
        """Fork a worker, and give its sockets to the supervisor."""
        ours, theirs = (list(pair) for pair in zip(socket.socketpair(), socket.socketpair(), strict=True))
        try:
            slot.process = _fork(
                lambda: self._children.worker(slot.number, *theirs), [self._control, self._theirs, *ours]
            )
            slot.due_s = slot.ready_s = None
            self._send(ToSupervisor(worker=slot.number, process=slot.process), ours)
        finally:
            for sock in (*ours, *theirs):
                sock.close()

    def _reap(self) -> None:
        while True:
            try:
                process, status = os.waitpid(-1, os.WNOHANG)
            except ChildProcessError:
                return
            if process == 0:
                return
            code = os.waitstatus_to_exitcode(status)
            if process == self._supervisor:
                self._code = code if code >= 0 else 1
                self._on_supervisor_end(code)
            for slot in self._slots:
                if slot.process == process:
                    self._on_worker_end(slot, code)

    def _on_supervisor_end(self, code: int) -> None:
        """Wait for the workers, which end after their requests."""
        wait_s = _KILL_S
        if code < 0 and self._kill_s is None:
            _report("error", f"the supervisor {_ended(code)}; the gateway stops")
            wait_s += self._drain_s
        self._is_stopping = True
        self._kill_s = self._kill_s or _now_s() + wait_s

    def _on_worker_end(self, slot: _Slot, code: int) -> None:
        now_s = _now_s()
        was_stable = slot.ready_s is not None and now_s >= slot.ready_s + _STABLE_S
        slot.failures = 0 if was_stable else slot.failures + 1
        self._send(ToSupervisor(ended=slot.process, reason=_ended(code)))
        slot.process, slot.ready_s = 0, None
        slot.due_s = now_s + delay_s(slot.failures)

    def _replace(self) -> None:
        """Start the workers that are due."""
        for slot in self._slots:
            if not self._is_stopping and slot.due_s is not None and _now_s() >= slot.due_s:
                try:
                    self._start(slot)
                except ForkFailed as error:
                    _report("warning", str(error))
                    slot.failures += 1
                    slot.due_s = _now_s() + delay_s(slot.failures)

    def _kill(self) -> None:
        """End what has not ended in time."""
        if self._kill_s is not None and _now_s() >= self._kill_s:
            self._kill_s = _now_s() + _KILL_S
            for process in (*(slot.process for slot in self._slots), 0 if self._code is not None else self._supervisor):
                if process:
                    with contextlib.suppress(ProcessLookupError):
                        os.kill(process, signal.SIGKILL)


def _now_s() -> float:
    """Return the time of the only process without an event loop."""
    return time.clock_gettime_ns(time.CLOCK_MONOTONIC) / 1e9


def delay_s(failures: int) -> float:
    """Return the delay of the next start of a worker, after this number of processes in a row that ended soon."""
    return 0.0 if failures < 2 else min(_DELAY_S_MAX, 2.0 ** (failures - 2))


def _report(level: str, text: str) -> None:
    sys.stderr.write(f"{level}: {text}\n")
    sys.stderr.flush()


def _ended(code: int) -> str:
    if code >= 0:
        return f"has ended with exit code {code}"
    try:
        return f"was ended by {signal.Signals(-code).name}"
    except ValueError:
        return f"was ended by signal {-code}"


def _fork(child: Child, closed: list[socket.socket]) -> int:
    """Run a function in a new process, which ignores the signals of the top process; return its id.

    Args:
        closed: sockets that the new process closes.

    Raises:
        ForkFailed: the system does not allow it.
    """
    sys.stdout.flush()
    sys.stderr.flush()
    blocked = signal.pthread_sigmask(signal.SIG_BLOCK, (*_PASSED, signal.SIGCHLD))
    try:
        process = os.fork()
    except OSError as error:
        signal.pthread_sigmask(signal.SIG_SETMASK, blocked)
        raise ForkFailed(f"a process cannot be started: {error.strerror}; raise the limit of processes") from error
    if process:
        signal.pthread_sigmask(signal.SIG_SETMASK, blocked)
        return process
    code = 1
    try:
        signal.set_wakeup_fd(-1)
        for number in _PASSED:
            signal.signal(number, signal.SIG_IGN)
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        signal.pthread_sigmask(signal.SIG_SETMASK, blocked)
        for sock in closed:
            sock.close()
        code = child()
        sys.stdout.flush()
        sys.stderr.flush()
    except BaseException:
        traceback.print_exc()
    finally:
        os._exit(code)


@contextlib.contextmanager
def _signal_pipe() -> Iterator[int]:
    """Yield a descriptor from which the numbers of received signals are read."""
    reading, writing = os.pipe()
    os.set_blocking(writing, False)
    for number in (*_PASSED, signal.SIGCHLD):
        signal.signal(number, lambda _number, _frame: None)
    signal.set_wakeup_fd(writing, warn_on_full_buffer=False)
    try:
        yield reading
    finally:
        signal.set_wakeup_fd(-1)
        os.close(reading)
        os.close(writing)
