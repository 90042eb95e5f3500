"""Rules between settings: unique names, addresses that need keys, hedging that can work.

Checks the raw data of the file, before it is validated value by value, so that both kinds of problems are reported
together. Anything of a wrong shape counts as absent. Pure. Messages never quote a secret.
"""

import re
from collections.abc import Iterator
from difflib import get_close_matches
from typing import Final
from urllib.parse import urlsplit

from pydantic_core import PydanticCustomError

from gateway.config.credential import credential_findings
from gateway.config.document import Finding, Loc, RawMapping, entries, path, pools, replicas, templates
from gateway.config.settings import LimitSettings, Settings
from gateway.config.tiers import tier_findings
from gateway.config.values import WORKERS_MAX, Address, parse_address, parse_size
from ttft_gateway.apis.catalog import CATALOG

_azure_deployment = re.compile(r"/openai/deployments/[^/]+/?$").search
_azure_host = re.compile(r"^https?://[^/]+\.azure\.(com|us|cn)(:\d+)?(/|$)").match


def broken_rules(data: RawMapping) -> list[Finding]:
    """Return all violations of rules between settings."""
    models, keys, quotas = (entries(data, (), name) for name in ("models", "keys", "quotas"))
    every_replica = [row for loc, model in models for row in (*replicas(model, loc), *templates(model, loc))]
    return [
        *_repeated_names("key", keys),
        *_repeated_secrets([((), {"key": data.get("admin_key")}), *keys]),
        *_unknown_models(keys, models),
        *_repeated_names("model", models),
        *_aliases(models),
        *_default_model(data.get("default_model"), models),
        *(finding for at, model in models for finding in _repeated_names("replica of this model", replicas(model, at))),
        *(
            finding
            for rule in (_missing_boundaries, _no_primary)
            for at, model in models
            for finding in rule(model, at)
        ),
        *_repeated_names("quota", quotas),
        *_unused_quotas(quotas, every_replica),
        *(finding for at, model in models for pool in pools(model, at) for finding in _source(*pool)),
        *_cluster(data, models),
        *_body_limits(data),
        *_sharing(data),
        *_addresses(data),
        *_own_addresses(data, every_replica),
        *_hedging(data, models),
        *(finding for rule in (_connection, _azure) for at, replica in every_replica for finding in rule(replica, at)),
        *(finding for at, replica in every_replica for finding in credential_findings(replica, at)),
        *_passed_headers(data, every_replica),
        *(finding for at, replica in every_replica for finding in _body(replica, at)),
        *_prices([*models, *every_replica]),
        *_cost_budgets(data, models),
        *tier_findings(data, models),
    ]


def _repeated_names(noun: str, named: list[tuple[Loc, RawMapping]]) -> Iterator[Finding]:
    seen: dict[str, Loc] = {}
    for loc, entry in named:
        name = entry.get("name")
        if isinstance(name, str) and seen.setdefault(name, loc) != loc:
            yield (
                (*loc, "name"),
                f'found "{name}", but {path(seen[name])} already has this name; give each {noun} its own name',
            )


def _repeated_secrets(keys: list[tuple[Loc, RawMapping]]) -> Iterator[Finding]:
    seen: dict[object, Loc] = {}
    for loc, entry, name in ((loc, entry, name) for loc, entry in keys for name in ("key", "previous_key")):
        key = entry.get(name)
        if isinstance(key, str) and seen.setdefault(key, (*loc, name)) != (*loc, name):
            yield (*loc, "key_file" if "key_file" in entry else name), _same_secret(entry, loc, seen[key][:-1])


def _same_secret(entry: RawMapping, loc: Loc, other: Loc) -> str:
    if other != loc:
        owner = path(other) or "admin_key"
        return f"this secret is the same as that of {owner}; use a different secret, or remove one key"
    if "key_file" in entry:
        return "both lines have the same secret; write the previous one into the second line, or remove that line"
    return "this secret is the same as `key`; write the previous one, or remove `previous_key`"


def _unknown_models(keys: list[tuple[Loc, RawMapping]], models: list[tuple[Loc, RawMapping]]) -> Iterator[Finding]:
    for loc, entry in keys:
        allowed = entry.get("models")
        for index, name in enumerate(allowed if isinstance(allowed, list) else ()):
            if isinstance(name, str):
                yield from _unknown_model(name, (*loc, "models", index), models)


