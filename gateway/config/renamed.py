"""Settings and values that had other names in development versions, and what to write instead. Pure data.

docs/renamed.md has all renamed names, labels and commands included. No units.
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
    ("policy", "ttfb"): "this policy was removed because time to headers says nothing of the first token; "
    "write `policy: adaptive`, or `policy: quantile`",
    ("policy", "headers"): "this policy was removed because headers are no answer; "
    "write `policy: adaptive`, or `policy: quantile`",
}
"""(Key, old value) -> the error message."""
