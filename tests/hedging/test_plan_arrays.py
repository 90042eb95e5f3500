"""Plans and gains equal plans and gains of whole arrays: every delay computed, each sum over all of the curve."""

import random

import numpy as np
import pytest
from numpy.typing import NDArray

from ttft_gateway.estimation.window import RELATIVE_ACCURACY, Bins, Window
from ttft_gateway.hedging.plan import Survival, plan_adaptive

_PLANS = 2_000
_DELAYS = 32

Floats = NDArray[np.float64]


class ArrayCurve:
    """The product limit of a histogram, and the gains under it."""

    def __init__(self, bins: Bins) -> None:
        events, all_waits = np.array(bins.events, dtype=float), np.add(bins.events, bins.censored)
        survival = (1.0 - events / all_waits[::-1].cumsum()[::-1]).cumprod()
        open_end = int(survival[-1] > 0.0)
        self.points: Floats = np.append(bins.values, [2.0 * bins.values[-1]] * open_end)
        self.survival: Floats = np.append(survival, [0.0] * open_end)
        self.mass: Floats = np.append(1.0, self.survival[:-1]) - self.survival
        self.below: Floats = np.append(0.0, 1.0 - self.survival)
        self.below_sum: Floats = np.append(0.0, (self.mass * self.points).cumsum())

    def saved(self, remaining: Floats) -> Floats:
        """E[(t - y)+] for each t."""
        index = self.points.searchsorted(remaining, "right")
        saved: Floats = remaining * self.below[index] - self.below_sum[index]
        return saved

    def gain(self, delay: float) -> float:
        """E[(x - delay - y)+]."""
        return float(self.saved(np.maximum(0.0, self.points - delay)) @ self.mass)

    def gain_s(self, predicted_s: float, waited_s: float, backup_s: float) -> float:
        """The same in seconds, under the condition that x is longer than the wait."""
        late = self.points > waited_s / predicted_s
        remaining: Floats = (self.points[late] * predicted_s - waited_s) / backup_s
        return float(self.saved(remaining) @ self.mass[late] / self.mass[late].sum()) * backup_s

    def best(self, share: float) -> tuple[float, float]:
        """The delay that saves most, and the share of late requests that it is for."""
        first = int(self.points.searchsorted(1.0, "right"))
        last = int((-self.survival).searchsorted(-share))
        indices = np.arange(first, last + 1)
        if len(indices) > _DELAYS:
            indices = first + np.arange(_DELAYS) * (last - first) // (_DELAYS - 1)
        delays = np.append(1.0, self.points[indices] * (1.0 + RELATIVE_ACCURACY))
        late = np.append(1.0 if first == 0 else self.survival[first - 1], self.survival[indices])
        shares = np.minimum(1.0, share / np.maximum(late, 1e-9))
        best = int((shares * [self.gain(float(delay)) for delay in delays]).argmax())
        return float(delays[best]), float(shares[best])


def any_window(rng: random.Random) -> Window:
    """A window of 1 to 1,000 waits over up to 100 s, with one of several shapes and shares of given-up waits."""
    window, now_s = Window(samples_min=rng.choice((10, 100))), 0.0
    given_up, spread, shape = rng.choice((0.0, 0.02, 0.1, 0.5, 1.0)), rng.uniform(0.05, 2.5), rng.randrange(3)
    for _ in range(int(10 ** rng.uniform(0.0, 3.0))):
        if shape == 0:
            x = rng.lognormvariate(0.0, spread)
        elif shape == 1:
            x = rng.paretovariate(1.0 + spread)
        else:
            x = rng.choice((1.0, 1.0, 1.0, 14.0 * spread))
        now_s += rng.expovariate(10.0)
        (window.add_censored if rng.random() < given_up else window.add_event)(x, now_s)
    return window


def test_plans_are_those_of_arrays() -> None:
    """Every plan is the same to the bit; gains are summed in another order, and are the same to 12 digits."""
    rng = random.Random(5)
    for _ in range(_PLANS):
        bins = any_window(rng).bins(100.0)
        curve, arrays = Survival(bins), ArrayCurve(bins)
        assert (curve.points, curve.survival) == (arrays.points.tolist(), arrays.survival.tolist())
        budget = rng.choice((0.01, 0.02, 0.05, 0.1, 0.2, 1.0))
        share = budget * rng.uniform(0.5, 1.0)
        plan = plan_adaptive(curve, budget=budget, first_share=share)
        assert (plan.delay, plan.share) == arrays.best(share)
        predicted_s, backup_s = rng.uniform(0.01, 3.0), rng.uniform(0.01, 3.0)
        waited_s = predicted_s * curve.observed_max * rng.random()
        expected_s = arrays.gain_s(predicted_s, waited_s, backup_s)
        actual_s = curve.gain_s(predicted_s=predicted_s, waited_s=waited_s, backup_s=backup_s)
        assert actual_s == pytest.approx(expected_s, rel=1e-12, abs=1e-12 * backup_s)
