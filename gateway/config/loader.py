"""Loads `Settings` from a file or from command-line options, and writes them as YAML or as a JSON schema.

Owns reading the configuration file and the secret files it names, collecting all problems before an error is raised,
and, for the JSON schema, reading the descriptions of settings from the docstrings of their attributes. A reload is
another `load`: key files and the environment are read again. Key files are relative to the configuration file. Rules
are in rules.py and settings.py, the wording of pydantic's errors in errors.py.
"""

import ast
import contextlib
import inspect
import re
import stat
import sys
from collections.abc import Mapping, Sequence
from copy import deepcopy
from itertools import pairwise
from pathlib import Path
from types import ModuleType

import yaml
from pydantic import ValidationError

from gateway.config.clouds import take_address
from gateway.config.document import (
    Document,
    Finding,
    Loc,
    Position,
    RawMapping,
    entries,
    path,
    pools,
    read_yaml,
    replicas,
    templates,
)
from gateway.config.errors import ConfigError, ConfigProblem, finding
from gateway.config.rules import broken_rules
from gateway.config.settings import (
    AttemptTimeoutSettings,
    KeySettings,
    ModelSettings,
    ModelTimeoutSettings,
    Settings,
    TimeoutSettings,
    sections,
)
from gateway.config.tiers import with_rows
from gateway.config.tls import TlsFault, TlsFiles, tls_context
from gateway.config.values import secret_fault, with_v1

