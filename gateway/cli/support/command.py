"""`support-bundle`: collects versions, settings, state, metrics and log lines for a report, without secrets.

Works without a running gateway, and with an invalid configuration. Every wait is bounded, and so is every file of the
archive, which lists what is missing. `Redaction` removes secrets from every file: known values, and what has the form
of a credential. Units: seconds, bytes.
"""

import argparse
import contextlib
import http.client
import io
import json
import os
import platform
import re
import sys
import tarfile
from collections.abc import Iterable, Iterator, Mapping
from datetime import UTC, datetime
from importlib.metadata import distributions
from pathlib import Path
from typing import Final
from urllib.parse import quote

import msgspec
from pydantic import BaseModel, SecretStr

from gateway.cli.admin_client import ask_admin, follow_admin
from gateway.cli.config import check_file, config_path
from gateway.cli.environment import read_environment
from gateway.cli.event_loop import loop_name
from gateway.cli.parser import ADMIN_KEY_VARIABLE, ExitCode
from gateway.cli.terminal import fail
from gateway.config.addresses import ADMIN_LISTEN_DEFAULT
from gateway.config.document import read_yaml
from gateway.config.errors import SECRET_SETTINGS, ConfigError
from gateway.config.loader import load, masked, read_text
from gateway.config.settings import Settings
from gateway.version import VERSION

FILE_BYTES_MAX: Final = 8_000_000
_ALL_BYTES_MAX: Final = 64_000_000
_CUT: Final = "\n[shortened]\n"
README: Final = "README.txt"


class BundledFile(msgspec.Struct, frozen=True):
    """A file of the archive.

    Attributes:
        name: path in the archive.
        what: description for people.
        text: content, with secrets.
    """

    name: str
    what: str
    text: str


