"""Twenty-four hours of counts in windows of five minutes, and the last two minutes in slots.

The process that judges has one history, of the slots of all processes. Independent of the state of the pools, except
for one letter for each replica and window. The newest two windows are complete counts, older ones are packed (day.py):
a slot that arrives after that is counted in the last minutes only. A restart of this process begins a new history.

Units: seconds of the Unix clock.
"""

import asyncio
from collections.abc import Iterable, Mapping, Sequence
from typing import Final

import msgspec

from gateway.health.day import NO_BIN, WINDOWS, KeyDays, ModelDays, StateDay
from gateway.health.windows import SLOT_S, Bins, CountSlot, ModelSlot, add_slot, seconds_of

WINDOW_S: Final = 300.0
_OPEN: Final = 2  # windows that are not packed: slots of other processes arrive up to two minutes late
_HALF_HOUR: Final = 6  # windows before the present one
_SLOTS: Final = 14  # a minute, and those that arrive late
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
        self._open: dict[int, CountSlot] = {}  # windows
        self._newest = 0  # number of the newest one
        self._models = ModelDays()
        self._keys = KeyDays()
        self._tokens: dict[int, dict[str, tuple[int, int]]] = {}  # of the closed windows of half an hour
        self._states: dict[tuple[str, str], StateDay] = {}

    async def add(self, slots: Iterable[CountSlot]) -> None:
        """Add slots of a process."""
        for slot in slots:
            await _add(self._slots.setdefault(slot.number, CountSlot(slot.number)), slot)
            number = slot.number // _PER_WINDOW
            if number > self._newest:
                await self._advance(number)
            if number > self._newest - _OPEN:
                await _add(self._open.setdefault(number, CountSlot(number)), slot)
                self._keys.add(number, slot.keys)
        newest = max(self._slots, default=0)
        for number in [each for each in self._slots if each <= newest - _SLOTS]:
            del self._slots[number]

    async def _advance(self, newest: int) -> None:
        """Begin a window, pack windows that get no further slots, and forget windows of the day before."""
        self._newest = newest
        for number in [each for each in self._open if each <= newest - _OPEN]:
            await self._close(self._open.pop(number))
        for number in [each for each in self._tokens if each < newest - _HALF_HOUR]:
            del self._tokens[number]
        self._models.expire(newest)
        for _ in self._keys.advance(newest):
            await asyncio.sleep(0)

    async def _close(self, window: CountSlot) -> None:
        """Pack a window."""
        tokens = self._tokens[window.number] = {}
        for number, (name, model) in enumerate(window.models.items()):
            if number % _SLICE == 0:
                await asyncio.sleep(0)
            self._models.put(name, window.number, _counts(model), _bins(model))
            if model.winner_tokens or model.loser_tokens:
                tokens[name] = model.winner_tokens, model.loser_tokens

    async def last(self, seconds: float, now_s: float) -> CountSlot:
        """Return the sum of the slots that have begun in the last seconds, at most a minute."""
        first = int((now_s - seconds) // SLOT_S)
        total = CountSlot(first)
        for number, slot in self._slots.items():
            if number >= first:
                await _add(total, slot)
        return total

    def half_hour(self, now_s: float) -> Mapping[str, tuple[int, int]]:
        """Return the billed tokens of answers and of lost hedges by model; none before half an hour is known."""
        if now_s < self.begin_s + _HALF_HOUR * WINDOW_S:
            return {}
        first = int(now_s // WINDOW_S) - _HALF_HOUR
        windows = [window for number, window in self._tokens.items() if number >= first]
        windows += [
            {name: (model.winner_tokens, model.loser_tokens) for name, model in window.models.items()}
            for number, window in self._open.items()
            if number >= first
        ]
        tokens: dict[str, tuple[int, int]] = {}
        for name, (more_won, more_lost) in (each for window in windows for each in window.items()):
            won, lost = tokens.get(name, (0, 0))
            tokens[name] = won + more_won, lost + more_lost
        return tokens

    def mean_of_keys(self, now_s: float, recent: CountSlot, recent_s: float) -> Mapping[str, float]:
        """Return the mean requests per second of each key before a recent time; none before ten minutes are known."""
        known_s = min(now_s - self.begin_s, WINDOWS * WINDOW_S) - recent_s
        if known_s < 600.0:
            return {}
        totals = self._keys.totals
        return {key: max(0, total - recent.keys.get(key, 0)) / known_s for key, total in totals.items()}

    def set_state(self, model: str, replica: str, letter: str, now_s: float) -> None:
        """Record the state of a replica; of a window the worst state counts."""
        states = self._states.get((model, replica))
        if states is None:
            if len(self._states) >= _STATES_MAX:
                return
            states = self._states[(model, replica)] = StateDay()
        states.put(int(now_s // WINDOW_S), letter, _WORST)

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
        numbers = range(last - WINDOWS + 1, last + 1)
        rows = []
        for number in numbers:
            window = self._open.get(number)
            open_slot = None if window is None else window.models.get(model)
            rows.append(self._models.at(model, number) if open_slot is None else (_counts(open_slot), _bins(open_slot)))
            if len(rows) % _SLICE == 0:
                await asyncio.sleep(0)
        requests, failed, limited, hedged, won = (
            list(column) for column in zip(*(row for row, _ in rows), strict=True)
        )
        return ModelHistory(
            model,
            numbers[0] * WINDOW_S,
            WINDOW_S,
            self.begin_s,
            requests,
            failed,
            limited,
            hedged,
            won,
            [_quantiles_at(bins) for _, bins in rows],
            {replica: states.of(numbers) for (name, replica), states in self._states.items() if name == model},
            [switch for switch in self.switches if switch.model in (None, model)],
        )


async def _add(total: CountSlot, slot: CountSlot) -> None:
    for _ in add_slot(total, slot):
        await asyncio.sleep(0)


def _counts(model: ModelSlot) -> tuple[int, ...]:
    return model.requests, model.failed, model.limited, model.hedged, model.won


def _bins(model: ModelSlot) -> tuple[int, ...]:
    return quantile_bins(model.ttft, model.primary, model.given_up)


def quantiles(observed: Bins, primary: Bins, given_up: Bins) -> Quantiles:
    """Return the quantiles of one window; `quantile_bins` describes the arguments."""
    return _quantiles_at(quantile_bins(observed, primary, given_up))


def _quantiles_at(bins: Sequence[int]) -> Quantiles:
    p50, p99, p50_without, p99_without, hidden = bins
    return Quantiles(_ms_of(p50), _ms_of(p99), _ms_of(p50_without), _ms_of(p99_without), hidden == 1)


def quantile_bins(observed: Bins, primary: Bins, given_up: Bins) -> tuple[int, ...]:
    """Return the bins of the quantiles of one window, `NO_BIN` without a sample, and 1 if the last one is hidden.

    Args:
        observed: times to first token of requests.
        primary: times to first token of first attempts.
        given_up: waits of first attempts that were given up; the estimate is by Kaplan and Meier.
    """
    plain = survival(observed, {})
    without = survival(primary, given_up)
    is_hidden = bool(without) and without[-1][1] > 1.0 - _QUANTILES[-1] + 1e-9
    return (*(_at_most(curve, 1.0 - q) for curve in (plain, without) for q in _QUANTILES), int(is_hidden))


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


def _at_most(curve: Sequence[tuple[int, float]], share: float) -> int:
    """Return the bin after which at most a share still waits; the longest known one if the curve ends before."""
    for number, left in curve:
        if left <= share + 1e-9:
            return number
    return curve[-1][0] if curve else NO_BIN


def _ms_of(number: int) -> float | None:
    return None if number == NO_BIN else round(1000.0 * seconds_of(number), 1)