_FILE_BYTES_MAX = 20_000_000  # some 60,000 models
_SECRET_BYTES_MAX = 16_384
_PIECES_MIN = 30  # models or keys; fewer take a few milliseconds together
PROBLEMS_MAX = 100  # reported at a time; a file of another program may have as many as lines
_FURTHER_LINES = {"key": ("previous_key",)}  # secret -> secrets that its file may have on further lines
_TOO_MANY_LINES = (
    "the file has more than one line; write only the secret",
    "the file has more than two lines; write the secret and, below it, the previous one",
)
_OPTIONS = (  # correction for a file -> correction for a command line
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
        defaults: values, as in a file, of top-level settings that the file does not set; None for no others. Default
            `keys` do not apply if the file allows anonymous callers, or names a list of keys.

    Raises:
        ConfigError: the file or a secret file is unreadable or invalid.
    """
    document = read_yaml(read_text(file), env)
    _add_defaults(document.data, defaults or {})
    settings, findings = _check(document, file.parent)
    if settings is None or findings:
        raise located(file, document, findings)
    document.free()
    return with_rows(settings)


def read_text(file: Path) -> str:
    """Return the text of a configuration file.

    Raises:
        ConfigError: it is unreadable or too large.
    """
    try:
        return _read(file, _FILE_BYTES_MAX)
    except _Unreadable as error:
        raise ConfigError((ConfigProblem(str(file), None, None, "", str(error)),)) from None


def located(file: Path, document: Document, findings: Sequence[Finding]) -> ConfigError:
    """Return the error for the problems of a file, at most one for each path, in the order of their positions."""
    problems = [_problem(str(file), document, loc, message) for loc, message in _first_of_each(findings)]
    return ConfigError(tuple(sorted(problems, key=lambda problem: (problem.line or 0, problem.column or 0))))


def from_replicas(
    model: str,
    urls: Sequence[str],
    *,
    kind: str = "compatible",
    others: Mapping[str, object] | None = None,
    defaults: Mapping[str, object] | None = None,
) -> Settings:
    """Return settings for one model without a file: `serve --model llama --replica URL --replica URL`.

    Args:
        model: public name, and name of the model at the replicas.
        urls: base URL of each replica; /v1 is added to a URL without a path.
        kind: kind of the replicas.
        others: other top-level settings, as in a file, such as `{"listen": "127.0.0.1:0"}`; None for none.
        defaults: as for `load`.

    Raises:
        ConfigError: an argument is invalid.
    """
    bases = [with_v1(url) for url in urls]
    replicas_data = [
        {"name": name, "kind": kind, "base_url": base} for name, base in zip(_replica_names(bases), bases, strict=True)
    ]
    data = {**deepcopy(dict(others or {})), "models": [{"name": model, "replicas": replicas_data}]}
    _add_defaults(data, defaults or {})
    settings, findings = _check(Document(data), Path())
    if settings is None or findings:
        raise ConfigError(tuple(dict.fromkeys(_option_problem(loc, message) for loc, message in findings)))
    return with_rows(settings)


def masked(settings: Settings) -> str:
    """Return the settings in force as YAML, defaults included, secrets as `****`."""
    shown = settings.model_dump(mode="json", by_alias=True)
    for model, entry in zip(settings.models, shown["models"], strict=True):
        entry["hedge"] = settings.hedge_of(model).model_dump(mode="json", by_alias=True)
        if entry["hedge"]["policy"] != "static":
            entry["hedge"]["delay"] = None
        for in_force, section, kind in _shown_timeouts(settings, model, entry):
            section["timeouts"] = in_force.model_dump(mode="json", by_alias=True, include=set(kind.model_fields))
    for _, entry, field in _secret_entries(shown):
        if entry[f"{field}_file"]:
            entry[field] = None
            entry.pop("previous_key", None)
    for _, pool in (each for at, model in entries(shown, (), "models") for each in pools(model, at)):
        pool["replicas"] = pool["replicas"] or None
    return yaml.safe_dump(_without_none(shown), sort_keys=False, allow_unicode=True, width=120)


def _shown_timeouts(
    settings: Settings, model: ModelSettings, entry: RawMapping
) -> list[tuple[TimeoutSettings, RawMapping, type[AttemptTimeoutSettings]]]:
    """Return the timeouts in force of each pool, the mapping that shows them, and the section with its settings."""
    first, *later = settings.timeouts_by_pool(model)
    rows = (row for _, row in entries(entry, (), "fallbacks"))
    return [
        (first, entry, ModelTimeoutSettings),
        *((each, row, AttemptTimeoutSettings) for each, row in zip(later, rows, strict=True)),
    ]


def json_schema() -> dict[str, object]:
    """Return the JSON schema of the file, for editors."""
    schema = Settings.model_json_schema()
    definitions = {"Settings": schema, **schema["$defs"]}
    modules = {section.__module__ for section in sections().values()}
    descriptions = {name: docs for module in modules for name, docs in attribute_docs(sys.modules[module]).items()}
    for section in set(sections().values()):
        defaults = section.model_construct().model_dump(mode="json", by_alias=True, warnings=False)
        properties = definitions[section.__name__]["properties"]
        names = {field.alias or name: name for name, field in section.model_fields.items()}
        for key, value in properties.items():
            docs = (descriptions.get(each.__name__, {}) for each in section.__mro__)
            if description := next((found for each in docs if (found := each.get(names[key]))), None):
                value["description"] = description
            properties[key] = _property(dict(sorted(value.items())), defaults.get(key))
    return {"$schema": "https://json-schema.org/draft/2020-12/schema", **schema}


def _property(schema: dict[str, object], default: object) -> dict[str, object]:
    """Return the schema of a setting in the file: defaults with units, no null, `${NAME}` allowed for numbers."""
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
    """A file is unreadable; the text is the reason."""


def _read(file: Path, bytes_max: int) -> str:
    try:
        with file.open("rb") as stream:
            content = stream.read(bytes_max + 1)
        text = content.decode("utf-8-sig")
    except FileNotFoundError:
        raise _Unreadable("the file does not exist; check the path") from None
    except IsADirectoryError:
        raise _Unreadable("the path is a directory; name a file in it") from None
    except UnicodeDecodeError:
        raise _Unreadable("the file is not UTF-8 text; save it as UTF-8") from None
    except (OSError, ValueError) as error:
        reason = error.strerror if isinstance(error, OSError) else "the name contains a zero byte"
        raise _Unreadable(f"the file cannot be read: {reason}") from None
    if len(content) > bytes_max:
        raise _Unreadable(f"the file is larger than {bytes_max:,} bytes; is this the right file?")
    return text


def _read_secret(file: Path) -> str:
    """Return the content of a secret file, which must not be a pipe: nothing may ever write into it."""
    try:
        mode = file.stat().st_mode
    except (OSError, ValueError):
        mode = stat.S_IFREG  # the reason comes from reading
    if not (stat.S_ISREG(mode) or stat.S_ISDIR(mode)):
        raise _Unreadable("the path is a pipe, a socket or a device; name a regular file")
    return _read(file, _SECRET_BYTES_MAX).strip()


def _add_defaults(data: object, defaults: Mapping[str, object]) -> None:
    if isinstance(data, dict):
        for key, value in defaults.items():
            is_settled = data.get("allow_anonymous") in (True, "true") or "keys_from" in data
            if key != "keys" or not is_settled:
                data.setdefault(key, value)


def _check(document: Document, folder: Path) -> tuple[Settings | None, list[Finding]]:
    """Return the settings, or None, and all problems: at most one finding per path, the most basic one."""
    data = document.data
    findings = list(document.faults)
    if data is None:
        findings = findings or [((), "the file is empty; write at least `models:` with one model and its replicas")]
        return None, findings
    if isinstance(data, dict):
        findings += take_secrets(data, folder)
        findings += take_addresses(data)
        findings += take_tls(data, folder)
        _take_files(data, folder)
    settings = None
    try:
        settings = Settings.model_validate(_in_pieces(data))
    except ValidationError as error:
        for detail in error.errors(include_url=False)[:PROBLEMS_MAX]:
            if detail["type"] != "too_short" or not detail["input"]:  # otherwise an item is at fault
                findings.append(finding(detail, document.references.get(detail["loc"])))
    if isinstance(data, dict):
        findings += broken_rules(data)
    return settings, _first_of_each(findings)


def _take_files(data: RawMapping, folder: Path) -> None:
    """Make the paths of files that are read later absolute."""
    if data.get("learned_file") != "off":
        _make_absolute(data, "learned_file", folder)
    _make_absolute(data, "keys_from", folder)
    for source in (each for at, model in entries(data, (), "models") for _, each in templates(model, at)):
        _make_absolute(source, "file", folder)
    if isinstance(cluster := data.get("kubernetes"), dict):
        _make_absolute(cluster, "token_file", folder)
        _make_absolute(cluster, "ca_file", folder)


def _make_absolute(section: RawMapping, name: str, folder: Path) -> None:
    if isinstance(file := section.get(name), str) and file:
        section[name] = str((folder / file).absolute())


def _in_pieces(data: object) -> object:
    """Return data with validated models and keys, so that no call keeps the interpreter's lock for long.

    Data with a mistake are validated as a whole, for the positions of all mistakes.
    """
    if not isinstance(data, dict):
        return data
    pieces: dict[str, object] = {}
    for name, kind in (("models", ModelSettings), ("keys", KeySettings)):
        rows = data.get(name)
        if isinstance(rows, list) and len(rows) >= _PIECES_MIN:
            with contextlib.suppress(ValidationError):
                pieces[name] = [kind.model_validate(row) for row in rows]
    return {**data, **pieces}


def _first_of_each(findings: Sequence[Finding]) -> list[Finding]:
    first: dict[Loc, str] = {}
    for loc, message in findings:
        first.setdefault(loc, message)
    return list(first.items())[:PROBLEMS_MAX]


def _rows(model: RawMapping, loc: Loc) -> list[tuple[Loc, RawMapping]]:
    return [*replicas(model, loc), *templates(model, loc)]


def _secret_entries(data: RawMapping) -> list[tuple[Loc, RawMapping, str]]:
    """Return each mapping that can name a secret file, with the setting that the file replaces."""
    every_replica = (row for at, model in entries(data, (), "models") for row in _rows(model, at))
    keys = ((loc, entry, "key") for loc, entry in entries(data, (), "keys"))
    share = data.get("share")
    shared = [(("share",), share, "password")] if isinstance(share, dict) else []
    return [((), data, "admin_key"), *shared, *keys, *((loc, entry, "api_key") for loc, entry in every_replica)]


def take_secrets(data: RawMapping, folder: Path) -> list[Finding]:
    """Set each secret that has a file to the content of the file, and make the paths of token files absolute."""
    findings: list[Finding] = []
    for _, entry in (row for at, model in entries(data, (), "models") for row in _rows(model, at)):
        credential = entry.get("credential")
        if isinstance(credential, dict) and isinstance(file := credential.get("file"), str) and file:
            credential["file"] = str((folder / file).absolute())
    for loc, entry, field in _secret_entries(data):
        name = entry.get(f"{field}_file")
        if not isinstance(name, str):
            continue
        taken = [name for name in (field, *_FURTHER_LINES.get(field, ())) if name in entry]
        fault = f"`{taken[0]}` is set as well; remove one of the two" if taken else None
        secret, further = "", {}
        try:
            secret, *more = _read_secret(folder / name).splitlines() or [""]
            further = dict(zip(_FURTHER_LINES.get(field, ()), more, strict=False))
            if len(more) > len(further):
                fault = fault or _TOO_MANY_LINES[field in _FURTHER_LINES]
            fault = fault or next(filter(None, map(secret_fault, (secret, *further.values()))), None)
        except _Unreadable as error:
            fault = fault or f"{error} (paths are relative to the configuration file)"
        if fault:  # the name is not quoted: it may be the secret itself, written in the wrong place
            findings.append(((*loc, f"{field}_file"), fault))
        entry.update({field: "?"} if fault else {field: secret, **further})
    return findings


def take_addresses(data: RawMapping) -> list[Finding]:
    """Set the base URL of each replica at a cloud that has none."""
    models = entries(data, (), "models")
    rows = [(row, at, model.get("name")) for loc, model in models for at, row in replicas(model, loc)]
    return [finding for row in rows for finding in take_address(*row)]


def take_tls(data: RawMapping, folder: Path) -> list[Finding]:
    """Make the paths of TLS files absolute, and load the files."""
    findings: list[Finding] = []
    for loc, entry in (row for at, model in entries(data, (), "models") for row in _rows(model, at)):
        connection = entry.get("connection")
        if not isinstance(connection, dict):
            continue
        for field in TlsFiles._fields:
            if isinstance(connection.get(field), str):
                connection[field] = str((folder / connection[field]).absolute())
        paths = (connection.get(field) for field in TlsFiles._fields)
        files = TlsFiles(*(file if isinstance(file, str) else None for file in paths))
        try:
            if any(files) and str(entry.get("base_url")).startswith("https:"):
                tls_context(files)
        except TlsFault as fault:
            findings.append(((*loc, "connection", fault.field), fault.text))
    share = data.get("share")
    if isinstance(share, dict) and isinstance(share.get("ca_file"), str):
        share["ca_file"] = str((folder / share["ca_file"]).absolute())
        try:
            if str(share.get("url")).startswith("rediss"):
                tls_context(TlsFiles(share["ca_file"]))
        except TlsFault as fault:
            findings.append((("share", fault.field), fault.text))
    return findings


def _problem(source: str, document: Document, loc: Loc, message: str) -> ConfigProblem:
    """Return a finding with its position, or with the position of the nearest mapping around it."""
    nearest = loc
    while nearest and nearest not in document.positions:
        nearest = nearest[:-1]
    position = document.positions.get(nearest, Position(1, 1))
    return ConfigProblem(source, position.line, position.column, path(loc), message)


def _option_problem(loc: Loc, message: str) -> ConfigProblem:
    """Return a finding with the command-line option at fault."""
    match loc:
        case ("models", 0, "replicas", int(index), "base_url" | "name"):
            return ConfigProblem(f"--replica {index + 1}", None, None, "", message)
        case ("models", 0, "replicas"):
            return ConfigProblem(
                "--replica", None, None, "", "at least one replica is needed; write `--replica http://10.0.0.1:8000/v1`"
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
    """Return a name for each replica: host and port, with a number if several are equal."""
    names = [base.partition("://")[2].rpartition("@")[2].rstrip("/").removesuffix("/v1") or "?" for base in bases]
    return [name if names.count(name) == 1 else f"{name}#{1 + names[:at].count(name)}" for at, name in enumerate(names)]


def _without_none(shown: object) -> object:
    if isinstance(shown, dict):
        return {key: _without_none(value) for key, value in shown.items() if value is not None}
    return [_without_none(item) for item in shown] if isinstance(shown, list) else shown


def attribute_docs(module: ModuleType) -> dict[str, dict[str, str]]:
    """Return the strings under the attributes of a module's classes, by class and attribute."""
    classes = (node for node in ast.parse(inspect.getsource(module)).body if isinstance(node, ast.ClassDef))
    return {each.name: dict(_described(each)) for each in classes}


def _described(each: ast.ClassDef) -> list[tuple[str, str]]:
    return [
        (field.target.id, inspect.cleandoc(text.value.value))
        for field, text in pairwise(each.body)
        if isinstance(field, ast.AnnAssign)
        and isinstance(field.target, ast.Name)
        and isinstance(text, ast.Expr)
        and isinstance(text.value, ast.Constant)
        and isinstance(text.value.value, str)
    ]
