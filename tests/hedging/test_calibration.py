"""The calibration: what hedges saved and cost corrects the gate, and a guard stops hedges that only lose."""

import pytest

from ttft_gateway.estimation.window import Window
from ttft_gateway.hedging.calibration import NO_CORRECTION, NOT_NOW, Calibration, Expectation, Guard, Rescue
from ttft_gateway.hedging.plan import Survival

TRIAL, GUARDED_OUT = 0.005 / 1024, 0.5 / 1024  # coins of a request that ignores corrections, and of most others
CURVE_S = 10.0  # the wait that half of the requests have


def curve() -> Survival:
    """Half of the requests take 1, the others 10."""
    window = Window()
    for n in range(100):
        window.add_event(CURVE_S if n % 2 else 1.0, 0.0)
    return Survival(window.bins(0.0))


def expectation(gain_s: float = 5.0) -> Expectation:
    """A hedge of a request that had waited 2 s."""
    return Expectation(predicted_s=1.0, waited_s=2.0, backup_s=1.0, gain_s=gain_s)


def after(*, won: int = 0, lost: int = 0, ran_s: float = 1.0, gain_s: float = 5.0) -> Calibration:
    """The calibration after hedges that ran for the same time."""
    calibration = Calibration()
    for _ in range(won):
        calibration.add_won(expectation(gain_s), curve(), ran_s)
    for _ in range(lost):
        calibration.add_lost(expectation(gain_s), ran_s)
    return calibration


def hedged_share(calibration: Calibration) -> float:
    """The share of the requests that may be hedged."""
    return sum(calibration.of((n + 0.5) / 1000 / 1024) != NOT_NOW for n in range(1000)) / 1000


def test_nothing_is_corrected_before_there_are_hedges() -> None:
    """A new calibration trusts the gate, and a few losses change little."""
    assert Calibration().of(GUARDED_OUT) == NO_CORRECTION
    assert after(lost=2).of(GUARDED_OUT).gain > 0.8


def test_hedges_that_save_what_was_expected_change_nothing() -> None:
    """A hedge that wins after 3 s, of a request that would have taken 10 s, saved 7 s."""
    assert after(won=200, gain_s=7.0).of(GUARDED_OUT).gain == pytest.approx(1.0, abs=0.02)


def test_wins_of_little_worth_lower_the_gain() -> None:
    """Hedges that all win, but only just before the primary, are worth what they saved."""
    assert after(won=200, ran_s=7.5, gain_s=7.0).of(GUARDED_OUT).gain == pytest.approx(0.07 + 0.05, abs=0.04)


def test_savings_above_the_expectation_are_not_extrapolated() -> None:
    """The gate's expectation is an upper bound."""
    assert after(won=200, gain_s=1.0).of(GUARDED_OUT).gain == 1.0


def test_slow_backups_raise_the_cost() -> None:
    """Backups that run for 6 s instead of the predicted 1 s cost six times as much."""
    assert after(won=300, ran_s=6.0).of(GUARDED_OUT).cost == pytest.approx(6.0, rel=0.05)
    assert after(won=300, ran_s=0.1).of(GUARDED_OUT).cost == 1.0


def test_a_share_of_the_requests_ignores_what_was_learned() -> None:
    """Otherwise the calibration could not notice that hedges work again."""
    assert after(won=10, lost=200).of(TRIAL) == NO_CORRECTION


def test_the_guard_stops_most_requests_while_hedges_lose() -> None:
    """After 30 lost hedges, 15 more for each win, few requests may be hedged; five wins in a hundred end that."""
    assert hedged_share(after(lost=30)) < 0.05
    assert not after(lost=29).is_guarded
    assert not after(won=1, lost=43).is_guarded
    assert after(won=1, lost=44).is_guarded
    losing = after(won=1, lost=199)
    for _ in range(4):
        assert losing.is_guarded
        losing.add_won(expectation(), curve(), 1.0)
    losing.add_won(expectation(), curve(), 1.0)
    assert not losing.is_guarded


def test_trials_become_fewer_while_none_wins_and_return_after_two_wins() -> None:
    """The share of requests that test whether hedges work falls to a quarter; two wins of 30 restore it."""
    shares = [hedged_share(after(lost=lost)) for lost in (30, 60, 500)]
    assert shares[0] > shares[1] > shares[2] == pytest.approx(0.05 / 4, abs=0.001)
    losing = after(lost=500)
    losing.add_won(expectation(), curve(), 1.0)
    assert hedged_share(losing) == shares[2]
    losing.add_won(expectation(), curve(), 1.0)
    assert hedged_share(losing) == 0.05


@pytest.mark.parametrize(
    ("waited_s", "ran_s", "confirms"),
    [
        pytest.param(3.0, 1.0, True, id="usual backup, late primary"),
        pytest.param(0.02, 1.0, False, id="the primary was not late yet"),
        pytest.param(0.02, 3.0, False, id="the backup was as slow as the primary"),
        pytest.param(3.0, 2.5, False, id="the backup was slow, too"),
        pytest.param(1.5, 1.5, True, id="late when the backup won"),
    ],
)
def test_only_a_usual_backup_of_a_late_request_confirms_a_suspicion(
    waited_s: float, ran_s: float, *, confirms: bool
) -> None:
    """A win of a backup shows that a replica had stopped if the request was late and the backup was not slow itself."""
    assert Rescue(predicted_s=1.0, waited_s=waited_s, backup_s=1.0).confirms(ran_s) is confirms


def test_requests_at_suspect_replicas_have_a_guard_of_their_own() -> None:
    """While hedges win each request is allowed; after 30 that lost, one in 20."""
    guard = Guard()
    coins = [(n + 0.5) / 1000 / 1024 for n in range(1000)]
    for _ in range(29):
        guard.add(won=False)
    assert all(map(guard.allows, coins))
    guard.add(won=False)
    assert sum(map(guard.allows, coins)) == 50


def test_rare_wins_that_are_worth_it_are_no_loss() -> None:
    """Three wins in a hundred that save what all hundred were expected to save do not start the guard."""
    calibration = Calibration()
    for n in range(300):
        if n % 33:
            calibration.add_lost(expectation(0.2), 1.0)
        else:
            calibration.add_won(expectation(0.2), curve(), 1.0)
    assert calibration.of(GUARDED_OUT).gain == 1.0
    assert not calibration.is_guarded


def test_a_long_prompt_counts_like_a_short_one() -> None:
    """Losing hedges of long prompts do not hide winning hedges of short prompts."""
    calibration, long = Calibration(), Expectation(predicted_s=60.0, waited_s=120.0, backup_s=60.0, gain_s=420.0)
    for _ in range(100):
        calibration.add_won(expectation(7.0), curve(), 1.0)
        calibration.add_lost(long, 60.0)
    assert calibration.of(GUARDED_OUT).gain == pytest.approx(0.5, abs=0.05)


def test_old_hedges_are_forgotten() -> None:
    """After a thousand hedges that work, earlier losses no longer count."""
    calibration = after(lost=500, gain_s=7.0)
    for _ in range(3000):
        calibration.add_won(expectation(7.0), curve(), 1.0)
    assert calibration.of(GUARDED_OUT).gain == pytest.approx(1.0, abs=0.01)


def test_rare_wins_are_no_evidence_against_hedges() -> None:
    """Of hedges that are expected to save 0.05 each, a hundred without a win do not halve the gain; many do."""
    assert after(lost=70, gain_s=0.05).of(GUARDED_OUT).gain > 0.5
    assert after(lost=300, gain_s=0.05).of(GUARDED_OUT) == NOT_NOW