def _unknown_model(name: str, at: Loc, models: list[tuple[Loc, RawMapping]]) -> Iterator[Finding]:
    known = sorted({each for _, entry in models if isinstance(each := entry.get("name"), str)})
    if name in known:
        return
    owners = [str(entry.get("name")) for loc, entry in models if name in dict(_aliases_of(entry, loc)).values()]
    if owners:
        yield at, f'found "{name}", but this is an alias; write {owners[0]}'
    else:
        near = get_close_matches(name, known, n=1) or known[:20]
        yield at, f'found "{name}", but no model has this name; write {", ".join(near)}'


def _aliases_of(model: RawMapping, loc: Loc) -> list[tuple[Loc, str]]:
    given = model.get("aliases")
    named = enumerate(given) if isinstance(given, list) else ()
    return [((*loc, "aliases", index), alias) for index, alias in named if isinstance(alias, str)]


def _aliases(models: list[tuple[Loc, RawMapping]]) -> Iterator[Finding]:
    """A name must lead to one model."""
    seen = {name: loc for loc, model in models if isinstance(name := model.get("name"), str)}
    for loc, model in models:
        for at, alias in _aliases_of(model, loc):
            if seen.setdefault(alias, at) != at:
                yield at, f'found "{alias}", but {path(seen[alias])} already has this name; write another one'


def _default_model(name: object, models: list[tuple[Loc, RawMapping]]) -> Iterator[Finding]:
    if isinstance(name, str):
        yield from _unknown_model(name, ("default_model",), models)


def _body_limits(data: RawMapping) -> Iterator[Finding]:
    given = data.get("limits")
    limits = given if isinstance(given, dict) else {}
    one = _size(limits.get("request_body_max"), LimitSettings.model_fields["request_body_max_bytes"].default)
    every = _size(limits.get("buffered_bodies_max"), LimitSettings.model_fields["buffered_bodies_max_bytes"].default)
    if one is not None and every is not None and every < one:
        where = "buffered_bodies_max" if "buffered_bodies_max" in limits else "request_body_max"
        yield (
            ("limits", where),
            f"request_body_max is {one} B, but buffered_bodies_max is only {every} B; raise buffered_bodies_max",
        )
    elif one is not None and every is not None and every < one * (count := _workers(data)):
        text = (
            f"found {count} workers, but {every} B of buffered_bodies_max are less than one request_body_max for each"
        )
        yield ("workers",), f"{text}; raise buffered_bodies_max to {one * count} B, or use fewer workers"


def _sharing(data: RawMapping) -> Iterator[Finding]:
    """An authority is for TLS."""
    share = data.get("share")
    without_tls = ("redis:", "redis+", "unix:")
    if isinstance(share, dict) and "ca_file" in share and str(share.get("url")).startswith(without_tls):
        yield ("share", "ca_file"), "`ca_file` has no effect without TLS; write rediss:// in url, or remove this line"


def _workers(data: RawMapping) -> int:
    """Return the number of workers; 1 where it is not a number, such as auto."""
    value = data.get("workers")
    return value if isinstance(value, int) and not isinstance(value, bool) and value <= WORKERS_MAX else 1


def _size(value: object, default: int) -> int | None:
    try:
        return default if value is None else parse_size(value)
    except PydanticCustomError:
        return None


def _known_rows(model: RawMapping, loc: Loc) -> list[tuple[Loc, RawMapping]]:
    """Return the replicas of a model and the settings of those found in DNS; a file's rows are checked when read."""
    return [*replicas(model, loc), *(row for row in templates(model, loc) if "file" not in row[1])]


def _missing_boundaries(model: RawMapping, loc: Loc) -> Iterator[Finding]:
    """If requests must not leave a boundary, every replica needs one."""
    every = _known_rows(model, loc)
    marked = next((at for at, entry in every if entry.get("boundary") is not None), None)
    if marked is None or model.get("cross_boundary") in ("failover", "always"):
        return
    for at, entry in every:
        if entry.get("boundary") is None:
            text = (
                f"{path(marked)} has a boundary and this replica has none, so requests would never move between them; "
                "write `boundary: ...` here as well, or `cross_boundary: always` in the model"
            )
            yield at, text


