"""Turns the configuration of LiteLLM's proxy into one of the gateway: data in, lines and findings out.

The format: docs.litellm.ai/docs/proxy/configs, /docs/routing and /docs/proxy/reliability. Literal secrets are never in
the lines or in the findings. Units: LiteLLM's timeouts are seconds.
"""

import json
import re
from collections.abc import Iterator, Mapping, Sequence

import msgspec

from gateway.cli.importing.deployment import NAME, Deployment, Json, default_variables, read_deployment
from gateway.cli.importing.litellm_settings import OTHER_ROUTING, ROUTING, WHY_NOT, section, taken, timeouts
from gateway.cli.importing.report import Finding, Report, grouped, references
from gateway.cli.importing.source import ForeignFile
from gateway.config.addresses import LISTEN_DEFAULT
from gateway.config.document import Loc

_SECTIONS = ("litellm_settings", "router_settings", "general_settings")


class Imported(msgspec.Struct, frozen=True):
    """A configuration of the gateway.

    Attributes:
        lines: the file; empty if no entry is usable.
        findings: everything that is lost, changed or not needed, by group and line.
        variables: environment variables that the file needs, each with its purpose.
    """

    lines: Sequence[str]
    findings: Sequence[Finding]
    variables: Mapping[str, str]


def fault_of(data: object) -> str | None:
    """Return the reason why data is no configuration of LiteLLM's proxy; None if it is one."""
    if isinstance(data, dict) and isinstance(data.get("model_list"), list) and data["model_list"]:
        return None
    if isinstance(data, dict) and "models" in data and "model_list" not in data:
        return "the file has `models` and no `model_list`: is it already a file of this gateway? Run check-config"
    return "`model_list` is missing or empty; name the configuration file of LiteLLM's proxy"


def from_litellm(source: ForeignFile, name: str) -> Imported:
    """Convert a configuration of LiteLLM's proxy.

    Args:
        source: the file, without a fault.
        name: name of the file, for comments.
    """
    data = source.data if isinstance(source.data, dict) else {}
    entries = data["model_list"]
    report = Report(source, references(data) | default_variables(entries))
    found = [read_deployment(entry, ("model_list", index), report) for index, entry in enumerate(entries)]
    groups: dict[str, list[Deployment]] = {}
    for each in found:
        if each is not None:
            groups.setdefault(each.group, []).append(each)
    output: Json = {}
    quotas: list[Json] = []
    if section(data, "general_settings").get("master_key") is not None:
        _key(section(data, "general_settings")["master_key"], report, output)
    models = {group: _model(group, rows, quotas, name, report) for group, rows in groups.items()}
    if (default := section(data, "general_settings").get("completion_model")) is not None:
        if isinstance(default, str) and default in models:
            output["default_model"] = default
        else:
            report.skip(("general_settings", "completion_model"), "no model has this name")
    _aliases(data, models, report)
    _fallbacks(data, models, groups, report)
    if section(data, "litellm_settings").get("drop_params") is True:
        for model in models.values():
            model["drop_params"] = True
    output |= timeouts(data, report)
    _routing(data, output, report)
    _unused(data, report)
    if quotas:
        output["quotas"] = quotas
    output["models"] = list(models.values())
    findings = sorted(set(report.findings))
    lines = list(_text(output, findings, report, re.sub("[^ -~]", "?", name))) if models else []
    return Imported(lines, findings, dict(report.variables))


def _text(output: Json, findings: Sequence[Finding], report: Report, name: str) -> Iterator[str]:
    yield f"# Written by `ttft-gateway import litellm` from {name}."
    yield f"# LiteLLM's proxy listens on 0.0.0.0:4000; `listen` here is {LISTEN_DEFAULT} unless it is set."
    if report.variables:
        yield f"# It needs the environment variables {', '.join(sorted(report.variables))}."
    if findings:
        yield "#"
        yield from (f"# {line}" for line in grouped(findings, name))
    for key, value in output.items():
        yield ""
        yield from yaml_lines({key: value})


def _key(master: object, report: Report, output: Json) -> None:
    at: Loc = ("general_settings", "master_key")
    if not isinstance(master, str) or not master:
        report.skip(at, "it is not text")
        return
    output["keys"] = [{"name": "litellm-master", "key": report.secret(master, at, "LITELLM_MASTER_KEY")}]
    report.add(
        at, "becomes a caller's key; the admin address has its own, `admin_key`. Virtual keys are not in this file"
    )


def _model(group: str, rows: list[Deployment], quotas: list[Json], name: str, report: Report) -> Json:
    """Return a model; entries with a later `order` become fallbacks."""
    weights = _weights(rows, report)
    names = _names(rows)
    pools: dict[float, list[Json]] = {}
    for row, replica_name, weight in zip(rows, names, weights, strict=True):
        replica: Json = {COMMENT: [f"{name}:{report.line(row.loc)}"], "name": replica_name, **row.replica}
        if weight is not None:
            replica["weight"] = weight
        if row.quota:
            replica["quota"] = f"{group}/{replica_name}"[:128]
            quotas.append({"name": replica["quota"], **row.quota})
        pools.setdefault(float("inf") if row.order is None else row.order, []).append(replica)
    first, *later = (pools[order] for order in sorted(pools))
    if later:
        _report_order(group, rows, len(first), report)
    model: Json = {"name": group, "replicas": first}
    if later:
        model["fallbacks"] = [{"replicas": pool} for pool in later]
    if any(row.drop_params for row in rows):
        model["drop_params"] = True
        for row in rows if not all(row.drop_params for row in rows) else ():
            report.add((*row.loc, "litellm_params", "drop_params"), "applies to the whole model here")
    return model


