"""Learns the TTFT of a pool's replicas and makes the hedge plan from it. Pure.

Owns the predictor, the window of ratios observed / predicted, raw windows for people and for the quantile policies, and
the times at which a plan is renewed. The pool decides which attempts add which sample. Units: seconds, tokens.
"""

import math
from collections.abc import Collection, Mapping, Sequence
from typing import Annotated, Final

import msgspec

from ttft_gateway.estimation.crowding import Crowding, CrowdSums
from ttft_gateway.estimation.predictor import Predictor, PredictorState
from ttft_gateway.estimation.window import Window, WindowState
from ttft_gateway.hedging.calibration import Calibration, Expectation, Guard, Rescue
from ttft_gateway.hedging.parameters import HedgeParameters
from ttft_gateway.hedging.plan import FirstEvent, Plan, Policy, Survival, plan_adaptive, plan_fixed

_SLICES: Final = 6  # of a window of TTFT samples
_RENEW_S: Final = 0.5  # shortest time between two plans
_RENEW_SHARE: Final = 0.05  # new samples that a new plan needs, as a share of the window
_ANSWER_TOKENS: Final = 500.0  # a typical chat answer's p90, until there are answers
_ANSWERS_RENEW_S: Final = 5.0
_SECOND_RESERVE: Final = 0.97  # with second hedges the budget is shared; 3 % is reserved for their variance
_HEDGE_DECAY: Final = 0.999  # of the counts with each first hedge
_SLOW_LEVEL: Final = 1.5  # ratio of TTFT to its usual law above which the pool is slow, and earns credits more slowly,
_SLOW_EARNING_MIN: Final = 1 / 3  # but a large budget at least at this rate
Counts = Mapping[int, int]
"""Numbers of samples by bin."""

_OFF, _STATIC, _ADAPTIVE = Policy.OFF, Policy.STATIC, Policy.ADAPTIVE
_NEVER: Final = plan_fixed(Policy.OFF, math.inf)


class LearningState(msgspec.Struct, frozen=True):
    """The learned state of a pool as plain values, without the windows of its replicas.

    Attributes:
        contents: number of first contents.
        predictor: state of the predictor.
        ratios: ratios observed / predicted; None without samples.
        answers: lengths of answers in tokens; None without samples.
        crowding: evidence that the requests in flight matter; None in a state from before it was kept.
    """

    contents: Annotated[int, msgspec.Meta(ge=0, le=2**53)]
    predictor: PredictorState
    ratios: WindowState | None
    answers: WindowState | None
    crowding: CrowdSums | None = None


class ReplicaWindows(msgspec.Struct, frozen=True):
    """The windows of one replica as plain values; None without samples."""

    ttft: WindowState | None
    ttfb: WindowState | None


class SecondHedges:
    """Learns from the last thousand first hedges how often a second one follows."""

    def __init__(self) -> None:
        self._first = 0.0
        self._second = 0.0

    def count(self, *, second: bool) -> None:
        """Count a sent hedge: the first of its request, or a later one."""
        if second:
            self._second += 1.0
        else:
            self._first = self._first * _HEDGE_DECAY + 1.0
            self._second *= _HEDGE_DECAY

    def first_share(self, budget: float, hedges_max: int) -> float:
        """Return B', the share of the budget for first hedges; the remaining share is for second hedges."""
        if hedges_max <= 1:
            return budget
        return _SECOND_RESERVE * budget / (1.0 + (self._second + 1.0) / (self._first + 10.0))


