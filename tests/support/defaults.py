"""What the gateway runs with by default, with changes: the defaults of the settings as the core takes them."""

from typing import Any

from msgspec.structs import replace

from gateway.config.settings import HedgeSettings, TimeoutSettings
from gateway.race.deadlines import Timeouts
from gateway.server.model_parts import hedge_parameters, timeouts
from ttft_gateway.hedging.parameters import HedgeParameters
from ttft_gateway.routing.strategies import Crossing


def default_hedging(**changes: Any) -> HedgeParameters:
    """Default hedging, with changes."""
    return replace(hedge_parameters(HedgeSettings(), Crossing.NEVER), **changes)


def default_timeouts(**changes: Any) -> Timeouts:
    """Default timeouts, with changes."""
    return replace(timeouts(TimeoutSettings()), **changes)
