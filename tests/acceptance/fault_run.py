"""Asks under every kind of fault in several processes and prints the results by kind and by shape of request.

In full some 480,000 answers, 20,000 for each kind. The run consists of slices, each with a gateway of its own and a
seed of its own, so that a run can be divided: `--seed 1 --count 10000` and `--seed 26 --count 10000` are one of 20,000.
Requests and bodies of wrong answers are written to build/faults. Exit code 1 if there are any.
"""

import argparse
import math
import sys
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from multiprocessing import get_context

from checkout import ROOT
from fault_judge import WRONG
from fault_requests import FAULTS
from fault_scenarios import Results, faulty
from running import run_real

_SLICE = 400  # answers for each kind: nine of each shape of request
_FOLDER = ROOT / "build" / "faults"


def _slice(kinds: Sequence[str], count: int, seed: int, at_once: int) -> Results:
    return run_real(faulty(kinds, count, seed=seed, at_once=at_once))


def _lines(title: str, table: Mapping[str, Counter[str]]) -> Iterator[str]:
    """Yield a table of counts: the wrong results first, all others in order of their number."""
    total = sum(table.values(), Counter[str]())
    columns = [*WRONG, *(result for result, _ in total.most_common() if result not in WRONG)]
    yield " ".join([f"{title:<48}", *(f"{column:>12}" for column in columns)])
    for name, counts in {**table, "all": total}.items():
        yield " ".join([f"{name:<48}", *(f"{counts[column]:>12}" for column in columns)])


def _parsed(argv: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="fault_run.py", description="Checks answers under every kind of fault.")
    parser.add_argument("--kinds", default=",".join(FAULTS), help="kinds of faults, with commas between them; all")
    parser.add_argument("--count", type=int, default=20_000, help="answers for each kind; 20000")
    parser.add_argument("--seed", type=int, default=1, help="seed of the first slice; 1")
    parser.add_argument("--slice", type=int, default=_SLICE, help=f"answers for each kind in a slice; {_SLICE}")
    parser.add_argument("--jobs", type=int, default=2, help="slices at a time; 2")
    parser.add_argument("--at-once", type=int, default=100, help="requests under way in a slice; 100")
    given = parser.parse_args(argv)
    given.kinds = given.kinds.split(",")
    if unknown := [kind for kind in given.kinds if kind not in FAULTS]:
        parser.error(f"there is no kind {unknown[0]!r}; there are: {', '.join(FAULTS)}")
    return given


def main(argv: Sequence[str] | None = None) -> int:
    """Run the slices; return the exit code."""
    given, results = _parsed(argv), Results()
    count = math.ceil(given.count / given.slice)
    with ProcessPoolExecutor(given.jobs, get_context("spawn")) as processes:
        slices = {
            processes.submit(_slice, given.kinds, given.slice, given.seed + number, given.at_once): given.seed + number
            for number in range(count)
        }
        for done, future in enumerate(as_completed(slices), 1):
            results.add(future.result())
            _write(results)
            sys.stderr.write(f"slice {done} of {count}, seed {slices[future]}: {results.wrong} wrong so far\n")
    for column, title in enumerate(("kind of fault", "shape of request")):
        table = results.by(column)
        sys.stdout.writelines(f"{line}\n" for line in (*_lines(title, dict(sorted(table.items()))), ""))
    sys.stdout.writelines(f"reported by the gateway: {line}\n" for line in results.troubles[:10])
    return 1 if results.wrong or results.troubles else 0


def _write(results: Results) -> None:
    """Write the wrong answers to files and forget them."""
    _FOLDER.mkdir(parents=True, exist_ok=True)
    for name, raw in results.examples.items():
        (_FOLDER / f"{name}.txt").write_bytes(raw)
    results.examples.clear()


if __name__ == "__main__":
    raise SystemExit(main())
