"""The live page and the API reference in a real browser, over a real gateway. Real time."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

import served
from browser import Browser, browser, needs_browser

TAB, ENTER, ESCAPE = "\ue004", "\ue007", "\ue00c"
HTTP = httpx.Client(timeout=60.0, trust_env=False)
FOREIGN = (
    "return performance.getEntriesByType('resource').map((e) => e.name).filter((n) => !n.startsWith(location.origin))"
)
CUT = """
return [...document.querySelectorAll("main *")]
  .filter((part) => part.getBoundingClientRect().right > innerWidth + 1 && !part.closest(".wide, .track"))
  .map((part) => part.outerHTML.slice(0, 80))
"""

LONGER = "document.querySelectorAll('#replica-rows > tr > *').forEach((cell) => cell.prepend('connect, 00:41:30 '))"

pytestmark = needs_browser


@pytest.fixture(scope="module")
def window() -> Iterator[Browser]:
    """One browser for all tests, as it takes seconds to start; the client is closed with it."""
    with browser() as opened, HTTP:
        yield opened


@pytest.fixture
def page(window: Browser) -> Iterator[Browser]:
    """An empty page; what it shows later ends with the test, and so do its requests."""
    yield window
    window.open("about:blank")
    window.complaints()


@pytest.fixture
def gateway(tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[served.Served]:
    """A gateway with two replicas, one of which begins after 2 s; a parameter adds settings."""
    more: dict[str, Any] = getattr(request, "param", {})
    with served.replicas(quick={"ttft": "10ms"}, slow={"ttft": "2s"}) as urls:
        replicas = [{"name": name, "base_url": f"{url}/v1", "kind": "vllm"} for name, url in urls.items()]
        hedge = {"policy": "static", "delay": "200ms", "budget": "100%", "routing": "round_robin"}
        model = {"name": "llama", "replicas": replicas, "hedge": hedge}
        with served.gateway({"models": [model], **more}, tmp_path) as running:
            yield running


def ask(gateway: served.Served, count: int) -> None:
    """Send requests one after the other; all must succeed."""
    body = {"model": "llama", "stream": True, "messages": [{"role": "user", "content": "Hi"}]}
    for _ in range(count):
        assert HTTP.post(f"{gateway.url}/v1/chat/completions", json=body).status_code == 200


def drawn(page: Browser) -> list[str]:
    """Return the texts of the picture of the history."""
    page.wait("#history-note", "five minutes")
    found: list[str] = page.run(
        "return [...document.querySelectorAll('#history-plot text')].map((n) => n.firstChild.textContent)"
    )
    return found


def test_live_page(page: Browser, gateway: served.Served) -> None:
    """The page shows replicas, first tokens and races as they happen, and asks no other host."""
    page.open(f"{gateway.admin_url}/")
    assert "in use" in page.wait("#replica-rows", "slow")
    page.wait("#status", "Live")
    ask(gateway, 4)
    assert "the hedge won" in page.wait("#races", "the hedge won")
    page.wait("#ttft-figures", "p99")
    assert page.run("return document.querySelectorAll('#ttft-plot circle').length") > 0
    assert "quick (backup)" in page.text("#races")
    page.wait("#who-rows", "anonymous")
    assert page.run(FOREIGN) == []
    assert page.complaints() == []


def test_the_page_begins_with_the_verdict(page: Browser, gateway: served.Served) -> None:
    """The word and the first sentence come from the admin address; the history has a strip for each replica."""
    page.open(f"{gateway.admin_url}/")
    page.wait("#verdict-word", "Well")
    assert {"Hedging", "quick", "slow"} <= set(drawn(page))
    HTTP.post(f"{gateway.admin_url}/admin/replicas", json={"replica": "slow", "out": True})
    found = page.wait("#findings", "Replica slow of llama is taken out")
    assert "docs/runbook.md#a-switch-was-forgotten" in found
    HTTP.post(f"{gateway.admin_url}/admin/hedging", json={"on": False})
    page.wait("#findings", "Hedging of llama is switched off")
    page.wait("#hedging-switch", "on")
    assert page.complaints() == []


@pytest.mark.parametrize("width", [360, 1000])
def test_nothing_is_cut(page: Browser, gateway: served.Served, width: int) -> None:
    """On a phone and in a small window the page needs no scrolling to the side, and each part ends within it."""
    page.phone(width=width)
    try:
        page.open(f"{gateway.admin_url}/")
        ask(gateway, 2)
        page.wait("#replica-rows", "slow")
        assert {"Hedging", "quick", "slow"} <= set(drawn(page))
        page.wait("#ttft-figures", "p99")
        assert page.run(f"{LONGER}; return document.documentElement.scrollWidth") == width
        assert page.run(CUT) == []
    finally:
        page.phone(width=None)


def test_switches_ask_first(page: Browser, gateway: served.Served) -> None:
    """A click opens a question: Escape changes nothing, Enter on its first button switches; by keyboard alone."""
    page.open(f"{gateway.admin_url}/")
    page.wait("#hedging-switch", "Switch hedging off")
    page.run("document.getElementById('hedging-switch').focus()")
    page.press(ENTER)
    page.wait("#confirm[open] #confirm-yes", "Switch hedging off")
    page.press(ESCAPE)
    assert HTTP.get(f"{gateway.admin_url}/admin/hedging").json()["on"]
    page.press(ENTER)
    page.wait("#confirm[open] #confirm-yes", "Switch hedging off")
    page.press(ENTER)
    page.wait("#hedging-switch", "Switch hedging on")
    assert not HTTP.get(f"{gateway.admin_url}/admin/hedging").json()["on"]


def test_a_replica_is_taken_out(page: Browser, gateway: served.Served) -> None:
    """A confirmed click takes a replica out; the last one cannot be, and the page shows the gateway's reason."""
    page.open(f"{gateway.admin_url}/")
    page.wait("#replica-rows", "slow")
    page.click("button[data-replica=slow]")
    assert "Streams under way continue" in page.wait("#confirm[open]", "slow")
    page.click("#confirm-yes")
    page.wait("#replica-rows", "taken out")
    assert HTTP.get(f"{gateway.admin_url}/admin/replicas").json()["models"]["llama"]["slow"]["out"]
    page.click("button[data-replica=quick]")
    page.wait("#confirm[open]", "quick")
    page.click("#confirm-yes")
    assert "last" in page.wait("#status", "quick")


