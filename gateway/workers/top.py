"""The top process: imports everything, then only forks the supervisor and the workers, and waits for them.

It never has an event loop or a thread, because a fork would copy a part of them. Signals are for it: it passes them on
to the supervisor. It replaces processes that end, and ends processes that hang. Workers serve without a supervisor.
Units: seconds.
"""

import contextlib
import gc
import math
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
from gateway.server.hot_restart import FAILED, READY_S_MAX, STARTED, Predecessor, Successor
from gateway.server.http_server import cannot_listen
from gateway.server.notify import Watchdog, notify
from gateway.server.sockets import Inherited
from gateway.workers.board import SUPERVISOR, Board
from gateway.workers.messages import ToSupervisor, ToTop, ToWorker
from gateway.workers.stillness import Stillness, waited_s

_STABLE_S: Final = 5.0  # a worker that served for this long is replaced immediately when it ends
_DELAY_S_MAX: Final = 30.0  # between two starts of a worker that ends again and again
_KILL_S: Final = 5.0  # from a second signal, or from the end of the supervisor, to SIGKILL
_CHECK_S: Final = 1.0  # between two looks at the beats of all processes
_HUNG_CHECKS: Final = 2  # without a beat, after which a worker is asked nothing; see stillness.py for what counts
_ENDED_CHECKS: Final = 10  # after which it is ended: its streams hang
_SUPERVISOR_CHECKS: Final = 5  # no stream depends on it
_PACKET_BYTES_MAX: Final = 4096
_PASSED: Final = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)
_HANDLED: Final = (*_PASSED, signal.SIGUSR2)

_encode = msgspec.msgpack.Encoder().encode
_decode = msgspec.msgpack.Decoder(ToTop).decode


class ForkFailed(Exception):
    """The system does not allow another process; the message contains the reason."""


@dataclass
class _Slot:
    """A process that is replaced when it ends: the supervisor, or a worker of the configured number.

    Attributes:
        number: number of the worker, or of the supervisor.
        stillness: finds that it hangs.
        process: id of its process; 0 while there is none.
        control: socket to it; None while there is none.
        ready_s: time since which it serves; None before.
        is_hung: True while it does not answer.
        is_ended: True once it was ended because it hangs.
        failures: number of processes in a row that ended soon.
        due_s: time of the next start; None while a process runs.
    """

    number: int
    stillness: Stillness
    process: int = 0
    control: socket.socket | None = None
    ready_s: float | None = None
    is_hung: bool = False
    is_ended: bool = False
    failures: int = 0
    due_s: float | None = None

    def start(self, process: int, control: socket.socket) -> None:
        """Begin with a new process."""
        control.setblocking(False)  # a process that hangs must not stop this one
        self.process, self.control, self.is_hung, self.is_ended = process, control, False, False
        self.stillness.begin()
        self.due_s = None
        self.ready_s = _now_s() if self.number == SUPERVISOR else None

    def on_end(self) -> None:
        """Set the time of the next start; the process has ended."""
        now_s = _now_s()
        was_stable = self.ready_s is not None and now_s >= self.ready_s + _STABLE_S
        self.failures = 0 if was_stable else self.failures + 1
        self.close()
        self.process, self.ready_s = 0, None
        self.due_s = now_s + delay_s(self.failures)

    def check(self) -> bool:
        """Look at the beats of the process; return False if there is none."""
        if self.process:
            self.stillness.check(_now_s(), waited_s(self.process))
        return bool(self.process)

    def send(self, message: object, sock: socket.socket | None = None) -> None:
        """Send a message to the process; nothing if it has ended."""
        if self.control is not None:
            with contextlib.suppress(OSError):
                socket.send_fds(self.control, [_encode(message)], [] if sock is None else [sock.fileno()])

    def close(self) -> None:
        """Close the socket to the process."""
        if self.control is not None:
            self.control.close()
            self.control = None

    def kill(self, number: signal.Signals) -> None:
        """Send a signal to the process, if there is one."""
        if self.process:
            with contextlib.suppress(ProcessLookupError):
                os.kill(self.process, number)


Child = Callable[[], int]
"""Runs in a forked process; returns its exit code."""


