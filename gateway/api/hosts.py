"""The check of the `Host` header on addresses without a key, against DNS rebinding.

A web page can let its own name resolve to the gateway's address. The browser then sends the page's requests to the
gateway, as if they were for the page's server, and shows the page the answers. It also sends the page's name as `Host`,
which therefore must be an IP address, `localhost`, or a configured name. With a key the check is not needed, because
the page has no key. No units.
"""

import ipaddress
from collections.abc import Iterable

from gateway.errors import UnknownHost
from providers.base import Headers

_ACCEPTED_MAX = 1_000  # remembered values; each is an address or a configured name with a port


class HostCheck:
    """Accepts requests by their `Host`.

    Args:
        names: names of the gateway, without ports.
    """

    def __init__(self, names: Iterable[str] = ()) -> None:
        self._names = {name.lower() for name in names}
        self._accepted: set[bytes] = set()

    def check(self, headers: Headers) -> None:
        """Check the host of a request; a request without one, which no browser sends, is accepted.

        Raises:
            UnknownHost: the host is neither an IP address nor a name of the gateway.
        """
        for name, value in headers:
            if name == b"host":
                self.check_value(value)

    def check_value(self, value: bytes) -> None:
        """Check the value of one header; see `check`."""
        if value in self._accepted:
            return
        host = value.decode("latin-1")
        if not self._is_own(_without_port(host).lower()):
            raise UnknownHost(
                f"host {host[:80]!r} is unknown, and this address has no key; "
                "use an IP address or localhost, or add the name to `hosts` in the configuration"
            )
        if len(self._accepted) < _ACCEPTED_MAX:
            self._accepted.add(value)

    def _is_own(self, host: str) -> bool:
        if host == "localhost" or host.endswith(".localhost") or host.removesuffix(".") in self._names:
            return True
        try:
            ipaddress.ip_address(host.removeprefix("[").removesuffix("]"))
        except ValueError:
            return False
        return True


def _without_port(host: str) -> str:
    name, colon, port = host.rpartition(":")
    return name if colon and not port.endswith("]") else host
