"""Fuzzes one target for as long as it is told: `scripts/fuzz TARGET --seconds N`.

With atheris inputs are led by the code they reach; without it they are random changes of the corpus. An input that
breaks a property is written to a file, and ends the run.
"""

import argparse
import contextlib
import importlib.util
import random
import sys
from datetime import UTC, datetime, timedelta
from pathlib import Path
from types import ModuleType

from fuzz.pieces import changed

atheris = importlib.import_module("atheris") if importlib.util.find_spec("atheris") else None
with atheris.instrument_imports(include=["gateway", "providers"]) if atheris else contextlib.nullcontext():
    from fuzz.targets import CORPUS, TARGETS, corpus


def main() -> int:
    """Run it; the exit code is 0 when nothing was found."""
    parser = argparse.ArgumentParser(prog="scripts/fuzz", description=__doc__)
    parser.add_argument("target", choices=sorted(TARGETS))
    parser.add_argument("--seconds", type=int, default=3600)
    parser.add_argument("--into", type=Path, default=Path("build/fuzz"), help="folder for what is found")
    parser.add_argument("--seed", type=int, default=1)
    given = parser.parse_args()
    grown = given.into / given.target
    grown.mkdir(parents=True, exist_ok=True)
    return _led(atheris, given, grown) if atheris else _random(given, grown)


def _led(atheris: ModuleType, given: argparse.Namespace, grown: Path) -> int:
    """By coverage; libFuzzer ends the process itself."""
    target = TARGETS[given.target]
    words = grown / "words.dict"
    words.write_text("".join('"' + "".join(f"\\x{byte:02x}" for byte in word) + '"\n' for word in target.words))
    inputs = grown / "inputs"
    inputs.mkdir(exist_ok=True)
    options = [
        f"-max_total_time={given.seconds}",
        f"-seed={given.seed}",
        f"-dict={words}",
        f"-artifact_prefix={grown}/",
        "-max_len=8192",
        "-timeout=20",
        "-rss_limit_mb=1024",
        "-print_final_stats=1",
    ]
    atheris.Setup([sys.argv[0], *options, str(inputs), str(CORPUS / given.target)], target.check)
    atheris.Fuzz()
    return 0


def _random(given: argparse.Namespace, grown: Path) -> int:
    target, rand = TARGETS[given.target], random.Random(given.seed)
    seeds, count = list(corpus(given.target).values()), 0
    until = datetime.now(UTC) + timedelta(seconds=given.seconds)
    while datetime.now(UTC) < until:
        data = changed(rand, seeds, target.words)
        count += 1
        try:
            target.check(data)
        except Exception:
            file = grown / f"crash-{count}"
            file.write_bytes(data)
            sys.stderr.write(f"after {count} inputs one broke {given.target}; it is in {file}\n")
            raise
    sys.stderr.write(f"{count} inputs, nothing found (without atheris: random changes of the corpus)\n")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
