"""The race of a synchronous client, in an order of events that sockets rarely produce."""

import threading
from typing import Any

import httpx

from ttft_gateway import HedgingTransport
from ttft_gateway.client.config import HedgeConfig
from ttft_gateway.client.httpx_sync import HttpxSender
from ttft_gateway.client.sockets import current
from ttft_gateway.client.sync_race import SyncRace

_CONFIG = HedgeConfig(warmup_delay=0.5, warmup_requests=100_000, budget_percent=100.0, max_hedges=2)
_TIME_LIMIT_S = 60.0


class _Replica(httpx.BaseTransport):
    """Fails the primary after its first backup was sent, the first backup on demand, and answers the second one.

    Attributes:
        now_s: the time.
        may_fail: set when the first backup is to fail.
    """

    def __init__(self) -> None:
        self.now_s = 0.0
        self.may_fail = threading.Event()
        self._requests = 0

    def handle_request(self, request: httpx.Request) -> httpx.Response:
        self._requests += 1
        number = self._requests
        if number == 1:
            watch = current.watch
            assert watch is not None
            self.now_s = 1.0
            assert not watch.wait(None, 0, 0.0)
            self.now_s = 2.0
        elif number == 2:
            assert self.may_fail.wait(_TIME_LIMIT_S)
        else:
            return httpx.Response(200, content=b"hello")
        raise httpx.ConnectError("refused")


class _Race:
    """A race in which the first backup fails after the second was approved and before it was sent."""

    def __init__(self, race: Any, replica: _Replica) -> None:
        self._race = race
        self._replica = replica

    def __getattr__(self, name: str) -> Any:
        return getattr(self._race, name)

    def late(self) -> Any:
        backup = self._race.late()
        if backup is not None and backup.number == 2:
            self._replica.may_fail.set()
            pause = threading.Event()
            while self._race.attempts[1].outcome is None:
                pause.wait(0.001)
        return backup


def test_a_backup_that_is_sent_while_the_last_one_fails_is_awaited() -> None:
    """The second backup wins although the first one has failed, and nothing is left in the policy."""
    replica = _Replica()
    transport = HedgingTransport(_CONFIG)
    transport.hedger.clock, transport.adapter = lambda: replica.now_s, HttpxSender(replica)
    transport.hedger.budget.credits(lambda: 0.5).requests.spend(-5.0)  # a client in use has saved some
    entrant: Any = transport.enter(httpx.Request("GET", "http://replica/"))
    race = entrant.race = _Race(entrant.race, replica)
    threads: set[threading.Thread] = set()
    opened = SyncRace(entrant, threads).run()
    assert (race.winner.number, opened.response.status_code) == (2, 200)
    opened.body.close()
    race.close()
    for thread in list(threads):
        thread.join(_TIME_LIMIT_S)
    population = next(iter(transport.hedger._populations.values()))
    assert [each.in_flight for each in population.pool.replicas] == [0] * len(population.pool.replicas)
