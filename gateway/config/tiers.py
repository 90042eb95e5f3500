"""Tiers of a replica: the ways to ask one provider for one model, each with its price, and the rules for them.

A replica with `tiers` becomes one row for each tier after the file is validated, named REPLICA/TIER; `tier` of a row is
the one that it asks for. All further code sees rows, of which the prices belong together. Pure.
"""

from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Annotated, Any, Final

from pydantic import BeforeValidator, ConfigDict, Field

from gateway.config.document import Finding, Loc, RawMapping, path, replicas
from gateway.config.request_values import AnyJson, BodyField, HeaderName, HeaderValue
from gateway.config.section import Section
from gateway.config.values import Name, Number

if TYPE_CHECKING:
    from gateway.config.settings import ModelSettings, ReplicaSettings, Settings

PRICES: Final[Mapping[str, float]] = {"flex": 0.5, "default": 1.0, "priority": 2.0}
"""Usual prices of OpenAI's tiers as multiples of `default` (platform.openai.com/docs/pricing, read 2026-11)."""

# Kinds with a `service_tier` in the body: platform.openai.com/docs/api-reference/chat, docs.aws.amazon.com/bedrock
# (service tiers), learn.microsoft.com/azure (priority processing), openrouter.ai/docs; read 2026-11.
_WITH_FIELD: Final = frozenset({"openai", "azure", "bedrock", "openrouter"})
_COST: Final = "cost"
_EXAMPLE: Final = "hedge: {prefer: cost, ttft_target: 3s}"


def _may_be_a_name(schema: dict[str, Any]) -> None:
    schema["type"] = ["object", "string"]


class TierSettings(Section):
    """One tier. `flex` is short for `{name: flex, price: 0.5}`."""

    model_config = ConfigDict(json_schema_extra=_may_be_a_name)

    name: Name = Field(examples=["flex"])
    """Name of the tier, as answers have it in `service_tier`."""
    price: Annotated[Number, Field(gt=0)] | None = Field(default=None, examples=["0.5"])
    """Price as a multiple of the replica's `prices`; unset: 0.5 for `flex`, 1 for `default`, 2 for `priority`."""
    body: Mapping[BodyField, AnyJson] = Field(default={}, max_length=50, examples=["{priority: 100}"])
    """Values of the body that ask for the tier; unset: `service_tier` with its name, where the kind has this field."""
    headers: Mapping[HeaderName, HeaderValue] = Field(default={}, max_length=20, examples=["{x-tier: flex}"])
    """Headers that ask for the tier."""

    @property
    def factor(self) -> float:
        """The price as a multiple of the replica's prices."""
        return PRICES.get(self.name, 1.0) if self.price is None else self.price


def named_tier(value: object) -> object:
    """Return the mapping for the name of a tier alone."""
    return {"name": value} if isinstance(value, str) else value


Tier = Annotated[TierSettings, BeforeValidator(named_tier)]
"""A tier, or its name."""


def rows_of(replica: "ReplicaSettings") -> tuple["ReplicaSettings", ...]:
    """Return one row for each tier of a replica; the replica itself if it has none, or is such a row."""
    if not replica.tiers or replica.tier is not None:
        return (replica,)
    return tuple(_row(replica, tier) for tier in replica.tiers)


def with_rows(settings: "Settings") -> "Settings":
    """Return settings in which each replica with tiers is one row for each tier; other models are the same objects."""
    models = tuple(map(_with_rows, settings.models))
    if all(new is old for new, old in zip(models, settings.models, strict=True)):
        return settings
    return settings.model_copy(update={"models": models})


def _with_rows(model: "ModelSettings") -> "ModelSettings":
    fallbacks = tuple(
        each.model_copy(update={"replicas": rows}) if (rows := _rows(each.replicas)) != each.replicas else each
        for each in model.fallbacks
    )
    rows = _rows(model.replicas)
    if rows == model.replicas and fallbacks == model.fallbacks:
        return model
    return model.model_copy(update={"replicas": rows, "fallbacks": fallbacks})


def _rows(replicas: tuple["ReplicaSettings", ...]) -> tuple["ReplicaSettings", ...]:
    return tuple(row for replica in replicas for row in rows_of(replica))


def _row(replica: "ReplicaSettings", tier: TierSettings) -> "ReplicaSettings":
    asks = dict(tier.body)
    if not asks and not tier.headers and replica.kind in _WITH_FIELD:
        asks = {"service_tier": tier.name}
    body = replica.body.model_copy(update={"set": {**replica.body.set, **asks}})
    update = {
        "name": f"{replica.name}/{tier.name}",
        "tier": tier.name,
        "body": body,
        "headers": {**replica.headers, **tier.headers},
    }
    return replica.model_copy(update=update)


