"""Hot restart: SIGUSR2 starts the program again, with the listening sockets of this process, which then drains.

    old process                     new process
    SIGUSR2
    writes the learned file
    starts the program  ------->    takes the sockets, starts as always; both accept
                        <-------    is ready, and writes a byte
    MAINPID to the service manager
    accepts no more, drains, ends   goes on

Both accept from the same sockets, so no connection is refused or waits. A new process that ends before it is ready, or
is late, changes nothing: the old one goes on. Units: seconds.
"""

import asyncio
import logging
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Awaitable, Callable, MutableMapping, Sequence
from typing import Final

from gateway.server.notify import main_process, notify
from gateway.server.sockets import Inherited, from_manager, opened

READY_S_MAX: Final = 120.0  # until a new process is ready; then it is killed
_VARIABLE: Final = "TTFT_GATEWAY_PREDECESSOR"  # descriptors: of the socket to the old process, then of listening ones
_HELD: Final = (
    "TTFT_GATEWAY_SOCKETS_HELD"  # set if a service manager holds the sockets, for the processes after this one
)
_NOT_INHERITED: Final = ("LISTEN_PID", "LISTEN_FDS", "LISTEN_FDNAMES", "WATCHDOG_PID")
STARTED: Final = "a new process (%d) starts, with the addresses of this one"
FAILED: Final = "the new process %s; this one goes on"


class Predecessor:
    """The process that this one replaces, if there is one.

    Args:
        sock: socket to it; None without a predecessor.
        inherited: listening sockets that this process inherits.
    """

    def __init__(self, sock: socket.socket | None = None, inherited: Inherited | None = None) -> None:
        self._sock = sock
        self.inherited = inherited or Inherited()

    def report_ready(self) -> None:
        """Let the old processes drain; end this one if the process that it was to replace has ended before."""
        if self._sock is not None:
            try:
                with self._sock:
                    self._sock.send(b"r")
            except OSError:
                logging.getLogger(__name__).warning("the process that this one was to replace has ended; this one ends")
                os.kill(os.getpid(), signal.SIGTERM)
                return
            finally:
                self._sock = None
        self.inherited.own()


def predecessor(environ: MutableMapping[str, str]) -> Predecessor:
    """Return what this process inherits, and remove the variables that describe it from the environment.

    SIGUSR2 is ignored until the process is ready, and SIGUSR1 for good: rotation of logs may send it.

    Raises:
        InheritError: an inherited descriptor is no listening socket.
    """
    for number in (signal.SIGUSR1, signal.SIGUSR2):  # else they would end this process
        signal.signal(number, signal.SIG_IGN)
    descriptors = environ.pop(_VARIABLE, "")
    are_held = environ.pop(_HELD, None) is not None
    if not descriptors:
        inherited = from_manager(environ)
        if inherited.are_held:
            environ[_HELD] = "1"
        return Predecessor(None, inherited)
    if are_held:
        environ[_HELD] = "1"
    [first, *rest] = map(int, descriptors.split(","))
    os.set_inheritable(first, False)
    return Predecessor(socket.socket(fileno=first), Inherited(opened(rest), are_held=are_held))


class Successor:
    """A new process that is to replace this one.

    Args:
        listening: listening sockets of this process.

    Raises:
        OSError: the program cannot be started.

    Attributes:
        sock: socket to the new process; readable once it is ready or has ended.
    """

    def __init__(self, listening: Sequence[socket.socket]) -> None:
        self.sock, theirs = socket.socketpair()
        passed = [theirs.fileno(), *(sock.fileno() for sock in listening)]
        env = {name: value for name, value in os.environ.items() if name not in _NOT_INHERITED}
        env[_VARIABLE] = ",".join(map(str, passed))
        try:
            argv = [sys.executable, *sys.orig_argv[1:]]
            self._process = subprocess.Popen(argv, pass_fds=passed, env=env)  # noqa: S603 (its own command line)
        except BaseException:
            self.sock.close()
            raise
        finally:
            theirs.close()
        self.sock.setblocking(False)

    @property
    def process(self) -> int:
        """Process id."""
        return self._process.pid

    def release(self) -> None:
        """Let the new process go on as the main process."""
        notify(main_process(self.process))
        self.sock.close()
        self._process.returncode = 0  # nothing waits for its end

    def abort(self) -> None:
        """Kill the new process."""
        self.sock.close()
        self._process.kill()
        self._process.wait()  # ends at once


class HotRestart:
    """Replaces this process by a new one, on SIGUSR2.

    Args:
        tasks: owner of the task.
        listening: listening sockets of this process.
        prepare: called before the new process starts.
        on_replaced: called with the signal when the new process is ready.
    """

    def __init__(
        self,
        tasks: asyncio.TaskGroup,
        listening: Sequence[socket.socket],
        prepare: Callable[[], Awaitable[object]],
        on_replaced: Callable[[signal.Signals], object],
    ) -> None:
        self._loop = asyncio.get_running_loop()
        self._tasks = tasks
        self._listening = listening
        self._prepare = prepare
        self._on_replaced = on_replaced
        self._task: asyncio.Task[None] | None = None

    def start(self) -> None:
        """Handle the signal from now on."""
        self._loop.add_signal_handler(signal.SIGUSR2, self._on_signal)

    def close(self) -> None:
        """Handle the signal no more; a new process that is not ready is killed."""
        self._loop.remove_signal_handler(signal.SIGUSR2)
        signal.signal(signal.SIGUSR2, signal.SIG_IGN)  # else it would end this process
        if self._task is not None:
            self._task.cancel()

    def _on_signal(self) -> None:
        if self._task is None or self._task.done():
            self._task = self._tasks.create_task(self._replace())

    async def _replace(self) -> None:
        log = logging.getLogger(__name__)
        await self._prepare()
        try:
            successor = await asyncio.to_thread(Successor, self._listening)
        except (OSError, RuntimeError) as error:  # no file, no process, no thread
            log.warning(FAILED, f"cannot be started ({error})")
            return
        log.warning(STARTED, successor.process)
        fault = "has ended before it was ready"
        try:
            async with asyncio.timeout(READY_S_MAX):
                is_ready = bool(await self._loop.sock_recv(successor.sock, 1))
        except TimeoutError:
            is_ready, fault = False, f"is not ready after {READY_S_MAX:g} s"
        except asyncio.CancelledError:
            successor.abort()
            raise
        if is_ready:
            successor.release()
            self._on_replaced(signal.SIGUSR2)
        else:
            await asyncio.to_thread(successor.abort)
            log.warning(FAILED, fault)
