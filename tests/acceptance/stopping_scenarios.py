"""How long a gateway takes to end: the demo at Ctrl-C, and a gateway with a long stream at the second. Real processes.

Units: seconds.
"""

import asyncio
import signal

from spawned import Gateway, rest, serving, started, stream


async def demo_ended() -> float:
    """From Ctrl-C until the demo, its traffic and its replicas are gone."""
    async with started("demo", "--traffic", "--port", "0") as demo:
        await demo.ready(demo.process.stdout)
        await asyncio.sleep(2.0)  # of traffic
        return await _ended(demo, code=0)


async def ended_by_the_second() -> float:
    """From the second Ctrl-C until the end of a gateway with a stream that would have run for minutes."""
    async with serving(ttft="50ms", gap="1s", tokens=600) as (gateway, _):
        reader, writer = await stream(gateway.port)
        gateway.process.send_signal(signal.SIGINT)
        await gateway.says(gateway.process.stderr, b"stopping: ")
        _, took_s = await asyncio.gather(rest(reader, writer), _ended(gateway, code=130))
        return took_s


async def _ended(gateway: Gateway, code: int) -> float:
    loop = asyncio.get_running_loop()
    begin_s = loop.time()
    gateway.process.send_signal(signal.SIGINT)
    ended, said = await gateway.ended()
    assert ended == code, said
    return loop.time() - begin_s
