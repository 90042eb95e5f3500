"""The rows of the table of `scripts/attack`, and the sizes of an attack. Pure data."""

from collections.abc import Awaitable, Callable
from dataclasses import dataclass


@dataclass(frozen=True)
class Row:
    """One line of the table.

    Attributes:
        attack: what the hostile client does.
        wanted: the result that holds.
        measured: the result.
        holds: True if the result is as wanted.
    """

    attack: str
    wanted: str
    measured: str
    holds: bool


@dataclass(frozen=True)
class Scale:
    """Size of the attacks.

    Attributes:
        short: small sizes, for each change; times are then not judged.
        body_bytes: size of a large body.
        clients: connections of a flood.
        requests: requests of a client that is watched.
    """

    short: bool
    body_bytes: int
    clients: int
    requests: int


FULL = Scale(short=False, body_bytes=9_000_000, clients=1_000, requests=300)
SHORT = Scale(short=True, body_bytes=300_000, clients=100, requests=20)

Part = Callable[[Scale], Awaitable[list[Row]]]
"""Runs attacks of one kind and returns their rows; every wait in it is bounded."""
