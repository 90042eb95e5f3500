"""The rows that gateways exchange, with the range of each value: the schema of what is sent and what is received. Pure.

A received row is the sum of the rows of the other gateways. It is used if each value, divided by their number, is in
the range of one gateway; otherwise the whole row is dropped, because none of its values can be trusted. What a range
does not exclude has a bounded effect where it is used. Another meaning of a place is another form of the row, which is
in the key of its gauge.

Units: seconds, tokens, credits.
"""

from collections.abc import Sequence
from typing import Annotated, Any, Final, TypeAlias

from msgspec import Meta, convert

from ttft_gateway.estimation.predictor import LEVEL_CLIP, LEVEL_MAX
from ttft_gateway.routing.replicas import COOL_DOWN_S_MAX

Row: TypeAlias = Sequence[int]

OF_ONE_MAX: Final = 2  # failures or late attempts of one gateway that count for others; three open a breaker
LEVEL_UNIT: Final = 1e6  # parts of a logarithm
CREDIT_UNIT: Final = 1e6  # parts of a credit
PENDING_MAX: Final = 10**11  # more than the prompts of 100,000 attempts
OVERDUE_MS_MAX: Final = 86_400_000  # no attempt waits for a day
_COUNT_MAX: Final = 1e12  # requests or tokens since a start
_CREDITS_MAX: Final = 1e11  # requests, tokens or money

_Attempts = Annotated[float, Meta(ge=0, le=100_000)]  # more than the connections of a gateway
_Tokens = Annotated[float, Meta(ge=0, le=PENDING_MAX)]
_OfOne = Annotated[float, Meta(ge=0, le=OF_ONE_MAX)]
_OverdueMs = Annotated[float, Meta(ge=0, le=OVERDUE_MS_MAX)]
_Share = Annotated[float, Meta(ge=0, le=1)]
_Level = Annotated[float, Meta(ge=-LEVEL_MAX * LEVEL_UNIT, le=LEVEL_MAX * LEVEL_UNIT)]
_Steps = Annotated[float, Meta(ge=-LEVEL_CLIP * LEVEL_UNIT * _COUNT_MAX, le=LEVEL_CLIP * LEVEL_UNIT * _COUNT_MAX)]
_Count = Annotated[float, Meta(ge=0, le=_COUNT_MAX)]
_Usage = Annotated[float, Meta(ge=-_COUNT_MAX, le=_COUNT_MAX)]  # negative after reservations that were too high
_CoolingMs = Annotated[float, Meta(ge=0, le=1000 * COOL_DOWN_S_MAX)]
_Credits = Annotated[float, Meta(ge=-CREDIT_UNIT * _CREDITS_MAX, le=CREDIT_UNIT * _CREDITS_MAX)]
_Accrual = Annotated[float, Meta(ge=0, le=CREDIT_UNIT * _CREDITS_MAX)]

# The places of a replica's load, see gateway/share/loads.py.
IN_FLIGHT, PENDING, FAILURES, LATE, OVERDUE_MS, OVERDUE, LEVEL, SENT, CONTENTS, STEPS, STEP_SAMPLES = range(11)
LOAD: Final = (
    tuple[_Attempts, _Tokens, _OfOne, _OfOne, _OverdueMs, _Share, _Level, _Count, _Count, _Steps, _Count],
    11,
)
# Requests, prompt and answer tokens; milliseconds of cool-downs, and number of gateways that cool down.
USAGE: Final = (tuple[_Usage, _Usage, _Usage, _CoolingMs, _Share], 5)
CREDIT: Final = (tuple[_Credits, _Accrual], 2)

Form: TypeAlias = tuple[Any, int]
"""The type of the mean row, and its number of places."""


def checked(row: Row, form: Form, others: int) -> Row:
    """Return the sum of the rows of some gateways; a later version may have more places.

    Args:
        others: number of these gateways.

    Raises:
        ValueError: a value is out of range; the text is the reason.
    """
    means, places = form
    if len(row) < places:
        raise ValueError(f"it has {len(row)} of {places} values")
    convert([value / others for value in row[:places]], means)
    return row
