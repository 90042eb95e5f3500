"""Decides what an answer of a source changes in the list of its replicas. Pure.

A source may fail, or answer with less than there is: a resolver that restarts, a file that is being written. An empty
answer changes nothing. One that would remove more than half of the list adds its new replicas at once, and removes only
what three such answers in a row lack. No units.
"""

from typing import Final, NamedTuple

from gateway.config.settings import Replicas

_ANSWERS: Final = 3  # in a row that lack a replica, before more than half of a list is removed


class Listing(NamedTuple):
    """The replicas of a source.

    Attributes:
        rows: the replicas in use.
        believed: names of the last answer that was believed.
        doubted: names of the answers since then, each of which would remove more than half.
    """

    rows: Replicas = ()
    believed: frozenset[str] = frozenset()
    doubted: tuple[frozenset[str], ...] = ()


def after(listing: Listing, answer: Replicas) -> tuple[Listing, str | None]:
    """Return the list after an answer, and the state of an answer that is not believed; None if it is."""
    if not answer:
        return listing, "the answer is empty"
    names = frozenset(row.name for row in answer)
    missing = listing.believed - names
    if 2 * len(missing) <= len(listing.believed):
        return Listing(answer, names), None
    doubted = (*listing.doubted, names)
    if len(doubted) >= _ANSWERS:
        rows = (*answer, *_missing(listing.rows, names, frozenset().union(*doubted)))
        return Listing(rows, frozenset(row.name for row in rows)), None
    rows = (*answer, *_missing(listing.rows, names, listing.believed.union(*doubted)))
    lack = f"the answer lacks {len(missing)} of {len(listing.believed)} replicas"
    return Listing(rows, listing.believed, doubted), lack


def _missing(rows: Replicas, names: frozenset[str], kept: frozenset[str]) -> Replicas:
    """Return the rows that an answer lacks and that stay."""
    return tuple(row for row in rows if row.name not in names and row.name in kept)