@dataclass(frozen=True, slots=True)
class Children:
    """Functions of the forked processes.

    Attributes:
        supervisor: given its socket to the top process, and a descriptor of the state of the supervisor before it, if
            there was one.
        worker: given its number, and its socket to the top process.
    """

    supervisor: Callable[[socket.socket, int | None], int]
    worker: Callable[[int, socket.socket], int]


@dataclass(frozen=True, slots=True)
class Listening:
    """The listening sockets; `admin` is None if it is off."""

    public: socket.socket
    admin: socket.socket | None

    def all(self) -> list[socket.socket]:
        """Return the sockets."""
        return [sock for sock in (self.public, self.admin) if sock is not None]

    def close(self) -> None:
        """Accept nothing in this process, and in processes that are forked from now on."""
        for sock in self.all():
            sock.close()


def bind(address: Address, inherited: Inherited) -> socket.socket:
    """Return a listening socket, an inherited one if there is one.

    Raises:
        ListenError: the address is in use or not local.
    """
    try:
        found = socket.getaddrinfo(*address, type=socket.SOCK_STREAM)
    except OSError as error:
        raise cannot_listen(address, error) from error
    return inherited.bound(address, found)


def lock_file() -> int:
    """Return a descriptor of a new file without a name, for locks between forked processes."""
    with tempfile.TemporaryFile() as file:
        return os.dup(file.fileno())