def _report_order(group: str, rows: Sequence[Deployment], first: int, report: Report) -> None:
    """Report that entries are not raced with each other, at the first entry of the first pool."""
    row = min(rows, key=lambda each: float("inf") if each.order is None else each.order)
    pool = "this entry alone, which is never hedged" if first == 1 else f"{first} entries, which hedge each other"
    others = "the other one gets" if len(rows) - first == 1 else f"the other {len(rows) - first} get"
    text = f"makes {pool}, the first pool of {group}; {others} requests after failures only, as fallbacks"
    report.add((*row.loc, "litellm_params", "order"), f"{text}. Remove `order` from all to hedge among all")


def _names(rows: Sequence[Deployment]) -> list[str]:
    """Return a name for each replica: its `model_info.id`, else its kind with a number."""
    ids = [row.id for row in rows]
    taken = {each for each in ids if each is not None and ids.count(each) == 1}
    counts: dict[str, int] = {}
    names = []
    for row in rows:
        if row.id in taken and row.id is not None:
            names.append(row.id)
            continue
        kind = str(row.replica["kind"])
        while (name := f"{kind}-{counts.setdefault(kind, 1)}") in taken:
            counts[kind] += 1
        counts[kind] += 1
        names.append(name)
    return names


def _weights(rows: Sequence[Deployment], report: Report) -> list[int | None]:
    """Return whole weights from 1 to 100 in the proportion of LiteLLM's; None for replicas without a weight."""
    given = [row.weight for row in rows]
    known = [weight for weight in given if weight]
    if all(weight is None or (weight.is_integer() and 1 <= weight <= 100) for weight in given):
        return [None if weight is None else int(weight) for weight in given]
    weights: list[int | None] = []
    for row, weight in zip(rows, given, strict=True):
        at = (*row.loc, "litellm_params", "weight")
        if weight is None:
            weights.append(None)
        elif not weight:
            report.add(at, "is 0; write `backup_only: true`, or remove the replica. The weight is 1 here")
            weights.append(None)
        else:
            weights.append(max(1, round(weight / max(known) * 100)))
            report.add(at, f"is not a whole number from 1 to 100; it is {weights[-1]} here, in proportion")
    return weights


def _aliases(data: Json, models: Mapping[str, Json], report: Report) -> None:
    taken = set(models)
    for where, key in (("router_settings", "model_group_alias"), ("litellm_settings", "model_alias_map")):
        given = section(data, where).get(key, {})
        if not isinstance(given, dict):
            report.skip((where, key), "a mapping from alias to model is expected")
        for alias, value in given.items() if isinstance(given, dict) else ():
            at = (where, key, alias)
            target = value.get("model") if isinstance(value, dict) else value
            if not isinstance(target, str) or target not in models:
                report.skip(at, "no model that was taken over has the name that it stands for")
            elif not NAME.fullmatch(alias) or "${" in alias or alias in taken:
                report.skip(at, "the alias is not a name, or another model or alias has it")
            else:
                taken.add(alias)
                aliases = models[target].setdefault("aliases", [])
                assert isinstance(aliases, list)
                aliases.append(alias)
                if isinstance(value, dict) and value.get("hidden") is True:
                    report.idle((*at, "hidden"), "GET /v1/models lists aliases")


def _fallbacks(data: Json, models: Mapping[str, Json], groups: Mapping[str, list[Deployment]], report: Report) -> None:
    """Add the replicas of other models as fallbacks: here, a fallback belongs to a model and names its replicas."""
    own = {name: _pools(model) for name, model in models.items()}
    by_id = {row.id: row.group for rows in groups.values() for row in rows if row.id is not None}
    wanted = _wanted(data, models, report)
    for name, targets in wanted.items():
        for at, target in targets:
            group = None
            if isinstance(target, str):
                group = target if target in models else by_id.get(target)
            if group is None or (group == name and target in models):
                report.skip(at, "no other model that was taken over has this name")
                continue
            pools = own[group]
            if target not in models:
                pools = [[row for pool in pools for row in pool if row["name"] == target]]
                if group == name:
                    report.skip(at, "the replica is one of the model's own, and is tried anyway")
                    continue
            _append(models[name], pools, str(group))


