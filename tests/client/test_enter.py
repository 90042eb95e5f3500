"""The remembered URLs and header names of a transport change no reading of a request."""

import itertools
import random
import ssl

import httpx
import pytest

from ttft_gateway import HedgingTransport
from ttft_gateway.client.asked import Asked

_URLS = [
    f"{scheme}://{host}{path}"
    for scheme, host, path in itertools.product(
        ("http", "https"),
        ("a", "a:80", "a:443", "b:8000", "[::1]:8000", "xn--bcher-kva.example"),
        (
            "",
            "/v1/chat/completions",
            "/v1/embeddings",
            "/openai/deployments/m/chat/completions?api-version=1",
            "/?q=%20",
        ),
    )
]
_NAMES = ("x-ttft-hedge", "X-Stainless-Retry-Count", "Idempotency-Key", "accept", "Cookie")
_VALUES = ("on", "off", "0", " 0", "1", "")
_TLS = ssl.create_default_context()  # for all transports: to read the certificates takes 20 ms


def _transport() -> HedgingTransport:
    return HedgingTransport(transport=httpx.HTTPTransport(verify=_TLS))


def _read(transport: HedgingTransport, method: str, url: str, headers: list[tuple[str, str]]) -> Asked | None:
    """Return what a transport reads from a request; None if it is passed on."""
    body = b'{"model":"m","input":"a","messages":[{"role":"user","content":"a"}],"stream":true}'
    transport.hedger.rand = lambda: 0.5
    entered = transport.enter(httpx.Request(method, url, headers=headers, content=body))
    return None if entered is None else entered.asked


@pytest.mark.parametrize("seed", range(3))
def test_a_request_is_read_as_by_a_new_transport(seed: int) -> None:
    """Requests with any URLs and headers, more than are remembered, are read as if each were the first one."""
    rng, transport = random.Random(seed), _transport()
    for _ in range(200):
        headers = [(name, rng.choice(_VALUES)) for name in rng.choices(_NAMES, k=rng.randrange(4))]
        request = rng.choice(("GET", "POST")), rng.choice(_URLS), headers
        assert _read(transport, *request) == _read(_transport(), *request)


def test_a_request_that_changes_the_protocol_is_never_hedged() -> None:
    """The connection of a WebSocket is its answer, so a second one is another client of the server."""
    transport = _transport()
    assert _read(transport, "GET", "http://a", [("upgrade-insecure-requests", "1")]) is not None
    assert _read(transport, "GET", "http://a", [("Upgrade", "websocket"), ("x-ttft-hedge", "on")]) is None


@pytest.mark.parametrize(
    ("header", "is_raced"),
    [
        (("authorization", "Bearer digest"), True),
        (("authorization", 'Digest username="u", nc=00000001'), False),
        (("Authorization", 'OAuth oauth_nonce="n"'), False),
        (("DPoP", "proof"), False),
    ],
)
def test_credentials_that_are_accepted_once_are_sent_once(header: tuple[str, str], *, is_raced: bool) -> None:
    """A server rejects their second use, and the rejection would be the first answer."""
    assert (_read(HedgingTransport(), "GET", "http://a", [header]) is not None) is is_raced


def test_a_subscription_is_sent_without_a_race() -> None:
    """A GET of httpx-sse or MCP accepts a stream of events; a POST of an LLM API that does is a call."""
    transport, events = _transport(), [("accept", "text/event-stream")]
    assert _read(transport, "GET", "http://a", events) is None
    assert _read(transport, "POST", "http://a/v1/chat/completions", events) is not None


def test_of_several_headers_the_last_one_counts() -> None:
    """The switch is read in any case; a request with `off` first and `on` last may be hedged."""
    transport = _transport()
    assert _read(transport, "GET", "http://a", [("X-TTFT-Hedge", "off"), ("x-ttft-hedge", "ON")]) is not None
    assert _read(transport, "GET", "http://a", [("X-TTFT-Hedge", "on"), ("x-ttft-hedge", "Off")]) is None
