"""The check of requests of web pages: a table."""

import pytest

from gateway.api.auth import Keyring, PageCheck, is_foreign
from gateway.api.request_head import RequestHead
from gateway.errors import Forbidden

_APP = "https://app.example"
_OWN = {"host": "127.0.0.1:8080"}

OWN: list[dict[str, str]] = [
    {},
    {"sec-fetch-mode": "cors"},  # Node's fetch
    {"sec-fetch-site": "none"},
    {"sec-fetch-site": "none", "origin": "chrome-extension://abcdefgh"},
    {"sec-fetch-site": "same-origin", "origin": "http://127.0.0.1:8080"},
    {"sec-fetch-site": "same-origin", "origin": "https://chat.example"},  # a proxy has replaced the host
    {"origin": "http://127.0.0.1:8080"},
    {"origin": _APP},
    {"origin": _APP, "sec-fetch-site": "cross-site"},
    {"origin": _APP, "sec-fetch-site": "same-site"},
]
FOREIGN: list[dict[str, str]] = [
    {"sec-fetch-site": "cross-site"},
    {"sec-fetch-site": " cross-site\t"},
    {"sec-fetch-site": "same-site"},
    {"sec-fetch-site": ""},
    {"sec-fetch-site": "another word"},
    {"origin": "null"},
    {"origin": ""},
    {"origin": "https://evil.example"},
    {"origin": "https://app.example.evil"},
    {"origin": "http://app.example"},
    {"origin": "http://127.0.0.1:3000"},
    {"origin": "http://127.0.0.1:8080.evil.example"},
    {"origin": "https://evil.example", "sec-fetch-site": "cross-site"},
    {"origin": "http://127.0.0.1:8080", "sec-fetch-site": "cross-site"},
    {"origin": "http://127.0.0.1:3000", "sec-fetch-site": "same-site"},
]


def _encoded(headers: dict[str, str]) -> dict[bytes, bytes]:
    return {name.encode(): value.encode() for name, value in headers.items()}


@pytest.mark.parametrize("headers", OWN)
def test_programs_own_pages_and_listed_pages_are_served(headers: dict[str, str]) -> None:
    """What no foreign page can send is accepted."""
    by_name = _encoded(_OWN | headers)
    PageCheck([_APP]).check(by_name)
    assert not is_foreign(by_name, frozenset([_APP.encode()]))


@pytest.mark.parametrize("headers", FOREIGN)
def test_foreign_pages_are_rejected(headers: dict[str, str]) -> None:
    """A page of another origin, port or scheme is rejected, with the setting that would allow it."""
    with pytest.raises(Forbidden, match=r"`cors_origins` in the configuration, or configure `keys`"):
        PageCheck([_APP]).check(_encoded(_OWN | headers))


@pytest.mark.parametrize(
    ("headers", "is_served"),
    [
        ({}, False),
        ({"content-length": "2", "accept": "*/*"}, False),
        ({"content-type": "application/json"}, True),
        ({"authorization": "Bearer anything"}, True),
        ({"x-api-key": "anything"}, True),
        ({"api-key": "anything"}, True),
        ({"content-type": "application/json", "origin": "https://evil.example"}, False),
    ],
)
def test_an_address_for_other_machines_requires_a_header(headers: dict[str, str], is_served: bool) -> None:
    """Without a header that starts a preflight, a page may have sent it, in a browser that omits other headers."""
    head = RequestHead("POST", b"/", "1.1", (), _encoded({"host": "10.1.2.3:8080", **headers}))
    keyring = Keyring({}, {}, pages=PageCheck(is_local=False))
    if is_served:
        assert keyring.name_of(head) == "anonymous"
    else:
        with pytest.raises(Forbidden):
            keyring.name_of(head)


def test_with_keys_any_page_with_a_key_is_served() -> None:
    """A page that has the key may send requests from anywhere."""
    keyring = Keyring({"secret": "team"}, {}, pages=PageCheck(is_local=False))
    by_name = _encoded({"origin": "https://evil.example", "sec-fetch-site": "cross-site", "x-api-key": "secret"})
    assert keyring.name_of(RequestHead("POST", b"/", "1.1", (), by_name)) == "team"
