"""Text on whether a model's requests can be hedged, from the settings alone: for the start line and `check-config`.

Decides nothing: the reasons come from ttft_gateway/hedging/possible.py. What a pool learns later (hidden reasoning) and
what the on-call switch does are shown on the admin address. No units.
"""

from collections.abc import Iterator, Sequence

from gateway.config.discovered import pools
from gateway.config.settings import ModelSettings, Replicas, Settings
from ttft_gateway.hedging.outcomes import Denial
from ttft_gateway.hedging.possible import EXPLANATIONS, HedgeTarget, never_hedged
from ttft_gateway.routing.strategies import Crossing

_NAMES_MAX = 5  # in a sentence
_CURE = "set cancel_stops_billing or allow_billed_hedges"
_CURES = (
    "write `cancel_stops_billing: true` at a replica whose provider does not bill cancelled requests, "
    "or `allow_billed_hedges: true` to accept the bill"
)
_POLICIES = {"shadow": "shadow (decided, not sent)"}
_BACKUP_ONLY = "backup_only: used for hedges and failovers"
_FAILOVER_ONLY = "backup_only: used for failovers"
_BARRED = {
    Denial.BILLED: "takes no hedges: it bills cancelled requests",
    Denial.BILLING_UNKNOWN: "takes no hedges: it may bill cancelled requests",
}


def is_hedged(settings: Settings, model: ModelSettings) -> bool:
    """Return True if requests sent to at least one replica of the model can be hedged."""
    return any(None in _reasons(settings, model, pool.replicas).values() for pool in pools(model))


def hedging_summary(settings: Settings, model: ModelSettings) -> str:
    """Describe a model's hedging in one line, with the reason and the cure if its `replicas` cannot be hedged."""
    hedge = settings.hedge_of(model)
    if hedge.policy == "off":
        return "hedging off"
    if hedge.budget <= 0:
        return "hedging off, because its budget is 0%"
    reasons, policy = _reasons(settings, model, model.replicas), _POLICIES.get(hedge.policy, hedge.policy)
    if not reasons:
        return f"hedging {policy}, budget {100 * hedge.budget:g}%, if the replicas that are found permit it"
    if None not in reasons.values():
        where = "hedging happens in fallbacks only" if is_hedged(settings, model) else "hedging cannot happen"
        return f"{where}: {_cause(model, set(reasons.values()))}"
    never = [name for name, reason in reasons.items() if reason is not None]
    exception = f", except for requests to {_names(never)}" if never else ""
    return f"hedging {policy}, budget {100 * hedge.budget:g}%{exception}"


def hedging_details(settings: Settings, model: ModelSettings) -> Iterator[str]:
    """Yield a line for each replica with a restriction, then the settings that lift it; less if hedging is off."""
    is_barred = False
    for pool in pools(model):
        reasons = _reasons(settings, model, pool.replicas)
        for row, target in zip(pool.replicas, _targets(pool.replicas), strict=True):
            reason, is_off, parts = reasons[row.name], reasons[row.name] is Denial.OFF, []
            if row.backup_only:
                parts.append(_BACKUP_ONLY if target.barred is None and not is_off else _FAILOVER_ONLY)
            if reason is not None and not is_off:
                parts.append(f"never hedged: {EXPLANATIONS[reason]} ({reason.value})")
            if target.barred is not None and not is_off:
                is_barred = True
                parts.append(_BARRED[target.barred])
            if parts:
                yield f"{row.name} ({row.kind}): {'; '.join(parts)}"
    if is_barred:
        yield _CURES


def _targets(pool: Replicas) -> list[HedgeTarget]:
    return [HedgeTarget(row.name, row.boundary, row.stops_billing, row.allow_billed_hedges) for row in pool]


def _reasons(settings: Settings, model: ModelSettings, pool: Replicas) -> dict[str, Denial | None]:
    hedge = settings.hedge_of(model)
    off = hedge.policy == "off" or hedge.budget <= 0
    return never_hedged(_targets(pool), off=off, crossing=Crossing(model.cross_boundary))


def _cause(model: ModelSettings, reasons: set[Denial | None]) -> str:
    """Describe why no request to the model's `replicas` can be hedged, and the cure."""
    if len(model.replicas) == 1:
        return f"{model.replicas[0].name} is the only replica; add another one to `replicas`"
    if reasons == {Denial.ONE_REPLICA}:
        return "no two replicas have the same boundary; add one, or set cross_boundary: always"
    targets = _targets(model.replicas)
    billed = [target.name for target in targets if target.barred is Denial.BILLED]
    unknown = [target.name for target in targets if target.barred is Denial.BILLING_UNKNOWN]
    parts = []
    if billed:
        parts.append(f"{_names(billed)} {'bills' if len(billed) == 1 else 'bill'} cancelled requests")
    if unknown:
        parts.append(f"{_names(unknown)} may bill {'them' if billed else 'cancelled requests'}")
    return f"{', and '.join(parts)}; {_CURE}"


def _names(names: Sequence[str]) -> str:
    """Join names as in a sentence, at most five of them."""
    shown = list(names[:_NAMES_MAX])
    if len(names) > _NAMES_MAX:
        shown.append(f"{len(names) - _NAMES_MAX} more")
    return " and ".join(filter(None, (", ".join(shown[:-1]), shown[-1])))
