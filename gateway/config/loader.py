"""From a file, or the command line, to `Settings`; and from `Settings` to what may be shown.

Owns reading the configuration file and the secret files it names, and gathering every problem before it gives up.
A reload is another `load`: key files and the environment are read again. Relative key files are relative to the
configuration file. Knows no rule by itself (config_rules.py, settings.py) and no wording (config_problems.py).
"""

import re
from collections.abc import Mapping, Sequence
from copy import deepcopy
from pathlib import Path

import yaml
from pydantic import ValidationError

from gateway.config.document import Document, Loc, Position, read_yaml
from gateway.config.errors import ConfigError, ConfigProblem, finding
from gateway.config.rules import Finding, Row, broken_rules, path, replicas, rows
from gateway.config.settings import Settings, sections
from gateway.config.tls import TlsFault, TlsFiles, tls_context
from gateway.config.values import secret_fault, with_v1

_FILE_BYTES_MAX = 1_000_000
_SECRET_BYTES_MAX = 16_384
_OPTIONS = (  # what a message says to write in a file -> what to type
    (re.compile("add `keys: [^`]*`"), "write `keys` in a configuration file"),
    (re.compile("`allow_anonymous: true`"), "`--allow-anonymous`"),
    (re.compile(r"\badmin_listen\b:?"), "--admin-listen"),
    (re.compile(r"(?<!-)\blisten\b:?"), "--listen"),
)


def load(file: Path, env: Mapping[str, str], defaults: Mapping[str, object] | None = None) -> Settings:
    """Read a configuration file.

    Args:
        file: the YAML file.
        env: environment variables for `${NAME}`.
        defaults: top-level settings for where the file has none, as they would stand in it. `keys` among them do not
            count where the file lets anonymous callers in.

    Raises:
        ConfigError: the file or a secret file cannot be read, or something in them cannot be used.
    """
    try:
        text = _read(file, _FILE_BYTES_MAX)
    except _Unreadable as error:
        raise ConfigError((ConfigProblem(str(file), None, None, "", str(error)),)) from None
    document = read_yaml(text, env)
    _fill(document.data, defaults or {})
    settings, findings = _check(document, file.parent)
    if settings is None or findings:
        problems = [_problem(str(file), document, loc, message) for loc, message in findings]
        raise ConfigError(tuple(sorted(problems, key=lambda problem: (problem.line or 0, problem.column or 0))))
    return settings


def from_replicas(
    model: str,
    urls: Sequence[str],
    *,
    kind: str = "openai",
    others: Mapping[str, object] | None = None,
    defaults: Mapping[str, object] | None = None,
) -> Settings:
    """Settings for one model without a file: `serve --model llama --replica URL --replica URL`.

    Args:
        model: public name, and the replicas' own name for it.
        urls: a base URL for each replica; /v1 is added where there is no path.
        kind: what speaks at the other end.
        others: other top-level settings as they would stand in a file, such as `{"listen": "127.0.0.1:0"}`.
        defaults: as for `load`.

    Raises:
        ConfigError: something cannot be used.
    """
    bases = [with_v1(url) for url in urls]
    replica_rows = [
        {"name": name, "kind": kind, "base_url": base} for name, base in zip(_replica_names(bases), bases, strict=True)
    ]
    data = {**deepcopy(dict(others or {})), "models": [{"name": model, "replicas": replica_rows}]}
    _fill(data, defaults or {})
    settings, findings = _check(Document(data), Path())
    if settings is None or findings:
        raise ConfigError(tuple(dict.fromkeys(_option_problem(loc, message) for loc, message in findings)))
    return settings


def masked(settings: Settings) -> str:
    """The settings in force as YAML, defaults included, secrets as `****`."""
    shown = settings.model_dump(mode="json", by_alias=True)
    for model, row in zip(settings.models, shown["models"], strict=True):
        row["hedge"] = settings.hedge_of(model).model_dump(mode="json", by_alias=True)
        if row["hedge"]["policy"] != "static":
            row["hedge"]["delay"] = None
    for _, row, field in _secret_rows(shown):
        if row[f"{field}_file"]:
            row[field] = None
    return yaml.safe_dump(_without_nothing(shown), sort_keys=False, allow_unicode=True, width=120)


def json_schema() -> dict[str, object]:
    """The JSON schema of the file, for editors."""
    schema = Settings.model_json_schema()
    definitions = {"Settings": schema, **schema["$defs"]}
    for section in set(sections().values()):
        defaults = section.model_construct().model_dump(mode="json", by_alias=True, warnings=False)
        properties = definitions[section.__name__]["properties"]
        for key, value in properties.items():
            properties[key] = _property(value, defaults.get(key))
    return {"$schema": "https://json-schema.org/draft/2020-12/schema", **schema}


def _property(schema: dict[str, object], default: object) -> dict[str, object]:
    """A setting's schema as the file has it: defaults with their units, no null, `${NAME}` for numbers, too."""
    choices = schema.get("anyOf")
    main = choices[0] if isinstance(choices, list) else {}  # the other choice is null
    merged = {**main, **{key: value for key, value in schema.items() if key not in ("anyOf", "title", "default")}}
    if isinstance(default, str | int | float):
        merged["default"] = default
    if merged.get("type") in ("integer", "number", "boolean"):
        bounds = {key: merged.pop(key) for key in list(merged) if key not in ("default", "description", "examples")}
        merged["anyOf"] = [bounds, {"type": "string", "pattern": r"\$\{"}]
    return merged


class _Unreadable(Exception):
    """A file cannot be read; the text says why."""