class Learning:
    """The learned state of one pool.

    Args:
        replicas: names of the replicas.
        thrift: see `parameters.thrift_of`.

    Attributes:
        restored_age_s: age of the newest sample at the time when a recorded state was restored; None if none was.
    """

    def __init__(self, replicas: Sequence[str], settings: HedgeParameters, thrift: float = 1.0) -> None:
        self._settings = settings
        self._thrift = thrift
        self._policy = Policy.ADAPTIVE if settings.policy is Policy.SHADOW else settings.policy
        self._records_ttft = settings.shows_replicas or self._policy is Policy.QUANTILE
        self.predictor = Predictor()
        self.crowding = Crowding()
        self.ratios = self._window()
        self.ttft = {name: self._window() for name in replicas}
        self.ttfb = {name: self._window() for name in replicas}
        self.second_hedges = SecondHedges()
        self.calibration = Calibration()
        self.rescues = Guard()  # hedges of requests at suspect replicas
        self.answer_tokens = _ANSWER_TOKENS  # p90 of recent answers
        self._answers = Window()
        self._answers_due_s = -math.inf
        self._contents = 0  # first contents so far
        self._samples = 0  # ratios since the last plan
        self._early_renewal = math.inf  # new ratios that renew the plan before its time: they double the window
        self.restored_age_s: float | None = None
        self._plans: dict[str, Plan | None] = {}  # by replica; the adaptive plan under ""
        self._due_s: dict[str, float] = {}

    def adopt_state(self, old: "Learning", stay: Collection[str]) -> None:
        """Take over the state learned under other settings; `stay` has the names of unchanged replicas."""
        self.predictor, self.ratios, self.second_hedges = old.predictor, old.ratios, old.second_hedges
        self.crowding = old.crowding
        self.answer_tokens, self._answers, self._contents = old.answer_tokens, old._answers, old._contents
        self.restored_age_s = old.restored_age_s
        self.calibration, self.rescues = old.calibration, old.rescues
        self.ttft |= {name: old.ttft[name] for name in stay}
        self.ttfb |= {name: old.ttfb[name] for name in stay}
        self.forget_others(stay)

    def forget_others(self, stay: Collection[str]) -> None:
        """Drop the levels of replicas that are gone, which their last attempts may have added again."""
        for name in self.predictor.levels.keys() - set(stay):
            self.predictor.forget(name)

    def restart(self) -> None:
        """Forget every TTFT: another event is timed as the first token from now on."""
        self.predictor, self.crowding, self.ratios = Predictor(), Crowding(), self._window()
        self.ttft = {name: self._window() for name in self.ttft}
        self.calibration, self.rescues = Calibration(), Guard()
        self._contents = self._samples = 0
        self._early_renewal = math.inf
        self._plans.clear()
        self._due_s.clear()
        self.restored_age_s = None

    def _window(self) -> Window:
        window_s = self._settings.window_s
        return Window(slice_s=window_s / _SLICES, reach_s=window_s)

    def state(self, now_s: float) -> LearningState:
        """Return the state as plain values, without the windows of the replicas."""
        return LearningState(
            self._contents,
            self.predictor.state(now_s),
            self.ratios.state(now_s),
            self._answers.state(now_s),
            list(self.crowding.sums),
        )

    def windows(self, replica: str, now_s: float) -> ReplicaWindows:
        """Return the windows of a replica as plain values."""
        return ReplicaWindows(self.ttft[replica].state(now_s), self.ttfb[replica].state(now_s))

    def restore(
        self, state: LearningState, windows: Mapping[str, ReplicaWindows], elapsed_s: float, now_s: float
    ) -> None:
        """Take over a recorded state, as if no request had come since then.

        Args:
            windows: windows of the replicas that stay.
            elapsed_s: time since the state was recorded.

        Raises:
            ValueError: the state contradicts itself; nothing was taken over.
        """

        def window(recorded: WindowState | None) -> Window:
            return Window() if recorded is None else Window.restored(recorded, elapsed_s, now_s)

        predictor = Predictor.restored(state.predictor, elapsed_s, now_s)
        for name in set(state.predictor.levels) - set(windows):
            predictor.forget(name)
        ratios, answers, crowding = window(state.ratios), window(state.answers), Crowding()
        if state.crowding is not None:
            crowding.put(state.crowding)
        each = {name: (window(recorded.ttft), window(recorded.ttfb)) for name, recorded in windows.items()}
        self.predictor, self.ratios, self._answers, self.crowding = predictor, ratios, answers, crowding
        self.ttft |= {name: ttft for name, (ttft, _) in each.items()}
        self.ttfb |= {name: ttfb for name, (_, ttfb) in each.items()}
        self.answer_tokens = answers.quantile(0.9, now_s) or _ANSWER_TOKENS
        self._contents = state.contents

    @property
    def is_slow(self) -> bool:
        """True while most of the pool is slower than usual."""
        return self.predictor.level_median > _SLOW_LEVEL

    @property
    def earning(self) -> float:
        """Factor for earned credits: below 1 while most of the pool is slow."""
        level = self.predictor.level_median
        if level <= _SLOW_LEVEL:
            return 1.0
        return max(_SLOW_LEVEL / level, _SLOW_EARNING_MIN * (1.0 - self._thrift))

    def add_content(self, replica: str, ttft_s: float, predicted_s: float | None, now_s: float) -> None:
        """Add a first token that arrived after `ttft_s`."""
        self._contents += 1
        if self._records_ttft:
            self.ttft[replica].add_event(ttft_s, now_s)
        if predicted_s is not None:
            self._samples += 1
            self.ratios.add_event(ttft_s / predicted_s, now_s)

    def add_given_up(self, replica: str, waited_s: float, predicted_s: float | None, now_s: float) -> None:
        """Add an attempt that was cancelled or timed out before first content."""
        if self._records_ttft:
            self.ttft[replica].add_censored(waited_s, now_s)
        if predicted_s is not None:
            self._samples += 1
            self.ratios.add_censored(waited_s / predicted_s, now_s)

    def put(self, ratios: tuple[Counts, Counts], answers: Counts, contents: int, now_s: float) -> None:
        """Add what other gateways have learned.

        Args:
            ratios: ratios observed / predicted by bin: of first contents, and of attempts that were given up.
            answers: lengths of answers by bin.
            contents: number of first contents.
        """
        self._contents += contents
        if any(ratios):
            self.ratios.put(*ratios, now_s)
            self._samples += sum(ratios[0].values()) + sum(ratios[1].values())
        if answers:
            self._answers.put(answers, {}, now_s)
            self._renew_answers(now_s)

    def take_new(self) -> tuple[tuple[Counts, Counts], Counts]:
        """Return the ratios and the answers since the last call, by bin; see `put`."""
        return self.ratios.take_new(), self._answers.take_new()[0]

    def add_hedge(self, expected: Expectation | Rescue | None, ran_s: float, *, won: bool) -> None:
        """Add a hedge that ran until first content; None: sent before the first prediction."""
        plan = self._plans.get("")
        if isinstance(expected, Rescue):
            if not won or expected.confirms(ran_s):
                self.rescues.add(won=won)
        elif expected is None:
            return
        elif not won:
            self.calibration.add_lost(expected, ran_s)
        elif plan is not None and plan.curve is not None:
            self.calibration.add_won(expected, plan.curve, ran_s)

    def add_measured_hedge(self, expected: Expectation | Rescue | None, ran_s: float, saved_s: float) -> None:
        """Add a hedge that brought the first content after `ran_s`, with the measured saving."""
        if isinstance(expected, Rescue):
            self.rescues.add(won=saved_s > expected.backup_s)
        elif expected is not None:
            self.calibration.add_measured(expected, saved_s, ran_s)

    def add_answer(self, tokens: int, now_s: float) -> None:
        """Add the length of an answer."""
        self._answers.add_event(float(tokens), now_s)
        self._renew_answers(now_s)

    def _renew_answers(self, now_s: float) -> None:
        if now_s >= self._answers_due_s:
            self._answers_due_s = now_s + _ANSWERS_RENEW_S
            self.answer_tokens = self._answers.quantile(0.9, now_s) or _ANSWER_TOKENS

    def plan(self, replica: str, now_s: float) -> Plan | None:
        """Return the plan for an attempt on a replica; None while there are too few samples."""
        policy = self._policy
        if policy is _OFF:
            return _NEVER
        if policy is _STATIC:
            return plan_fixed(policy, self._settings.static_delay_s)
        key = "" if policy is _ADAPTIVE else replica
        if now_s >= self._due_s.get(key, -math.inf) or self._samples >= self._early_renewal:
            plan = self._adaptive(now_s) if policy is Policy.ADAPTIVE else self._quantile(replica, now_s)
            self._plans[key] = plan
            if plan is not None:  # the first plan is made as soon as possible
                self._due_s[key] = now_s + _RENEW_S
        return self._plans[key]

    def last_plan(self, replica: str) -> Plan | None:
        """Return the last plan, without learning one; for display."""
        if self._policy is _STATIC:
            return self.plan(replica, 0.0)
        return self._plans.get("" if self._policy is _ADAPTIVE else replica)

    def _adaptive(self, now_s: float) -> Plan | None:
        """Make a new plan if there are enough new samples, else return the last one."""
        if self._contents < self._settings.warm_samples:
            return None
        last = self._plans.get("")
        sample_count = self.ratios.count(now_s)
        if not sample_count or (last is not None and self._samples < _RENEW_SHARE * sample_count):
            return last
        self._samples, self._early_renewal = 0, sample_count
        budget, hedges = self._settings.budget, self._settings.max_hedges
        if budget <= 0:
            return _NEVER
        if self._thrift < 1.0:
            budget *= self.earning  # else hedges of the body leave no credit for the tail
        curve = Survival(self.ratios.bins(now_s))
        first_share = self.second_hedges.first_share(budget, hedges)
        return plan_adaptive(curve, budget=budget, first_share=first_share, thrift=self._thrift)

    def _quantile(self, replica: str, now_s: float) -> Plan | None:
        windows = self.ttft if self._settings.sampled_event is FirstEvent.CONTENT else self.ttfb
        window = windows[replica]
        if window.event_count(now_s) < self._settings.warm_samples:
            return None
        delay_s = window.quantile(self._settings.quantile, now_s)
        return None if delay_s is None else plan_fixed(Policy.QUANTILE, delay_s)
