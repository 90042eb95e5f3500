"""A real browser without a window: Chromium, driven over WebDriver. Every wait has a limit. Units: seconds.

In CI on Linux it is never missing; elsewhere its tests are skipped.
"""

import base64
import contextlib
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

import httpx
import pytest

from unused_ports import unused_port

_DRIVER: Final = shutil.which("chromedriver")
_BROWSER: Final = shutil.which("chromium") or shutil.which("chromium-browser")
_WAIT_S: Final = 60.0  # of a loaded machine
_CONNECTS: Final = 8  # 0.5 s after the first, then twice as long each time
_ELEMENT: Final = "element-6066-11e4-a52e-4f735466cecf"  # key of an element's id, by the WebDriver standard
_ARGUMENTS: Final = (
    "--headless=new",
    "--no-sandbox",  # the tests of CI run as root
    "--disable-gpu",
    "--disable-dev-shm-usage",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    "--window-size=1300,1700",
)

needs_browser: Final = pytest.mark.skipif(
    (_DRIVER is None or _BROWSER is None) and not (os.environ.get("CI") and sys.platform == "linux"),
    reason="chromium and chromedriver are missing: install Debian's packages chromium and chromium-driver",
)
_WAIT_SCRIPT: Final = """
const [selector, words, seconds, done] = arguments;
const last = performance.now() + 1000 * seconds;
const look = () => {
  const text = document.querySelector(selector)?.innerText ?? "";
  if (text.includes(words) || performance.now() > last) done(text);
  else setTimeout(look, 50);
};
look();
"""


class Browser:
    """A page in a browser.

    Args:
        client: HTTP client of the driver's session.
    """

    def __init__(self, client: httpx.Client) -> None:
        self._client = client

    def _ask(self, method: str, path: str, body: object = None) -> Any:
        answer = self._client.request(method, path, json=body).json()["value"]
        if isinstance(answer, dict) and "error" in answer:
            raise AssertionError(f"{path}: {answer['error']}: {answer['message'].splitlines()[0]}")
        return answer

    def open(self, url: str) -> None:
        """Open a page and wait until it is loaded."""
        self._ask("POST", "url", {"url": url})

    def run(self, script: str, *arguments: object) -> Any:
        """Return the value of a script's `return`."""
        return self._ask("POST", "execute/sync", {"script": script, "args": list(arguments)})

    def text(self, selector: str) -> str:
        """Return the visible text of the first element; empty if there is none."""
        text: str = self.run("return document.querySelector(arguments[0])?.innerText ?? ''", selector)
        return text

    def wait(self, selector: str, words: str) -> str:
        """Return the text of an element as soon as it has these words."""
        text: str = self._ask("POST", "execute/async", {"script": _WAIT_SCRIPT, "args": [selector, words, _WAIT_S]})
        assert words in text, f"{selector} is {text!r}, without {words!r}"
        return text

    def click(self, selector: str) -> None:
        """Click the first element, as a person does."""
        self._ask("POST", f"element/{self._element(selector)}/click", {})

    def write(self, selector: str, text: str) -> None:
        """Type into the first element."""
        self._ask("POST", f"element/{self._element(selector)}/value", {"text": text})

    def press(self, *keys: str) -> None:
        """Press keys, each by its WebDriver code or its character, wherever the focus is."""
        steps = [{"type": kind, "value": key} for key in keys for kind in ("keyDown", "keyUp")]
        self._ask("POST", "actions", {"actions": [{"type": "key", "id": "keyboard", "actions": steps}]})

    def phone(self, *, width: int | None) -> None:
        """Show pages with the width of a phone, in pixels; None for the window's own."""
        method, size = "Emulation.clearDeviceMetricsOverride", {}
        if width is not None:
            method = "Emulation.setDeviceMetricsOverride"
            size = {"width": width, "height": 800, "deviceScaleFactor": 1, "mobile": True}
        self._ask("POST", "goog/cdp/execute", {"cmd": method, "params": size})

    def complaints(self) -> list[str]:
        """Return the errors and warnings of the console since the last call."""
        entries = self._ask("POST", "se/log", {"type": "browser"})
        return [entry["message"] for entry in entries if entry["level"] in ("SEVERE", "WARNING")]

    def picture(self, file: Path) -> None:
        """Write a screenshot."""
        file.write_bytes(base64.b64decode(self._ask("GET", "screenshot")))

    def _element(self, selector: str) -> str:
        found = self._ask("POST", "element", {"using": "css selector", "value": selector})
        return str(found[_ELEMENT])


@contextlib.contextmanager
def browser(*, dark: bool = False) -> Iterator[Browser]:
    """Run a browser while inside."""
    assert _DRIVER is not None
    assert _BROWSER is not None
    port = unused_port()
    arguments = [*_ARGUMENTS, *(["--force-dark-mode"] if dark else [])]
    options = {"binary": _BROWSER, "args": arguments}
    wanted = {"browserName": "chrome", "goog:chromeOptions": options, "goog:loggingPrefs": {"browser": "ALL"}}
    listening = httpx.HTTPTransport(retries=_CONNECTS)  # it listens a moment after its start
    command = [_DRIVER, f"--port={port}", "--log-level=SEVERE"]
    with (
        subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL) as driver,
        httpx.Client(base_url=f"http://127.0.0.1:{port}", timeout=_WAIT_S, transport=listening) as client,
    ):
        try:
            made = client.post("session", json={"capabilities": {"alwaysMatch": wanted}}).json()["value"]
            assert "sessionId" in made, made
            session = f"http://127.0.0.1:{port}/session/{made['sessionId']}/"
            with httpx.Client(base_url=session, timeout=3 * _WAIT_S, trust_env=False) as page:
                page.post("timeouts", json={"script": int(2000 * _WAIT_S)})
                try:
                    yield Browser(page)
                finally:
                    page.delete(session.rstrip("/"))
        finally:
            driver.terminate()