@pytest.mark.parametrize("gateway", [{"admin_key": "a-key-of-the-admin"}], indirect=True)
def test_admin_key(page: Browser, gateway: served.Served) -> None:
    """The page asks for the key, once; a wrong one is rejected with the gateway's words."""
    page.open(f"{gateway.admin_url}/")
    for key in ("wrong", "a-key-of-the-admin"):
        page.wait("#ask-key[open]", "Admin key")
        page.write("#key", key + ENTER)
        page.wait("#status", "missing or wrong" if key == "wrong" else "Live")
    page.wait("#replica-rows", "slow")
    page.open(f"{gateway.admin_url}/")
    page.wait("#replica-rows", "slow")


def test_reference(page: Browser, gateway: served.Served) -> None:
    """The API reference shows every operation of the contract, without another host."""
    page.open(f"{gateway.url}/docs#createChatCompletion")
    page.wait("#status", "openapi.yaml")
    contract = HTTP.get(f"{gateway.url}/openapi.json").json()
    operations = [each for item in contract["paths"].values() for each in item.values() if "operationId" in each]
    shown = page.run("return [...document.querySelectorAll('article')].map((each) => each.id)")
    assert sorted(shown) == sorted(each["operationId"] for each in operations)
    assert "x-ttft-hedge" in page.text("#createChatCompletion")
    assert page.run(FOREIGN) == []
    assert page.complaints() == []