def _no_primary(model: RawMapping, loc: Loc) -> Iterator[Finding]:
    """A pool needs a replica that takes primaries."""
    for pool_loc, pool in pools(model, loc):
        rows = entries(pool, pool_loc, "replicas")
        source = pool.get("discover")
        if isinstance(source, dict) and source.get("backup_only") not in (True, "true"):
            continue
        if rows and all(row.get("backup_only") in (True, "true") for _, row in rows):
            at, _ = rows[0]
            yield (*at, "backup_only"), "every replica of this list is backup_only; remove this line from at least one"


def _source(loc: Loc, pool: RawMapping) -> Iterator[Finding]:
    """A pool needs replicas or a source of them, and a source needs all that its kind needs."""
    if "discover" not in pool and "replicas" not in pool:
        example = "a, kind: vllm, base_url: http://10.0.0.1:8000/v1" if len(loc) == 2 else "c, ..."
        yield (*loc, "replicas"), f"this setting is missing; write `replicas: [{{name: {example}}}]`"
    source = pool.get("discover")
    if not isinstance(source, dict):
        return
    at = (*loc, "discover")
    named = [name for name in ("dns", "endpointslices", "file") if name in source]
    if not named:
        text = "`dns`, `endpointslices` or `file` is missing; write `dns: vllm.llm.svc` with `port` and `kind`, "
        yield at, text + "`endpointslices: vllm.llm` with `kind`, or `file: replicas.yaml`"
    for name in named[1:]:
        yield (*at, name), f"`{named[0]}` is set as well; remove one of the two"
    if len(named) == 1:
        yield from _source_options(at, source, named[0])


_NEEDED: Final = {"dns": (("port", "8000"), ("kind", "vllm")), "endpointslices": (("kind", "vllm"),), "file": ()}


def _source_options(at: Loc, source: RawMapping, name: str) -> Iterator[Finding]:
    """Check the settings of a kind of source."""
    for option, example in _NEEDED[name]:
        if option not in source:
            yield (*at, option), f"this setting is missing; write `{option}: {example}`"
    for option in ("pods", "zone") if name != "endpointslices" else ("every",):
        if option in source:
            users = "only `endpointslices` uses" if name != "endpointslices" else "changes are watched, without"
            yield (*at, option), f"{users} `{option}`; remove this line"
    port = source.get("port")
    if name == "file" and "port" in source:
        text = "only `dns` and `endpointslices` use `port`; write it in `base_url` of the file's rows"
        yield (*at, "port"), f"{text}, and remove this line"
    elif name == "dns" and isinstance(port, str) and not port.isdecimal():
        yield (*at, "port"), "only `endpointslices` has names of ports; write a number, such as 8000"


def _cluster(data: RawMapping, models: list[tuple[Loc, RawMapping]]) -> Iterator[Finding]:
    """A token needs TLS, and a gateway outside of a cluster has no namespace of its own."""
    cluster = data.get("kubernetes")
    if not isinstance(cluster, dict) or "url" not in cluster:
        return
    for name in ("token_file", "ca_file"):
        if name in cluster and str(cluster["url"]).startswith("http:"):
            why = "would be sent without TLS" if name == "token_file" else "has no effect without TLS"
            yield ("kubernetes", name), f"`{name}` {why}; write https:// in `url`, or remove this line"
    for loc, source in (each for at, model in models for each in templates(model, at)):
        service = source.get("endpointslices")
        if isinstance(service, str) and "." not in service:
            text = f'found "{service}", but with `kubernetes.url` the namespace is unknown; write {service}.NAMESPACE'
            yield (*loc, "endpointslices"), text


def _unused_quotas(
    quotas: list[tuple[Loc, RawMapping]], every_replica: list[tuple[Loc, RawMapping]]
) -> Iterator[Finding]:
    if any("file" in entry for _, entry in every_replica):  # its rows may use any quota
        return
    used = sorted({quota for _, entry in every_replica if isinstance(quota := entry.get("quota"), str)})
    for loc, entry in quotas:
        name = entry.get("name")
        if isinstance(name, str) and name not in used:
            near = get_close_matches(name, used, n=1)
            hint = (
                f"write the same name as in a replica ({near[0]})"
                if near
                else f"write `quota: {name}` in the replicas that share it"
            )
            yield (*loc, "name"), f'found "{name}", but no replica uses this quota; {hint}'


