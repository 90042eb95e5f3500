"""Compares the bill that `ttft-bench replay --tiers` estimates with the truth: the same traffic under `prefer: cost`.

Two kinds of logs of simulated runs. In a trial most requests go to the usual tier, and one in ten each to the cheap and
the dear one; the truth is the bill of the same requests where the gateway chooses. The gateway's own log is of a run in
which it chooses, and the truth is another run, with other random numbers. Exit code 1 if the interval holds the truth
in fewer than nine of ten logs; scripts/nightly runs it. Units: bills as multiples of the bill on the usual tier.
"""

import argparse
import random
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Final, NamedTuple

from streaming_bench.commands.simulate import run_log
from streaming_bench.replay.reader import read_log
from streaming_bench.replay.tiers import TierPlan, replay_tiers
from streaming_bench.report.stats import Estimate
from streaming_bench.simulation.comparison import ComparisonPlan, SeedSamples
from streaming_bench.simulation.runner import SimulatedRun
from streaming_bench.simulation.scenario import load

WORKLOADS: Final = ("C1/calm", "C1", "C1/busy", "C1/changing")
KINDS: Final = ("trial", "own")
REQUESTS: Final = 6_000
REQUESTS_OF: Final = {
    ("C1/busy", "own"): 16_000,  # one request in fifty tests the cheap tier
    ("C1/changing", "trial"): 36_000,  # each law for ten minutes
    ("C1/changing", "own"): 36_000,
}
TRIAL: Final = 0.1  # of the requests go to each of the other tiers
INSIDE_MIN: Final = 0.9
_OTHER_SEED: Final = 500_000


class CheckedBill(NamedTuple):
    """An estimate and its truth; `bill` and `truth` are multiples of the usual bill, `over` shares above the target."""

    bill: Estimate
    truth: float
    over: Estimate
    true_over: float

    @property
    def is_inside(self) -> bool:
        """True if the interval contains the truth."""
        return self.bill.low <= self.truth <= self.bill.high


def check(workload: str, kind: str, seed: int, requests: int) -> CheckedBill:
    """Replay the log of one run, and simulate the truth."""
    scenario = load(workload, requests)
    assert scenario.tiers is not None
    tiers = scenario.tiers
    samples = SeedSamples(scenario, ComparisonPlan((), ()), seed)
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "log.jsonl"
        with run_log(path) as listener:
            if kind == "trial":
                samples.run("off", listener=listener, pinned=_trial(list(tiers.of), requests, seed))
            else:
                samples.run("adaptive", listener=listener)
        contents = read_log(path, requests, attempts=True)
    other = samples if kind == "trial" else SeedSamples(scenario, ComparisonPlan((), ()), seed + _OTHER_SEED)
    factors = {name: tier.price for name, tier in tiers.of.items()}
    plan = TierPlan(factors, (tiers.target_s,), tiers.prompt_price, tiers.answer_price, seed)
    row = replay_tiers(contents.requests["bench"], plan).rows[0].independent
    truth = other.run("adaptive")
    return CheckedBill(row.bill, _bill(truth), row.over, float((truth.columns["ttft_s"] > tiers.target_s).mean()))


def _trial(names: Sequence[str], count: int, seed: int) -> list[int]:
    """Return the tier of each request of a trial, by its number."""
    rng = random.Random(f"{seed}/trial")
    weights = [1.0 - (len(names) - 1) * TRIAL if name == "default" else TRIAL for name in names]
    return rng.choices(range(len(names)), weights, k=count)


def _bill(run: SimulatedRun) -> float:
    return float(run.columns["cost"].sum() / run.columns["usual_cost"].sum())


def main(argv: Sequence[str] | None = None) -> int:
    """Check all workloads; returns the exit code."""
    parser = argparse.ArgumentParser(prog="tier_bill_truth.py", description="Compares estimated bills with the truth.")
    parser.add_argument("names", nargs="*", metavar="NAME", help="workloads, such as C1/calm")
    parser.add_argument("--seeds", type=int, default=5, help="logs of each workload and kind")
    parser.add_argument("--seed-first", type=int, default=301, help="first seed")
    given = parser.parse_args(argv)
    seeds = range(given.seed_first, given.seed_first + given.seeds)
    found = []
    for name in given.names or WORKLOADS:
        for kind in KINDS:
            found += [
                _shown(name, kind, check(name, kind, seed, REQUESTS_OF.get((name, kind), REQUESTS))) for seed in seeds
            ]
    inside = sum(each.is_inside for each in found)
    sys.stdout.write(f"{inside} of {len(found)} truths are in the interval\n")
    return 0 if inside >= INSIDE_MIN * len(found) else 1


def _shown(name: str, kind: str, found: CheckedBill) -> CheckedBill:
    """Print one log as soon as it is known: all of them take half an hour."""
    over = found.over
    sys.stdout.write(
        f"{name:<12} {kind:<6} bill {found.bill.value:.3f} [{found.bill.low:.3f}, {found.bill.high:.3f}]  "
        f"truth {found.truth:.3f}{'' if found.is_inside else '  outside'}  over the target {over.value:.2%} "
        f"[{over.low:.2%}, {over.high:.2%}]  truth {found.true_over:.2%}\n"
    )
    sys.stdout.flush()
    return found


if __name__ == "__main__":
    raise SystemExit(main())
