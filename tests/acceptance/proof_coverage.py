"""Compares the intervals of what hedging saved with the truth of simulated runs; a step of scripts/nightly.

Each row draws 400 times from a few runs of one workload. An interval that is shown must contain the truth in 91 % of
the draws (the restricted mean's in 90 %), and all of one figure in 93 to 97.5 %. A row above 98.5 % is listed and does
not fail: any interval that contains its own estimate contains the truth where all measured requests agree, because
every beaten one would have missed, and where an effect is zero or as small as the bins of the TTFTs.

Units: seconds; shares are fractions of 1.
"""

import argparse
import sys
from collections.abc import Iterator
from typing import Final, NamedTuple

from msgspec.structs import replace

from known_runs import FIGURES, Coverage, KnownRun, coverage, known_run
from streaming_bench.simulation.scenario import Scenario, load
from ttft_gateway.hedging.measure import Instrument

_LOW: Final = 0.91
_LOW_MEAN: Final = 0.90
_HIGH: Final = 0.985
_POOLED: Final = (0.93, 0.975)
_NOISE: Final = 0.015  # a coverage of 0.91 is found as 0.895 in one of six rows of 400 draws
_SHOWN_MIN: Final = 100  # draws with an interval, below which a coverage is not judged


class Workload(NamedTuple):
    """A workload with its SLO and the shares to draw.

    Attributes:
        correlation: correlation of slow answers between replicas; None for the workload's own.
    """

    name: str
    slo_s: float
    requests: int
    losers: tuple[float, ...]
    holdout: float
    correlation: float | None = None


WORKLOADS: Final = (
    Workload("W1", 0.02, 20_000, (0.05, 0.2), 0.05),
    Workload("W2", 0.1, 20_000, (0.05, 0.2), 0.05),
    Workload("W4", 0.1, 20_000, (0.2,), 0.1),
    Workload("W6", 2.0, 30_000, (0.1, 0.3), 0.1),
    Workload("W1", 0.02, 20_000, (0.05, 0.2), 0.05, 0.5),
    Workload("W2", 0.1, 20_000, (0.05, 0.2), 0.05, 0.5),
    Workload("W4", 0.1, 20_000, (0.2,), 0.1, 0.5),
    Workload("W6", 2.0, 30_000, (0.1, 0.3), 0.1, 1.5),
)


def scenario_of(workload: Workload) -> tuple[Scenario, float | None]:
    """Return the scenario, and the correlation that is no part of it: for W6, the rate of repeated stalls."""
    scenario = load(workload.name, workload.requests)
    serving = scenario.serving
    if serving is None or serving.opaque is None:
        return scenario, workload.correlation
    again = serving.opaque.stalls_again if workload.correlation is None else workload.correlation
    opaque = replace(serving.opaque, stalls_again=type(serving.opaque.stalls_again)(again))
    return replace(scenario, serving=replace(serving, opaque=opaque)), None


def rows(workload: Workload, seeds: int, draws: int) -> Iterator[tuple[str, dict[str, Coverage]]]:
    """Yield the coverage for each instrument and share."""
    scenario, correlation = scenario_of(workload)
    runs: list[KnownRun] = [known_run(scenario, seed, workload.slo_s, correlation) for seed in range(seeds)]
    title = workload.name if workload.correlation is None else f"{workload.name} corr. {workload.correlation:g}"
    for share in workload.losers:
        yield f"{title} losers {share:.0%}", coverage(runs, Instrument.LOSERS, share, draws)
    yield f"{title} holdout {workload.holdout:.0%}", coverage(runs, Instrument.HOLDOUT, workload.holdout, draws)


def failures(name: str, found: dict[str, Coverage]) -> Iterator[str]:
    """Yield a sentence for each figure with too low a coverage."""
    for figure, each in found.items():
        low = (_LOW_MEAN if figure == "mean" else _LOW) - _NOISE
        if each.shown >= _SHOWN_MIN and each.share < low:
            yield f"{name}: {figure} is covered in {each.share:.1%}, wanted at least {low:.1%}"


def write(line: str) -> None:
    """Write a line."""
    sys.stdout.write(f"{line}\n")
    sys.stdout.flush()


def main() -> int:
    """Print every row; returns 1 if a coverage is out of bounds."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seeds", type=int, default=4)
    parser.add_argument("--draws", type=int, default=400)
    parser.add_argument("workloads", nargs="*", help="only these, such as W1")
    given = parser.parse_args()
    bad, wide, pooled = list[str](), list[str](), {figure: [0, 0] for figure in FIGURES}
    write(f"{'intervals that contain the truth (half width)':<46}{''.join(f'{each:>16}' for each in FIGURES)}")
    for workload in WORKLOADS:
        if given.workloads and workload.name not in given.workloads:
            continue
        for name, found in rows(workload, given.seeds, given.draws):
            cells = [f"{each.share:.1%} ({each.half:.0%})" if each.shown else "not shown" for each in found.values()]
            write(f"{name:<46}{''.join(f'{cell:>16}' for cell in cells)}")
            bad += failures(name, found)
            for figure, each in found.items():
                if each.shown >= _SHOWN_MIN and each.share > _HIGH:
                    wide.append(f"{name}: {figure} is covered in {each.share:.1%}")
                pooled[figure][0] += each.covering
                pooled[figure][1] += each.shown
    for figure, (covering, shown) in pooled.items():
        share = covering / max(1, shown)
        write(f"{figure}: {share:.1%} of {shown:,} intervals")
        if not _POOLED[0] <= share <= _POOLED[1]:
            bad.append(f"{figure}: {share:.1%} of all intervals contain the truth")
    write("\n".join(["wide:", *wide]))
    write("\n".join(bad) or "every coverage is within its bounds")
    return bool(bad)


if __name__ == "__main__":
    sys.exit(main())
