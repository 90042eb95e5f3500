"""What is known of each kind of upstream: one explicit row a kind, read by the composition root and the settings.

Facts about billing come from a public list, not from contracts: they are not verified until probed. A kind that only
differs in these facts is one row here and nothing else.
"""

import enum
from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType


class Auth(enum.Enum):
    """How a replica's key is sent."""

    BEARER = "authorization"
    API_KEY = "api-key"


@dataclass(frozen=True, slots=True)
class Kind:
    """One row.

    Attributes:
        auth: how the key is sent.
        own_engine: an inference engine of one's own rather than a provider: capacity is shared, not bought.
        cancel_stops_billing: closing the connection stops generation and billing; None is unknown, taken as False.
        asks_usage: understands `stream_options.include_usage`.
    """

    auth: Auth = Auth.BEARER
    own_engine: bool = False
    cancel_stops_billing: bool | None = None
    asks_usage: bool = True


_ENGINE = Kind(own_engine=True, cancel_stops_billing=True)
_STOPS = Kind(cancel_stops_billing=True)
_GOES_ON = Kind(cancel_stops_billing=False)

CATALOG: Mapping[str, Kind] = MappingProxyType(
    {
        "openai": _STOPS,
        "azure": Kind(auth=Auth.API_KEY, cancel_stops_billing=True),  # the /openai/v1 form of its address
        "compatible": Kind(),  # any other server that speaks OpenAI's API
        "vllm": _ENGINE,
        "sglang": _ENGINE,
        "tgi": _ENGINE,
        "ollama": _ENGINE,
        "llamacpp": _ENGINE,
        "simulated": _ENGINE,
        "cerebras": Kind(),
        "deepseek": _STOPS,
        "fireworks": _STOPS,
        "gemini": _GOES_ON,
        "groq": _GOES_ON,
        "mistral": Kind(cancel_stops_billing=False, asks_usage=False),  # reports usage unasked, refuses the option
        "openrouter": Kind(),
        "together": _STOPS,
        "xai": _STOPS,
    }
)