class Top:
    """The top process.

    Args:
        workers: number of workers.
        children: functions of the forked processes.
        sockets: listening sockets, which the other processes inherit.
        board: beats of all processes.
        drain_s: time for the requests of the workers if the gateway stops without a supervisor.
        before: process that this one replaces, if there is one.
    """

    def __init__(
        self,
        workers: int,
        children: Children,
        sockets: Listening,
        board: Board,
        drain_s: float,
        before: Predecessor,
    ) -> None:
        self._board = board
        self._drain_s = drain_s
        self._before = before
        self._successor: Successor | None = None
        self._successor_s = math.inf  # time until which it must be ready
        self._watchdog = Watchdog(_now_s())
        self._slots = [_Slot(number, Stillness(board[number])) for number in range(1, workers + 1)]
        self._supervisor = _Slot(SUPERVISOR, Stillness(board[SUPERVISOR]))
        self._children = children
        self._sockets = sockets
        self._state: int | None = None  # descriptor of the last state of the supervisor
        self._has_served = False
        self._code: int | None = None  # of the supervisor, once it has ended and is not replaced
        self._is_stopping = False
        self._kill_s: float | None = None
        self._check_s = 0.0
        self._signals = 0

    def run(self) -> int:
        """Run until all processes have ended; return the exit code.

        Raises:
            ForkFailed: the system does not allow the processes.
        """
        gc.freeze()  # what the processes share is not copied by their garbage collections
        with _signal_pipe() as received:
            self._start_supervisor()
            try:
                for slot in self._slots:
                    self._start(slot)
            except ForkFailed as error:
                _report("error", str(error))
                self._stop(0.0)
                self._supervisor.close()  # the supervisor then ends
            while self._code is None or any(slot.process for slot in self._slots):
                self._wait(received)
                self._reap()
                self._replace()
                self._check()
                self._kill()
        return self._code

    def _wait(self, received: int) -> None:
        """Wait for a signal, a message or the next thing to do."""
        due = [slot.due_s for slot in self._all() if slot.due_s is not None and not self._is_stopping]
        due += [
            self._check_s,
            self._watchdog.due_s,
            self._successor_s,
            *([] if self._kill_s is None else [self._kill_s]),
        ]
        control, successor = self._supervisor.control, self._successor
        sockets = [control, None if successor is None else successor.sock]
        watched: list[int | socket.socket] = [received, *(sock for sock in sockets if sock is not None)]
        found, _, _ = select.select(watched, [], [], max(0.0, min(due) - _now_s()))
        self._watchdog.beat(_now_s())
        if received in found:
            for number in os.read(received, 64):
                self._on_signal(number)
        if control is not None and control in found:
            self._on_message(control)
        if successor is not None and (successor.sock in found or _now_s() >= self._successor_s):
            self._on_successor(successor)

    def _all(self) -> list["_Slot"]:
        return [self._supervisor, *self._slots]

    def _on_signal(self, number: int) -> None:
        if number == signal.SIGUSR2:
            self._replace_all()
        if number not in _PASSED:
            return
        if number != signal.SIGHUP:
            self._is_stopping = True
            if self._successor is not None:
                self._successor.abort()
                self._successor, self._successor_s = None, math.inf
            self._signals += 1
            if not self._supervisor.process:  # it was to be replaced
                self._code = 1
                self._stop(self._drain_s)
            if self._signals == 2:
                self._kill_s = _now_s() + _KILL_S
        self._tell(ToSupervisor(signal=number))

    def _replace_all(self) -> None:
        """Start a new process that is to replace this one, and all others."""
        if self._successor is not None or self._is_stopping or not self._has_served:
            return
        self._tell(ToSupervisor(signal=signal.SIGUSR2))  # which writes the learned file
        try:
            self._successor = Successor(self._sockets.all())
        except OSError as error:
            _report("error", FAILED % f"cannot be started ({error.strerror})")
            return
        self._successor_s = _now_s() + READY_S_MAX
        _report("warning", STARTED % self._successor.process)

    def _on_successor(self, successor: Successor) -> None:
        """Drain if the new process is ready; go on if it has ended, or is late."""
        is_late = _now_s() >= self._successor_s
        self._successor, self._successor_s = None, math.inf
        try:
            is_ready = bool(successor.sock.recv(1))
        except OSError:
            is_ready = False
        if not is_ready:
            successor.abort()
            fault = f"is not ready after {READY_S_MAX:g} s" if is_late else "has ended before it was ready"
            _report("error", FAILED % fault)
            return
        successor.release()
        self._is_stopping = True
        self._tell(ToSupervisor(is_replaced=True))
        if not self._supervisor.process:
            self._code = 0
            self._stop(self._drain_s)

    def _on_message(self, control: socket.socket) -> None:
        try:
            content, descriptors, _, _ = socket.recv_fds(control, _PACKET_BYTES_MAX, 1)
        except OSError:
            content, descriptors = b"", []
        if not content:  # the supervisor has ended, which is seen by its process id
            self._supervisor.close()
            return
        message = _decode(content)
        if message.is_state:
            self._keep_state(descriptors[0])
        if message.notify:
            notify(message.notify)
            if not self._has_served:
                self._before.report_ready()
            self._has_served = True
        if message.stopping_s is not None:
            self._is_stopping = True
            self._kill_s = self._kill_s or _now_s() + message.stopping_s + _KILL_S
        if message.is_closed:
            self._sockets.close()
        for slot in self._slots:
            if message.ready and slot.process == message.ready:
                slot.ready_s = slot.ready_s or _now_s()

    def _keep_state(self, descriptor: int) -> None:
        if self._state is not None:
            os.close(self._state)
        self._state = descriptor

    def _tell(self, message: ToSupervisor, sock: socket.socket | None = None) -> None:
        self._supervisor.send(message, sock)

    def _start(self, slot: "_Slot") -> None:
        """Fork a worker, and connect it to the supervisor."""
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self._board[slot.number].clear()
        try:
            closed = [ours, *self._controls(), *([] if self._sockets.admin is None else [self._sockets.admin])]
            slot.start(_fork(lambda: self._children.worker(slot.number, theirs), closed), ours)
        except ForkFailed:
            ours.close()
            raise
        finally:
            theirs.close()
        self._connect(slot)

    def _connect(self, slot: "_Slot") -> None:
        """Give a worker and the supervisor the two ends of a channel."""
        pair = socket.socketpair()
        slot.send(ToWorker(), pair[0])
        self._tell(ToSupervisor(worker=slot.number, process=slot.process), pair[1])
        for sock in pair:
            sock.close()

    def _start_supervisor(self) -> None:
        """Fork a supervisor, and connect it to the workers that there are.

        Raises:
            ForkFailed: the system does not allow it.
        """
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self._board[SUPERVISOR].clear()
        state = self._state
        try:
            process = _fork(
                lambda: self._children.supervisor(theirs, state), [ours, self._sockets.public, *self._controls()]
            )
            self._supervisor.start(process, ours)
        except ForkFailed:
            ours.close()
            raise
        finally:
            theirs.close()
        for slot in self._slots:
            if slot.process:
                self._connect(slot)

    def _controls(self) -> list[socket.socket]:
        """Return the sockets that belong to this process only."""
        return [slot.control for slot in self._all() if slot.control is not None]

    def _reap(self) -> None:
        while True:
            try:
                process, status = os.waitpid(-1, os.WNOHANG)
            except ChildProcessError:
                return
            if process == 0:
                return
            code = os.waitstatus_to_exitcode(status)
            if process == self._supervisor.process:
                self._on_supervisor_end(code)
            for slot in self._slots:
                if slot.process == process:
                    self._tell(ToSupervisor(ended=slot.process, reason=_ended(code)))
                    slot.on_end()
                    self._board[slot.number].clear()

    def _on_supervisor_end(self, code: int) -> None:
        """Replace it, if the gateway serves and is not to stop."""
        while self._supervisor.control is not None:  # its last state
            self._on_message(self._supervisor.control)
        self._supervisor.on_end()
        if self._has_served and not self._is_stopping:
            _report("error", f"the supervisor {_ended(code)} and is replaced; the workers serve on")
            return
        self._code = code if code >= 0 else 1
        self._stop(0.0 if code >= 0 else self._drain_s)

    def _stop(self, drain_s: float) -> None:
        """Let the workers end without a supervisor."""
        self._is_stopping = True
        self._kill_s = self._kill_s or _now_s() + drain_s + _KILL_S
        self._sockets.close()
        for slot in self._slots:
            slot.send(ToWorker(is_stopping=True))
            slot.close()

    def _replace(self) -> None:
        """Start the processes that are due."""
        for slot in self._all():
            if not self._is_stopping and slot.due_s is not None and _now_s() >= slot.due_s:
                try:
                    if slot is self._supervisor:
                        self._start_supervisor()
                    else:
                        self._start(slot)
                except ForkFailed as error:
                    _report("warning", str(error))
                    slot.failures += 1
                    slot.due_s = _now_s() + delay_s(slot.failures)

    def _check(self) -> None:
        """Find processes that hang, once a second."""
        if _now_s() < self._check_s:
            return
        self._check_s = _now_s() + _CHECK_S
        for slot in filter(_Slot.check, self._slots):
            still = slot.stillness
            if still.missed >= _HUNG_CHECKS and not slot.is_hung:
                slot.is_hung = True
                self._tell(ToSupervisor(hung=slot.process))
            elif not still.missed and slot.is_hung:
                slot.is_hung = False
                self._tell(ToSupervisor(answers=slot.process))
            if still.missed >= _ENDED_CHECKS:
                _report("error", f"worker {slot.number} has not answered for {still.checks} s and is ended")
                slot.kill(signal.SIGKILL if slot.is_ended else signal.SIGABRT)  # a stopped process ignores SIGABRT
                slot.is_ended = True
        if self._supervisor.check() and self._supervisor.stillness.missed >= _SUPERVISOR_CHECKS:
            _report("error", f"the supervisor has not answered for {self._supervisor.stillness.checks} s and is ended")
            self._supervisor.kill(signal.SIGKILL)

    def _kill(self) -> None:
        """End what has not ended in time."""
        if self._kill_s is not None and _now_s() >= self._kill_s:
            self._kill_s = _now_s() + _KILL_S
            for slot in self._all():
                slot.kill(signal.SIGKILL)


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
    blocked = signal.pthread_sigmask(signal.SIG_BLOCK, (*_HANDLED, signal.SIGCHLD))
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
        for number in _HANDLED:
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
    for number in (*_HANDLED, signal.SIGCHLD):
        signal.signal(number, lambda _number, _frame: None)
    signal.set_wakeup_fd(writing, warn_on_full_buffer=False)
    try:
        yield reading
    finally:
        signal.set_wakeup_fd(-1)
        os.close(reading)
        os.close(writing)
