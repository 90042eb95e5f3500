"""Twenty-four hours of counts in windows of five minutes, and the last two minutes in slots.

The process that judges has one history, of the slots of all processes. Independent of the state of the pools, except
for one letter for each replica and window. A restart of this process begins a new history.

Units: seconds of the Unix clock.
"""

import asyncio
from collections.abc import Iterable, Mapping, Sequence
from typing import Final

import msgspec

from gateway.health.windows import SLOT_S, Bins, CountSlot, ModelSlot, add_slot, seconds_of

WINDOW_S: Final = 300.0
_WINDOWS: Final = 288  # 24 hours
_SLOTS: Final = 24
_SLICE: Final = 16  # windows between two turns of the event loop
_PER_WINDOW: Final = int(WINDOW_S / SLOT_S)
_SWITCHES_MAX: Final = 200
_STATES_MAX: Final = 400  # replicas with a history of states
_QUANTILES: Final = (0.5, 0.99)
_WORST: Final = " .sob"  # letters of states, from no information to the worst: in use, slow, out, broken


class SwitchUse(msgspec.Struct, frozen=True):
    """A use of a switch; `model` is None for all models, `replica` None for hedging."""

    at_s: float
    model: str | None
    replica: str | None
    on: bool


class Quantiles(msgspec.Struct, frozen=True):
    """Quantiles of the time to first token in one window, in milliseconds; None without a sample, or if hidden.

    Attributes:
        p50, p99: observed times.
        p50_without, p99_without: estimate for the same requests if no hedge had been sent.
        hidden: True if the waits that were given up make the last estimate a lower bound.
    """

    p50: float | None
    p99: float | None
    p50_without: float | None
    p99_without: float | None
    hidden: bool


class ModelHistory(msgspec.Struct):
    """The history of one model for the page; each list has one entry for each window.

    Attributes:
        begin_s: begin of the first window.
        window_s: length of a window.
        known_from_s: time since which events are counted.
        requests, failed, limited, hedged, won: requests.
        ttft: times to first token.
        states: for each replica one letter for each window: "." in use, "s" slow, "o" out, "b" broken, " " unknown.
        switches: uses of the switches.
    """

    model: str
    begin_s: float
    window_s: float
    known_from_s: float
    requests: list[int]
    failed: list[int]
    limited: list[int]
    hedged: list[int]
    won: list[int]
    ttft: list[Quantiles]
    states: dict[str, str]
    switches: list[SwitchUse]


