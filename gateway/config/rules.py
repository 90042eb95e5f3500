"""Rules between settings: unique names, who may listen where, hedging that can work.

Looks at the data as it stands in the file, before it is checked value by value, and takes anything of a wrong shape
for absent: so these problems are reported together with those. Pure. Messages never quote a secret.
"""

import re
from collections.abc import Iterator
from difflib import get_close_matches

from pydantic_core import PydanticCustomError

from gateway.config.document import Loc
from gateway.config.settings import LimitSettings, Settings
from gateway.config.values import Address, parse_address, parse_size

_azure_deployment = re.compile(r"/openai/deployments/[^/]+/?$").search
_azure_host = re.compile(r"^https?://[^/]+\.azure\.(com|us|cn)(:\d+)?(/|$)").match

Finding = tuple[Loc, str]
"""A path and what is wrong there."""

Row = dict[str, object]
"""A mapping of the file."""


def rows(parent: Row, loc: Loc, key: str) -> list[tuple[Loc, Row]]:
    """The mappings in the list `parent[key]`, each with its path."""
    items = parent.get(key)
    found = enumerate(items) if isinstance(items, list) else ()
    return [((*loc, key, index), item) for index, item in found if isinstance(item, dict)]


def replicas(model: Row, loc: Loc) -> list[tuple[Loc, Row]]:
    """Every replica of a model, those of its fallbacks last."""
    pools = [(loc, model), *rows(model, loc, "fallbacks")]
    return [replica for pool_loc, pool in pools for replica in rows(pool, pool_loc, "replicas")]


def broken_rules(data: Row) -> list[Finding]:
    """Everything in the data that breaks a rule between settings."""
    models = rows(data, (), "models")
    every_replica = [replica for loc, model in models for replica in replicas(model, loc)]
    return [
        *_repeated("key", rows(data, (), "keys")),
        *_same_secret(rows(data, (), "keys")),
        *_unknown_models(rows(data, (), "keys"), models),
        *_repeated("model", models),
        *(finding for loc, model in models for finding in _repeated("replica of this model", replicas(model, loc))),
        *(finding for loc, model in models for finding in _half_marked(model, loc)),
        *_repeated("quota", rows(data, (), "quotas")),
        *_unused_quotas(rows(data, (), "quotas"), every_replica),
        *_bodies(data),
        *_listening(data),
        *_hedging(data, models),
        *(finding for loc, replica in every_replica for finding in _connection(replica, loc)),
        *(finding for loc, replica in every_replica for finding in _azure(replica, loc)),
        *_prices([*models, *every_replica]),
        *_spend(data, models),
    ]


def _repeated(what: str, named: list[tuple[Loc, Row]]) -> Iterator[Finding]:
    seen: dict[str, Loc] = {}
    for loc, row in named:
        name = row.get("name")
        if isinstance(name, str) and seen.setdefault(name, loc) != loc:
            yield (
                (*loc, "name"),
                f'found "{name}", but {path(seen[name])} has this name already; name each {what} differently',
            )


def _same_secret(keys: list[tuple[Loc, Row]]) -> Iterator[Finding]:
    seen: dict[object, Loc] = {}
    for loc, row in keys:
        key = row.get("key")
        if isinstance(key, str) and seen.setdefault(key, loc) != loc:
            field = "key_file" if "key_file" in row else "key"
            yield (
                (*loc, field),
                f"this is the same secret as that of {path(seen[key])}; give each key its own, or remove one",
            )


def _unknown_models(keys: list[tuple[Loc, Row]], models: list[tuple[Loc, Row]]) -> Iterator[Finding]:
    known = sorted({name for _, row in models if isinstance(name := row.get("name"), str)})
    for loc, row in keys:
        allowed = row.get("models")
        for index, name in enumerate(allowed if isinstance(allowed, list) else ()):
            if isinstance(name, str) and name not in known:
                near = get_close_matches(name, known, n=1) or known[:20]
                yield (*loc, "models", index), f'found "{name}", but no model has this name; write {", ".join(near)}'


def _bodies(data: Row) -> Iterator[Finding]:
    given = data.get("limits")
    limits = given if isinstance(given, dict) else {}
    one = _size(limits.get("request_body_max"), LimitSettings.model_fields["request_body_max_bytes"].default)
    every = _size(limits.get("buffered_bodies_max"), LimitSettings.model_fields["buffered_bodies_max_bytes"].default)
    if one is not None and every is not None and every < one:
        where = "buffered_bodies_max" if "buffered_bodies_max" in limits else "request_body_max"
        yield (
            ("limits", where),
            f"one body may have {one} B, but all together only {every} B; raise buffered_bodies_max",
        )


def _size(value: object, default: int) -> int | None:
    try:
        return default if value is None else parse_size(value)
    except PydanticCustomError:
        return None


def _half_marked(model: Row, loc: Loc) -> Iterator[Finding]:
    """Where requests must stay on their side, every replica's side must be known."""
    every = replicas(model, loc)
    marked = next((place for place, row in every if row.get("boundary") is not None), None)
    if marked is None or model.get("cross_boundary") in ("failover", "always"):
        return
    for place, row in every:
        if row.get("boundary") is None:
            text = (
                f"{path(marked)} has a boundary and this one has none, so requests would never go from one to the "
                "other; write `boundary: ...` here, too, or `cross_boundary: always` in the model"
            )
            yield place, text


def _unused_quotas(quotas: list[tuple[Loc, Row]], every_replica: list[tuple[Loc, Row]]) -> Iterator[Finding]:
    used = sorted({quota for _, row in every_replica if isinstance(quota := row.get("quota"), str)})
    for loc, row in quotas:
        name = row.get("name")
        if isinstance(name, str) and name not in used:
            near = get_close_matches(name, used, n=1)
            hint = (
                f"a replica says {near[0]}: write the same name"
                if near
                else f"write `quota: {name}` in the replicas that share it"
            )
            yield (*loc, "name"), f'found "{name}", but no replica names this quota; {hint}'


