"""The address and the login of the API server: from the files of a pod, or from the section `kubernetes`."""

from pathlib import Path

import pytest
import trustme

from gateway.config.discover import KubernetesSettings
from gateway.server.discovery.failure import SourceFailed
from gateway.server.discovery.kubernetes import Access, read_access

IN_POD = {"KUBERNETES_SERVICE_HOST": "10.96.0.1", "KUBERNETES_SERVICE_PORT": "443"}


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Return the folder of a pod's service account."""
    (tmp_path / "token").write_text("token-1\n")
    (tmp_path / "namespace").write_text("llm")
    trustme.CA().cert_pem.write_to_path(str(tmp_path / "ca.crt"))
    return tmp_path


def test_in_a_pod(folder: Path) -> None:
    """Address, token, authorities and namespace come from the pod; a token that is replaced is read."""
    found = read_access(KubernetesSettings(), IN_POD, folder)
    assert (found.url, found.token, found.namespace) == ("https://10.96.0.1:443", "token-1", "llm")
    assert found.authorities is not None
    assert len(found.authorities.get_ca_certs()) == 1
    (folder / "token").write_text("token-2")
    six = {**IN_POD, "KUBERNETES_SERVICE_HOST": "fd00::1"}
    found = read_access(KubernetesSettings(), six, folder)
    assert (found.url, found.token) == ("https://[fd00::1]:443", "token-2")


def test_outside_of_a_cluster(folder: Path, tmp_path: Path) -> None:
    """With a URL, no file of a pod is used, except its namespace; `kubectl proxy` needs no login."""
    nothing = tmp_path / "nothing"
    assert read_access(KubernetesSettings(url="http://127.0.0.1:8001"), {}, nothing) == Access("http://127.0.0.1:8001")
    files = {"token_file": str(folder / "token"), "ca_file": str(folder / "ca.crt")}
    found = read_access(KubernetesSettings.model_validate({"url": "https://h", **files}), {}, nothing)
    assert (found.url, found.token, found.namespace) == ("https://h", "token-1", None)


@pytest.mark.parametrize(
    ("file", "content", "fault"),
    [
        ("token", None, "the file FOLDER/token does not exist; mount the token of the service account"),
        ("token", b"", "the file FOLDER/token contains no token"),
        ("token", b"a-secret\r\nx: y", "the file FOLDER/token contains no token"),
        ("token", b"\xff", "the file FOLDER/token cannot be read: no text"),
        ("ca.crt", None, "the file FOLDER/ca.crt cannot be used: No such file or directory"),
        ("ca.crt", b"nothing", "the file FOLDER/ca.crt cannot be used: [X509: NO_CERTIFICATE_OR_CRL_FOUND]"),
    ],
)
def test_a_file_that_is_wrong(folder: Path, file: str, content: bytes | None, fault: str) -> None:
    """The fault has the name of the file, and never a token."""
    (folder / file).unlink()
    if content is not None:
        (folder / file).write_bytes(content)
    with pytest.raises(SourceFailed) as caught:
        read_access(KubernetesSettings(), IN_POD, folder)
    assert str(caught.value).replace(str(folder), "FOLDER").startswith(fault)


def test_no_cluster(folder: Path) -> None:
    """Outside of a pod, without a URL, the fault has the setting."""
    with pytest.raises(SourceFailed, match="set `url` in the section `kubernetes`"):
        read_access(KubernetesSettings(), {}, folder)
