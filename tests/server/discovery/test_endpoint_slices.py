"""EndpointSlices and labels of pods become replicas: tables."""

from collections.abc import Mapping
from typing import Any

import msgspec
import pytest

from fake_kubernetes import Endpoint, endpoint_slice, pod
from gateway.config.settings import DiscoverSettings, Replicas
from gateway.server.discovery.endpoint_slices import EndpointSlice, Pod, endpoint_rows
from gateway.server.discovery.failure import SourceFailed

A, B, C = Endpoint("10.0.0.1"), Endpoint("10.0.0.2"), Endpoint("10.0.0.3")


def rows(
    *slices: dict[str, Any], old: Replicas = (), pods: Mapping[str, dict[str, Any]] | None = None, **more: object
) -> Replicas:
    """Return the replicas of these slices."""
    source = DiscoverSettings.model_validate({"endpointslices": "vllm", "kind": "vllm", **more})
    read = [msgspec.convert({"metadata": {"resourceVersion": "1"}, **each}, EndpointSlice) for each in slices]
    chosen = None if pods is None else {name: msgspec.convert(each, Pod) for name, each in pods.items()}
    return endpoint_rows(source, read, chosen, old)


def ends(replicas: Replicas) -> dict[str, str]:
    """Return host and port of each replica by its name."""
    return {row.name: row.base_url.removeprefix("http://").removesuffix("/v1") for row in replicas}


def test_a_pod_is_a_replica() -> None:
    """A replica has the name of its pod, and the settings of its source; one that stays is the same object."""
    made = rows(endpoint_slice("1", {"vllm-a": A}), endpoint_slice("2", {"vllm-b": B}), model="llama", weight=3)
    assert ends(made) == {"vllm-a": "10.0.0.1:8000", "vllm-b": "10.0.0.2:8000"}
    assert [(row.kind, row.model, row.weight, row.backup_only) for row in made] == [("vllm", "llama", 3, False)] * 2
    moved = {"vllm-a": A, "vllm-b": Endpoint("10.0.0.9")}
    again = rows(endpoint_slice("1", moved), old=made, model="llama", weight=3)
    assert again[0] is made[0]
    assert ends(again)["vllm-b"] == "10.0.0.9:8000"


@pytest.mark.parametrize(
    ("states", "used"),
    [
        ("ready ready", "ab"),
        ("ready waiting", "a"),
        ("ready terminating", "a"),  # gets nothing new
        ("unknown ended", "a"),
        ("terminating ended", "a"),  # none is ready: one that still answers
        ("terminating waiting", "a"),
        ("waiting waiting", "b"),  # none is ready, and b is in use
        ("ended waiting", "b"),
        ("ended ended", ""),
    ],
)
def test_the_state_of_a_pod(states: str, used: str) -> None:
    """Ready pods are used; without any, those that end and answer; without any, those in use."""
    old = rows(endpoint_slice("1", {"b": B}))
    first, second = states.split()
    made = rows(endpoint_slice("1", {"a": A._replace(state=first), "b": B._replace(state=second)}), old=old)
    assert "".join(ends(made)) == used


def test_a_pod_in_two_slices_is_one_replica() -> None:
    """A pod with two addresses is used at IPv4, and a pod that ends in one slice ends."""
    six = endpoint_slice("0", {"a": Endpoint("fd00::1"), "c": Endpoint("fd00:0::3")}, address_type="IPv6")
    four = endpoint_slice("1", {"a": A, "b": B})
    assert ends(rows(six, four)) == {"a": "10.0.0.1:8000", "b": "10.0.0.2:8000", "c": "[fd00::3]:8000"}
    leaving = endpoint_slice("2", {"b": B._replace(state="terminating")})
    assert list(ends(rows(four, leaving))) == ["a"]
    name = endpoint_slice("3", {"d": Endpoint("host.example")}, address_type="FQDN")
    assert list(ends(rows(four, name))) == ["a", "b"]


@pytest.mark.parametrize(
    ("port", "ports", "found"),
    [
        (None, {"http": 8000}, 8000),
        (None, {None: 8001}, 8001),
        ("http", {"metrics": 9000, "http": 8002}, 8002),
        (8003, {"http": 8000}, 8003),
        (8003, {}, 8003),
        (None, {"http": 1, "grpc": 2}, "the Service has these ports: grpc, http; write one of them in `port`"),
        (None, {}, "the Service has these ports: none; write one of them in `port`"),
        ("web", {"http": 1}, 'the Service has no port "web"; its ports: http'),
    ],
)
def test_the_port(port: object, ports: dict[str | None, int], found: int | str) -> None:
    """A port is a number, a name of the Service, or the only one."""
    given: dict[str, Any] = {} if port is None else {"port": port}
    if isinstance(found, int):
        assert ends(rows(endpoint_slice("1", {"a": A}, ports=ports), **given)) == {"a": f"10.0.0.1:{found}"}
    else:
        with pytest.raises(SourceFailed) as caught:
            rows(endpoint_slice("1", {"a": A}, ports=ports), **given)
        assert str(caught.value) == found


def test_endpoints_without_a_pod() -> None:
    """An endpoint that is no pod, or has too long a name, is named after its address."""
    made = endpoint_slice("1", {"a": A, "b" * 200: B})
    del made["endpoints"][0]["targetRef"]
    made["endpoints"].append({"addresses": [], "targetRef": {"kind": "Pod", "name": "c"}})
    assert ends(rows(made)) == {"10.0.0.1:8000": "10.0.0.1:8000", "10.0.0.2:8000": "10.0.0.2:8000"}


def test_zones() -> None:
    """Pods in other zones get hedges and failovers only, as long as the own zone has a pod."""
    east, west = A._replace(zone="east"), B._replace(zone="west")

    def far(pods: dict[str, Endpoint]) -> list[str]:
        return [row.name for row in rows(endpoint_slice("1", pods), zone="east") if row.backup_only]

    assert far({"a": east, "b": west, "c": C}) == ["b", "c"]
    assert far({"a": east._replace(state="waiting"), "b": west, "c": C}) == []


def test_pods_by_label() -> None:
    """With a selector only the pods that the API returns are used, at the weight of their label."""
    made = endpoint_slice("1", {"a": A, "b": B, "c": C})
    pods = {"a": pod("a", ttft_gateway__weight="7"), "b": pod("b", ttft_gateway__weight="heavy"), "x": pod("x")}
    pods["c"] = pod("c", ttft_gateway__weight="000000001000")
    assert {row.name: row.weight for row in rows(made, pods=pods, weight=2)} == {"a": 7, "b": 2, "c": 2}
    assert rows(made, pods={}) == ()


def test_too_many_endpoints() -> None:
    """A thousand endpoints are the maximum."""
    many = {f"p{number}": Endpoint(f"10.0.{number // 250}.{number % 250}") for number in range(1001)}
    with pytest.raises(SourceFailed, match="1001 endpoints; at most 1000"):
        rows(endpoint_slice("1", many))
