"""The frontier of savings over the budget, the recommended budget, and the band of what a log leaves open.

Deterministic: the same log and seed give the same figures. Units: seconds, tokens; shares are fractions of 1.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np

from gateway.config.settings import HedgeSettings, TimeoutSettings
from streaming_bench.progress import Progress, quiet
from streaming_bench.replay.donors import LogColumns, Values, draw
from streaming_bench.replay.estimates import Compared, WaitBounds, compared, shown_figures
from streaming_bench.replay.hedged import Hedged, hedge, settings_of
from streaming_bench.report.stats import Estimate

BUDGETS: Final = (0.01, 0.02, 0.05, 0.10, 0.20)
REQUESTS_MIN: Final = 200  # ten beyond the p95
RESTRICTED_S: Final = TimeoutSettings().ttft_max_s

_DRAWS: Final = 2  # of the backups' times
_NEARLY: Final = 0.8  # of the greatest saving: the difference is mostly within the intervals
_DELAY_SHARE: Final = 0.1  # of the median, if that is less than the gateway's shortest delay
_SLO_MEDIANS: Final = 5.0
_GOALS: Final = ("p99", "misses", "mean", "p95")  # in this order, the first that a budget improves


@dataclass(frozen=True, slots=True)
class ReplayPlan:
    """Settings of a replay.

    Attributes:
        slo_s: objective; None for five medians.
        budgets: budgets to try, ascending.
        delay_min_s: shortest delay of a hedge; None for the gateway's default, or a tenth of the median if less.
        engines: True if the replicas are engines of one's own.
        routes: True if the log is of a gateway that routes as this one does. Hedges also teach its router, so that in
            every other draw requests are routed again.
        seed: seed of all random numbers.
    """

    slo_s: float | None = None
    budgets: Sequence[float] = BUDGETS
    delay_min_s: float | None = None
    engines: bool = False
    routes: bool = False
    seed: int = 1


@dataclass(frozen=True, slots=True)
class BudgetRow:
    """Results of one budget.

    Attributes:
        hedges: backups per request.
        tokens: tokens of the backups' prompts, as a share of all prompts; NaN without prompt lengths.
        independent: figures if a backup's wait is independent of its primary's.
        correlated: figures if both are slow for the same reason.
        correlated_hedges: backups per request in that case.
    """

    budget: float
    hedges: float
    tokens: float
    independent: dict[str, Compared]
    correlated: dict[str, Compared]
    correlated_hedges: float

    def band(self, figure: str) -> tuple[float, float]:
        """Return the ends of what the log leaves open: both cases with their intervals."""
        both = (self.independent[figure].value, self.correlated[figure].value)
        return min(each.low for each in both), max(each.high for each in both)


@dataclass(frozen=True, slots=True)
class ReplayFrontier:
    """Results of a replay.

    Attributes:
        bounds: objective and bound of the mean.
        delay_min_s: shortest delay of a hedge.
        off: figures without hedging.
        rows: one row for each budget, ascending.
        shown: figures that the log has enough requests for.
        goal: figure by which the budget is recommended; None without a recommendation.
        recommended: the smallest budget with nearly the greatest saving; None if no saving is certain.
    """

    bounds: WaitBounds
    delay_min_s: float
    off: dict[str, Estimate]
    rows: Sequence[BudgetRow]
    shown: Sequence[str]
    goal: str | None
    recommended: BudgetRow | None


def replay(log: LogColumns, plan: ReplayPlan, progress: Progress = quiet) -> ReplayFrontier:
    """Replay a log under each budget."""
    median_s = float(np.median(log.ttft_s))
    delay_min_s = plan.delay_min_s
    if delay_min_s is None:
        delay_min_s = _two_digits(min(HedgeSettings().hedge_delay_min_s, _DELAY_SHARE * median_s))
    bounds = WaitBounds(plan.slo_s or _two_digits(_SLO_MEDIANS * median_s), RESTRICTED_S)
    worlds = [draw(log, plan.seed + number, correlated=False) for number in range(_DRAWS)]
    common = draw(log, plan.seed, correlated=True)
    rows, steps = [], len(plan.budgets) * (_DRAWS + 1)
    for number, budget in enumerate(plan.budgets):
        settings = settings_of(budget, delay_min_s)
        runs = []
        for step, (times_s, _) in enumerate((*worlds, common)):
            progress(f"budget {budget:.0%}", (number * (_DRAWS + 1) + step) / steps)
            routed = plan.routes and step < _DRAWS and step % 2 == 1
            runs.append(hedge(log, times_s, settings, plan.seed + step, engines=plan.engines, routed=routed))
        rows.append(_row(log, budget, [own_s for _, own_s in (*worlds, common)], runs, bounds))
    progress("done", 1.0)
    own_s = [own_s for _, own_s in worlds]
    shown = shown_figures(len(log.ttft_s))
    off = {name: each.value for name, each in compared(own_s, own_s, bounds, plan.seed).items()}
    return ReplayFrontier(bounds, delay_min_s, off, rows, shown, *_recommended(rows, shown))


def _row(
    log: LogColumns, budget: float, own_s: Sequence[Values], runs: Sequence[Hedged], bounds: WaitBounds
) -> BudgetRow:
    """Reduce the runs of one budget, of which the last one is the fully correlated one."""
    free, bound = runs[:-1], runs[-1]
    tokens = float(log.tokens.sum())
    spent = float(np.mean([run.hedges @ log.tokens for run in free]))
    return BudgetRow(
        budget,
        float(np.mean([run.hedges.mean() for run in free])),
        spent / tokens if tokens else math.nan,
        compared(own_s[:-1], [run.ttft_s for run in free], bounds, 1),
        compared(own_s[-1:], [bound.ttft_s], bounds, 1),
        float(bound.hedges.mean()),
    )


def _recommended(rows: Sequence[BudgetRow], shown: Sequence[str]) -> tuple[str | None, BudgetRow | None]:
    """Return the figure that hedging improves for certain, and the smallest budget with nearly the greatest saving."""
    for goal in _GOALS:
        certain = [row for row in rows if goal in shown and row.independent[goal].saved.low > 0.0]
        if certain:
            greatest = max(row.independent[goal].saved.value for row in certain)
            return goal, next(row for row in certain if row.independent[goal].saved.value >= _NEARLY * greatest)
    return None, None


def _two_digits(value: float) -> float:
    return float(f"{value:.2g}")
