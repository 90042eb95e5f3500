"""Two replicas of a provider that may bill cancelled requests: no hedge is sent, and the reason is shown everywhere."""

import json
from pathlib import Path

import httpx

from raw_http import ASK, CHAT
from served import Served, gateway, replicas

_HEDGE = {"policy": "static", "delay": "1ms", "hedge_delay_min": "1ms", "budget": "100%"}
_LATE = {"ttft": "200ms", "headers": "at_once", "tokens": 2}


def _config(urls: dict[str, str], **replica: object) -> dict[str, object]:
    rows = [{"name": name, "kind": "openrouter", "base_url": url, **replica} for name, url in urls.items()]
    return {"hedge": _HEDGE, "models": [{"name": "m", "replicas": rows}]}


def _ask(served: Served) -> httpx.Headers:
    """Headers of one late request, answered in full."""
    answer = httpx.post(served.url + CHAT, json={**ASK})
    assert answer.status_code == 200
    assert answer.text.endswith("data: [DONE]\n\n")
    return answer.headers


def _logged(folder: Path) -> dict[str, object]:
    """The log line of the only request."""
    lines = [json.loads(line) for line in (folder / "gateway.log").read_text().splitlines()]
    (found,) = [line for line in lines if line["event"] == "request"]
    return dict(found)


def test_a_hedge_that_can_never_happen_is_explained(tmp_path: Path) -> None:
    """The start line, header, log, metric and admin address give the reason; no second replica is asked."""
    with replicas(a=_LATE, b=_LATE) as urls:
        with gateway(_config(urls), tmp_path) as served:
            headers = _ask(served)
            metrics = httpx.get(served.admin_url + "/metrics").text
            model = httpx.get(served.admin_url + "/admin/models/m").json()
        assert (headers["x-ttft-result"], headers["x-ttft-denied"]) == ("denied", "billing_unknown")
        assert headers["x-ttft-attempts"] == "1"
    assert "m: a, b; hedging cannot happen: a and b may bill cancelled requests" in "".join(served.stderr)
    line = _logged(tmp_path)
    assert (line["denials"], line["never_hedged"]) == (["billing_unknown"], "billing_unknown")
    for name in "ab":
        labels = f'{{gen_ai_request_model="m",reason="billing_unknown",replica="{name}"}}'
        assert f"ttft_gateway_hedging_possible{labels} 0.0" in metrics
    assert 'ttft_gateway_hedges_denied_total{gen_ai_request_model="m",reason="billing_unknown"} 1.0' in metrics
    assert model["hedging_possible"] is False
    assert [replica["never_hedged"] for replica in model["pools"][0]["replicas"]] == ["billing_unknown"] * 2


def test_the_setting_makes_it_happen(tmp_path: Path) -> None:
    """With `cancel_stops_billing: true` the same late request is hedged."""
    with replicas(a=_LATE, b=_LATE) as urls, gateway(_config(urls, cancel_stops_billing=True), tmp_path) as served:
        headers = _ask(served)
    assert headers["x-ttft-attempts"] == "2"
    assert "x-ttft-denied" not in headers
    assert "never_hedged" not in _logged(tmp_path)
