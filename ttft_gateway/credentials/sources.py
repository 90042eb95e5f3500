"""Fetches tokens from Amazon, Google, Microsoft, a program or a file. Every fetch may wait: it runs on a thread.

The packages of the clouds are extras, imported by the first fetch. No text of a program, a file or a package is quoted
in an error, because it may contain a token. Units: seconds.

Sources, read on 28 November 2026:

- Amazon: aws-bedrock-token-generator 1.1.0, which signs a token with the credentials of botocore's chain. The token
  lasts 12 h, but not longer than temporary credentials (docs.aws.amazon.com/bedrock/latest/userguide/api-keys).
- Google: google-auth 2.63.0, application default credentials; scope of AnthropicVertex of anthropic 2.14.0.
- Microsoft: azure-identity 1.27.0, DefaultAzureCredential; the scopes are in anthropic 2.14.0 (lib/foundry.md), and on
  learn.microsoft.com/azure/ai-services/openai/how-to/managed-identity.
- Programs get KUBERNETES_EXEC_INFO, which plugins of kubectl require (kubernetes.io, "Authenticating").
"""

import importlib.util
import os
import selectors
import subprocess
import threading
from collections.abc import Callable, Sequence
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any, Final, Literal, NamedTuple

from ttft_gateway.credentials.token import (
    TEXT_BYTES_MAX,
    NotAToken,
    Token,
    ends_at,
    read_exec_credential,
    read_token_file,
)

SourceName = Literal["aws", "google", "azure", "command", "file"]
CLOUDS: Final = ("aws", "google", "azure")
"""Sources that need no option: the login of this process at a cloud. Their tokens are bearer tokens."""
OPTION_OF: Final = {"command": "command", "file": "file", "profile": "aws"}
"""The source that uses an option."""
FIRST_S_MAX: Final = 10.0
"""Longest wait for a first token."""
FILE_EVERY_S: Final = 5.0
"""Time between two looks at a watched file."""

_PROGRAM_S_MAX: Final = 60.0
_LOOK_S: Final = 1.0  # between two looks at whether a silent program is late
_AWS_S_MAX: Final = 12 * 3600.0
_GOOGLE_SCOPE: Final = "https://www.googleapis.com/auth/cloud-platform"
_EXEC_INFO: Final = (
    '{"kind":"ExecCredential","apiVersion":"client.authentication.k8s.io/v1","spec":{"interactive":false}}'
)
_PACKAGES: Final = {
    "aws": ("aws_bedrock_token_generator", "aws-bedrock-token-generator"),
    "google": ("google.auth", "google-auth"),
    "azure": ("azure.identity", "azure-identity"),
}
Fetch = Callable[[], Token]


_AZURE_SCOPE: Final = "https://cognitiveservices.azure.com/.default"
_FOUNDRY_SCOPE: Final = "https://ai.azure.com/.default"


class SourceFault(Exception):
    """A source has no token; the message has the reason and no secret."""


class Source(NamedTuple):
    """A source of tokens; equal ones share a token.

    Attributes:
        name: kind of the source.
        command: program and arguments, of `command`.
        file: path, of `file`.
        region: region of Bedrock, of `aws`; a token is valid in one region.
        profile: profile of the AWS configuration, of `aws`; None: the default one.
        scope: scope of Microsoft Entra, of `azure`.
    """

    name: SourceName
    command: tuple[str, ...] = ()
    file: str | None = None
    region: str | None = None
    profile: str | None = None
    scope: str | None = None

    def __str__(self) -> str:
        """Return a name for messages, without the arguments of a program."""
        detail = self.file or (Path(self.command[0]).name if self.command else None) or self.region
        return f"{self.name} {detail}" if detail else self.name


def source_at(
    name: SourceName, kind: str, *, command: Sequence[str], file: str | None, profile: str | None, region: str | None
) -> Source:
    """Return the source of the tokens of a server.

    Args:
        kind: kind of the server.
        region: region of the server, for `aws`.
    """
    scope = None
    if name == "azure":
        scope = _FOUNDRY_SCOPE if kind == "foundry" else _AZURE_SCOPE
    return Source(name, tuple(command), file, region if name == "aws" else None, profile, scope)


def fault_of(error: Exception) -> str | None:
    """Return the reason for which a fetch has failed, without a secret; None if the error is a bug."""
    return str(error) if isinstance(error, SourceFault | NotAToken) else None


def package_fault(name: str) -> str | None:
    """Return the reason for which a source cannot be used here; None if its package is installed."""
    if name not in _PACKAGES:
        return None
    module, package = _PACKAGES[name]
    try:
        found = importlib.util.find_spec(module)
    except ModuleNotFoundError:
        found = None
    if found is not None:
        return None
    return f"credential {name} needs the package {package}; install ttft-gateway[{name}], or use `command` or `file`"


def fetch_of(source: Source) -> Fetch:
    """Return the function that fetches a token; it raises `SourceFault`, and may wait for a minute."""
    if source.name == "command":
        return lambda: _from_program(source.command)
    if source.name == "file":
        return lambda: _from_file(Path(source.file or ""))
    if source.name == "aws":
        return _Aws(source).fetch
    return _Google().fetch if source.name == "google" else _Azure(source).fetch