def _addresses(data: RawMapping) -> Iterator[Finding]:
    listen = _address(data.get("listen"), Settings.model_fields["listen"].default)
    admin = _address(data.get("admin_listen"), Settings.model_fields["admin_listen"].default)
    is_open = data.get("allow_anonymous") in (True, "true")
    if listen and not listen.loopback and not data.get("keys") and not data.get("keys_from") and not is_open:
        text = (
            f"found {listen}, but an address that other machines can reach needs keys; "
            f"add `keys: [{{name: team-a, key: ${{TEAM_A_KEY}}}}]`, or write `listen: 127.0.0.1:{listen.port}`, "
            "or write `allow_anonymous: true` to serve callers without a key"
        )
        yield ("listen",), text
    if listen and admin and listen.port == admin.port != 0:
        where = "admin_listen" if "admin_listen" in data else "listen"
        yield (
            (where,),
            f"listen and admin_listen use the same port {admin.port}; change one, or write `admin_listen: off`",
        )


def _own_addresses(data: RawMapping, every_replica: list[tuple[Loc, RawMapping]]) -> Iterator[Finding]:
    """A replica must not be the gateway: each request would come back to it, until it has no sockets left."""
    for name in ("listen", "admin_listen"):
        own = _address(data.get(name), Settings.model_fields[name].default)
        for loc, replica in every_replica if own else ():
            url, connection = replica.get("base_url"), replica.get("connection")
            proxied = isinstance(connection, dict) and connection.get("proxy") is not None
            if own and isinstance(url, str) and not proxied and _reaches(url, own):
                text = (
                    f'found "{url}", but the gateway itself listens there (`{name}: {own}`); write the address of the '
                    f"model server (in a container, localhost is the container), or another port in `{name}`"
                )
                yield (*loc, "base_url"), text


def _reaches(base_url: str, own: Address) -> bool:
    """Return whether a URL certainly leads to an address of the gateway."""
    try:
        url = urlsplit(base_url)
        target = Address(url.hostname or "", url.port or (443 if url.scheme == "https" else 80)).here
    except ValueError:
        return False
    everywhere = own.here != own
    named = "localhost" in (target.host, own.host)
    return target.port == own.port and (
        target.host in (own.host, own.here.host) or (target.loopback and (everywhere or (named and own.loopback)))
    )


def _address(value: object, default: Address) -> Address | None:
    try:
        return default if value is None else parse_address(value)
    except PydanticCustomError:
        return None


def _hedging(data: RawMapping, models: list[tuple[Loc, RawMapping]]) -> Iterator[Finding]:
    top = data.get("hedge")
    shared = top if isinstance(top, dict) else {}
    own = [((*loc, "hedge"), hedge) for loc, model in models if isinstance(hedge := model.get("hedge"), dict)]
    in_force = {loc: {**shared, **hedge} for loc, hedge in [(("hedge",), shared), *own]}
    static = {loc for loc, hedge in in_force.items() if hedge.get("policy") == "static"}
    for loc, hedge in [(("hedge",), shared), *own]:
        if loc in static and "policy" in hedge and "delay" not in in_force[loc]:
            yield (*loc, "policy"), "policy static needs a delay; add `delay: 250ms`, or write another policy"
        if "delay" in hedge and loc not in static and (hedge is not shared or not static):
            yield (*loc, "delay"), "only policy static uses a delay; write `policy: static`, or remove this line"
        policy = in_force[loc].get("policy", "adaptive")
        if (
            "ttft_target" in hedge
            and policy not in ("adaptive", "shadow")
            and (hedge is not shared or "policy" in shared)
        ):
            text = (
                "only the policies adaptive and shadow use a TTFT target; write `policy: adaptive`, or remove this line"
            )
            yield (*loc, "ttft_target"), text


