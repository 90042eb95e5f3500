"""One timer wakes the races of a client that are late, each at its time."""

import asyncio
import math
from typing import Any, Final

import pytest

from running import run_virtual
from ttft_gateway.client.async_race import RaceAlarm, alarm_of

_AGAIN_S: Final = 0.25


class _Race:
    """A race that is late at a time, and a second time after that.

    Attributes:
        woken_s: times at which it was woken.
    """

    def __init__(self, due_s: float, alarm: Any) -> None:
        self.race = self
        self.due_s = due_s
        self.hedger = self
        self.woken_s: list[float] = []
        self._alarm = alarm

    def on_due(self) -> None:
        """Be late once more, then never."""
        self.woken_s.append(self.clock())
        self.due_s = self.due_s + _AGAIN_S if len(self.woken_s) < 2 else math.inf
        if self.due_s == math.inf:
            self._alarm.discard(self)

    def clock(self) -> float:
        """Return the time of the loop."""
        return asyncio.get_running_loop().time()


def test_races_are_woken_when_they_are_due() -> None:
    """A later race, and a race that is removed, move no time of another one."""

    async def main() -> None:
        alarm: Any = RaceAlarm(asyncio.get_running_loop(), _hedger())
        start_s = asyncio.get_running_loop().time()
        races = [_Race(start_s + due_s, alarm) for due_s in (3.0, 1.0, 2.0, math.inf)]
        for race in races:
            alarm.add(race)
        alarm.discard(races[2])
        await asyncio.sleep(10.0)
        woken = [[moment - start_s for moment in race.woken_s] for race in races]
        assert woken[0] == pytest.approx([3.0, 3.25], abs=1e-3)
        assert woken[1] == pytest.approx([1.0, 1.25], abs=1e-3)
        assert woken[2:] == [[], []]

    run_virtual(main())


def test_races_in_time_share_a_timer(monkeypatch: pytest.MonkeyPatch) -> None:
    """A hundred requests that are not late set one timer, and none is left after the client."""

    async def main() -> None:
        loop = asyncio.get_running_loop()
        timers: list[asyncio.TimerHandle] = []
        call_at = loop.call_at

        def counted(when_s: float, *given: Any, **more: Any) -> asyncio.TimerHandle:
            timers.append(call_at(when_s, *given, **more))
            return timers[-1]

        monkeypatch.setattr(loop, "call_at", counted)
        alarm: Any = RaceAlarm(loop, _hedger())
        for number in range(100):
            race = _Race(loop.time() + 5.0 + number, alarm)
            alarm.add(race)
            alarm.discard(race)
        assert len(timers) == 1
        alarm.close()
        assert timers[0].cancelled()

    run_virtual(main())


def test_each_loop_has_an_alarm() -> None:
    """A client that is used in another loop does not wait for a timer of the first one."""

    async def main(last: RaceAlarm | None) -> RaceAlarm:
        found = alarm_of(_hedger(), last)
        assert alarm_of(_hedger(), found) is found
        return found

    first = run_virtual(main(None))
    assert run_virtual(main(first)) is not first


def _hedger() -> Any:
    return _Race(math.inf, None)
