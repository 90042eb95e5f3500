"""The admission of requests with queues and key limits, in virtual time."""

import asyncio
from dataclasses import dataclass, field

from msgspec.structs import replace

from gateway.admission.admission import Admission, Entry, ModelQueue, Permit, RequestSize
from gateway.admission.caller_limits import CallerLimits, KeyLimiter
from gateway.admission.fair_queue import FairQueue
from gateway.errors import GatewayError
from gateway.events import Event, RequestRejected
from gateway.race.context import Caller, Runtime
from gateway.race.deadlines import TimerQueue
from sample_events import REQUEST
from ttft_gateway.apis.base import Usage

FOREVER_S = 1e6
DONE = replace(REQUEST, usage=Usage(prompt_tokens=10, completion_tokens=5))


@dataclass(eq=False)
class Work:
    """A request of a given duration, and a record of everything that happened to it."""

    house: "House"
    length_s: float
    caller: Caller
    place: Permit | None = None
    runtime: Runtime | None = None
    begun_s: float | None = None
    ended: list[str] = field(default_factory=list)
    error: GatewayError | None = None
    timer: asyncio.TimerHandle | None = None

    def start(self) -> None:
        """Begin."""
        self.begun_s = self.house.loop.time()
        self.house.running += 1
        self.house.most = max(self.house.most, self.house.running)
        self.timer = self.house.loop.call_later(self.length_s, self.end, "complete")

    def end(self, how: str) -> None:
        """End, as a race does: once."""
        if not self.ended and self.begun_s is not None and self.runtime is not None and self.timer is not None:
            self.timer.cancel()
            self.ended.append(how)
            self.house.running -= 1
            self.runtime.emit(DONE)

    def client_gone(self) -> None:
        """The client disconnected."""
        self.end("client_gone")

    def shut_down(self) -> None:
        """The drain is over."""
        self.end("drained")

    def refuse(self, error: GatewayError) -> None:
        """It got an error instead."""
        self.ended.append("refused")
        self.error = error

    def leave(self) -> None:
        """Disconnect the client as `response.serve` and the routes do."""
        if self.place is not None:
            self.place.client_gone()
            self.place.close()


class House:
    """A model "m" with a concurrency limit, and the events emitted for it."""

    def __init__(self, slots: int = 1, places: int = 100, timeout_s: float = 5.0, **limits: int) -> None:
        self.loop = asyncio.get_running_loop()
        self.events: list[Event] = []
        self.running = self.most = 0
        self.fair_queue: FairQueue[Permit] = FairQueue(slots, places)
        self.account = KeyLimiter(CallerLimits(**limits))
        accounts = {"limited": self.account} if limits else {}
        self.admission = Admission(
            accounts,
            {"m": ModelQueue(self.fair_queue, timeout_s)},
            Runtime(self.loop, self.events.append, lambda: 0.0, TimerQueue(self.loop)),
        )

    def ask(
        self, length_s: float = 1.0, key: str = "a", size: RequestSize | None = None, kind: type[Work] = Work
    ) -> Work:
        """A request comes."""
        work = kind(self, length_s, Caller("r", key, self.loop.time()))
        try:
            entry = self.admission.enter(key)
            work.place = self._admitted(work.caller, size or RequestSize(100.0, 100.0), entry)
        except GatewayError as error:
            work.refuse(error)
            return work
        work.runtime = work.place.runtime
        work.place.run(work, work.refuse)
        return work

    def _admitted(self, caller: Caller, size: RequestSize, entry: Entry | None) -> Permit:
        try:
            return self.admission.admit(caller, "m", size, entry)
        except GatewayError as error:
            if entry is not None:
                entry.reject(error.status)
            raise

    @property
    def told(self) -> list[tuple[int, str | None, float]]:
        """Status, code and wait of what was refused after it had begun to wait."""
        return [(e.status, e.code, e.queued_s) for e in self.events if isinstance(e, RequestRejected)]
