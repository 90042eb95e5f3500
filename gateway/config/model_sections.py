"""The short mappings in the settings of a model: its queue, and the measurement of what hedging saves.

Units: `_s` seconds; shares are fractions of 1.
"""

from typing import Annotated

from pydantic import BeforeValidator, Field

from gateway.config.section import Section
from gateway.config.values import Duration, Share, no_boolean


class MeasureSettings(Section):
    """Measurement of what hedging saves, on random requests."""

    losers: Share = 0.0
    """Share of the beaten primaries that are read until their first token, where that costs little."""
    holdout: Share = 0.0
    """Share of the hedges that are not sent, where beaten primaries are not read."""
    slo_s: Duration = 2.0
    """TTFT above which a request is a miss in the report."""


class QueueSettings(Section):
    """Queue of requests for a model at its `concurrency`."""

    max: Annotated[int, Field(ge=0), BeforeValidator(no_boolean)] = 100
    """Maximum number of queued requests."""
    timeout_s: Duration = 5.0
    """Maximum time in the queue."""
