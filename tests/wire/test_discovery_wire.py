"""Replicas that come and go while a gateway process serves: a list in a file, and a name in DNS."""

import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import httpx
import yaml

from fake_kubernetes import kubernetes
from held import held_replica
from raw_http import ASK, CHAT
from served import Served, gateway, replicas

_QUICK = {"ttft": "5ms", "tokens": 3}
_WAIT_S = 60.0  # of a loaded machine


def _until(is_true: Callable[[], bool]) -> None:
    for _ in range(1000):
        if is_true():
            return
        threading.Event().wait(0.02)
    raise AssertionError("it does not happen")


def _write(file: Path, urls: dict[str, str]) -> None:
    """Write a list of replicas, whole or not at all."""
    rows = [{"name": name, "kind": "simulated", "base_url": url} for name, url in urls.items()]
    part = file.with_suffix(".part")
    part.write_text(yaml.safe_dump(rows))
    part.replace(file)


def _replicas(served: Served) -> dict[str, Any]:
    found: dict[str, Any] = httpx.get(served.admin_url + "/admin/replicas", timeout=_WAIT_S).json()["models"]["m"]
    return found


def _metrics(served: Served) -> str:
    return httpx.get(served.admin_url + "/metrics", timeout=_WAIT_S).text


def test_a_list_in_a_file(tmp_path: Path) -> None:
    """Without replicas 503; then each list is used; a removed replica is listed until its stream has ended whole."""
    file = tmp_path / "replicas.yaml"
    model = {"name": "m", "discover": {"file": file.name, "every": "100ms"}}
    config = {"hedge": {"policy": "off", "routing": "round_robin"}, "models": [model]}
    with held_replica() as (held, released), replicas(b=_QUICK, c=_QUICK) as urls, gateway(config, tmp_path) as served:
        refused = httpx.post(served.url + CHAT, json=ASK, timeout=_WAIT_S)
        assert (refused.status_code, refused.json()["error"]["code"]) == (503, "no_replicas")
        assert refused.headers["retry-after"] == "5"
        assert httpx.get(served.url + "/readyz", timeout=_WAIT_S).status_code == 200
        assert 'ttft_gateway_discovery_up{gen_ai_request_model="m",pool="m"} 0.0' in _metrics(served)

        _write(file, {"a": held})
        _until(lambda: "a" in _replicas(served))
        with httpx.stream("POST", served.url + CHAT, json=ASK, timeout=_WAIT_S) as stream:
            lines = stream.iter_lines()
            next(lines)
            _write(file, {"a": held, **urls})
            _until(lambda: "c" in _replicas(served))
            _write(file, urls)
            _until(lambda: "draining" in _replicas(served)["a"])
            assert _replicas(served)["a"] == {"out": False, "in_flight": 1, "draining": True}
            answers = [httpx.post(served.url + CHAT, json=ASK, timeout=_WAIT_S) for _ in range(10)]
            assert {answer.headers["x-ttft-replica"] for answer in answers} == {"b", "c"}
            file.write_text("- {name: b")
            [source] = _discovery(served)
            _until(lambda: _discovery(served)[0]["fault"] is not None)
            assert source["source"] == f"file {file}"
            assert httpx.post(served.url + CHAT, json=ASK, timeout=_WAIT_S).status_code == 200
            released.set()
            assert [line for line in lines if line][-1] == "data: [DONE]"
        assert _replicas(served)["a"] == {"out": False, "in_flight": 0, "draining": True}
        text = _metrics(served)
        assert 'ttft_gateway_replica_draining{gen_ai_request_model="m",replica="a"} 1.0' in text
        assert 'ttft_gateway_discovered_replicas{gen_ai_request_model="m",pool="m"} 2.0' in text
        assert httpx.post(served.admin_url + "/admin/reload", timeout=_WAIT_S).status_code == 200
        assert set(_replicas(served)) == {"a", "b", "c"}


def _discovery(served: Served) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = httpx.get(served.admin_url + "/admin/models/m", timeout=_WAIT_S).json()["discovery"]
    return found


def test_a_name(tmp_path: Path) -> None:
    """The addresses of a name are replicas, in addition to the replicas in the file."""
    with replicas(a=_QUICK, b=_QUICK) as urls:
        port = int(urls["a"].split(":")[2].partition("/")[0])
        source = {"dns": "localhost", "port": port, "kind": "simulated"}
        model = {
            "name": "m",
            "replicas": [{"name": "b", "kind": "simulated", "base_url": urls["b"]}],
            "discover": source,
        }
        with gateway({"models": [model]}, tmp_path) as served:
            assert set(_replicas(served)) == {f"127.0.0.1:{port}", "b"}
            assert httpx.post(served.url + CHAT, json=ASK, timeout=_WAIT_S).status_code == 200


