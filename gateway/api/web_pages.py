"""The check of requests of web pages on addresses without a key, against cross-site request forgery.

Any page in a browser on the operator's machine can send requests to the gateway. Without CORS headers the page cannot
read the responses, but a request without a preflight would still reach a replica and cost money. Browsers add `Origin`
to each POST of a page (Fetch standard, "HTTP extensions"), and `Sec-Fetch-Site` on loopback addresses and HTTPS (Fetch
Metadata Request Headers, W3C). With a key the check is not needed, because the page has no key. No units.
"""

from collections.abc import Iterable, Mapping
from typing import Final

from gateway.errors import Forbidden

_OWN_SITES: Final = (b"same-origin", b"none")  # `none`: the user's own action, or an extension of the browser
_DECLARED: Final = (b"content-type", b"authorization", b"x-api-key", b"api-key")


def is_foreign(by_name: Mapping[bytes, bytes], origins: frozenset[bytes] = frozenset()) -> bool:
    """Return True for a request of a page that is neither the address's own nor one of these origins.

    `same-site` is foreign: each port of `localhost` is another page of the same site. If the browser does not send
    `Sec-Fetch-Site`, a page is the address's own if its origin has the name and the port of `Host`.

    Args:
        by_name: the headers of the request; names in lower case.
        origins: origins of pages that may send requests, in lower case.
    """
    origin = by_name.get(b"origin")
    if origin in origins:
        return False
    if b"sec-fetch-site" in by_name:
        return by_name[b"sec-fetch-site"].strip(b" \t") not in _OWN_SITES
    return origin is not None and origin.partition(b"://")[2] != by_name.get(b"host")


class PageCheck:
    """Accepts requests of other programs than foreign web pages.

    Args:
        origins: origins of pages that may send requests.
        is_local: True if only this machine reaches the address. Otherwise browsers do not send `Sec-Fetch-Site`, and a
            request needs a `content-type`, which is checked with the body, or a key: no page can send JSON's or a key
            without a preflight.

    Attributes:
        is_local: the same.
    """

    def __init__(self, origins: Iterable[str] = (), *, is_local: bool = True) -> None:
        self._origins = frozenset(origin.encode() for origin in origins)
        self.is_local = is_local

    def check(self, by_name: Mapping[bytes, bytes]) -> None:
        """Check a request.

        Raises:
            Forbidden: the request is, or may be, one of a foreign page.
        """
        if is_foreign(by_name, self._origins):
            page = by_name.get(b"origin", b"another site").decode("latin-1")
            raise Forbidden(
                f"requests of web pages from {page[:80]!r} are not allowed, because this address has no key; "
                "add the page's origin to `cors_origins` in the configuration, or configure `keys`"
            )
        if not self.is_local and not any(name in by_name for name in _DECLARED):
            raise Forbidden(
                "header `content-type` is missing, and this address has no key; send `content-type: application/json`"
            )
