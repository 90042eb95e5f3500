"""Attacks a gateway on loopback and prints what held; scripts/attack runs it.

The gateway is a process of its own, with its defaults, in front of simulated replicas; hostile clients and the client
that is watched share this process. A new part is a function with a line in `_WITH_GATEWAY`, or in `_ALONE` if it starts
its own gateway.
"""

import argparse
import asyncio
import contextlib
import sys
from collections.abc import Mapping, Sequence
from typing import Final

from attack_bodies import answers, attacked_gateway, framing, limits, shapes
from attack_memory import memory
from attack_rows import FULL, SHORT, Part, Row

_WITH_GATEWAY: Final = {"limits": limits, "framing": framing, "shapes": shapes, "answers": answers}  # one for all
_ALONE: Final[Mapping[str, Part]] = {"memory": memory}
PARTS: Final = (*_WITH_GATEWAY, *_ALONE)
_PART_S: Final = 300.0  # longest time of one part


async def attacked(names: Sequence[str], *, short: bool) -> list[Row]:
    """Return the rows of parts; print each part's rows as soon as it has run."""
    scale, rows = SHORT if short else FULL, []
    async with contextlib.AsyncExitStack() as opened:
        with_gateway = [name for name in names if name in _WITH_GATEWAY]
        site = await opened.enter_async_context(attacked_gateway()) if with_gateway else None
        for name in names:
            async with asyncio.timeout(_PART_S):
                running = _ALONE[name](scale) if site is None or name in _ALONE else _WITH_GATEWAY[name](scale, site)
                rows += _shown(await running)
    return rows


def _shown(rows: list[Row]) -> list[Row]:
    for row in rows:
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
    return 0 if all(row.holds for row in rows) else 1


if __name__ == "__main__":
    raise SystemExit(main())
