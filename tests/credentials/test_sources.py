"""Sources of tokens: programs, files, and the packages of the clouds, which are replaced by doubles here."""

import json
import sys
import types
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from ttft_gateway.credentials import sources
from ttft_gateway.credentials.sources import Source, SourceFault, fetch_of, package_fault


def _program(tmp_path: Path, body: str) -> Source:
    file = tmp_path / "token-program"
    file.write_text(f"#!{sys.executable}\n{body}\n", encoding="utf-8")
    file.chmod(0o700)
    return Source("command", command=(str(file), "--secret-argument"))


def _soon() -> str:
    return (datetime.now(UTC) + timedelta(minutes=10)).isoformat()


def test_a_program_prints_a_token(tmp_path: Path) -> None:
    """The program gets the variable that plugins of kubectl require, and its output is the token."""
    text = json.dumps({"kind": "ExecCredential", "status": {"token": "TOKEN", "expirationTimestamp": _soon()}})
    check = "import os, json; assert json.loads(os.environ['KUBERNETES_EXEC_INFO'])['kind'] == 'ExecCredential'\n"
    token = fetch_of(_program(tmp_path, f"{check}print({text!r})"))()
    assert token.value == "TOKEN"
    assert 590 < (token.lifetime_s or 0) <= 600


@pytest.mark.parametrize(
    ("body", "reason"),
    [
        ("print('garbage sk-secret')", "printed no usable token"),
        ("import sys; print('sk-secret', file=sys.stderr); sys.exit(3)", "ended with code 3"),
        ("pass", "printed no usable token"),
        ("while True: print(65_536 * 'secret')", "printed more than 65536 bytes"),
    ],
)
def test_a_program_without_a_token_is_a_fault(body: str, reason: str, tmp_path: Path) -> None:
    """The fault has the name of the program and the reason, but neither its output nor its arguments."""
    with pytest.raises(SourceFault, match=reason) as caught:
        fetch_of(_program(tmp_path, body))()
    assert "token-program" in str(caught.value)
    assert "secret" not in str(caught.value)


