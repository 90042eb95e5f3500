"""Attacks a gateway on loopback and prints what held; scripts/attack runs it.

The gateway is a process of its own, with its defaults, and so are the replicas where times are measured. Hostile
clients share this process with the watched client, except in the part `two-clients`, which compares times. A part is a
function with a line in `_WITH_GATEWAY`, or in `_ALONE` if it starts its own gateway.
"""

import argparse
import asyncio
import sys
from collections.abc import Awaitable, Callable, Mapping, Sequence
from functools import partial
from typing import Final

from attack_answers import documents, streams
from attack_beside import two_clients
from attack_bodies import answers, attacked_gateway, framing, limits, shapes
from attack_memory import memory
from attack_process import floods, output, pages
from attack_rows import FULL, SHORT, Part, Row, Scale
from attack_targets import targets

_WITH_GATEWAY: Final = {  # one for all
    "limits": limits,
    "framing": framing,
    "targets": targets,
    "shapes": shapes,
    "answers": answers,
}
_ALONE: Final[Mapping[str, Part]] = {
    "pages": pages,
    "floods": floods,
    "output": output,
    "memory": memory,
    "two-clients": two_clients,
    "documents": documents,
    "streams": streams,
}
_LONG: Final = frozenset({"floods", "output", "documents"})  # a test for each change has the short form

PARTS: Final = (*_WITH_GATEWAY, *_ALONE)
SHORT_PARTS: Final = tuple(part for part in PARTS if part not in _LONG)
_PART_S: Final = 900.0  # longest time of one part


async def attacked(names: Sequence[str], *, short: bool) -> list[Row]:
    """Return the rows of parts; print each part's rows as soon as it has run.

    The short form runs parts at the same time, as no time is judged.
    """
    scale = SHORT if short else FULL
    with_gateway = [name for name in names if name in _WITH_GATEWAY]
    runs = [partial(_on_one_gateway, with_gateway, scale)] if with_gateway else []
    runs += [partial(_run, partial(_ALONE[name], scale)) for name in names if name in _ALONE]
    found = await asyncio.gather(*(run() for run in runs)) if short else [await run() for run in runs]
    return [row for rows in found for row in rows]


async def _on_one_gateway(names: Sequence[str], scale: Scale) -> list[Row]:
    async with attacked_gateway() as site:
        return [row for name in names for row in await _run(partial(_WITH_GATEWAY[name], scale, site))]


async def _run(part: Callable[[], Awaitable[list[Row]]]) -> list[Row]:
    async with asyncio.timeout(_PART_S):
        return _shown(await part())


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
    rows = asyncio.run(attacked(given.parts or (SHORT_PARTS if given.short else PARTS), short=given.short))
    return 0 if all(row.holds for row in rows) else 1


if __name__ == "__main__":
    raise SystemExit(main())
