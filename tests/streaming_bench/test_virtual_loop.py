"""The virtual loop: time is exact and free, and a program that can never continue raises an error."""

import asyncio
from collections.abc import Callable

import hypothesis.strategies as st
import pytest
from hypothesis import given

from running import run_virtual
from streaming_bench.simulation.virtual_loop import StandstillError


async def _wait(delay_s: float) -> float:
    """Wait on a timer and return the time then."""
    loop = asyncio.get_running_loop()
    done = asyncio.Event()
    loop.call_later(delay_s, done.set)
    await done.wait()
    return loop.time()


@pytest.mark.parametrize("delay_s", [0.0, 5e-324, 1e-12, 0.1, 30.0, 100_000.0, 1e12])
def test_a_timer_fires_at_its_time(delay_s: float) -> None:
    """A timer set at 0 fires when the clock is exactly its delay, from below a nanosecond to thousands of years."""
    assert run_virtual(_wait(delay_s)) == delay_s


@given(st.lists(st.sampled_from([0.0, 0.1, 0.1 + 1e-12, 0.3])))
def test_timers_fire_in_order(delays_s: list[float]) -> None:
    """Timers fire by time, timers of one instant in the order they were set, and none early."""
    fired: list[tuple[float, int]] = []

    async def main() -> None:
        loop = asyncio.get_running_loop()

        def fire(number: int) -> None:
            fired.append((loop.time(), number))

        for number, delay_s in enumerate(delays_s):
            loop.call_later(delay_s, fire, number)
        await _wait(1.0)

    run_virtual(main())

    assert fired == sorted((delay_s, number) for number, delay_s in enumerate(delays_s))


def test_a_cancelled_timer_does_not_move_the_clock() -> None:
    """The clock jumps to the next timer that is not cancelled."""

    async def main() -> float:
        loop = asyncio.get_running_loop()
        loop.call_later(1.0, lambda: None).cancel()
        return await _wait(2.0)

    assert run_virtual(main()) == 2.0


def test_timeouts_work() -> None:
    """A timeout of asyncio's counts virtual seconds."""

    async def main() -> float:
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(15.0):
                await asyncio.Event().wait()
        return asyncio.get_running_loop().time()

    assert run_virtual(main()) == 15.0


def test_a_standstill_is_an_error() -> None:
    """A program without timers ends with an error that names the waiting tasks."""

    async def forgotten() -> None:
        await asyncio.Event().wait()

    async def main() -> None:
        await _wait(0.5)
        async with asyncio.TaskGroup() as group:
            group.create_task(forgotten())

    with pytest.raises(StandstillError, match=r"at 0\.5 s.*2 tasks wait(?s:.*)forgotten"):
        run_virtual(main())


def test_many_timers() -> None:
    """A chain of timers, each set by the one before, takes its virtual time exactly and hours pass in a moment."""
    fired = 0

    async def main() -> float:
        loop = asyncio.get_running_loop()
        done = asyncio.Event()

        def tick() -> None:
            nonlocal fired
            fired += 1
            if fired == 10_000:
                done.set()
            else:
                loop.call_later(1.0, tick)

        tick()
        await done.wait()
        return loop.time()

    assert run_virtual(main()) == 9_999.0


def _left_task() -> None:
    asyncio.get_running_loop().create_task(_wait(1.0), name="left alone")


def _raising_callback() -> None:
    def fail() -> None:
        raise ValueError("seen by nobody")

    asyncio.get_running_loop().call_soon(fail)


@pytest.mark.parametrize(
    ("careless", "complaint"),
    [
        (_left_task, "left behind:\n.*left alone"),
        (_raising_callback, "only the event loop saw.*seen by nobody"),
    ],
)
def test_the_runner_notices_what_is_left(careless: Callable[[], None], complaint: str) -> None:
    """A test with an unfinished task or an unhandled exception fails."""

    async def main() -> None:
        careless()
        await _wait(0.0)

    with pytest.raises(AssertionError, match=complaint):
        run_virtual(main())
