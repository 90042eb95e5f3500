"""Slots that many processes share: leased from the engine for use, and returned after it. Pure.

While the engine is away, a process keeps its slots, and takes its part of the slots that were free.

Units: slots; seconds of the loop's clock.
"""

import math
from collections.abc import Callable
from typing import TYPE_CHECKING

from gateway.share.fleet import IDLE_S, QUIET_S
from gateway.share.messages import Answer, Ask, SlotsAnswer, SlotsAsk
from ttft_gateway.limits.rates import Slots

if TYPE_CHECKING:
    from gateway.share.leases import Leases


class LeasedSlots(Slots):
    """Slots that the fleet shares.

    Slots in use are reported every 2 s. A spare slot goes back when another process lacks one, or after 2 s.
    """

    __slots__ = (
        "_asked",
        "_asked_s",
        "_excess",
        "_fleet",
        "_is_asking",
        "_leases",
        "_on_more",
        "_others",
        "_quiet_until_s",
        "_sent",
        "_used_s",
        "_waiting",
        "_want",
        "_wanted",
        "_was_alone",
        "key",
    )

    def __init__(self, leases: "Leases", key: str, limit: float) -> None:
        super().__init__(limit)
        self.allowed = 0
        self.key = key
        self._waiting: Callable[[], int] = int
        self._on_more: Callable[[], None] = _nothing
        self._leases = leases
        self._fleet = leases.fleet
        self._is_asking = self._wanted = False
        self._was_alone = False  # since the last answer
        self._others: int | None = None
        self._want = self._asked = self._sent = self._excess = 0
        self._asked_s = self._used_s = self._quiet_until_s = -math.inf

    @property
    def is_refused(self) -> bool:
        """True while no further slot may be used without the engine, which is away."""
        return self._fleet.is_alone and not self._fleet.part

    @property
    def has_part(self) -> bool:
        """True if this process's part of what the last answer left has a free slot."""
        free = self.limit - (self._others or 0) - self.allowed
        return self.taken < self.allowed + max(0, free) // max(1, self._fleet.processes)

    @property
    def unspent(self) -> float:
        """Slots that are leased and not in use; negative after slots were taken while the engine was away."""
        return self.allowed - self.taken

    @property
    def owed(self) -> float:
        """Slots that were taken while the engine was away, and are still in use."""
        return max(0.0, self.taken - self.allowed)

    @property
    def size(self) -> float:
        """All slots."""
        return self.limit

    def release(self) -> None:
        """Release a slot, and give it back if another process lacks one."""
        self.taken -= 1
        if self._wanted:
            self._send()

    def serve(self, waiting: Callable[[], int], on_more: Callable[[], None]) -> None:
        """Serve a queue; see `Slots.serve`."""
        self._waiting, self._on_more = waiting, on_more

    def passes_on(self) -> bool:
        """Return False for a slot more than an equal part while another process lacks one."""
        if not self._excess or self._fleet.is_alone:
            return self.taken <= self.allowed
        self._excess -= 1
        return False

    def is_asking(self, now_s: float, waiting: int = 0) -> bool:
        """Have further slots asked for, and return True until the answer is known; called while all are taken."""
        self._used_s, self._want = now_s, waiting + 1
        if self._fleet.is_alone:
            self._take_part()
            return False
        if not self._is_asking and now_s >= self._quiet_until_s:
            self._send()
        return self._is_asking

    def tick(self, now_s: float) -> None:
        """Ask again for a request that waits, give back spare slots, and report the slots in use every 2 s."""
        if self._is_asking:
            return
        is_idle = now_s >= self._used_s + IDLE_S
        self._want = self._waiting()
        if self._want or now_s >= self._asked_s + IDLE_S or (self.allowed > self.taken and (is_idle or self._wanted)):
            self._send()
        elif not self.allowed and not self.taken:
            del self._leases.held[self]

    def ask(self, now_s: float) -> Ask | None:
        """Return the ask: report the slots held, without spare ones that others lack."""
        gives_back = self._wanted or now_s >= self._used_s + IDLE_S
        self._asked_s = now_s
        if gives_back or self.allowed < self.taken:
            self.allowed = self.taken
        self._sent = int(self.allowed)
        spare = 0 if gives_back else 1
        self._asked = self._want
        want = self._want + spare if self._want else 0
        return SlotsAsk(self.key, int(self.limit), self._sent, want, self._others)

    def answered(self, answer: Answer, now_s: float) -> None:
        """Use the granted slots."""
        assert isinstance(answer, SlotsAnswer)
        self._is_asking = self._was_alone = False
        self._others, self._wanted = answer.others, answer.wanted
        self.allowed = self._sent + answer.granted
        if answer.granted < self._asked:
            self._quiet_until_s = now_s + QUIET_S
        part = max(1, answer.limit // self._fleet.processes)
        self._excess = max(0, self.taken - part) if answer.wanted else 0
        self._want = 0
        self._leases.held[self] = None
        self._leases.note_amount(self.key, self.limit, answer.limit)
        if self.allowed > self.taken:
            self._on_more()

    def lost(self, now_s: float) -> None:
        """Go on with the slots held: the next ask states them."""
        self._is_asking = False

    def _send(self) -> None:
        self._is_asking = True
        self._fleet.want(self)

    def _take_part(self) -> None:
        """Add this process's part of the slots that were free, once after an answer, or one if it would have none."""
        part = self._fleet.part
        if part and not self._was_alone:
            self._was_alone = True
            others = 0 if part == 1 else self._others or 0
            free = max(0.0, self.limit - others - self.allowed)
            self.allowed = max(1, self.allowed + int(part * free))


def _nothing() -> None:
    """Do nothing: no request waits."""
