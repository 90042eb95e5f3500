"""Bounds on hedging: the best result of one backup for a budget, and the result of a clairvoyant policy. Pure.

Draws come in pairs, the times of a request's primary and of its backup, independent of every decision. A policy with
one backup and no knowledge of the future is a distribution over delays (infinite for never); its load and its share of
requests beyond a time are means over that distribution. So the best policy is the solution of a linear program with two
constraints, and a mixture of two delays is enough. The clairvoyant policy is given every pair beforehand and sends
backups immediately, where they save most; primaries are not moved.

Units: seconds; budgets and loads as fractions of the requests.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

import numpy as np
from numpy.typing import NDArray

Values = NDArray[np.float64]

_LATE: Final = 0.01  # share of the requests beyond a p99
_DELAYS: Final = 240  # number of delays, at quantiles of the primaries
_HALVINGS: Final = 30  # of the interval that contains the p99


@dataclass(frozen=True, slots=True)
class Bound:
    """Latencies that no policy can beat with a budget."""

    p99_s: float
    mean_s: float


def best_single_hedge(primaries_s: Values, backups_s: Values, budget: float) -> Bound:
    """Return the best result of all policies that send at most one backup, given the distribution of the draws.

    Args:
        budget: backups per request.
    """
    delays_s = np.unique(np.quantile(primaries_s, np.linspace(0.0, 1.0, _DELAYS)))
    delays_s = np.concatenate(([0.0], delays_s, [np.inf]))
    loads = np.array([float((primaries_s > delay_s).mean()) for delay_s in delays_s])
    means_s = np.array([float(_hedged_s(primaries_s, backups_s, delay_s).mean()) for delay_s in delays_s])

    def beyond(time_s: float) -> float:
        """Return the smallest share of requests that take longer."""
        late = primaries_s > time_s
        candidates = backups_s[late]
        shares = [float((candidates > time_s - delay_s).sum()) / len(primaries_s) for delay_s in delays_s]
        return _mixed(loads, np.array(shares), budget)

    return Bound(_first_time_s(beyond, primaries_s), _mixed(loads, means_s, budget))


def clairvoyant(primaries_s: Values, backups_s: Values, budget: float) -> Bound:
    """Return the best result of a policy that is given every pair beforehand."""

    def beyond(time_s: float) -> float:
        late = primaries_s > time_s
        lost = late & (backups_s > time_s)
        return float(lost.mean()) + max(0.0, float((late & ~lost).mean()) - budget)

    saved_s = np.sort(np.maximum(0.0, primaries_s - backups_s))[::-1]
    mean_s = float(primaries_s.mean() - saved_s[: int(budget * len(saved_s))].sum() / len(saved_s))
    return Bound(_first_time_s(beyond, primaries_s), mean_s)


def _hedged_s(primaries_s: Values, backups_s: Values, delay_s: float) -> Values:
    hedged: Values = np.where(primaries_s > delay_s, np.minimum(primaries_s, delay_s + backups_s), primaries_s)
    return hedged


def _mixed(loads: Values, values: Values, budget: float) -> float:
    """Return the lowest mean of values that a mixture of two delays reaches with a mean load within the budget."""
    within, beyond = loads <= budget, loads > budget
    best = float(values[within].min())  # the infinite delay is always within the budget
    if not beyond.any():
        return best
    share = (budget - loads[within])[:, np.newaxis] / (loads[beyond] - loads[within][:, np.newaxis])
    mixed = values[within][:, np.newaxis] * (1.0 - share) + values[beyond] * share
    return min(best, float(mixed.min()))


def _first_time_s(beyond: Callable[[float], float], primaries_s: Values) -> float:
    """Return the smallest time that only one in a hundred exceeds; the share beyond falls with the time."""
    low_s, high_s = 0.0, float(primaries_s.max())
    for _ in range(_HALVINGS):
        middle_s = (low_s + high_s) / 2
        low_s, high_s = (low_s, middle_s) if beyond(middle_s) <= _LATE else (middle_s, high_s)
    return high_s
