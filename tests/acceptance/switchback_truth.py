"""Compares the total effect that a switchback finds with the truth of simulated runs; a step of scripts/nightly.

Each row runs a workload without hedging, with it, and with the switch. Of all figures, 85 % of the intervals must
contain the total effect. On W1, where hedges change little for other requests, as many must contain the direct effect;
on W6 that effect is smaller.

Units: milliseconds; the misses are a share.
"""

import argparse
import sys
from typing import Final

from known_runs import known_run
from streaming_bench.simulation.scenario import load
from switched_runs import FIGURES, switched_run, truth

_BLOCKS: Final = 40
_COVERED: Final = 0.85  # of 15 to 30 figures, which are not independent
_ROWS: Final = {"W1": (0.02, 40_000, 4), "W6": (2.0, 60_000, 1)}  # SLO, requests, seeds
_ALIKE: Final = ("W1",)


def direct(name: str, seed: int) -> dict[str, float]:
    """Return the direct effect of a run with hedging, in the units of the report."""
    slo_s, requests, _ = _ROWS[name]
    known = known_run(load(name, requests), seed, slo_s).truth
    return {
        "misses": known["misses"] / requests,
        **{f"{figure}_ms": 1000 * known[figure] for figure in ("p95", "p99", "mean")},
    }


def main() -> int:
    """Print every figure; returns 1 if too few intervals contain the truth."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("workloads", nargs="*", help="only these, such as W1")
    given = parser.parse_args()
    total, alike = [0, 0], [0, 0]
    for name, (slo_s, requests, seeds) in _ROWS.items():
        for seed in range(1, seeds + 1) if not given.workloads or name in given.workloads else ():
            run = switched_run(load(name, requests), seed, slo_s, _BLOCKS)
            true, own = truth(run), direct(name, seed)
            for figure in FIGURES:
                saved = getattr(run.estimate, figure).saved
                assert saved is not None
                is_in = saved.low <= true[figure] <= saved.high
                total = [total[0] + is_in, total[1] + 1]
                if name in _ALIKE and figure in own:
                    alike = [alike[0] + (saved.low <= own[figure] <= saved.high), alike[1] + 1]
                found = f"{saved.value:.4g} ({saved.low:.4g} to {saved.high:.4g})"
                shown = f"{own[figure]:.4g}" if figure in own else "-"
                sys.stdout.write(
                    f"{name} seed {seed} {figure:<8} {found:<34} total {true[figure]:<10.4g} direct {shown}\n"
                )
                sys.stdout.flush()
    sys.stdout.write(
        f"total effect in {total[0]} of {total[1]} intervals, direct effect on W1 in {alike[0]} of {alike[1]}\n"
    )
    return int(any(inside < _COVERED * count for inside, count in (total, alike)))


if __name__ == "__main__":
    sys.exit(main())
