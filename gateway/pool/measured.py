"""The savings of the hedges of one pool: measured on some of them, or estimated where none is sent. Pure.

Units: seconds of the loop's clock, tokens; `rand` is uniform in [0, 1).
"""

from typing import Final

from gateway.hedging.contract import AttemptView, Hedge, RequestFacts
from gateway.hedging.measure import Measured, draw
from gateway.hedging.shadow import Shadow, drawn_ttft_s, reason_of, shadow_of
from gateway.pool.parts import PoolParts

SLOW_LEVEL: Final = 1.5  # ratio of TTFT to its usual law above which the pool is slow, and earns credits more slowly


class MeasuredPool(PoolParts):
    """The part of a pool that measures what its hedges save.

    The arguments are those of `PoolParts`.
    """

    def shadow(
        self, facts: RequestFacts, late: AttemptView, number: int, hedge: Hedge, waited_s: float, rand: float
    ) -> Shadow:
        """Describe a hedge that was granted for attempt `number` of its request, and is not sent."""
        now_s, backup = late.start_s + waited_s, hedge.replica
        expected_s = self.picker.predict(facts, backup, now_s)
        return shadow_of(
            hedge,
            late.replica,
            number,
            after_s=waited_s,
            reason=reason_of(hedge, suspect=self.loads.is_suspect(late.replica, now_s)),
            tokens=(facts.prompt_tokens, self.loads.uncached(facts, backup, now_s), self.answer_tokens(facts)),
            expected_s=expected_s,
            drawn_s=drawn_ttft_s(self.learning.last_plan(late.replica.name), expected_s, rand),
        )

    def measure(self, late: AttemptView, number: int, rand: float) -> Measured | None:
        """Draw the measurement of a hedge that was granted for attempt `number` of its request."""
        is_slow = self.learning.predictor.level_median > SLOW_LEVEL
        return draw(self.settings.measure, number, cheap=not (late.replica.batches and is_slow), rand=rand)

    def on_lives(self, loser: AttemptView, winner: AttemptView) -> None:
        """Charge an attempt that has lost and is read on; the saving of its winner will be exact."""
        if loser.forecast is not None:
            self.budget.spend_living(loser.replica, loser.forecast.uncached)
        if winner.forecast is not None and winner.first_token_s is None:
            winner.forecast.exact = True

    def on_lived(self, winner: AttemptView, saved_s: float) -> None:
        """Learn how much a winner has saved, after the attempt that lost has shown its first token."""
        forecast, first_s = winner.forecast, winner.first_token_s
        if forecast is not None and forecast.exact and forecast.tickets is not None and first_s is not None:
            self.learning.add_measured_hedge(forecast.tickets.expected, first_s - winner.start_s, saved_s)
