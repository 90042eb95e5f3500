"""TLS contexts for connections to replicas, from the certificate files that the settings name; cached and shared.

A context is built again when one of its files has changed, so that a reload uses renewed certificates.
"""

import ssl
from functools import lru_cache
from pathlib import Path
from typing import NamedTuple


class TlsFiles(NamedTuple):
    """Files in PEM form.

    Attributes:
        ca_file: authorities to trust; None for the authorities of the system.
        cert_file: client certificate with its chain, optionally with its key; None for no certificate.
        key_file: private key without a password; None if it is in `cert_file`.
    """

    ca_file: str | None = None
    cert_file: str | None = None
    key_file: str | None = None


class TlsFault(Exception):
    """A file is unusable.

    Args:
        field: name of the field of `TlsFiles`.
        text: reason, without the file's content.
    """

    def __init__(self, field: str, text: str) -> None:
        super().__init__(text)
        self.field = field
        self.text = text


def tls_context(files: TlsFiles, *, http2: bool = False) -> ssl.SSLContext:
    """Return the context for the current content of these files.

    Args:
        files: certificates, authorities and key.
        http2: offer HTTP/2 with ALPN; such a context is not shared with HTTP/1.1 clients.

    Raises:
        TlsFault: a file is unusable.
    """
    try:
        changed = tuple(Path(file).stat().st_mtime_ns if file is not None else 0 for file in files)
    except OSError:
        changed = ()  # loading raises for the file at fault, with the reason
    return _context(files, changed, http2=http2)


@lru_cache(maxsize=256)
def _context(files: TlsFiles, _changed: tuple[int, ...], *, http2: bool) -> ssl.SSLContext:
    try:
        context = ssl.create_default_context(cafile=files.ca_file)
    except (OSError, ValueError) as error:
        raise TlsFault("ca_file", _reason(error, "certificates")) from None
    if files.cert_file is not None:
        try:
            context.load_cert_chain(files.cert_file, files.key_file, password=_no_password)
        except (OSError, ValueError) as error:
            raise TlsFault("cert_file", _reason(error, "a certificate and its key without a password")) from None
    if http2:
        context.set_alpn_protocols(["h2", "http/1.1"])
    return context


def _reason(error: Exception, expected: str) -> str:
    if isinstance(error, ssl.SSLError) and error.reason == "KEY_VALUES_MISMATCH":
        return "the key does not belong to this certificate"
    if isinstance(error, OSError) and not isinstance(error, ssl.SSLError):
        return f"the file cannot be read: {error.strerror}"
    return f"the file does not contain {expected} in PEM form"


def _no_password() -> str:
    """Called for a key with a password: the gateway cannot prompt for it."""
    raise ValueError("the key has a password")