class History:
    """Collects slots.

    Args:
        begin_s: time of the begin.

    Attributes:
        begin_s: the same.
        switches: uses of the switches, the newest last.
    """

    def __init__(self, begin_s: float) -> None:
        self.begin_s = begin_s
        self.switches: list[SwitchUse] = []
        self._slots: dict[int, CountSlot] = {}
        self._windows: dict[int, CountSlot] = {}
        self._states: dict[tuple[str, str], dict[int, str]] = {}
        self._key_totals: dict[str, int] = {}  # of the windows

    async def add(self, slots: Iterable[CountSlot]) -> None:
        """Add slots of a process."""
        for slot in slots:
            await _add(self._slots.setdefault(slot.number, CountSlot(slot.number)), slot)
            number = slot.number // _PER_WINDOW
            await _add(self._windows.setdefault(number, CountSlot(number)), slot)
            for key, count in slot.keys.items():
                self._key_totals[key] = self._key_totals.get(key, 0) + count
        if self._slots:
            self._expire(max(self._slots))

    def _expire(self, newest: int) -> None:
        for number in [each for each in self._slots if each <= newest - _SLOTS]:
            del self._slots[number]
        window = newest // _PER_WINDOW
        for number in [each for each in self._windows if each <= window - _WINDOWS]:
            for key, count in self._windows.pop(number).keys.items():
                self._key_totals[key] -= count
                if self._key_totals[key] <= 0:
                    del self._key_totals[key]

    async def last(self, seconds: float, now_s: float) -> CountSlot:
        """Return the sum of the slots that have begun in the last seconds, at most two minutes."""
        first = int((now_s - seconds) // SLOT_S)
        total = CountSlot(first)
        for number, slot in self._slots.items():
            if number >= first:
                await _add(total, slot)
        return total

    def half_hour(self, now_s: float) -> Mapping[str, tuple[int, int]]:
        """Return the billed tokens of answers and of lost hedges by model; none before half an hour is known."""
        if now_s < self.begin_s + 6 * WINDOW_S:
            return {}
        tokens: dict[str, tuple[int, int]] = {}
        first = int(now_s // WINDOW_S) - 6
        for window in (window for number, window in self._windows.items() if number >= first):
            for name, model in window.models.items():
                won, lost = tokens.get(name, (0, 0))
                tokens[name] = won + model.winner_tokens, lost + model.loser_tokens
        return tokens

    def mean_of_keys(self, now_s: float, recent: CountSlot, recent_s: float) -> Mapping[str, float]:
        """Return the mean requests per second of each key before a recent time; none before ten minutes are known."""
        known_s = min(now_s - self.begin_s, _WINDOWS * WINDOW_S) - recent_s
        if known_s < 600.0:
            return {}
        totals = self._key_totals
        return {key: max(0, total - recent.keys.get(key, 0)) / known_s for key, total in totals.items()}

    def set_state(self, model: str, replica: str, letter: str, now_s: float) -> None:
        """Record the state of a replica; of a window the worst state counts."""
        states = self._states.get((model, replica))
        if states is None:
            if len(self._states) >= _STATES_MAX:
                return
            states = self._states[(model, replica)] = {}
        number = int(now_s // WINDOW_S)
        states[number] = max(states.get(number, " "), letter, key=_WORST.index)
        for old in [each for each in states if each <= number - _WINDOWS]:
            del states[old]

    def keep_replicas(self, named: set[tuple[str, str]]) -> None:
        """Forget the states of other replicas."""
        for gone in self._states.keys() - named:
            del self._states[gone]

    def add_switch(self, switch: SwitchUse) -> None:
        """Record the use of a switch."""
        self.switches.append(switch)
        del self.switches[:-_SWITCHES_MAX]

    async def of_model(self, model: str, now_s: float) -> ModelHistory:
        """Return the history of a model for the page, computed in slices that do not block the event loop for long."""
        last = int(now_s // WINDOW_S)
        numbers = range(last - _WINDOWS + 1, last + 1)
        none = ModelSlot()
        found = [
            none if window is None else window.models.get(model, none) for window in map(self._windows.get, numbers)
        ]
        ttft: list[Quantiles] = []
        for each in found:
            ttft.append(quantiles(each.ttft, each.primary, each.given_up))
            if len(ttft) % _SLICE == 0:
                await asyncio.sleep(0)
        return ModelHistory(
            model,
            numbers[0] * WINDOW_S,
            WINDOW_S,
            self.begin_s,
            [each.requests for each in found],
            [each.failed for each in found],
            [each.limited for each in found],
            [each.hedged for each in found],
            [each.won for each in found],
            ttft,
            {
                replica: "".join(states.get(number, " ") for number in numbers)
                for (name, replica), states in self._states.items()
                if name == model
            },
            [switch for switch in self.switches if switch.model in (None, model)],
        )


async def _add(total: CountSlot, slot: CountSlot) -> None:
    for _ in add_slot(total, slot):
        await asyncio.sleep(0)


def quantiles(observed: Bins, primary: Bins, given_up: Bins) -> Quantiles:
    """Return the quantiles of one window.

    Args:
        observed: times to first token of requests.
        primary: times to first token of first attempts.
        given_up: waits of first attempts that were given up; the estimate is by Kaplan and Meier.
    """
    plain = survival(observed, {})
    without = survival(primary, given_up)
    p50, p99, p50_without, p99_without = (
        _in_ms(_at_most(curve, 1.0 - q)) for curve in (plain, without) for q in _QUANTILES
    )
    return Quantiles(
        p50,
        p99,
        p50_without,
        p99_without,
        hidden=bool(without) and without[-1][1] > 1.0 - _QUANTILES[-1] + 1e-9,
    )


def survival(ended: Bins, given_up: Bins) -> list[tuple[int, float]]:
    """Return the share of waits that are longer, after each bin with an end: the estimate of Kaplan and Meier."""
    at_risk = sum(ended.values()) + sum(given_up.values())
    left, curve = 1.0, []
    for number in sorted({*ended, *given_up}):
        ends = ended.get(number, 0)
        if ends:
            left *= 1.0 - ends / at_risk
            curve.append((number, left))
        at_risk -= ends + given_up.get(number, 0)
    return curve


def _at_most(curve: Sequence[tuple[int, float]], share: float) -> float | None:
    """Return the time after which at most a share still waits; the longest known one if the curve ends before."""
    for number, left in curve:
        if left <= share + 1e-9:
            return seconds_of(number)
    return seconds_of(curve[-1][0]) if curve else None


def _in_ms(time_s: float | None) -> float | None:
    return None if time_s is None else round(1000.0 * time_s, 1)
