"""Reads the file that `discover: {file: ...}` names: a YAML list of replicas, with the position of each problem.

The list is checked as if its rows were in the configuration file, with the same messages. No units.
"""

import re
from collections.abc import Mapping
from pathlib import Path

from pydantic import ValidationError

from gateway.config.discovered import ROWS_MAX, PoolPlace, completed, sources
from gateway.config.document import Document, Finding, Loc, RawMapping, path, read_yaml
from gateway.config.errors import finding
from gateway.config.loader import PROBLEMS_MAX, located, read_text, take_addresses, take_secrets, take_tls
from gateway.config.rules import broken_rules
from gateway.config.section import Section
from gateway.config.settings import DiscoverSettings, ReplicaOptions, Replicas, Settings
from gateway.config.tiers import rows_of


class _ReplicaList(Section):
    replicas: Replicas


def read_replicas(file: Path, env: Mapping[str, str], settings: Settings, place: PoolPlace) -> Replicas:
    """Return the replicas of a file; without any if the list is empty.

    Args:
        file: a YAML list of replicas; paths in it are relative to its folder.
        env: environment variables for `${NAME}`.
        settings: settings without replicas found at run time.
        place: pool with the source that names the file.

    Raises:
        ConfigError: the file is unreadable or invalid, or does not fit the model's other settings.
    """
    document = read_yaml(read_text(file), env)
    source, findings = sources(settings)[place], list(document.faults)
    rows: Replicas = ()
    if isinstance(document.data, list) and not findings:
        rows, findings = _check(document, file.parent, settings, place)
    elif not findings:
        found = "nothing" if document.data is None else "no list"
        findings.append(
            ((), f"found {found}, but a list of replicas is expected; write `- {{name: a, base_url: ...}}`")
        )
    if findings:
        raise located(file, document, findings)
    return tuple(way for row in rows for way in rows_of(completed(row, source)))


def _check(document: Document, folder: Path, settings: Settings, place: PoolPlace) -> tuple[Replicas, list[Finding]]:
    data, source = document.data, sources(settings)[place]
    assert isinstance(data, list)
    if len(data) > ROWS_MAX:
        return (), [((), f"found {len(data)} replicas; write at most {ROWS_MAX}")]
    for row in data:
        if isinstance(row, dict) and source.kind is not None:
            row.setdefault("kind", source.kind)
    alone: RawMapping = {"models": [{"name": place.model, "replicas": data}]}
    found = (*take_secrets(alone, folder), *take_addresses(alone), *take_tls(alone, folder))
    findings = [(loc[3:], message.replace("to the configuration file", "to this file")) for loc, message in found]
    rows: Replicas = ()
    try:
        rows = _ReplicaList.model_validate({"replicas": data}).replicas
    except ValidationError as error:
        for detail in error.errors(include_url=False)[:PROBLEMS_MAX]:
            loc = detail["loc"][1:]
            detail["loc"] = ("models", 0, "replicas", *loc)  # for the words of the configuration file
            _, message = finding(detail, document.references.get(loc))
            findings.append((loc, message))
    return rows, [*findings, *_broken_rules(data, source, settings, place)]


def _broken_rules(data: list[object], source: DiscoverSettings, settings: Settings, place: PoolPlace) -> list[Finding]:
    """Check the rows with the other settings of their model, as in the configuration file."""
    shared = {name: value for name, value in _raw(source).items() if name in _OPTIONS}
    rows = [{**shared, **row} if isinstance(row, dict) else row for row in data]
    index = next(i for i, model in enumerate(settings.models) if model.name == place.model)
    model = _raw(settings.models[index])
    pool = model
    prefix: Loc = ("models", index)
    if place.number:
        fallbacks = model["fallbacks"]
        assert isinstance(fallbacks, list)
        pool, prefix = fallbacks[place.number - 1], (*prefix, "fallbacks", place.number - 1)
    listed = pool.pop("replicas", [])
    assert isinstance(listed, list)
    pool["replicas"] = [*listed, *rows]
    del pool["discover"]
    hedge, passed = _raw(settings.hedge), list(settings.pass_headers)
    whole: RawMapping = {
        "listen": str(settings.listen),
        "allow_anonymous": True,  # the keys are checked with the file
        "admin_listen": str(settings.admin_listen or "off"),
        "models": [*[None] * index, model],
        "hedge": hedge,
        "pass_headers": passed,
    }
    return [_in_list(found, (*prefix, "replicas"), len(listed)) for found in broken_rules(whole)]


_OPTIONS = frozenset(str(field.alias) for field in ReplicaOptions.model_fields.values())


def _raw(section: Section) -> RawMapping:
    """Return settings as in a file, with secrets masked."""
    return section.model_dump(mode="json", by_alias=True, exclude_unset=True)


def _in_list(found: Finding, prefix: Loc, first: int) -> Finding:
    """Return a finding with the path of the row in its list; a finding about a setting elsewhere has no path."""
    loc, message = found

    def row(match: re.Match[str]) -> str:
        index = int(match[1]) - first
        return f"[{index}]" if index >= 0 else match[0]

    message = re.sub(rf"{re.escape(path(prefix))}\[(\d+)\]", row, message)
    after = loc[len(prefix) :]
    if loc[: len(prefix)] == prefix and after and isinstance(after[0], int) and after[0] >= first:
        return (after[0] - first, *after[1:]), message
    return (), f"{path(loc)}: {message}"