def _from_program(command: tuple[str, ...]) -> Token:
    name = Path(command[0]).name
    environment = {"KUBERNETES_EXEC_INFO": _EXEC_INFO, **os.environ}
    try:
        code, output = _run(command, environment)
    except FileNotFoundError:
        raise SourceFault(f"the program {name} does not exist; check the path in `command`") from None
    except subprocess.TimeoutExpired:
        raise SourceFault(f"the program {name} printed no token within {_PROGRAM_S_MAX:g} s and was ended") from None
    except (OSError, ValueError) as error:
        reason = error.strerror if isinstance(error, OSError) else "an argument contains a zero byte"
        raise SourceFault(f"the program {name} cannot be started: {reason}") from None
    if len(output) > TEXT_BYTES_MAX:
        raise SourceFault(f"the program {name} printed more than {TEXT_BYTES_MAX} bytes and was ended")
    if code:
        raise SourceFault(f"the program {name} ended with code {code}; run it to see its message")
    try:
        return read_exec_credential(output, datetime.now(UTC))
    except NotAToken as error:
        raise SourceFault(f"the program {name} printed no usable token: {error}") from None


def _run(command: tuple[str, ...], environment: dict[str, str]) -> tuple[int, bytes]:
    """Return the exit code of a program and its output; one that prints more than `TEXT_BYTES_MAX` is ended.

    Raises:
        subprocess.TimeoutExpired: it has not ended in time, and was ended.
    """
    null, pipe, output = subprocess.DEVNULL, subprocess.PIPE, b""
    late = threading.Event()
    timer = threading.Timer(_PROGRAM_S_MAX, late.set)
    timer.daemon = True
    with subprocess.Popen(command, stdin=null, stdout=pipe, stderr=null, env=environment, bufsize=0) as running:
        try:
            timer.start()
            assert running.stdout is not None
            with selectors.DefaultSelector() as ready:
                ready.register(running.stdout, selectors.EVENT_READ)
                while len(output) <= TEXT_BYTES_MAX and not late.is_set():
                    if ready.select(_LOOK_S):
                        piece = running.stdout.read(TEXT_BYTES_MAX)
                        output += piece
                        if not piece:  # its end
                            return running.wait(_PROGRAM_S_MAX), output
            if late.is_set():
                raise subprocess.TimeoutExpired(command, _PROGRAM_S_MAX)
            return 0, output
        finally:
            timer.cancel()
            running.kill()


def _from_file(file: Path) -> Token:
    try:
        with file.open("rb") as stream:
            text = stream.read(TEXT_BYTES_MAX)
        return read_token_file(text, datetime.now(UTC))
    except NotAToken as error:
        raise SourceFault(f"{file} has no usable token: {error}") from None
    except OSError as error:
        raise SourceFault(f"{file} cannot be read: {error.strerror}") from None


def _unavailable(name: str, error: BaseException) -> SourceFault:
    """Return the fault of a package's failure: its class, because its text may contain a secret."""
    if isinstance(error, ImportError):
        return SourceFault(package_fault(name) or f"credential {name}: the package cannot be imported")
    return SourceFault(
        f"credential {name}: the package reports {type(error).__name__}; check the login of this process"
    )


class _Aws:
    """Tokens of Bedrock, signed with the credentials of botocore's chain."""

    def __init__(self, source: Source) -> None:
        self._source = source
        self._credentials: Any = None

    def load(self) -> Any:
        """Return the credentials, as `provide_token` wants them from a provider."""
        return self._credentials

    def fetch(self) -> Token:
        try:
            from aws_bedrock_token_generator import provide_token
            from botocore.session import Session

            if self._credentials is None:
                self._credentials = Session(profile=self._source.profile).get_credentials()
            if self._credentials is None:
                raise SourceFault("credential aws: botocore finds no credentials; set a profile, a role or variables")
            self._credentials.get_frozen_credentials()  # renews temporary credentials
            now = datetime.now(UTC)
            end = getattr(
                self._credentials, "_expiry_time", None
            )  # of temporary credentials; botocore has no other way
            left_s = _AWS_S_MAX if end is None else min(_AWS_S_MAX, ends_at(end, now))
            whole_s = timedelta(seconds=max(1, int(left_s)))
            value = provide_token(self._source.region, self, whole_s)
        except (SourceFault, NotAToken):
            raise
        except (Exception, SystemExit) as error:
            raise _unavailable("aws", error) from None
        return Token(value, left_s)


class _Google:
    """Tokens of application default credentials."""

    def __init__(self) -> None:
        self._credentials: Any = None

    def fetch(self) -> Token:
        try:
            import google.auth
            from google.auth.transport.requests import Request

            if self._credentials is None:
                self._credentials, _ = google.auth.default(scopes=[_GOOGLE_SCOPE])
            self._credentials.refresh(Request())
            value, end = self._credentials.token, self._credentials.expiry
            if not value:
                raise SourceFault("credential google: the login returned no token")
            left_s = None if end is None else ends_at(end.replace(tzinfo=UTC), datetime.now(UTC))
        except (SourceFault, NotAToken):
            raise
        except (Exception, SystemExit) as error:
            raise _unavailable("google", error) from None
        return Token(str(value), 3600.0 if left_s is None else left_s)


class _Azure:
    """Tokens of Microsoft Entra, from azure-identity's default chain."""

    def __init__(self, source: Source) -> None:
        self._scope = source.scope or ""
        self._credential: Any = None

    def fetch(self) -> Token:
        try:
            from azure.identity import DefaultAzureCredential

            if self._credential is None:
                self._credential = DefaultAzureCredential()
            found = self._credential.get_token(self._scope)
            left_s = ends_at(datetime.fromtimestamp(found.expires_on, UTC), datetime.now(UTC))
        except NotAToken:
            raise
        except (Exception, SystemExit) as error:
            raise _unavailable("azure", error) from None
        return Token(str(found.token), left_s)
