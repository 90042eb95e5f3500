"""Old spellings of settings and values from development versions, and their replacements. Pure data.

docs/renamed.md lists all renamed names, labels and commands included. No units.
"""

from collections.abc import Mapping
from typing import Final

_HEDGE: Final = {"budget_of": "budget_unit", "hidden_reasoning": "hedge_hidden_reasoning"}
_REPLICA: Final = {"hedge_when_billed": "allow_billed_hedges"}

RENAMED_KEYS: Final[Mapping[tuple[str, ...], Mapping[str, str]]] = {
    ("timeouts",): {
        "ttft": "ttft_failover",
        "ttft_per_1000_tokens": "ttft_failover_per_1000_tokens",
        "ttft_last": "ttft_max",
    },
    ("limits",): {"request_bodies_max": "buffered_bodies_max"},
    ("hedge",): _HEDGE,
    ("models", "hedge"): _HEDGE,
    ("models", "replicas"): _REPLICA,
    ("models", "fallbacks", "replicas"): _REPLICA,
}
"""Section of the file (without indices) -> old key -> new key."""

CHANGED_VALUES: Final[Mapping[tuple[str, str], str]] = {
    ("budget_unit", "spend"): "`spend` was renamed to `cost`; write `budget_unit: cost`",
    ("policy", "ttfb"): "policy `ttfb` was removed because time to headers does not predict the first token; "
    "write `policy: adaptive`, or `policy: quantile`",
    ("policy", "headers"): "policy `headers` was removed because headers do not mean that an answer follows; "
    "write `policy: adaptive`, or `policy: quantile`",
}
"""(Key, old value) -> error message."""