def _wanted(data: Json, models: Mapping[str, Json], report: Report) -> dict[str, list[tuple[Loc, object]]]:
    """Return the fallbacks of each model, with their paths."""
    wanted: dict[str, list[tuple[Loc, object]]] = {}
    general: list[tuple[Loc, object]] = []
    for where in ("litellm_settings", "router_settings"):
        every = section(data, where).get("fallbacks", [])
        if not isinstance(every, list) or not all(isinstance(each, dict) for each in every):
            report.skip((where, "fallbacks"), "a list of mappings from a model to a list of models is expected")
        for index, mapping in enumerate(every if isinstance(every, list) else ()):
            for name, targets in mapping.items() if isinstance(mapping, dict) else ():
                at: Loc = (where, "fallbacks", index, name)
                rows = [
                    ((*at, number), each) for number, each in enumerate(targets if isinstance(targets, list) else ())
                ]
                if name == "*":
                    general += rows
                elif name in models:
                    wanted.setdefault(name, []).extend(rows)
                else:
                    report.skip(at, "no model that was taken over has this name")
        given = section(data, where).get("default_fallbacks")
        items = enumerate(given if isinstance(given, list) else ())
        general += [((where, "default_fallbacks", number), each) for number, each in items]
    for at, target in general:
        for name in models:
            if name != target and not any(
                each[0][1] == "fallbacks" and each[0][-2] != "*" for each in wanted.get(name, ())
            ):
                wanted.setdefault(name, []).append((at, target))
    return wanted


def _pools(model: Json) -> list[list[Json]]:
    fallbacks = model.get("fallbacks", [])
    assert isinstance(fallbacks, list)
    return [list(pool["replicas"]) for pool in (model, *fallbacks)]


def _append(model: Json, pools: Sequence[Sequence[Json]], group: str) -> None:
    """Add copies of another model's pools, with names that are unique in this model."""
    taken = {str(row["name"]) for pool in _pools(model) for row in pool}
    fallbacks = model.setdefault("fallbacks", [])
    assert isinstance(fallbacks, list)
    for pool in pools:
        copies = []
        for row in pool:
            name = base = f"{group}-{row['name']}"[:120]
            number = 2
            while name in taken:
                name, number = f"{base}-{number}", number + 1
            taken.add(name)
            copies.append({**row, "name": name})
        fallbacks.append({COMMENT: [f"replicas of {group}"], "replicas": copies})


def _routing(data: Json, output: Json, report: Report) -> None:
    strategy = section(data, "router_settings").get("routing_strategy")
    if strategy is None:
        return
    if strategy == "least-busy":
        output["hedge"] = {"routing": "least_in_flight"}
    text = ROUTING.get(strategy, OTHER_ROUTING) if isinstance(strategy, str) else OTHER_ROUTING
    report.add(("router_settings", "routing_strategy"), text)


def _unused(data: Json, report: Report) -> None:
    """Report every setting that nothing above has used."""
    for key, value in data.items():
        if key == "environment_variables" and isinstance(value, dict):
            for name in value:
                report.skip((key, name), "set it in the environment of the gateway, if the gateway needs it")
        elif key not in ("model_list", *_SECTIONS):
            report.skip((key,), WHY_NOT.get(key, "there is no such section"))
    for where in _SECTIONS:
        if data.get(where) is not None and not isinstance(data[where], dict):
            report.skip((where,), "a mapping is expected")
        for key in section(data, where):
            if key not in taken(where):
                report.skip((where, key), WHY_NOT.get(key, "there is no such setting"))


COMMENT = "#"
"""Key of the comment lines in front of a mapping."""

_PLAIN = re.compile(
    r"(?!(?:true|false|null|True|False|TRUE|FALSE|Null|NULL)$)[A-Za-z_$/][A-Za-z0-9_./$}{+-]*(?::[A-Za-z0-9_./$}{+-]+)*"
)

_DURATION = re.compile(r"[0-9]+(\.[0-9]+)?s")


def yaml_lines(value: Mapping[str, object], indent: str = "") -> Iterator[str]:
    """Yield the lines of a mapping."""
    yield from _comments(value, indent)
    for key, item in value.items():
        if key != COMMENT:
            yield from _entry(f"{indent}{_scalar(key)}:", item, indent)


def _entry(start: str, item: object, indent: str) -> Iterator[str]:
    if isinstance(item, dict):
        yield start
        yield from yaml_lines(item, f"{indent}  ")
    elif isinstance(item, list) and any(isinstance(each, dict) for each in item):
        yield start
        for each in item:
            yield from _comments(each, f"{indent}  ")
            lines = yaml_lines({key: part for key, part in each.items() if key != COMMENT}, f"{indent}    ")
            yield f"{indent}  - {next(lines).strip()}"
            yield from lines
    elif isinstance(item, list):
        yield f"{start} [{', '.join(_scalar(each) for each in item)}]"
    else:
        yield f"{start} {_scalar(item)}"


def _comments(value: Mapping[str, object], indent: str) -> Iterator[str]:
    comments = value.get(COMMENT)
    for line in comments if isinstance(comments, list) else ():
        yield f"{indent}# {line}".rstrip()


def _scalar(value: object) -> str:
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, int | float):
        return f"{value}"
    text = str(value)
    return text if _PLAIN.fullmatch(text) or _DURATION.fullmatch(text) else json.dumps(text, ensure_ascii=False)