def test_a_program_that_does_not_end_is_ended(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Neither its silence nor a descendant that keeps its output open is waited for."""
    monkeypatch.setattr(sources, "_PROGRAM_S_MAX", 0.01)
    monkeypatch.setattr(sources, "_LOOK_S", 0.01)
    with pytest.raises(SourceFault, match=r"no token within 0.01 s"):
        fetch_of(_program(tmp_path, "import subprocess; subprocess.Popen(['sleep', '5']); open('/dev/zero').read()"))()


def test_a_program_that_cannot_start_is_a_fault(tmp_path: Path) -> None:
    """A path that does not exist, or is no program, is a fault."""
    with pytest.raises(SourceFault, match="does not exist"):
        fetch_of(Source("command", command=(str(tmp_path / "none"),)))()
    (tmp_path / "text").write_text("x", encoding="utf-8")
    with pytest.raises(SourceFault, match="cannot be started: Permission denied"):
        fetch_of(Source("command", command=(str(tmp_path / "text"),)))()


def test_a_file_is_read_at_each_fetch(tmp_path: Path) -> None:
    """A changed file has another token; an absent or empty one is a fault."""
    file = tmp_path / "token"
    fetch = fetch_of(Source("file", file=str(file)))
    with pytest.raises(SourceFault, match="cannot be read: No such file"):
        fetch()
    file.write_text("one\n", encoding="utf-8")
    assert fetch().value == "one"
    file.write_text("two\n", encoding="utf-8")
    assert fetch().value == "two"
    file.write_text("", encoding="utf-8")
    with pytest.raises(SourceFault, match="has no usable token"):
        fetch()


@pytest.mark.parametrize("name", ["aws", "google", "azure"])
def test_a_cloud_without_its_package_names_the_extra(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The fault names the package and the extra."""
    for module in ("aws_bedrock_token_generator", "google", "google.auth", "azure", "azure.identity"):
        monkeypatch.setitem(sys.modules, module, None)
    source = Source(name, region="eu-west-1", scope="s")  # type: ignore[arg-type]
    with pytest.raises(SourceFault):
        fetch_of(source)()


def _module(monkeypatch: pytest.MonkeyPatch, name: str, **attributes: Any) -> None:
    module = types.ModuleType(name)
    for key, value in attributes.items():
        setattr(module, key, value)
    monkeypatch.setitem(sys.modules, name, module)


class _Credentials:
    def __init__(self, **fields: object) -> None:
        self.__dict__.update(fields)

    def get_frozen_credentials(self) -> None:
        """As botocore's."""

    def refresh(self, _request: object) -> None:
        """As google-auth's."""


def test_a_token_of_bedrock_ends_with_temporary_credentials(monkeypatch: pytest.MonkeyPatch) -> None:
    """A token lasts 12 h, but not longer than the credentials that it was signed with."""
    asked: list[tuple[str, float]] = []

    def provide(region: str, _provider: object, expiry: timedelta) -> str:
        asked.append((region, expiry.total_seconds()))
        return "bedrock-api-key-x"

    found = [_Credentials(), _Credentials(_expiry_time=datetime.now(UTC) + timedelta(hours=1))]

    class Session:
        def __init__(self, profile: str | None) -> None:
            assert profile == "p"

        def get_credentials(self) -> _Credentials:
            return found.pop(0)

    _module(monkeypatch, "aws_bedrock_token_generator", provide_token=provide)
    _module(monkeypatch, "botocore")
    _module(monkeypatch, "botocore.session", Session=Session)
    source = Source("aws", region="eu-west-1", profile="p")
    long, short = fetch_of(source)(), fetch_of(source)()
    assert long.lifetime_s == 43_200.0
    assert 3590 < (short.lifetime_s or 0) <= 3600
    assert asked[0] == ("eu-west-1", 43_200.0)
    assert asked[1][1] <= 3600


def test_tokens_of_google_and_microsoft(monkeypatch: pytest.MonkeyPatch) -> None:
    """Google's end is a naive time in UTC, Microsoft's a number of seconds."""
    end = datetime.now(UTC) + timedelta(hours=1)
    google = _Credentials(token="ya29", expiry=end.replace(tzinfo=None))
    _module(monkeypatch, "google")
    _module(monkeypatch, "google.auth", default=lambda **_: (google, "project"))
    sys.modules["google"].auth = sys.modules["google.auth"]  # type: ignore[attr-defined]
    _module(monkeypatch, "google.auth.transport")
    _module(monkeypatch, "google.auth.transport.requests", Request=object)
    token = fetch_of(Source("google"))()
    assert token.value == "ya29"
    assert 3590 < (token.lifetime_s or 0) <= 3600

    class Default:
        def get_token(self, scope: str) -> object:
            assert scope == "https://ai.azure.com/.default"
            return _Credentials(token="eyJ", expires_on=int(end.timestamp()))

    _module(monkeypatch, "azure")
    _module(monkeypatch, "azure.identity", DefaultAzureCredential=Default)
    token = fetch_of(Source("azure", scope="https://ai.azure.com/.default"))()
    assert token.value == "eyJ"
    assert 3590 < (token.lifetime_s or 0) <= 3600


@pytest.mark.parametrize("kind", [RuntimeError, SystemExit])
def test_a_failing_package_is_quoted_by_its_class_only(
    kind: type[BaseException], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The text of an error may contain a secret. A package that ends its thread has failed, too."""

    def default(**_: object) -> None:
        raise kind("the key sk-secret is wrong")

    _module(monkeypatch, "google")
    _module(monkeypatch, "google.auth", default=default)
    sys.modules["google"].auth = sys.modules["google.auth"]  # type: ignore[attr-defined]
    _module(monkeypatch, "google.auth.transport")
    _module(monkeypatch, "google.auth.transport.requests", Request=object)
    with pytest.raises(SourceFault, match=kind.__name__) as caught:
        fetch_of(Source("google"))()
    assert "secret" not in str(caught.value)


def test_a_program_and_a_file_need_no_package() -> None:
    """Only the three clouds have packages."""
    assert package_fault("command") is None
    assert package_fault("file") is None
