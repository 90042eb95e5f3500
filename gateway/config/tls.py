"""TLS to replicas: contexts made of the authorities and certificates that the settings name, made once and shared.

A context is made anew when one of its files has changed, so that a reload takes renewed certificates into use.
"""

import ssl
from functools import lru_cache
from pathlib import Path
from typing import NamedTuple


class TlsFiles(NamedTuple):
    """Files in PEM form.

    Attributes:
        ca_file: the authorities to trust instead of the system's.
        cert_file: our own certificate, with those between it and its authority; its key may stand in it, too.
        key_file: its key, without a password.
    """

    ca_file: str | None = None
    cert_file: str | None = None
    key_file: str | None = None


class TlsFault(Exception):
    """A file cannot be used.

    Args:
        field: which of `TlsFiles`.
        text: why, without its content.
    """

    def __init__(self, field: str, text: str) -> None:
        super().__init__(text)
        self.field = field
        self.text = text


def tls_context(files: TlsFiles, *, http2: bool = False) -> ssl.SSLContext:
    """The context for these files as they are now.

    Args:
        files: see there.
        http2: for a client that agrees on HTTP/2; such a context is not shared with others.

    Raises:
        TlsFault: one of them cannot be used.
    """
    try:
        changed = tuple(Path(file).stat().st_mtime_ns if file is not None else 0 for file in files)
    except OSError:
        changed = ()  # loading it tells which, and why
    return _context(files, changed, http2=http2)


@lru_cache(maxsize=256)
def _context(files: TlsFiles, _changed: tuple[int, ...], *, http2: bool) -> ssl.SSLContext:
    try:
        context = ssl.create_default_context(cafile=files.ca_file)
    except (OSError, ValueError) as error:
        raise TlsFault("ca_file", _why(error, "certificates")) from None
    if files.cert_file is not None:
        try:
            context.load_cert_chain(files.cert_file, files.key_file, password=_no_password)
        except (OSError, ValueError) as error:
            raise TlsFault("cert_file", _why(error, "a certificate and its key without a password")) from None
    if http2:
        context.set_alpn_protocols(["h2", "http/1.1"])
    return context


def _why(error: Exception, wanted: str) -> str:
    if isinstance(error, ssl.SSLError) and error.reason == "KEY_VALUES_MISMATCH":
        return "the key is not this certificate's"
    if isinstance(error, OSError) and not isinstance(error, ssl.SSLError):
        return f"it cannot be read: {error.strerror}"
    return f"it does not hold {wanted} in PEM form"


def _no_password() -> str:
    """Called for a key with a password: nobody is there to be asked."""
    raise ValueError("the key has a password")
