"""The rows that gateways exchange, with the range of each value: the schema of what is sent and what is received. Pure.

A received row is the sum of the rows of the other gateways. It is used if each value, divided by their number, is in
the range of one gateway; otherwise the whole row is dropped, because none of its values can be trusted. What a range
does not exclude has a bounded effect where it is used. Another meaning of a place is another form of the row, which is
in the key of its gauge.

Units: seconds, tokens, credits.
"""

from collections.abc import Sequence
from typing import Final, TypeAlias

from ttft_gateway.estimation.predictor import LEVEL_CLIP, LEVEL_MAX
from ttft_gateway.routing.replicas import COOL_DOWN_S_MAX

Row: TypeAlias = Sequence[int]

OF_ONE_MAX: Final = 2  # failures or late attempts of one gateway that count for others; three open a breaker
LEVEL_UNIT: Final = 1e3  # parts of a logarithm: 0.1 % of a TTFT
CREDIT_UNIT: Final = 1e6  # parts of a credit
PENDING_MAX: Final = 10**11  # more than the prompts of 100,000 attempts
OVERDUE_MS_MAX: Final = 86_400_000  # no attempt waits for a day
_ATTEMPTS_MAX: Final = 100_000  # more than the connections of a gateway
_COUNT_MAX: Final = 1e12  # requests or tokens since a start
_CREDITS_MAX: Final = CREDIT_UNIT * 1e11  # requests, tokens or money
_LEVEL_MAX: Final = LEVEL_MAX * LEVEL_UNIT
_STEPS_MAX: Final = LEVEL_CLIP * LEVEL_UNIT * _COUNT_MAX

Form: TypeAlias = Sequence[tuple[float, float]]
"""The range of each place in the row of one gateway."""

# The places of a replica's load, see gateway/share/loads.py. Zeros at the end are not sent.
IN_FLIGHT, PENDING, CONTENTS, STEP_SAMPLES, STEPS, LEVEL = range(6)
TALLY: Final = slice(6, 10)  # of attempts
FAILURES, LATE, OVERDUE_MS, OVERDUE = range(10, 14)
LOAD: Final[Form] = (
    (0, _ATTEMPTS_MAX),
    (0, PENDING_MAX),
    *2 * ((0, _COUNT_MAX),),
    (-_STEPS_MAX, _STEPS_MAX),
    (-_LEVEL_MAX, _LEVEL_MAX),
    *3 * ((0, _COUNT_MAX),),
    (0, _LEVEL_MAX * _COUNT_MAX),
    (0, OF_ONE_MAX),
    (0, OF_ONE_MAX),
    (0, OVERDUE_MS_MAX),
    (0, 1),
)
# Requests, prompt and answer tokens, negative after reservations that were too high; milliseconds of cool-downs, and
# number of gateways that cool down.
USAGE: Final[Form] = (*3 * ((-_COUNT_MAX, _COUNT_MAX),), (0, 1000 * COOL_DOWN_S_MAX), (0, 1))
LIMIT_USE: Final[Form] = 8 * ((0, 1),)  # 1 in the place of the used part, see gateway/share/low_limits.py
CREDIT: Final[Form] = ((-_CREDITS_MAX, _CREDITS_MAX), (0, _CREDITS_MAX))


def checked(row: Row, form: Form, others: int) -> Row:
    """Return the sum of the rows of some gateways; a later version may have more places.

    Args:
        others: number of these gateways.

    Raises:
        ValueError: a value is out of range; the text is the reason.
    """
    if len(row) < len(form):
        raise ValueError(f"it has {len(row)} of {len(form)} values")
    for value, (least, most) in zip(row, form, strict=False):
        if not least <= value / others <= most:  # NaN is not, either
            raise ValueError(f"{value} of {others} gateways is not from {least:g} to {most:g} for each")
    return row
