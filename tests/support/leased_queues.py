"""The queues of one model in a fleet of processes that share its concurrency, and the requests that hold its slots."""

import asyncio
import random
from collections.abc import Sequence

from gateway.admission.admission import Admission, ModelQueue, Permit, RequestSize
from gateway.admission.fair_queue import FairQueue
from gateway.errors import GatewayError
from gateway.race.context import Caller
from leased_fleet import FleetProcess


class Running:
    """A request that holds its slot for a while."""

    def __init__(self, queues: "Queues", permit: Permit, held_s: float) -> None:
        self._queues = queues
        self._permit = permit
        self._held_s = held_s

    def start(self) -> None:
        queues = self._queues
        queues.running += 1
        queues.most = max(queues.most, queues.running)
        queues.slot_s += self._held_s
        queues.loop.call_later(self._held_s, self._end)

    def _end(self) -> None:
        self._queues.running -= 1
        self._permit.close()

    def client_gone(self) -> None:
        pass

    def shut_down(self) -> None:
        pass


class Queues:
    """The queues of one model in all processes.

    Attributes:
        running, most: requests running now, and the most that ever were.
        slot_s: time for which slots were in use, together.
        rejected: number of rejected requests.
    """

    def __init__(self, processes: Sequence[FleetProcess], slots: int) -> None:
        self.loop = processes[0].loop
        self.running = self.most = self.rejected = 0
        self.slot_s = 0.0
        self.admissions: list[Admission] = []
        for process in processes:
            held = process.limits.slots("model:m", slots)
            queue = ModelQueue(FairQueue[Permit](slots, 1_000, held), 60.0)
            held.serve(queue.waiting, queue.admit)
            self.admissions.append(Admission({}, {"m": queue}, process.runtime))

    async def traffic(self, admission: Admission, per_s: float, held_s: float, until_s: float, seed: str) -> None:
        """Let requests arrive at random times."""
        rand = random.Random(seed)
        while True:
            await asyncio.sleep(rand.expovariate(per_s))
            now_s = self.loop.time()
            if now_s >= until_s:
                return
            permit = admission.admit(Caller("id", "k", now_s), "m", RequestSize(1.0, 1.0), None)
            permit.run(Running(self, permit, held_s), self._reject)

    def _reject(self, _: GatewayError) -> None:
        self.rejected += 1