def _read(file: Path, bytes_max: int) -> str:
    try:
        with file.open("rb") as stream:
            content = stream.read(bytes_max + 1)
        text = content.decode("utf-8-sig")
    except FileNotFoundError:
        raise _Unreadable("there is no such file") from None
    except IsADirectoryError:
        raise _Unreadable("this is a directory; name the file in it") from None
    except UnicodeDecodeError:
        raise _Unreadable("this is not UTF-8 text") from None
    except (OSError, ValueError) as error:
        reason = error.strerror if isinstance(error, OSError) else "its name has a zero byte"
        raise _Unreadable(f"it cannot be read: {reason}") from None
    if len(content) > bytes_max:
        raise _Unreadable(f"it is larger than {bytes_max:,} bytes; is it the right file?")
    return text


def _fill(data: object, defaults: Mapping[str, object]) -> None:
    """Set what the data leaves open."""
    if isinstance(data, dict):
        for key, value in defaults.items():
            if key != "keys" or data.get("allow_anonymous") not in (True, "true"):
                data.setdefault(key, value)


def _check(document: Document, folder: Path) -> tuple[Settings | None, list[Finding]]:
    """The settings, or None, and everything that is wrong; at most one finding a path, the most basic one."""
    data = document.data
    findings = list(document.faults)
    if data is None:
        findings = findings or [((), "the file is empty; write at least `models:` with one model and its replicas")]
        return None, findings
    if isinstance(data, dict):
        findings += _take_secrets(data, folder)
        findings += _take_tls(data, folder)
    settings = None
    try:
        settings = Settings.model_validate(data)
    except ValidationError as error:
        for detail in error.errors(include_url=False):
            if detail["type"] != "too_short" or not detail["input"]:  # else its items are at fault, not their number
                findings.append(finding(detail, document.references.get(detail["loc"])))
    if isinstance(data, dict):
        findings += broken_rules(data)
    first: dict[Loc, str] = {}
    for loc, message in findings:
        first.setdefault(loc, message)
    return settings, list(first.items())


def _secret_rows(data: Row) -> list[tuple[Loc, Row, str]]:
    """Every mapping that can name a secret file, and the setting that the file stands for."""
    every_replica = (replica for loc, model in rows(data, (), "models") for replica in replicas(model, loc))
    keys = ((loc, row, "key") for loc, row in rows(data, (), "keys"))
    return [*keys, *((loc, row, "api_key") for loc, row in every_replica)]


def _take_secrets(data: Row, folder: Path) -> list[Finding]:
    """Put the content of each secret file where the secret itself would stand."""
    findings: list[Finding] = []
    for loc, row, field in _secret_rows(data):
        name = row.get(f"{field}_file")
        if not isinstance(name, str):
            continue
        fault = f"{field} is given, too; remove one of the two" if field in row else None
        try:
            secret = _read(folder / name, _SECRET_BYTES_MAX).strip()
            fault = fault or secret_fault(secret)
        except _Unreadable as error:
            secret, fault = "", fault or f"{error} (the path begins where the configuration file is)"
        if fault:  # the name is not quoted: it may be the secret itself, written in the wrong place
            findings.append(((*loc, f"{field}_file"), fault))
        row[field] = "?" if fault else secret
    return findings


def _take_tls(data: Row, folder: Path) -> list[Finding]:
    """Make paths of TLS files absolute, and try the files."""
    findings: list[Finding] = []
    for loc, row in (replica for at, model in rows(data, (), "models") for replica in replicas(model, at)):
        way = row.get("connection")
        if not isinstance(way, dict):
            continue
        for field in TlsFiles._fields:
            if isinstance(way.get(field), str):
                way[field] = str((folder / way[field]).absolute())
        files = TlsFiles(*(file if isinstance(file := way.get(field), str) else None for field in TlsFiles._fields))
        try:
            if any(files) and str(row.get("base_url")).startswith("https:"):
                tls_context(files)
        except TlsFault as fault:
            findings.append(((*loc, "connection", fault.field), fault.text))
    return findings


def _problem(source: str, document: Document, loc: Loc, message: str) -> ConfigProblem:
    """A finding with its place, or that of the nearest mapping around it."""
    nearest = loc
    while nearest and nearest not in document.places:
        nearest = nearest[:-1]
    place = document.places.get(nearest, Position(1, 1))
    return ConfigProblem(source, place.line, place.column, path(loc), message)


def _option_problem(loc: Loc, message: str) -> ConfigProblem:
    """A finding with the command-line option that it is about."""
    match loc:
        case ("models", 0, "replicas", int(index), "base_url" | "name"):
            return ConfigProblem(f"--replica {index + 1}", None, None, "", message)
        case ("models", 0, "replicas"):
            return ConfigProblem(
                "--replica", None, None, "", "at least one is needed; write `--replica http://10.0.0.1:8000/v1`"
            )
        case ("models", 0, "replicas", _, "kind"):
            return ConfigProblem("--kind", None, None, "", message)
        case ("models", 0, "name"):
            return ConfigProblem("--model", None, None, "", message)
        case ("listen" | "admin_listen" as name,):
            for key, option in _OPTIONS:
                message = key.sub(option, message)
            return ConfigProblem(f"--{name.replace('_', '-')}", None, None, "", message)
    return ConfigProblem("settings", None, None, path(loc), message)


def _replica_names(bases: Sequence[str]) -> list[str]:
    """A name for each replica: host and port, with a number where several have the same."""
    names = [base.partition("://")[2].rpartition("@")[2].rstrip("/").removesuffix("/v1") or "?" for base in bases]
    return [name if names.count(name) == 1 else f"{name}#{1 + names[:at].count(name)}" for at, name in enumerate(names)]


def _without_nothing(shown: object) -> object:
    """The same without the settings that are not set."""
    if isinstance(shown, dict):
        return {key: _without_nothing(value) for key, value in shown.items() if value is not None}
    return [_without_nothing(item) for item in shown] if isinstance(shown, list) else shown
