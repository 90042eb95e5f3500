"""Large bodies take turns, with pauses for the rest of the work of the loop. Units: seconds."""

import asyncio
from collections.abc import Callable
from typing import cast

from gateway.api.turns import Turns


class _Loop:
    """A loop with a clock that the test moves."""

    def __init__(self) -> None:
        self.now_s = 10.0
        self.soon: list[Callable[[], object]] = []
        self.timers: list[tuple[float, Callable[[], object]]] = []

    def time(self) -> float:
        return self.now_s

    def call_soon(self, function: Callable[..., object], *arguments: object) -> None:
        self.soon.append(lambda: function(*arguments))

    def call_later(self, delay_s: float, function: Callable[..., object], *arguments: object) -> None:
        self.timers.append((self.now_s + delay_s, lambda: function(*arguments)))

    def run(self) -> None:
        """Run until nothing is due any more."""
        while self.soon or self.timers:
            while self.soon:
                self.soon.pop(0)()
            if self.timers:
                at_s, function = self.timers.pop(0)
                self.now_s = max(self.now_s, at_s)
                function()


def _parsed(loop: _Loop, parsed: list[tuple[str, float]], name: str, takes_s: float) -> Callable[[], None]:
    def parse() -> None:
        parsed.append((name, round(loop.now_s, 6)))
        loop.now_s += takes_s

    return parse


def test_a_body_alone_is_parsed_at_once_and_others_wait_after_a_long_parse() -> None:
    """The order is the order of arrival; a short parse makes no other body wait, a very long one for 0.5 s."""
    loop, parsed = _Loop(), list[tuple[str, float]]()
    turns = Turns(cast("asyncio.AbstractEventLoop", loop))
    for name, takes_s in (("a", 0.035), ("b", 0.5), ("c", 0.004), ("d", 0.01)):
        turns.take(_parsed(loop, parsed, name, takes_s))
    assert parsed == [("a", 10.0)]
    loop.run()
    assert parsed == [("a", 10.0), ("b", 10.245), ("c", 11.245), ("d", 11.249)]
    turns.take(_parsed(loop, parsed, "e", 0.01))
    assert parsed[-1] == ("e", 11.294)


def test_a_turn_that_is_given_up_costs_no_pause() -> None:
    """Its body is not parsed, and the next one does not wait for it."""
    loop, parsed = _Loop(), list[tuple[str, float]]()
    turns = Turns(cast("asyncio.AbstractEventLoop", loop))
    taken = [turns.take(_parsed(loop, parsed, name, 0.01)) for name in "abcd"]
    for turn in taken[:3]:
        turn.cancel()
    loop.run()
    assert parsed == [("a", 10.0), ("d", 10.045)]
