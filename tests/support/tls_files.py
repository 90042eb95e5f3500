"""The files of a server with TLS, from an authority of the test's."""

import ssl
from collections.abc import Callable
from pathlib import Path

import trustme


def tls_options(folder: Path, authority: trustme.CA) -> tuple[str, ...]:
    """Return the options with which a Redis or Valkey server uses a new certificate for 127.0.0.1."""
    issued = authority.issue_cert("127.0.0.1")
    folder.mkdir(exist_ok=True)
    chain, key, ca = (folder / name for name in ("chain", "key", "ca"))
    chain.write_bytes(b"".join(blob.bytes() for blob in issued.cert_chain_pems))
    key.write_bytes(issued.private_key_pem.bytes())
    ca.write_bytes(authority.cert_pem.bytes())
    files = ("--tls-cert-file", str(chain), "--tls-key-file", str(key), "--tls-ca-cert-file", str(ca))
    return *files, "--tls-auth-clients", "no"


def trusting(authority: trustme.CA) -> Callable[[], ssl.SSLContext]:
    """Return a function that returns a client's context with an authority."""
    context = ssl.create_default_context()
    authority.configure_trust(context)
    return lambda: context
