"""A simulated replica on a socket: an OpenAI-compatible HTTP/1.1 server that (mis)behaves as its profile says.

`python -m providers.simulated.server --help` says how to run it by itself. While it runs: GET and POST /sim/profile
(JSON, partial updates), GET /sim/stats[?records=0], POST /sim/reset; on the control port, too, which no fault disturbs.
"""

import argparse
import asyncio
import random
import signal
import sys
from collections.abc import Callable, Mapping

import msgspec

from providers.simulated.faults import FAULTS
from providers.simulated.profile import KEYS, Profile, ProfileError, parse_profile, show_profile
from providers.simulated.render import error_body
from providers.simulated.replica import SimulatedReplica
from providers.simulated.server_connection import CONTROL, ServerConnection
from providers.simulated.stats import Stats

_BACKLOG = 4096


class SimulatedServer:
    """One replica and its sockets.

    Args:
        profile: how it behaves at first, None: the default profile.
        seed: decides all its draws, and with the prompt its texts at temperature 0.

    Attributes:
        replica: what answers.
        stats: what was seen.
        port: where it listens, 0 before `start`.
        control_port: likewise; 0: it has none.
    """

    def __init__(self, profile: Profile | None = None, seed: int = 0) -> None:
        self.stats = Stats()
        self.connections: set[ServerConnection] = set()
        self.port = 0
        self.control_port = 0
        self._host = ""
        self._seed = seed
        self._listener: asyncio.Server | None = None
        self._controller: asyncio.Server | None = None
        self._away: asyncio.Task[None] | None = None
        self.replica = SimulatedReplica(profile or Profile(), random.Random(seed), seed)

    async def start(self, host: str = "127.0.0.1", port: int = 0, control_port: int | None = None) -> None:
        """Listen.

        Args:
            host: address to bind.
            port: 0: any.
            control_port: for control requests that no fault disturbs; 0: any, None: none.
        """
        self._host, self.port = host, port
        await self.listen()
        self._name()
        if control_port is not None:
            self._controller, self.control_port = await self._serve(control_port, faulty=False)

    @property
    def url(self) -> str:
        """The base URL, `/v1` included."""
        return f"http://{self._host}:{self.port}/v1"

    async def listen(self) -> None:
        """Accept connections, again if `deafen` was called."""
        if self._listener is None:
            self._listener, self.port = await self._serve(self.port, faulty=True)

    def stop_listening(self) -> None:
        """Refuse new connections until `listen`; those that are open stay."""
        if self._listener is not None:
            self._listener.close()
            self._listener = None

    def refuse_for(self, seconds: float) -> None:
        """Refuse new connections for a while."""
        self.stop_listening()
        if self._away is not None:
            self._away.cancel()
        self._away = asyncio.get_running_loop().create_task(self._listen_after(seconds))

    async def close(self) -> None:
        """Stop listening and cut all connections."""
        if self._away is not None:
            self._away.cancel()
            await asyncio.gather(self._away, return_exceptions=True)
        self.stop_listening()
        if self._controller is not None:
            self._controller.close()
        for connection in self.connections:
            connection.close()
        await asyncio.gather(*(connection.closed for connection in self.connections))

    def configure(self, **changes: object) -> None:
        """Change the profile; keys and values are those of `profile.KEYS`."""
        self.replica.profile = parse_profile(changes, self.replica.profile)

    def reset(self) -> None:
        """Forget everything but the profile: stats, draws, cache, counts of faults."""
        self.stats.reset()
        self._name()

    def control(self, method: str, target: str, body: bytes) -> tuple[int, object]:
        """Answer a control request: the status and what becomes JSON."""
        path, _, query = target.partition("?")
        route = _ROUTES.get((method, path.removeprefix(CONTROL)))
        if route is None:
            known = ", ".join(f"{verb} {CONTROL}{name}" for verb, name in _ROUTES)
            return 404, msgspec.Raw(error_body(f"found {method} {path}; there are {known}", "not_found", None))
        try:
            return 200, route(self, query, body)
        except (ProfileError, msgspec.MsgspecError) as error:
            return 400, msgspec.Raw(error_body(str(error), "invalid_request_error", None))

    def _name(self) -> None:
        """A fresh replica with the same profile; its answers' ids depend on the port."""
        self.replica = SimulatedReplica(self.replica.profile, random.Random(self._seed), self._seed, str(self.port))

    async def _serve(self, port: int, *, faulty: bool) -> tuple[asyncio.Server, int]:
        loop = asyncio.get_running_loop()
        server = await loop.create_server(
            lambda: ServerConnection(self, faulty=faulty), self._host, port, backlog=_BACKLOG
        )
        return server, server.sockets[0].getsockname()[1]

    async def _listen_after(self, seconds: float) -> None:
        await asyncio.sleep(seconds)
        await self.listen()


def _set_profile(server: SimulatedServer, _query: str, body: bytes) -> object:
    server.configure(**msgspec.json.decode(body, type=dict[str, object]))
    return show_profile(server.replica.profile)


def _reset(server: SimulatedServer, _query: str, _body: bytes) -> object:
    server.reset()
    return {}


_ROUTES: Mapping[tuple[str, str], Callable[[SimulatedServer, str, bytes], object]] = {
    ("GET", "profile"): lambda server, _query, _body: show_profile(server.replica.profile),
    ("POST", "profile"): _set_profile,
    ("GET", "stats"): lambda server, query, _body: server.stats.show(records="records=0" not in query),
    ("POST", "reset"): _reset,
}


def main() -> int:
    """Run one server until Ctrl-C or SIGTERM.

    Returns:
        Exit code: 0 after a clean stop, 1 if the port cannot be had.
    """
    parser = _parser()
    given = vars(parser.parse_args())
    host, port, control_port, seed = (given.pop(name) for name in ("host", "port", "control_port", "seed"))
    try:
        profile = parse_profile({key: value for key, value in given.items() if value is not None})
    except ProfileError as error:
        parser.error(str(error))
    try:
        asyncio.run(_run(SimulatedServer(profile, seed), host, port, control_port))
    except OSError as error:
        _say(f"cannot listen on {host}, port {port}: {error.strerror}; choose another with --port")
        return 1
    return 0


async def _run(server: SimulatedServer, host: str, port: int, control_port: int | None) -> None:
    loop = asyncio.get_running_loop()
    stop = asyncio.Event()
    for each in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(each, stop.set)
    await server.start(host, port, control_port)
    _say(f"simulated replica on {server.url}")
    if server.control_port:
        _say(f"control on http://{host}:{server.control_port}{CONTROL}profile")
    await stop.wait()
    await server.close()


def _say(line: str) -> None:
    sys.stdout.write(line + "\n")
    sys.stdout.flush()


def _parser() -> argparse.ArgumentParser:
    faults = "\n".join(f"  {name:17} {fault.text}" for name, fault in FAULTS.items())
    parser = argparse.ArgumentParser(
        prog="python -m providers.simulated.server",
        description="A simulated OpenAI-compatible replica.",
        epilog=f"faults, for --faults and the request header x-sim-fault:\n{faults}",
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--host", default="127.0.0.1", help="address to bind")
    parser.add_argument("--port", type=int, default=9001, help="0: any")
    parser.add_argument("--control-port", type=int, help="another port for /sim/, which no fault disturbs; 0: any")
    parser.add_argument("--seed", type=int, default=0, help="decides all draws")
    for name, key in KEYS.items():
        action = "append" if key.many else "store"
        parser.add_argument(f"--{name.replace('_', '-')}", action=action, help=key.text.replace("%", "%%"))
    return parser


if __name__ == "__main__":
    raise SystemExit(main())