def _listening(data: Row) -> Iterator[Finding]:
    listen = _address(data.get("listen"), Settings.model_fields["listen"].default)
    admin = _address(data.get("admin_listen"), Settings.model_fields["admin_listen"].default)
    anybody = data.get("allow_anonymous") in (True, "true")
    if listen and not listen.loopback and not data.get("keys") and not anybody:
        text = (
            f"found {listen}, but without keys only this machine may call; "
            f"add `keys: [{{name: team-a, key: ${{TEAM_A_KEY}}}}]`, or write `listen: 127.0.0.1:{listen.port}`, "
            "or, to serve anybody who can reach it, `allow_anonymous: true`"
        )
        yield ("listen",), text
    if listen and admin and listen.port == admin.port != 0:
        where = "admin_listen" if "admin_listen" in data else "listen"
        yield (
            (where,),
            f"listen and admin_listen are both on port {admin.port}; give each its own, or write `admin_listen: off`",
        )


def _address(value: object, default: Address) -> Address | None:
    try:
        return default if value is None else parse_address(value)
    except PydanticCustomError:
        return None


def _hedging(data: Row, models: list[tuple[Loc, Row]]) -> Iterator[Finding]:
    top = data.get("hedge")
    shared = top if isinstance(top, dict) else {}
    own = [((*loc, "hedge"), hedge) for loc, model in models if isinstance(hedge := model.get("hedge"), dict)]
    in_force = {loc: {**shared, **hedge} for loc, hedge in [(("hedge",), shared), *own]}
    static = {loc for loc, hedge in in_force.items() if hedge.get("policy") == "static"}
    for loc, hedge in [(("hedge",), shared), *own]:
        if loc in static and "policy" in hedge and "delay" not in in_force[loc]:
            yield (*loc, "policy"), "policy static needs a delay; write `delay: 250ms` beside it, or another policy"
        if "delay" in hedge and loc not in static and (hedge is not shared or not static):
            yield (*loc, "delay"), "only policy static uses a delay; write `policy: static`, or remove this line"


def _connection(replica: Row, loc: Loc) -> Iterator[Finding]:
    """A way that leads to the replica's address."""
    way, url = replica.get("connection"), replica.get("base_url")
    if not isinstance(way, dict) or not isinstance(url, str):
        return
    files = [field for field in ("ca_file", "cert_file", "key_file") if way.get(field) is not None]
    if files and url.startswith("http") and not url.startswith("https:"):
        text = "nothing is encrypted on the way to an http:// address; write https:// in base_url, or remove this line"
        yield (*loc, "connection", files[0]), text
    elif "key_file" in files and "cert_file" not in files:
        yield (*loc, "connection", "key_file"), "a key needs its certificate; write `cert_file: ...` beside it"
    if way.get("proxy") is not None and url.startswith("http+unix:"):
        yield (*loc, "connection", "proxy"), "no proxy leads to a unix socket; remove this line"


def _azure(replica: Row, loc: Loc) -> Iterator[Finding]:
    """Azure's two forms of address, and the version that one of them needs."""
    url, version = replica.get("base_url"), replica.get("api_version")
    if replica.get("kind") != "azure":
        if version is not None and isinstance(replica.get("kind"), str):
            yield (*loc, "api_version"), "only kind azure has an api_version; remove this line"
        return
    if not isinstance(url, str):
        return
    if _azure_deployment(url):
        if version is None:
            text = (
                "an address with /deployments/ needs `api_version: 2024-10-21` (or a later one) beside it; "
                "or write the newer form, which ends in /openai/v1"
            )
            yield (*loc, "base_url"), text
    elif _azure_host(url) and not url.rstrip("/").endswith("/openai/v1"):
        text = (
            "an address at Azure ends in /openai/v1 (the deployment's name is then the replica's `model`), "
            "or in /openai/deployments/NAME with `api_version: 2024-10-21` beside it"
        )
        yield (*loc, "base_url"), text


def _prices(priced: list[tuple[Loc, Row]]) -> Iterator[Finding]:
    for loc, row in priced:
        prices = row.get("prices")
        if not isinstance(prices, dict):
            continue
        cached, prompt = prices.get("cached_prompt"), prices.get("prompt")
        if isinstance(cached, int | float) and isinstance(prompt, int | float) and cached > prompt:
            text = f"found {cached:g}, but a cached token costs no more than another ({prompt:g}); are the two swapped?"
            yield (*loc, "prices", "cached_prompt"), text


def _spend(data: Row, models: list[tuple[Loc, Row]]) -> Iterator[Finding]:
    """A budget of money needs prices wherever money is spent."""
    for loc, model in models:
        for place, hedge in (((*loc, "hedge"), model.get("hedge")), (("hedge",), data.get("hedge"))):
            if not isinstance(hedge, dict) or "budget_unit" not in hedge:
                continue
            unpriced = next((where for where, row in replicas(model, loc) if "prices" not in row), None)
            if hedge["budget_unit"] == "cost" and "prices" not in model and unpriced is not None:
                text = (
                    f"budgeting by cost needs prices, and {path(unpriced)} has none; "
                    f"write `prices: {{prompt: 2.50, completion: 10}}` there or in {path(loc)}, "
                    "or use `budget_unit: tokens`"
                )
                yield (*place, "budget_unit"), text
            break  # the model's own setting is the one in force


def path(loc: Loc) -> str:
    """A path as people write it: `models[0].replicas[1].base_url`."""
    return "".join(f"[{part}]" if isinstance(part, int) else f".{part}" for part in loc).removeprefix(".")
