"""A simulated replica on a socket: an OpenAI-compatible HTTP/1.1 server with the times and faults of a profile.

Run it with `python -m gateway.simulated.server --help`. Control API: GET and POST /sim/profile (JSON, partial
updates), GET /sim/stats[?records=0], POST /sim/reset; also on the control port, which no fault affects.
"""

import argparse
import asyncio
import random
import signal
import sys
from collections.abc import Callable, Mapping

import msgspec

from gateway.simulated.faults import FAULTS
from gateway.simulated.profile import KEYS, Profile, ProfileError, parse_profile, show_profile
from gateway.simulated.render import error_body
from gateway.simulated.replica import SimulatedReplica
from gateway.simulated.server_connection import CONTROL, ServerConnection
from gateway.simulated.stats import Stats

PORT_MAX = 65535
_BACKLOG = 4096


class SimulatedServer:
    """One replica and its sockets.

    Args:
        profile: first behaviour; None: the default profile.
        seed: seed of all draws, and of the texts at temperature 0.

    Attributes:
        replica: the replica.
        stats: statistics of requests and connections.
        connections: open connections.
        port: port of the replica; 0 before `start`.
        control_port: port of the control API; 0: none.
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
        self._refusing: asyncio.Task[None] | None = None
        self.replica = SimulatedReplica(profile or Profile(), random.Random(seed), seed)

    async def start(self, host: str = "127.0.0.1", port: int = 0, control_port: int | None = None) -> None:
        """Listen.

        Args:
            host: address to bind.
            port: port; 0: a free one.
            control_port: port of the control API, which no fault affects; 0: a free one; None: none.
        """
        self._host, self.port = host, port
        await self.listen()
        self._new_replica()
        if control_port is not None:
            self._controller, self.control_port = await self._serve(control_port, faulty=False)

    @property
    def url(self) -> str:
        """Base URL, with `/v1`."""
        return f"http://{self._host}:{self.port}/v1"

    async def listen(self) -> None:
        """Accept connections; call it again after `stop_listening`."""
        if self._listener is None:
            self._listener, self.port = await self._serve(self.port, faulty=True)

    def stop_listening(self) -> None:
        """Refuse new connections until `listen`; open connections stay open."""
        if self._listener is not None:
            self._listener.close()
            self._listener = None

    def refuse_for(self, seconds: float) -> None:
        """Refuse new connections for a while."""
        self.stop_listening()
        if self._refusing is not None:
            self._refusing.cancel()
        self._refusing = asyncio.get_running_loop().create_task(self._listen_after(seconds))

    async def close(self) -> None:
        """Stop listening and abort all connections."""
        if self._refusing is not None:
            self._refusing.cancel()
            await asyncio.gather(self._refusing, return_exceptions=True)
        self.stop_listening()
        if self._controller is not None:
            self._controller.close()
        for connection in self.connections:
            connection.close()
        await asyncio.gather(*(connection.closed for connection in self.connections))

    def configure(self, **changes: object) -> None:
        """Change the profile by keys of `profile.KEYS`.

        Raises:
            ProfileError: A key is unknown or its value is invalid.
        """
        self.replica.profile = parse_profile(changes, self.replica.profile)

    def reset(self) -> None:
        """Reset everything except the profile: statistics, draws, cache, counts of fault rules."""
        self.stats.reset()
        self._new_replica()

    def control(self, method: str, target: str, body: bytes) -> tuple[int, object]:
        """Handle a control request; return the status code and the value of the JSON body."""
        path, _, query = target.partition("?")
        route = _ROUTES.get((method, path.removeprefix(CONTROL)))
        if route is None:
            known = ", ".join(f"{verb} {CONTROL}{name}" for verb, name in _ROUTES)
            return 404, msgspec.Raw(error_body(f"{method} {path} is unknown; use {known}", "not_found", None))
        try:
            return 200, route(self, query, body)
        except (ProfileError, msgspec.MsgspecError) as error:
            return 400, msgspec.Raw(error_body(str(error), "invalid_request_error", None))

    def _new_replica(self) -> None:
        """Replace the replica by a new one with the same profile; ids of its completions depend on the port."""
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
        Exit code: 0 after a clean stop, 1 if an address is unavailable.
    """
    parser = _parser()
    values = vars(parser.parse_args())
    host, port, control_port, seed = (values.pop(name) for name in ("host", "port", "control_port", "seed"))
    try:
        profile = parse_profile({key: value for key, value in values.items() if value is not None})
    except ProfileError as error:
        parser.error(f"argument --{error.key.replace('_', '-')}: {error.message}")
    try:
        asyncio.run(_run(SimulatedServer(profile, seed), host, port, control_port))
    except OSError as error:
        sys.stderr.write(
            f"the address {host} is unavailable ({error.strerror}); change --host, --port or --control-port\n"
        )
        return 1
    return 0


async def _run(server: SimulatedServer, host: str, port: int, control_port: int | None) -> None:
    loop = asyncio.get_running_loop()
    stop = asyncio.Event()
    for each in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(each, stop.set)
    try:
        await server.start(host, port, control_port)
        _print(f"simulated replica on {server.url}")
        if server.control_port:
            _print(f"control on http://{host}:{server.control_port}{CONTROL}profile")
        await stop.wait()
    finally:
        await server.close()


def _print(line: str) -> None:
    sys.stdout.write(line + "\n")
    sys.stdout.flush()


def _port(text: str) -> int:
    if not text.isdecimal() or int(text) > PORT_MAX:
        raise argparse.ArgumentTypeError(f"{text!r} is not a port; write 0 to {PORT_MAX}")
    return int(text)


def _parser() -> argparse.ArgumentParser:
    faults = "\n".join(f"  {name:17} {fault.text}" for name, fault in FAULTS.items())
    parser = argparse.ArgumentParser(
        prog="python -m gateway.simulated.server",
        usage="%(prog)s [--port PORT] [--ttft TTFT] [options]",
        description="A simulated OpenAI-compatible replica.",
        epilog=f"faults, for --faults and the request header x-sim-fault:\n{faults}",
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--host", default="127.0.0.1", help="address to bind, default 127.0.0.1")
    parser.add_argument("--port", type=_port, default=9001, help="port, default 9001; 0: a free one")
    parser.add_argument(
        "--control-port", type=_port, help="second port for /sim/, which no fault affects; 0: a free one"
    )
    parser.add_argument("--seed", type=int, default=0, help="seed of all draws, default 0")
    for name, key in KEYS.items():
        action, text = ("append", f"{key.text}; may be repeated") if key.many else ("store", key.text)
        parser.add_argument(f"--{name.replace('_', '-')}", action=action, help=text.replace("%", "%%"))
    return parser


if __name__ == "__main__":
    raise SystemExit(main())
