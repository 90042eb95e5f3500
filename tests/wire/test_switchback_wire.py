"""`ttft-gateway switchback` against a running gateway, and the blocks that it counts by."""

import json
import threading
from pathlib import Path

import httpx
import pytest

from gateway.__main__ import main
from gateway.cli.parser import ExitCode
from gateway.cli.switchback import command
from raw_http import ASK, CHAT
from served import gateway, replicas

_QUICK = {"ttft": "2ms", "headers": "at_once", "tokens": 2}
_HEDGE = {"measure": {"slo": "1ms"}}


def _config(urls: dict[str, str], **settings: object) -> dict[str, object]:
    rows = [{"name": name, "kind": "vllm", "base_url": url} for name, url in urls.items()]
    return {"hedge": _HEDGE, "models": [{"name": "m", "replicas": rows}], **settings}


def _blocks(admin_url: str, name: str) -> dict[str, int]:
    """Begin a block; the number of requests of each one."""
    found = httpx.post(f"{admin_url}/admin/blocks", json={"block": name}).json()["blocks"]
    return {block["block"]: sum(counts["requests"] for counts in block["models"].values()) for block in found}


@pytest.mark.parametrize("workers", [1, 2])
def test_requests_count_in_the_block_of_their_arrival(tmp_path: Path, workers: int) -> None:
    """Nothing is counted before the first block, with one process or several; the last eight blocks are stored."""
    settings = {"workers": workers} if workers > 1 else {}
    with replicas(a=_QUICK, b=_QUICK) as urls, gateway(_config(urls, **settings), tmp_path) as served:

        def ask(count: int) -> None:
            for _ in range(count):
                assert httpx.post(served.url + CHAT, json=ASK).status_code == 200

        ask(1)
        assert _blocks(served.admin_url, "a") == {"a": 0}
        ask(2)
        assert _blocks(served.admin_url, "b") == {"a": 2, "b": 0}
        ask(3)
        assert _blocks(served.admin_url, "b") == {"a": 2, "b": 3}
        (_, counts) = httpx.post(f"{served.admin_url}/admin/blocks", json={"block": "b"}).json()["blocks"]
        (model,) = counts["models"].values()
        assert (model["requests"], model["misses"], sum(model["bins"].values())) == (3, 3, 3)
        names: dict[str, int] = {}
        for number in range(8):
            names = _blocks(served.admin_url, str(number))
        assert list(names) == list("01234567")
        refused = httpx.post(f"{served.admin_url}/admin/blocks", json={"block": ""})
        assert (refused.status_code, refused.json()["error"]["code"]) == (422, "invalid_value")


def test_a_gateway_is_switched_and_restored(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Six short blocks under traffic: the log has the switches, the report the requests; hedging is off again."""
    monkeypatch.setattr(command, "LENGTH_S_MIN", 0.0)
    with replicas(a=_QUICK, b=_QUICK) as urls, gateway(_config(urls), tmp_path) as served:
        httpx.post(served.admin_url + "/admin/hedging", json={"on": False})
        ending = threading.Event()

        def ask() -> None:
            with httpx.Client() as client:
                while not ending.is_set():
                    client.post(served.url + CHAT, json=ASK)

        thread = threading.Thread(target=ask)
        thread.start()
        try:
            options = ["--admin", served.admin_url, "--blocks", "6", "--length", "500ms", "--seed", "1", "--json"]
            code = main(["switchback", *options])
        finally:
            ending.set()
            thread.join()
        hedging = httpx.get(served.admin_url + "/admin/hedging").json()
    document = json.loads(capsys.readouterr().out)
    assert hedging["on"] is False
    assert (document["blocks"], sorted(document["order"])) == (6, ["off"] * 3 + ["on"] * 3)
    lines = [json.loads(line) for line in (tmp_path / "gateway.log").read_text().splitlines()]
    states = [line["on"] for line in lines if line["event"] == "hedging_switched"]
    assert True in states
    assert code == (ExitCode.OK if document["models"] else ExitCode.FAILED)  # on a slow machine blocks may be empty
    assert all(model["requests_on"] > 0 for model in document["models"])