class Bundle:
    """The files of an archive, and what it does not contain.

    Args:
        redaction: removes secrets from every file.

    Attributes:
        contents: description of each file.
        left_out: lines about missing parts, with the reason of each.
    """

    def __init__(self, redaction: "Redaction") -> None:
        self._redaction = redaction
        self._files: dict[str, bytes] = {}
        self._left = _ALL_BYTES_MAX
        self.contents: list[str] = []
        self.left_out: list[str] = []

    def add(self, entry: BundledFile) -> None:
        """Add a file; its end is missing if it is too long."""
        content = self._redaction(entry.text).encode()
        most = min(FILE_BYTES_MAX, self._left)
        if len(content) > most:
            self.leave_out(f"the end of {entry.name}", f"it has {len(content):,} bytes, at most {most:,} are kept")
            content = content[:most].decode(errors="ignore").encode() + _CUT.encode()
        self._left = max(0, self._left - len(content))
        self._files[entry.name] = content
        self.contents.append(f"{entry.name}: {entry.what}")

    def leave_out(self, what: str, reason: str) -> None:
        """Report that something is missing."""
        self.left_out.append(self._redaction(f"{what}: {reason}"))

    def report(self) -> str:
        """Return the lists of what the archive contains and what it does not."""
        lists = (("contains", self.contents), ("left out", self.left_out or ["nothing"]))
        return "".join(f"{title}:\n" + "".join(f"  {line}\n" for line in lines) for title, lines in lists)

    def write(self, file: Path, modified_s: int) -> int:
        """Write the archive, readable only for its owner; return its size.

        Args:
            modified_s: Unix time of its files.

        Raises:
            OSError: the file exists or cannot be written.
        """
        stem = file.name.removesuffix(".gz").removesuffix(".tar")
        descriptor = os.open(file, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
        with os.fdopen(descriptor, "wb") as opened, tarfile.open(fileobj=opened, mode="w:gz") as archive:
            for name, content in {README: self.report().encode(), **self._files}.items():
                member = tarfile.TarInfo(f"{stem}/{name}")
                member.size, member.mtime, member.mode = len(content), modified_s, 0o600
                archive.addfile(member, io.BytesIO(content))
        return file.stat().st_size


_MODELS_MAX: Final = 20
_LOG_LINES_MAX: Final = 5_000
_ROUTES: Final = {  # file in the archive -> route, description
    "admin/models.json": ("/admin/models", "state of every replica"),
    "admin/admission.json": ("/admin/admission", "admitted and waiting requests"),
    "admin/hedging.json": ("/admin/hedging", "switch of hedging"),
    "admin/replicas.json": ("/admin/replicas", "replicas that are taken out"),
    "admin/workers.json": ("/admin/workers", "processes"),
    "admin/share.json": ("/admin/share", "exchange with other gateways"),
    "admin/proof.json": ("/admin/proof", "what hedging saved"),
    "metrics.txt": ("/metrics", "metrics"),
}
_ALWAYS_LEFT_OUT: Final = (
    ("prompts and answers", "the gateway does not keep them"),
    ("keys, passwords, values of headers, parts of URLs before @ and after ?", "they are secrets, shown as ****"),
    ("tokens and money by key", "see GET /admin/usage"),
)


def support_bundle(arguments: argparse.Namespace) -> ExitCode:
    """Write the archive, and print what it contains."""
    file = config_path(arguments.config, os.environ)
    settings = _settings(file)
    bundle = Bundle(Redaction(_secrets(file, settings)))
    bundle.add(BundledFile("versions.json", "versions of the gateway, Python and its packages", _versions()))
    _add_config(bundle, file, settings)
    _add_state(bundle, arguments, settings)
    _add_log(bundle, arguments.log)
    for what, reason in _ALWAYS_LEFT_OUT:
        bundle.leave_out(what, reason)
    now = datetime.now(UTC)
    output = Path(arguments.output or f"ttft-gateway-support-{now:%Y%m%dT%H%M%SZ}.tar.gz")
    try:
        size = bundle.write(output, int(now.timestamp()))
    except OSError as error:
        fail(f"{output} cannot be written ({error.strerror}); choose another name with --output")
        return ExitCode.FAILED
    print(f"{output}: {size:,} bytes; read it before you send it\n{bundle.report()}", end="")
    return ExitCode.OK


def _settings(file: Path) -> Settings | None:
    try:
        return load(file, os.environ, read_environment(os.environ).settings)
    except ConfigError:
        return None


def _secrets(file: Path, settings: Settings | None) -> Iterator[str]:
    yield from secrets_of(os.environ)
    yield from secrets_in(settings)
    with contextlib.suppress(ConfigError):
        yield from secrets_in(read_yaml(read_text(file), os.environ).data)


def _versions() -> str:
    packages = {each.name: each.version for each in distributions() if each.name}
    found = {
        "ttft-gateway": VERSION,
        "python": sys.version,
        "event_loop": loop_name(),
        "system": f"{platform.system()} {platform.release()} {platform.machine()}",
        "cores": os.cpu_count(),
        "packages": dict(sorted(packages.items(), key=lambda each: each[0].lower())),
    }
    return json.dumps(found, indent=2)


def _add_config(bundle: Bundle, file: Path, settings: Settings | None) -> None:
    if not file.exists():
        bundle.leave_out("config.yaml", f"the file {file} does not exist; name one with --config")
        return
    printed = io.StringIO()
    with contextlib.redirect_stdout(printed), contextlib.redirect_stderr(printed):
        check_file(file, os.environ)
    bundle.add(BundledFile("config-check.txt", "result of check-config", printed.getvalue()))
    if settings is None:
        bundle.leave_out("config.yaml", "the file is invalid; config-check.txt has the reasons")
    else:
        text = f"# {file} as it is on disk now; the running gateway may have read it earlier.\n{masked(settings)}"
        bundle.add(BundledFile("config.yaml", "settings as print-config shows them", text))


def _add_state(bundle: Bundle, arguments: argparse.Namespace, settings: Settings | None) -> None:
    admin, key = arguments.admin, None
    if admin is None and settings is not None:
        if settings.admin_listen is None:
            bundle.leave_out("state, metrics and events", "admin_listen is off")
            return
        admin = f"http://{settings.admin_listen.here}"
        key = None if settings.admin_key is None else settings.admin_key.get_secret_value()
    admin = admin or f"http://{ADMIN_LISTEN_DEFAULT}"
    try:
        models = json.loads(ask_admin(admin, "/admin/models", key=key))
        names = [str(each["model"]) for each in models["models"]]
    except (OSError, http.client.HTTPException, ValueError, LookupError, TypeError) as error:
        source = f"${ADMIN_KEY_VARIABLE}" if key is None else "`admin_key` of the configuration"
        reason = f"{admin} has no documents ({error}); check the gateway, --admin and {source}"
        bundle.leave_out("state, metrics and events", reason)
        return
    routes = dict(_ROUTES)
    for number, name in enumerate(names[:_MODELS_MAX]):
        routes[f"admin/model-{number}.json"] = (f"/admin/models/{quote(name, safe='')}", f"details of model {name}")
    if len(names) > _MODELS_MAX:
        bundle.leave_out("details of further models", f"there are {len(names)}, at most {_MODELS_MAX} are kept")
    for entry, (route, what) in routes.items():
        try:
            bundle.add(BundledFile(entry, what, ask_admin(admin, route, key=key).decode(errors="replace")))
        except (OSError, http.client.HTTPException, ValueError) as error:
            bundle.leave_out(entry, str(error))
    try:
        events = follow_admin(admin, "/admin/events", arguments.seconds, key=key, bytes_max=FILE_BYTES_MAX)
        what = f"requests, hedges and changes during {arguments.seconds:g} s"
        bundle.add(BundledFile("events.txt", what, events.decode(errors="replace")))
    except (OSError, http.client.HTTPException, ValueError) as error:
        bundle.leave_out("events.txt", str(error))


def _add_log(bundle: Bundle, log: str | None) -> None:
    """Add the last lines of a log; other lines than the gateway's JSON lines may contain anything, and are left out."""
    if log is None:
        bundle.leave_out("log.jsonl", "no file is named with --log")
        return
    try:
        with Path(log).open("rb") as opened:
            size = opened.seek(0, os.SEEK_END)
            opened.seek(max(0, size - FILE_BYTES_MAX))
            lines = opened.read(FILE_BYTES_MAX).decode(errors="replace").splitlines()
    except OSError as error:
        bundle.leave_out("log.jsonl", f"{log} cannot be read ({error.strerror})")
        return
    if size > FILE_BYTES_MAX:
        del lines[0]  # only its end was read
    kept = list(filter(_is_log_line, lines))
    if len(kept) < len(lines):
        bundle.leave_out("log lines", f"{len(lines) - len(kept)} lines are no JSON lines of the gateway")
    kept = kept[-_LOG_LINES_MAX:]
    bundle.add(
        BundledFile("log.jsonl", f"the last {len(kept)} lines of the log", "".join(f"{line}\n" for line in kept))
    )


def _is_log_line(line: str) -> bool:
    try:
        found = json.loads(line)
    except ValueError:
        return False
    return isinstance(found, dict) and {"time", "level", "event"} <= found.keys()


_CHARS_MIN: Final = 6  # a shorter value would also match unrelated text
_MASK: Final = "****"
_SECRET_VARIABLE: Final = re.compile(r"(?i)key|token|secret|passw|credential|auth")
# Form of a credential -> its replacement; bounded, so that a long word is not read again and again.
_SECRET_FORMS: Final = (
    (re.compile(r"(\b\w+://)[^/\s\"'<>@]*@"), rf"\1{_MASK}@"),
    (re.compile(r"(\b\w+://[^\s\"'<>?#]{0,2000})[?#][^\s\"'<>]*"), rf"\1?{_MASK}"),
    (re.compile(r"(?i)\b(bearer|basic)(\s+|%20)[\w.~+/=-]{6,}"), rf"\1 {_MASK}"),
    (
        re.compile(r"(?i)\b(authorization)(\\?[\"']?\s*[:=]\s*\\?[\"']?)(?:[\w-]+ +)?[^\s\"'\\,}]{4,}"),
        rf"\1\2{_MASK}",
    ),
    (
        re.compile(
            r"(?i)\b((?:x-)?(?:goog-)?api[-_]?key|password|passwd|secret)(\\?[\"']?\s*[:=]\s*\\?[\"']?)[^\s\"'\\,}]{4,}"
        ),
        rf"\1\2{_MASK}",
    ),
    (re.compile(r"\beyJ[\w-]{8,2000}\.[\w-]+\.[\w-]*"), _MASK),
    (re.compile(r"(?i)\b(?:sk|pk|rk|ak|gsk|xai|hf|ghp|gho|pat|nvapi)[-_][\w*-]{8,}|\bttft-[0-9a-f]{32}\b"), _MASK),
    (re.compile(r"\b(?:AIza|AKIA|ASIA|ABSK|ya29\.|bedrock-api-key-)[\w.+/=-]{10,}"), _MASK),  # tokens of clouds, too
)


class Redaction:
    """Removes secrets from texts.

    Args:
        secrets: known secrets.
    """

    def __init__(self, secrets: Iterable[str]) -> None:
        known = {text for secret in secrets for text in (secret, json.dumps(secret)[1:-1]) if len(secret) >= _CHARS_MIN}
        longest_first = sorted(known, key=len, reverse=True)
        self._known = re.compile("|".join(map(re.escape, longest_first))) if longest_first else None

    def __call__(self, text: str) -> str:
        """Return the text with `****` instead of each secret."""
        if self._known is not None:
            text = self._known.sub(_MASK, text)
        for form, replacement in _SECRET_FORMS:
            text = form.sub(replacement, text)
        return text


def secrets_in(value: object, *, inside: bool = False) -> Iterator[str]:
    """Yield the secrets of settings, or of the data of a configuration file that may be invalid.

    Args:
        inside: True for a value of a setting that is secret.
    """
    if isinstance(value, SecretStr):
        yield value.get_secret_value()
    elif isinstance(value, BaseModel):
        yield from secrets_in([getattr(value, name) for name in type(value).model_fields])
    elif isinstance(value, str) and inside:
        yield value
    elif isinstance(value, Mapping):
        for name, each in value.items():
            yield from secrets_in(each, inside=inside or name in SECRET_SETTINGS)
    elif isinstance(value, list | tuple):
        for each in value:
            yield from secrets_in(each, inside=inside)


def secrets_of(env: Mapping[str, str]) -> Iterator[str]:
    """Yield the values of environment variables that have the name of a secret."""
    yield from (value for name, value in env.items() if _SECRET_VARIABLE.search(name) and not name.endswith("_FILE"))