def test_every_worker_follows_the_source(tmp_path: Path) -> None:
    """All workers use a changed list, also after a reload; a replica that is taken out stays out."""
    file = tmp_path / "replicas.yaml"
    model = {"name": "m", "discover": {"file": file.name, "every": "100ms"}}
    off = {"policy": "off", "routing": "round_robin"}
    with replicas(a={"ttft": "5ms"}, b={"ttft": "5ms"}, c={"ttft": "5ms"}) as urls:
        _write(file, {name: urls[name] for name in "ab"})
        with gateway({"workers": 2, "hedge": off, "models": [model]}, tmp_path) as served:
            assert set(_replicas(served)) == {"a", "b"}
            httpx.post(served.admin_url + "/admin/replicas", json={"replica": "a", "out": True}, timeout=_WAIT_S)
            _write(file, urls)
            _until(lambda: set(_replicas(served)) == {"a", "b", "c"})
            source = '{gen_ai_request_model="m",pool="m"}'
            assert f"ttft_gateway_discovery_up{source} 1.0" in _metrics(served)
            assert f"ttft_gateway_discovered_replicas{source} 3.0" in _metrics(served)  # there is one source
            [found] = httpx.get(served.admin_url + "/admin/models/m", timeout=_WAIT_S).json()["discovery"]
            assert found["replicas"] == 3
            assert httpx.post(served.admin_url + "/admin/reload", timeout=_WAIT_S).status_code == 200
            answers = [httpx.post(served.url + CHAT, json=ASK, timeout=_WAIT_S) for _ in range(8)]
            assert {answer.headers["x-ttft-replica"] for answer in answers} <= {"b", "c"}
            _write(file, {name: urls[name] for name in "ac"})
            _until(lambda: _replicas(served)["b"].get("draining", False))


def test_a_service_in_kubernetes(tmp_path: Path) -> None:
    """Pods are replicas by their names; one that ends gets nothing new and ends its stream; the last one goes."""
    token, authority = tmp_path / "token", tmp_path / "ca.crt"
    token.write_text("token-of-the-pod")
    with kubernetes() as api, held_replica() as (held, released), replicas(b=_QUICK) as urls:
        authority.write_bytes(api.authority)
        section = {"url": api.url, "token_file": str(token), "ca_file": str(authority)}
        model = {"name": "m", "discover": {"endpointslices": "vllm.llm", "port": "http", "kind": "simulated"}}
        config = {"kubernetes": section, "hedge": {"policy": "off"}, "models": [model]}
        api.put_pods(a=(held, "ready"))
        with gateway(config, tmp_path) as served:
            assert set(_replicas(served)) == {"a"}
            with httpx.stream("POST", served.url + CHAT, json=ASK, timeout=_WAIT_S) as stream:
                lines = stream.iter_lines()
                next(lines)
                api.put_pods(a=(held, "terminating"), b=(urls["b"], "ready"))
                _until(lambda: "draining" in _replicas(served)["a"])
                answers = [httpx.post(served.url + CHAT, json=ASK, timeout=_WAIT_S) for _ in range(5)]
                assert {answer.headers["x-ttft-replica"] for answer in answers} == {"b"}
                api.do(api.cluster.restart)
                released.set()
                assert [line for line in lines if line][-1] == "data: [DONE]"
            api.put_pods(b=(urls["b"], "ended"))
            _until(lambda: "draining" in _replicas(served)["b"])
            refused = httpx.post(served.url + CHAT, json=ASK, timeout=_WAIT_S)
            assert (refused.status_code, refused.json()["error"]["code"]) == (503, "no_replicas")
            [source] = _discovery(served)
            assert (source["source"], source["fault"]) == ("endpointslices vllm.llm", "no pod is ready")
            api.put_pods(c=(urls["b"], "ready"))
            _until(lambda: "c" in _replicas(served))
            assert httpx.post(served.url + CHAT, json=ASK, timeout=_WAIT_S).headers["x-ttft-replica"] == "c"
            said = (
                "".join(served.stderr)
                + _metrics(served)
                + httpx.get(served.admin_url + "/admin/models/m", timeout=_WAIT_S).text
            )
        assert {each.token for each in api.cluster.asked} == {"Bearer token-of-the-pod"}
        assert "token-of-the-pod" not in said + (tmp_path / "gateway.log").read_text()