def _connection(replica: RawMapping, loc: Loc) -> Iterator[Finding]:
    connection, url = replica.get("connection"), replica.get("base_url")
    if not isinstance(connection, dict) or not isinstance(url, str):
        return
    files = [field for field in ("ca_file", "cert_file", "key_file") if connection.get(field) is not None]
    if files and url.startswith("http") and not url.startswith("https:"):
        text = f"`{files[0]}` has no effect for an http:// address; write https:// in base_url, or remove this line"
        yield (*loc, "connection", files[0]), text
    elif "key_file" in files and "cert_file" not in files:
        yield (*loc, "connection", "key_file"), "`key_file` needs a certificate; add `cert_file: ...`"
    if connection.get("proxy") is not None and url.startswith("http+unix:"):
        yield (*loc, "connection", "proxy"), "`proxy` cannot be used with a unix socket; remove it"


def _azure(replica: RawMapping, loc: Loc) -> Iterator[Finding]:
    """Check Azure's two forms of address, and the version that one of them needs."""
    url, version = replica.get("base_url"), replica.get("api_version")
    if replica.get("kind") != "azure":
        if version is not None and isinstance(replica.get("kind"), str):
            yield (*loc, "api_version"), "only kind azure uses `api_version`; remove this line"
        return
    if not isinstance(url, str):
        return
    if _azure_deployment(url):
        if version is None:
            text = (
                "an address with /deployments/ needs an API version; add `api_version: 2024-10-21` (or a later one), "
                "or write the newer form of the address, which ends in /openai/v1"
            )
            yield (*loc, "base_url"), text
    elif _azure_host(url) and not url.rstrip("/").endswith("/openai/v1"):
        text = (
            "an Azure address must end in /openai/v1 (with the deployment's name as the replica's `model`) "
            "or in /openai/deployments/NAME (with `api_version: 2024-10-21`)"
        )
        yield (*loc, "base_url"), text


def _passed_headers(data: RawMapping, every_replica: list[tuple[Loc, RawMapping]]) -> Iterator[Finding]:
    """A header that callers send must not meet one of the same name that the configuration or the kind sets."""
    names = data.get("pass_headers")
    for index, name in enumerate(names if isinstance(names, list) else ()):
        for loc, replica in every_replica if isinstance(name, str) else ():
            own, kind = replica.get("headers"), CATALOG.get(str(replica.get("kind")))
            configured = [str(each).lower() for each in own] if isinstance(own, dict) else []
            if name.lower() in (*configured, *(each.decode() for each, _ in (kind.headers if kind else ()))):
                text = f'found "{name}", but {path(loc)} has a value of its own for this header; remove one of the two'
                yield ("pass_headers", index), text
                break


def _body(replica: RawMapping, loc: Loc) -> Iterator[Finding]:
    body = replica.get("body")
    given, most = (body.get("set"), body.get("max")) if isinstance(body, dict) else (None, None)
    if isinstance(given, dict) and isinstance(most, dict):
        for key in (key for key in most if key in given):
            yield (*loc, "body", "max", key), f'found "{key}", but `set` has a value for it; remove one of the two'


def _prices(priced: list[tuple[Loc, RawMapping]]) -> Iterator[Finding]:
    for loc, entry in priced:
        prices = entry.get("prices")
        if not isinstance(prices, dict):
            continue
        cached, prompt = prices.get("cached_prompt"), prices.get("prompt")
        if isinstance(cached, int | float) and isinstance(prompt, int | float) and cached > prompt:
            text = (
                f"found {cached:g}, but a cached token must not cost more than other prompt tokens ({prompt:g}); "
                "are the two prices swapped?"
            )
            yield (*loc, "prices", "cached_prompt"), text


def _cost_budgets(data: RawMapping, models: list[tuple[Loc, RawMapping]]) -> Iterator[Finding]:
    """A budget of cost needs a price at every replica."""
    for loc, model in models:
        for at, hedge in (((*loc, "hedge"), model.get("hedge")), (("hedge",), data.get("hedge"))):
            if not isinstance(hedge, dict) or "budget_unit" not in hedge:
                continue
            unpriced = next((found for found, entry in _known_rows(model, loc) if "prices" not in entry), None)
            if hedge["budget_unit"] == "cost" and "prices" not in model and unpriced is not None:
                text = (
                    f"`budget_unit: cost` needs prices, but {path(unpriced)} has none; "
                    f"write `prices: {{prompt: 2.50, completion: 10}}` there or in {path(loc)}, "
                    "or use `budget_unit: tokens`"
                )
                yield (*at, "budget_unit"), text
            break  # the model's own setting is the one in force
