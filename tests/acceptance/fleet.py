"""Fleets of gateways in virtual time against their bounds: what sharing has to keep of one gateway's behaviour.

Prints one line for each fleet; the exit code is 1 if a bound does not hold. Arguments choose workloads: F1 W5.
Units: milliseconds in figures, shares as fractions of 1.
"""

import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from gateway.share.sync import PERIOD_S
from streaming_bench.simulation.comparison import ComparisonPlan, SeedSamples
from streaming_bench.simulation.scenario import load

Figures = Mapping[str, float]
Bound = tuple[str, float, float]
"""A figure with its lowest and its highest value."""

OUTAGE_S = (20.0, 40.0)  # of F1
QUANTILES = {"p50": 0.5, "p99": 0.99, "p99.9": 0.999}
W6_HEADROOM = 1.12  # times the mean traffic


@dataclass(frozen=True)
class Fleet:
    """A fleet on a workload.

    Attributes:
        share_s: time between two exchanges; None if nothing is shared.
    """

    workload: str
    requests: int
    seeds: int
    gateways: int = 1
    share_s: float | None = None
    policy: str = "adaptive"
    budget: float | None = None
    headroom: float | None = None

    def run(self) -> Figures:
        """Return the mean of each figure over the seeds."""
        rows = [self._run(seed) for seed in range(1, self.seeds + 1)]
        return {name: float(np.mean([row[name] for row in rows])) for name in rows[0]}

    def _run(self, seed: int) -> Figures:
        plan = ComparisonPlan(
            (self.policy,),
            (seed,),
            budget=self.budget,
            headroom=self.headroom,
            gateways=self.gateways,
            share_s=self.share_s,
        )
        columns = SeedSamples(load(self.workload, self.requests), plan, seed).run(self.policy).columns
        if self.workload.startswith("F1"):
            arrived_s = columns["arrived_s"]
            during = (arrived_s >= OUTAGE_S[0]) & (arrived_s < OUTAGE_S[1])
            columns = {name: values[during] for name, values in columns.items()}
        return {
            **{name: 1000 * float(np.quantile(columns["ttft_s"], q)) for name, q in QUANTILES.items()},
            "hedges": float(columns["hedges"].mean()),
            "429s": float(columns["limited"].mean()),
            "429s of hedges": float(columns["limited_backups"].sum()),
            "attempts there": float(columns["at_first"].sum()),
        }


def checks(workloads: Sequence[str]) -> Iterator[tuple[Fleet, Figures, Sequence[Bound]]]:
    """Yield each fleet with its figures and bounds."""
    if "W5" in workloads:
        one, briefly = (Fleet("W5", requests, 2, policy="off") for requests in (5_000, 1_250))
        alone = replace(one, gateways=8)
        base, brief, blind = one.run(), briefly.run(), alone.run()
        yield one, base, ()
        yield briefly, brief, ()
        yield alone, blind, ()
        for fleet, p50, p99, against in (
            (replace(alone, share_s=PERIOD_S), 1.4, 1.3, base),
            (replace(alone, share_s=1.0), 1.05, 1.05, blind),
            (replace(briefly, gateways=100, share_s=PERIOD_S), 1.5, 1.4, brief),
        ):
            yield fleet, fleet.run(), (("p50", 0.0, p50 * against["p50"]), ("p99", 0.0, p99 * against["p99"]))
    bounds: Mapping[Fleet, Sequence[Bound]] = {
        Fleet("F1", 10_000, 1, 100, 0.1): (("p99", 0.0, 30.0), ("attempts there", 0.0, 100.0)),
        Fleet("F1/failing", 10_000, 1, 100, 0.1): (("attempts there", 0.0, 40.0),),
        Fleet("W3", 12_000, 1, 100, 0.1): (("p99.9", 0.0, 50.0),),
        Fleet("W6", 12_000, 1, 8, 0.1, headroom=W6_HEADROOM): (("429s", 0.0, 0.0005), ("429s of hedges", 0.0, 0.0)),
        Fleet("W6", 12_000, 1, 100, 0.1, headroom=W6_HEADROOM): (("429s", 0.0, 0.0005), ("429s of hedges", 0.0, 0.0)),
        Fleet("W2", 12_000, 1, 1_000, 0.1, budget=0.1): (("hedges", 0.08, 0.103),),
    }
    for fleet, wanted in bounds.items():
        if fleet.workload.partition("/")[0] in workloads:
            yield fleet, fleet.run(), wanted


def main(workloads: Sequence[str]) -> int:
    """Run the fleets on these workloads, or all; return the exit code."""
    failed = False
    for fleet, found, bounds in checks(workloads or ("W5", "F1", "W3", "W6", "W2")):
        missed = [
            f"{name} is not in {low:.4g}..{high:.4g}" for name, low, high in bounds if not low <= found[name] <= high
        ]
        failed = failed or bool(missed)
        shown = ", ".join(f"{name} {value:.4g}" for name, value in found.items())
        share = "alone" if fleet.share_s is None else f"shared every {1000 * fleet.share_s:.0f} ms"
        sys.stdout.write(f"{fleet.workload:<10} {fleet.gateways:>5} gateways, {share}: {shown}; {missed or 'ok'}\n")
        sys.stdout.flush()
    return int(failed)


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
