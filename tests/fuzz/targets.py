"""Every target by its name, and its corpus: inputs that once failed, in folders next to this file."""

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Final, NamedTuple

from fuzz import answers, bodies, connections, events, exchanges, limits, replies

CORPUS: Final = Path(__file__).parent / "corpus"


class Target(NamedTuple):
    """What is fuzzed.

    Attributes:
        check: takes any bytes; raises where a property does not hold.
        words: what means something there.
    """

    check: Callable[[bytes], None]
    words: Sequence[bytes]


TARGETS: Final[Mapping[str, Target]] = {
    "answers": Target(answers.check, answers.WORDS),
    "bodies": Target(bodies.check, bodies.WORDS),
    "connections": Target(connections.check, connections.WORDS),
    "events": Target(events.check, events.WORDS),
    "exchanges": Target(exchanges.check, exchanges.WORDS),
    "limits": Target(limits.check, limits.WORDS),
    "replies": Target(replies.check, replies.WORDS),
}


def corpus(name: str) -> dict[str, bytes]:
    """The inputs of a target by their file names, in order."""
    return {file.name: file.read_bytes() for file in sorted((CORPUS / name).iterdir())}