def tier_findings(data: RawMapping, models: list[tuple[Loc, RawMapping]]) -> Iterator[Finding]:
    """Return the violations of rules about tiers, and about the preference for a low bill."""
    for loc, model in models:
        hedge = {**_section(data.get("hedge")), **_section(model.get("hedge"))}
        own = _section(model.get("hedge"))
        at: Loc = (*loc, "hedge", "prefer") if "prefer" in own else ("hedge", "prefer")
        rows = replicas(model, loc)
        by_cost = hedge.get("prefer") == _COST
        if by_cost:
            yield from _cost_findings(at, hedge, model, rows)
        yield from _repeated_rows(rows)
        for row_at, row in rows:
            if isinstance(row.get("tiers"), list):
                yield from _row_findings(row_at, row, model, by_cost=by_cost)
            elif "tier" in row:
                yield (*row_at, "tier"), "`tier` names one of `tiers`; add them, or remove this line"


def _cost_findings(
    at: Loc, hedge: RawMapping, model: RawMapping, rows: list[tuple[Loc, RawMapping]]
) -> Iterator[Finding]:
    if "ttft_target" not in hedge:
        yield at, "`prefer: cost` needs a target; add `ttft_target: 3s`"
    elif hedge.get("policy", "adaptive") not in ("adaptive", "off"):
        yield at, "only policy adaptive can prefer cost; write `policy: adaptive`, or another `prefer`"
    unpriced = next((found for found, row in rows if "prices" not in row), None)
    if "prices" not in model and unpriced is not None:
        text = f"`prefer: cost` needs prices, but {path(unpriced)} has none"
        yield at, f"{text}; write `prices: {{prompt: 2.50, completion: 10}}` there or in the model"
    if "discover" in model and "prices" not in model:
        yield at, "`prefer: cost` needs prices of the replicas that are found; write `prices: ...` in the model"


def _repeated_rows(replicas: list[tuple[Loc, RawMapping]]) -> Iterator[Finding]:
    """Return the tiers with the name of another replica, or of another replica's tier, as REPLICA/TIER."""
    owners = {row["name"]: at for at, row in replicas if isinstance(row.get("name"), str)}
    for at, row in replicas:
        tiers = row.get("tiers")
        for index, each in enumerate(tiers if isinstance(tiers, list) and "tier" not in row else ()):
            name = f"{row.get('name')}/{_section(named_tier(each)).get('name')}"
            if owners.setdefault(name, at) != at:
                text = f'the name of this tier is "{name}", but {path(owners[name])} already has this name'
                yield (*at, "tiers", index), f"{text}; give one of the two its own name"


def _row_findings(at: Loc, row: RawMapping, model: RawMapping, *, by_cost: bool) -> Iterator[Finding]:
    if not by_cost:
        yield (*at, "tiers"), f"tiers are used where a low bill is preferred; add `{_EXAMPLE}` to the model"
    elif "prices" not in row and "prices" not in model:
        yield (*at, "tiers"), "tiers need prices; add `prices: {prompt: 2.50, completion: 10}`, those of price 1"
    kind, seen = row.get("kind"), set()
    tiers = row["tiers"]
    for index, each in enumerate(tiers if isinstance(tiers, list) else ()):
        tier, here = _section(named_tier(each)), (*at, "tiers", index)
        name = tier.get("name")
        if not isinstance(name, str):
            continue
        if name in seen:
            yield here, f'found "{name}" twice; give each tier its own name'
        seen.add(name)
        if "price" not in tier and name not in PRICES:
            near = "".join(f"`{each}`, or " for each in PRICES if each == name.lower())
            yield here, f"the price of {name} is unknown; write {near}`{{name: {name}, price: 1.5}}`"
        asks = tier.get("body") or tier.get("headers")
        if isinstance(kind, str) and kind not in _WITH_FIELD and not asks and name != "default":
            text = f"kind {kind} has no field for a tier; write what asks for {name}"
            yield here, f"{text}, such as `{{name: {name}, price: 1.5, body: {{priority: 100}}}}`"
    if "tier" in row and row["tier"] not in seen:
        yield (*at, "tier"), f'found "{row["tier"]}", but it is not one of `tiers`; write one of them'


def _section(value: object) -> RawMapping:
    return value if isinstance(value, dict) else {}
