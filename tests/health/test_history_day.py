"""Closed windows of a day: packed, complete, bounded."""

from msgspec.structs import replace

from gateway.health.day import KEYS_MAX, MODELS_MAX, WINDOWS, KeyDays, ModelDays
from gateway.health.history import History, ModelHistory
from gateway.health.windows import CountSlot, ModelSlot
from gateway.observe.instruments import OTHER
from running import run_virtual

MODEL = ModelSlot(
    requests=100,
    failed=2,
    limited=3,
    hedged=7,
    won=4,
    winner_tokens=30,
    loser_tokens=10,
    ttft={-9: 90, 5: 10},
    primary={-9: 89, 5: 8},
    given_up={6: 3},
)
PER_WINDOW = 60


def _history(*slots: CountSlot) -> History:
    history = History(0.0)
    run_virtual(history.add(slots))
    return history


def _at(history: History, now_s: float) -> ModelHistory:
    return run_virtual(history.of_model("m", now_s))


def test_a_packed_window_shows_what_it_showed_before() -> None:
    """Counts and all quantiles are the same after a window is packed, and a hidden estimate stays hidden."""
    slow = replace(MODEL, given_up={-12: 40, 6: 30})
    history = _history(CountSlot(5, models={"m": MODEL}), CountSlot(5 + PER_WINDOW, models={"m": slow}))
    before = _at(history, 300.0)
    assert [each.hidden for each in before.ttft[-2:]] == [True, True]
    run_virtual(history.add([CountSlot(number * PER_WINDOW) for number in (2, 3, 4)]))
    assert len(history._open) == 2
    assert _at(history, 300.0) == before
    assert (before.requests[-2:], before.won[-2:]) == ([100, 100], [4, 4])


def test_the_half_hour_contains_packed_windows() -> None:
    """The tokens of six windows and the present one add up, packed or not."""
    history = _history(*(CountSlot(number * PER_WINDOW, models={"m": MODEL}) for number in range(9)))
    assert history.half_hour(8 * 300.0 + 1.0) == {"m": (7 * 30, 7 * 10)}


def test_a_late_slot_counts_until_its_window_is_packed() -> None:
    """Two minutes late is in time; a slot of a packed window changes nothing of the day."""
    history = _history(CountSlot(2 * PER_WINDOW, models={"m": MODEL}))
    run_virtual(history.add([CountSlot(2 * PER_WINDOW - 24, models={"m": MODEL}, keys={"team": 3})]))
    run_virtual(history.add([CountSlot(PER_WINDOW - 1, models={"m": MODEL}, keys={"team": 9})]))
    assert _at(history, 601.0).requests[-3:] == [0, 100, 100]
    assert history.mean_of_keys(660.0, CountSlot(0), 60.0) == {"team": 3 / 600}


def test_a_day_without_requests_leaves_nothing() -> None:
    """After a gap, also one longer than the ring, no old window, key or model is left."""
    for gap in (1, WINDOWS - 1, WINDOWS, 5 * WINDOWS):
        history = _history(CountSlot(0, models={"m": MODEL, "gone": MODEL}, keys={"team": 600}))
        run_virtual(history.add([CountSlot(gap * PER_WINDOW, models={"m": MODEL})]))
        run_virtual(history.add([CountSlot((gap + 2) * PER_WINDOW)]))
        is_known = gap + 2 < WINDOWS
        assert sum(_at(history, (gap + 2) * 300.0).requests) == (200 if is_known else 100)
        assert bool(history._keys.totals) == is_known
        assert ("gone" in history._models._models) == is_known


def test_models_and_keys_are_bounded() -> None:
    """Further ones are added up under one name, with every request counted."""
    models, keys = ModelDays(), KeyDays()
    for number in range(MODELS_MAX + 50):
        models.put(f"m{number}", 7, (1, 0, 0, 0, 0), (3, 3, 3, 3, 0))
    assert (len(models._models), models.at(OTHER, 7)[0][0]) == (MODELS_MAX + 1, 50)
    keys.add(7, {f"k{number}": 2 for number in range(KEYS_MAX + 50)})
    assert (len(keys.totals), keys.totals[OTHER]) == (KEYS_MAX + 1, 100)
    assert sum(keys.totals.values()) == 2 * (KEYS_MAX + 50)


def test_a_day_of_a_model_is_small() -> None:
    """A window takes 29 bytes, so that a day is at most as large as its description states."""
    models = ModelDays()
    models.put("m", 7, (2**40, 0, 0, 0, 0), (3, 3, 3, 3, 0))
    assert models.at("m", 7)[0][0] == 2**32 - 1
    [day] = models._models.values()
    size = sum(len(each) * each.itemsize for each in (day.numbers, day.counts, day.bins))
    assert size == 29 * WINDOWS
    assert MODELS_MAX * size < 17_000_000
    assert KEYS_MAX * 4 * WINDOWS < 3_000_000
