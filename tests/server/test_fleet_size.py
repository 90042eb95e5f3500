"""The size of a fleet without its server: a number, or the addresses of a name."""

import asyncio
import socket
from collections.abc import Sequence

import pytest

from gateway.server.fleet_size import FleetSize
from gateway.share.fleet import Fleet
from running import run_virtual

V4, V6 = socket.AF_INET, socket.AF_INET6
Found = Sequence[tuple[socket.AddressFamily, str]] | OSError | RuntimeError


@pytest.mark.parametrize(("gateways", "workers", "part"), [(3, 1, 0.3), (3, 4, 0.075), (None, 4, 0.9 / 16)])
def test_a_number_counts_with_the_workers_of_each_gateway(gateways: int | None, workers: int, part: float) -> None:
    """Without a number, a fleet that was never counted has a size that is too large for most."""
    fleet = Fleet()
    FleetSize(gateways, workers, fleet, asyncio.TaskGroup())
    assert fleet.part == pytest.approx(part)


def test_the_larger_number_counts() -> None:
    """The server may count fewer while gateways restart, or more than are configured."""
    fleet = Fleet()
    FleetSize(4, 1, fleet, asyncio.TaskGroup())
    for counted, size in ((0, 4), (2, 4), (5, 5)):
        fleet.processes = counted
        assert fleet.size == size
    fleet.expected, fleet.processes = None, 2
    assert fleet.size == 2


def test_the_addresses_of_a_name_are_counted_again_and_again(monkeypatch: pytest.MonkeyPatch) -> None:
    """An address of each family is one gateway; without an answer, the last number holds."""

    async def main() -> list[int | None]:
        loop = asyncio.get_running_loop()
        answers: list[Found] = [
            OSError("no such name"),
            [(V4, "10.0.0.1"), (V4, "10.0.0.2"), (V4, "10.0.0.2"), (V6, "::1")],
            TimeoutError(),
            RuntimeError("can't start new thread"),
            [],
            [(V4, "10.0.0.1"), (V6, "::1"), (V6, "::2"), (V6, "::3")],
        ]

        async def look_up(host: str, _port: object, **_: object) -> list[tuple[object, ...]]:
            assert host == "peers"
            found = answers.pop(0)
            if isinstance(found, OSError | RuntimeError):
                raise found
            return [(family, 1, 6, "", (address, 0)) for family, address in found]

        monkeypatch.setattr(loop, "getaddrinfo", look_up)
        fleet, seen = Fleet(), []
        async with asyncio.TaskGroup() as tasks:
            size = FleetSize("peers", 2, fleet, tasks)
            size.start()
            while answers:
                await asyncio.sleep(10.0)
                seen.append(fleet.expected)
            size.close()
        return seen

    assert run_virtual(main()) == [None, 4, 4, 4, 4, 6]


def test_a_number_is_not_looked_up() -> None:
    """There is nothing to start or to close."""

    async def main() -> None:
        async with asyncio.TaskGroup() as tasks:
            size = FleetSize(3, 1, Fleet(), tasks)
            size.start()
            size.close()

    run_virtual(main())
