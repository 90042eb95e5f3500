"""Fan-out: one request makes n calls together and waits for the slowest; computed, and measured through the gateway.

For independent calls, each slow with probability p, P = 1 - (1 - p)^n. Measured with real sockets: simulated replicas,
one gateway process for each policy, and this client on one machine. Units: seconds.
"""

import asyncio
import random
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Final

from gateway.simulated.quantities import distribution
from streaming_bench.compare.experiment import Experiment
from streaming_bench.compare.processes import MODEL, Fleet, fleet, gateway
from streaming_bench.errors import BenchError
from streaming_bench.load.client import Client, PlannedRequest, Target
from streaming_bench.load.token_distribution import prompt_text
from streaming_bench.processes import GatewayProcess
from streaming_bench.report.records import Record

CALLS: Final = (1, 2, 5, 10, 20, 25, 50, 100, 200, 500, 1000)
SHARES: Final = (0.04, 0.01, 0.001, 0.0001)
_PROMPT_TOKENS = 20
_TOKENS = 2
WARM_CALLS = 300
SLOW_SHARE: Final = 0.01  # of the calls
_USUAL, _SLOW = "lognormal:150ms,30ms", "lognormal:2s,250ms"  # long beside what a busy machine adds
_SLOW_S = 1.0  # between a usual first token and a slow one


def any_slow(share: float, calls: int) -> float:
    """Return the share of requests that wait for at least one slow call.

    Args:
        share: share of slow calls.
    """
    return float(1.0 - (1.0 - share) ** calls)


@dataclass(frozen=True, slots=True)
class FanOut:
    """One measurement.

    Attributes:
        calls: calls of each request.
        policy: "off" or "adaptive".
        times_s: time until the slowest of a request's calls had its first token, in ascending order.
        extra: upstream requests per call minus 1.
    """

    calls: int
    policy: str
    times_s: Sequence[float]
    extra: float

    @property
    def slow(self) -> float:
        """Share of the requests with a slow call."""
        return sum(time_s > _SLOW_S for time_s in self.times_s) / len(self.times_s)


def measure(
    calls: Sequence[int], policies: Sequence[str], requests: int, seed: int, *, warm_calls: int = WARM_CALLS
) -> Iterator[FanOut]:
    """Measure every number of calls with every policy.

    Args:
        requests: requests of each measurement.
        warm_calls: calls before each measurement, from which the policy learns.

    Raises:
        BenchError: A process did not start, or a call failed.
    """
    laws = distribution(_USUAL), distribution(_SLOW)
    experiment = Experiment(*laws, misses=SLOW_SHARE, tokens=_TOKENS, budget=0.1, seed=seed)
    with fleet(experiment.profiles("flushed"), seed) as replicas:
        for count in calls:
            for policy in policies:
                replicas.configure(experiment.profiles("flushed"))
                with gateway(replicas.urls, experiment.hedge(policy)) as process, asyncio.Runner() as runner:
                    yield runner.run(_measured(replicas, process, count, policy, requests, seed, warm_calls))


async def _measured(
    replicas: Fleet, process: GatewayProcess, calls: int, policy: str, requests: int, seed: int, warm_calls: int
) -> FanOut:
    loop = asyncio.get_running_loop()
    words = random.Random(seed)
    async with asyncio.TaskGroup() as tasks:
        client = Client(Target(process.url, MODEL, timeout_s=30.0), tasks, loop.time())

        async def ask(number: int, count: int) -> float:
            """Send calls together; return the time until the slowest had its first token."""
            times_s: list[float] = []
            sent_s = loop.time()
            for _ in range(count):
                planned = PlannedRequest(
                    number, 0, None, prompt_text(number, _PROMPT_TOKENS, words), _PROMPT_TOKENS, _TOKENS
                )
                client.send(planned, client.call(planned), sent_s, _collector(times_s))
            await client.idle()
            return max(times_s)

        try:
            for number in range(-(-warm_calls // calls)):
                await ask(number, calls)
            before = replicas.counts().requests
            times_s = [await ask(number, calls) for number in range(requests)]
            extra = (replicas.counts().requests - before) / (requests * calls) - 1
        finally:
            client.close()
    return FanOut(calls, policy, sorted(times_s), extra)


def _collector(times_s: list[float]) -> Callable[[Record], None]:
    def done(record: Record) -> None:
        if record.error:
            raise BenchError(f"a call failed: {record.error}")
        times_s.append(record.ttft_s)

    return done
