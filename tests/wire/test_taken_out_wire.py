"""Taking a replica out and in through the admin address of a gateway process."""

import json
from collections import Counter
from pathlib import Path

import httpx

from held import held_replica
from raw_http import ASK, CHAT
from served import Served, gateway, replicas

_QUICK = {"ttft": "5ms", "tokens": 3}
_OFF = {"policy": "off", "routing": "round_robin"}


def _post(served: Served, **body: object) -> httpx.Response:
    return httpx.post(served.admin_url + "/admin/replicas", json=body)


def _winners(served: Served, count: int = 6, model: str = "m") -> Counter[str]:
    """Replicas that answered this many requests."""
    answers = [httpx.post(served.url + CHAT, json={**ASK, "model": model}) for _ in range(count)]
    assert all(got.status_code == 200 and got.text.endswith("data: [DONE]\n\n") for got in answers)
    return Counter(got.headers["x-ttft-replica"] for got in answers)


def _rows(urls: dict[str, str], **fields: object) -> list[dict[str, object]]:
    return [{"name": name, "kind": "simulated", "base_url": url, **fields} for name, url in urls.items()]


def test_a_replica_is_drained_and_used_again(tmp_path: Path) -> None:
    """Its stream under way ends whole, new requests go elsewhere, a reload keeps it out, and it comes back."""
    with held_replica() as (held, released), replicas(b=_QUICK) as urls:
        config = {"hedge": _OFF, "models": [{"name": "m", "replicas": _rows({"a": held, **urls})}]}
        with gateway(config, tmp_path) as served:
            with httpx.stream("POST", served.url + CHAT, json={**ASK}) as stream:
                assert stream.headers["x-ttft-replica"] == "a"
                lines = stream.iter_lines()
                next(lines)
                state = _post(served, replica="a", out=True).json()
                assert state == {
                    "models": {"m": {"a": {"out": True, "in_flight": 1}, "b": {"out": False, "in_flight": 0}}}
                }
                assert _winners(served) == {"b": 6}
                released.set()
                assert [line for line in lines if line][-1] == "data: [DONE]"
            assert httpx.get(served.admin_url + "/admin/replicas").json()["models"]["m"]["a"]["in_flight"] == 0
            [model] = httpx.get(served.admin_url + "/admin/models").json()["models"]
            assert [replica["out"] for replica in model["pools"][0]["replicas"]] == [True, False]
            gauge = 'ttft_gateway_replica_out{gen_ai_request_model="m",replica="a"} 1.0'
            assert gauge in httpx.get(served.admin_url + "/metrics").text

            refused = _post(served, replica="b", out=True)
            assert (refused.status_code, refused.json()["error"]["code"]) == (409, "last_replica")
            assert httpx.post(served.admin_url + "/admin/reload").status_code == 200
            assert _winners(served) == {"b": 6}

            assert _post(served, replica="a", out=False).json()["models"]["m"]["a"]["out"] is False
            assert _post(served, replica="a", out=False).status_code == 200
            assert _post(served, replica="b", out=True).status_code == 200
            assert _winners(served, 1) == {"a": 1}
    logged = [json.loads(line) for line in (tmp_path / "gateway.log").read_text().splitlines()]
    switched = [(line["replica"], line["out"]) for line in logged if line["event"] == "replica_switched"]
    assert switched == [("a", True), ("a", False), ("b", True)]


def test_one_model_or_all(tmp_path: Path) -> None:
    """Without `model` the replica is taken out of every model that has it; nothing changes if one has no other."""
    with replicas(a=_QUICK, b=_QUICK) as urls:
        models = [{"name": name, "replicas": _rows(urls)} for name in "mn"]
        alone = {
            "name": "alone",
            "replicas": _rows({"c": urls["a"]}),
            "fallbacks": [{"replicas": _rows({"b": urls["b"]})}],
        }
        with gateway({"hedge": _OFF, "models": [*models, alone]}, tmp_path) as served:
            assert _post(served, replica="a", out=True, model="n").status_code == 200
            assert [set(_winners(served, 4, model)) for model in "mn"] == [{"a", "b"}, {"b"}]
            unknown = _post(served, replica="x", out=True)
            assert (unknown.status_code, unknown.json()["error"]["code"]) == (404, "replica_not_found")
            refused = _post(served, replica="b", out=True)
            assert (refused.status_code, refused.json()["error"]["message"].startswith("b is the last")) == (409, True)
            assert [set(_winners(served, 4, model)) for model in "mn"] == [{"a", "b"}, {"b"}]
            assert _post(served, replica="c", out=True).status_code == 200
            assert _winners(served, 1, "alone") == {"b": 1}
