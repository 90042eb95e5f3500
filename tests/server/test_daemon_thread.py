"""Calls on threads of their own."""

import asyncio

from gateway.server.daemon_thread import uncancelled
from running import run_virtual


def test_work_goes_on_without_its_caller() -> None:
    """A caller that is cancelled cancels no work, and the work's later exception is no error of the loop."""

    async def main() -> None:
        work: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        async with asyncio.TaskGroup() as group:
            caller = group.create_task(uncancelled(work))
            await asyncio.sleep(0)
            caller.cancel()
        assert caller.cancelled()
        assert not work.done()
        work.set_exception(OSError("late"))
        await asyncio.sleep(0)

    run_virtual(main())
