"""Times of the policy's operations: one sample, one quantile, one plan, one credit; published next to measured.

Each operation is repeated in blocks; the lowest CPU time of a block is reported, which other processes disturb least.
Units: nanoseconds.
"""

import random
import time
import timeit
from collections.abc import Callable, Sequence
from typing import Final, NamedTuple

from streaming_bench.report.grid import Grid
from streaming_bench.research.published.sources import SKETCH_UPDATE_NS
from ttft_gateway.estimation.survival import Survival
from ttft_gateway.estimation.window import Window
from ttft_gateway.hedging.plan import plan_adaptive
from ttft_gateway.limits.budget import CreditBudget

_SAMPLES: Final = 10_000
_BLOCKS: Final = 7
_SEED: Final = 1


class Operation(NamedTuple):
    """One operation.

    Attributes:
        name: name of the row.
        call: the operation.
        number: repetitions in a block.
        published_ns: published time; None if there is none.
    """

    name: str
    call: Callable[[], object]
    number: int
    published_ns: float | None = None


def operations() -> list[Operation]:
    """Return the operations on a window of 10,000 samples in 50 s."""
    rng = random.Random(_SEED)
    values = [rng.lognormvariate(-5.3, 0.4) for _ in range(_SAMPLES)]
    window, filled, ratios, budget = Window(), Window(), Window(), CreditBudget(0.1)
    for number, value in enumerate(values):
        filled.add_event(value, number / 200)
        ratios.add_event(value / 0.005, number / 200)
    end_s = _SAMPLES / 200
    curve = Survival(ratios.bins(end_s))
    numbers = iter(range(1_000_000_000))

    def add() -> None:
        number = next(numbers)
        window.add_event(values[number % _SAMPLES], number / 200)

    def quantile() -> None:
        filled.add_event(0.005, end_s)  # a sample makes the sums old
        filled.quantile(0.9, end_s)

    def earn() -> None:
        budget.earn(next(numbers) / 200)

    def spend() -> None:
        ticket = budget.reserve(0.0)
        if ticket is not None:
            budget.release(ticket)

    return [
        Operation("add a sample to the window", add, 20_000, SKETCH_UPDATE_NS),
        Operation("p90 of the window after a new sample", quantile, 300),
        Operation("plan from the window", lambda: plan_adaptive(curve, budget=0.1, first_share=0.1), 30),
        Operation("credit a request", earn, 20_000),
        Operation("reserve and release a hedge's credit", spend, 20_000),
    ]


def measured_ns(operation: Operation) -> float:
    """Return the time of one call."""
    blocks_s = timeit.repeat(operation.call, timer=time.process_time, number=operation.number, repeat=_BLOCKS)
    return 1e9 * min(blocks_s) / operation.number


def table(found: Sequence[tuple[Operation, float]]) -> Grid:
    """Return the table of times."""
    rows = [
        [each.name, f"{time_ns:,.0f}", "" if each.published_ns is None else f"{each.published_ns:g} (Go)"]
        for each, time_ns in found
    ]
    return Grid(["operation", "ns here", "ns published"], rows)
