"""Attacks a gateway on loopback and prints what held; scripts/attack runs it.

The gateway is a process of its own, with its defaults, in front of simulated replicas; hostile clients and the client
that is watched share this process unless a part needs it otherwise. A new part is a function with a line in `PARTS`.
"""

import argparse
import asyncio
import sys
from collections.abc import Mapping, Sequence
from typing import Final

from attack_bodies import answers, framing, limits, shapes
from attack_rows import FULL, SHORT, Part, Row

PARTS: Final[Mapping[str, Part]] = {
    "limits": limits,
    "framing": framing,
    "shapes": shapes,
    "answers": answers,
}
_PART_S: Final = 300.0  # longest time of one part


async def attacked(names: Sequence[str], *, short: bool) -> dict[str, list[Row]]:
    """Return the rows of parts, by name; print each part's rows as soon as it has run."""
    rows = {}
    for name in names:
        async with asyncio.timeout(_PART_S):
            rows[name] = await PARTS[name](SHORT if short else FULL)
        for row in rows[name]:
            verdict = "ok  " if row.holds else "FAIL"
            sys.stdout.write(f"{verdict}  {row.attack:<48}  {row.wanted:<24}  {row.measured}\n")
            sys.stdout.flush()
    return rows


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the parts named on the command line, or all; return the exit code."""
    parser = argparse.ArgumentParser(prog="scripts/attack", description="Attack a gateway on loopback.")
    parser.add_argument("parts", nargs="*", metavar="PART", help=f"one of: {', '.join(PARTS)}; default: all")
    parser.add_argument("--short", action="store_true", help="small sizes; times are shown and not judged")
    given = parser.parse_args(arguments)
    if unknown := [name for name in given.parts if name not in PARTS]:
        parser.error(f"part {unknown[0]!r} does not exist; use one of: {', '.join(PARTS)}")
    rows = asyncio.run(attacked(given.parts or list(PARTS), short=given.short))
    return 0 if all(row.holds for part in rows.values() for row in part) else 1


if __name__ == "__main__":
    raise SystemExit(main())
