"""Every fuzz target over its corpus, and over a fixed number of inputs made from it, the same in every run.

`scripts/fuzz TARGET --seconds 3600` goes on from there, led by what code an input reaches.
"""

import random

import pytest

from fuzz.pieces import changed
from fuzz.targets import TARGETS, corpus

_CHANGED = {
    "answers": 600,
    "bodies": 600,
    "connections": 40,
    "events": 600,
    "exchanges": 600,
    "limits": 600,
    "replies": 600,
}


@pytest.mark.parametrize("name", TARGETS)
def test_the_corpus_holds(name: str) -> None:
    """No recorded input breaks a property of its target."""
    for file, data in corpus(name).items():
        try:
            TARGETS[name].check(data)
        except Exception as error:
            raise AssertionError(f"{name}/{file}") from error


@pytest.mark.parametrize("name", TARGETS)
def test_changed_inputs_hold(name: str) -> None:
    """Nor does anything that is made from the corpus at random, with a seed."""
    target, rand = TARGETS[name], random.Random(name)
    seeds = list(corpus(name).values())
    for _ in range(_CHANGED[name]):
        data = changed(rand, seeds, target.words)
        try:
            target.check(data)
        except Exception as error:
            raise AssertionError(f"{name}: {data!r}") from error
