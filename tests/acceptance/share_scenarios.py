"""Four processes that share the limit of one key: what they admit together while their engine works, fails and returns.

Units: seconds, requests.
"""

import asyncio
import json
import os
import signal
import sys
import tempfile
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from typing import Any, Final

from checkout import ROOT
from leased_fleet import Meter

LIMIT: Final = 3_000  # a minute
FOR_S: Final = 60.0
BREAK_S: Final = 35.0  # when the engine breaks: by then the bucket is empty
AWAY_S: Final = 8.0
_START_S: Final = 4.0  # until all processes have started
_PROGRAM: Final = ROOT / "tests" / "acceptance" / "share_process.py"

EVEN: Final = (0.25, 0.25, 0.25, 0.25)
SKEWED: Final = (0.9, 0.04, 0.03, 0.03)


@dataclass(frozen=True)
class Result:
    """What a fleet did.

    Attributes:
        share: part of what was allowed that was admitted.
        over: deepest debt of one true bucket.
        longest_wait_s: longest wait of an admitted request.
        errors: number of rejections other than 429, and of bugs.
        back_s: time from the return of the engine to its use by the last process; None if it was never away.
        ask_s: mean time of a reply.
    """

    share: float
    over: float
    longest_wait_s: float
    errors: int
    back_s: float | None
    ask_s: float


class EngineProcess:
    """The engine, which is killed and started again."""

    def __init__(self, path: str) -> None:
        self._path = path
        self._process: asyncio.subprocess.Process | None = None

    async def start(self) -> None:
        """Start it, and wait until it listens."""
        self._process = await _process("engine", self._path)
        assert self._process.stdout is not None
        await self._process.stdout.readline()

    def send(self, number: signal.Signals) -> None:
        """Send a signal."""
        assert self._process is not None
        self._process.send_signal(number)

    async def kill(self) -> None:
        """Kill it with all its data."""
        assert self._process is not None
        self._process.kill()
        await self._process.wait()


Break = Callable[[EngineProcess], Awaitable[None]]


async def _works(_: EngineProcess) -> None:
    """Break nothing."""


async def _killed(engine: EngineProcess) -> None:
    await engine.kill()
    await asyncio.sleep(AWAY_S)
    await engine.start()


async def _hung(engine: EngineProcess) -> None:
    engine.send(signal.SIGSTOP)
    await asyncio.sleep(AWAY_S)
    engine.send(signal.SIGCONT)


async def _slow(engine: EngineProcess) -> None:
    engine.send(signal.SIGUSR1)
    await asyncio.sleep(AWAY_S)
    engine.send(signal.SIGUSR2)


BREAKS: Final[dict[str, Break]] = {"works": _works, "killed": _killed, "hung": _hung, "slow": _slow}


def run(load: float, shares: Sequence[float], broken: str = "works") -> Result:
    """Offer a multiple of the limit for a minute to four processes, by their shares of the traffic."""
    return asyncio.run(_run(load, shares, BREAKS[broken]))


async def _run(load: float, shares: Sequence[float], breaks: Break) -> Result:
    clock = asyncio.get_running_loop().time  # the same in every process of the machine
    with tempfile.TemporaryDirectory() as folder:
        path = f"{folder}/engine"
        engine = EngineProcess(path)
        await engine.start()
        start_s = clock() + _START_S
        per_s = load * LIMIT / 60
        processes = [
            await _process("process", path, f"h{n}", str(LIMIT), str(share * per_s), str(start_s), str(FOR_S), "1")
            for n, share in enumerate(shares)
        ]
        outputs = asyncio.gather(*(each.communicate() for each in processes))
        await asyncio.sleep(start_s + BREAK_S - clock())
        await breaks(engine)
        back_s = clock()
        told = [json.loads(out) for out, _ in await outputs]
        await engine.kill()
    return _result(told, start_s, back_s)


def _result(told: Sequence[dict[str, Any]], start_s: float, back_s: float) -> Result:
    meter = Meter(LIMIT, start_s)
    for at_s in sorted(at_s for process in told for at_s in process["admitted"]):
        meter.charge(at_s)
    codes = [(code, number) for process in told for code, number in process["refused"].items()]
    returns = [at_s for process in told for at_s, is_up in process["changes"] if is_up]
    return Result(
        len(meter.admitted) / meter.allowed(start_s + FOR_S),
        meter.over,
        max(process["longest_wait_s"] for process in told),
        sum(number for code, number in codes if code != "rate_limit_exceeded") + sum(len(h["bugs"]) for h in told),
        max(returns) - back_s if returns else None,
        sum(process["ask_s"] for process in told) / len(told),
    )


async def _process(*arguments: str) -> asyncio.subprocess.Process:
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    pipe = asyncio.subprocess.PIPE
    return await asyncio.create_subprocess_exec(sys.executable, str(_PROGRAM), *arguments, stdout=pipe, env=environment)
