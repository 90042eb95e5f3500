"""Streams that break at a primary and are carried on by its fallback: a part of the table of outcomes."""

import pytest

from recovery_table import rows, tally
from ttft_gateway.apis.base import Api

_PART = 29  # of the rows; no divisor of the numbers of values, so that each value is in the part


@pytest.mark.parametrize("api", [Api.CHAT, Api.COMPLETIONS, Api.MESSAGES, Api.RESPONSES])
def test_a_broken_stream_ends_as_the_table_has_it(api: Api) -> None:
    """Each answer is whole, continued, restarted, or ends with an error within one stall of the break."""
    seen = tally([row for row in rows() if row.api is api][::_PART], [1])
    assert seen.wrong == []
    assert seen.right >= 3
    assert seen.later_s < 20.0
