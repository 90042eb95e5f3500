"""Turns the EndpointSlices of a Service, and the labels of its pods, into replicas. Pure; no units.

A pod is named after the pod, not after its address, which other pods use later. One that is ending gets nothing new. If
no pod is ready, pods that are ending and still answer are used, as by kube-proxy, and otherwise those replicas in use
that are still listed: a readiness probe that fails under load must not turn a slow model into none.
"""

import ipaddress
import re
from collections.abc import Iterable, Iterator, Mapping
from enum import IntEnum
from typing import Final, NamedTuple

import msgspec

from gateway.config.discovered import ROWS_MAX, completed
from gateway.config.settings import DiscoverSettings, Replicas, ReplicaSettings
from gateway.server.discovery.failure import SourceFailed

WEIGHT_LABEL: Final = "ttft-gateway/weight"
_NAME_CHARS_MAX: Final = 128  # of a replica; a pod with a longer name is named after its address
_WEIGHT_MAX: Final = 100


class Metadata(msgspec.Struct, rename="camel"):
    """The metadata of an object or of a list, without what the gateway does not use."""

    name: str = ""
    resource_version: str = ""
    labels: dict[str, str] | None = None


class Named(msgspec.Struct):
    """An object of the API."""

    metadata: Metadata


class Pod(Named):
    """A pod, of which the API server sends the metadata only."""


class Conditions(msgspec.Struct):
    """The state of an endpoint; None is unknown."""

    ready: bool | None = None
    serving: bool | None = None
    terminating: bool | None = None


class Target(msgspec.Struct):
    """The object of an endpoint, usually a pod."""

    kind: str = ""
    name: str = ""


class Endpoint(msgspec.Struct, rename="camel"):
    """An endpoint; its addresses lead to the same pod."""

    addresses: list[str] | None = None
    conditions: Conditions | None = None
    target_ref: Target | None = None
    zone: str | None = None


class EndpointPort(msgspec.Struct):
    """A port of all endpoints of a slice."""

    name: str | None = None
    port: int | None = None
    protocol: str | None = None


class EndpointSlice(Named, rename="camel"):
    """A part of the endpoints of a Service (discovery.k8s.io/v1)."""

    address_type: str = ""
    endpoints: list[Endpoint] | None = None
    ports: list[EndpointPort] | None = None


class _State(IntEnum):
    """The state of a pod; of two slices with the same pod the higher one holds, as a pod that ends never returns."""

    WAITING = 0
    READY = 1
    SERVING_TO_ITS_END = 2
    ENDED = 3


class _Found(NamedTuple):
    host: str
    port: int
    zone: str | None
    state: _State


def endpoint_rows(
    source: DiscoverSettings, slices: Iterable[EndpointSlice], pods: Mapping[str, Pod] | None, old: Replicas
) -> Replicas:
    """Return the replicas of a Service; unchanged replicas of `old` stay the same objects.

    Args:
        source: settings of the source.
        slices: slices of the Service.
        pods: the pods to use, by name; None for all.
        old: the replicas before.

    Raises:
        SourceFailed: the slices have no such port, or too many endpoints.
    """
    found = _found(source, slices)
    if pods is not None:
        found = {name: each for name, each in found.items() if name in pods}
    if len(found) > ROWS_MAX:
        raise SourceFailed(f"the Service has {len(found)} endpoints; at most {ROWS_MAX} are supported")
    known = {row.name: row for row in old}
    names = _used(found, known)
    near = {name for name in names if source.zone in (None, found[name].zone)}
    rows = []
    for name in names:
        far = bool(near) and name not in near
        row = _row(source, name, found[name], None if pods is None else pods[name], is_far=far)
        same = known.get(name)
        rows.append(same if same == row else row)
    return tuple(rows)


def _used(found: Mapping[str, _Found], known: Mapping[str, ReplicaSettings]) -> list[str]:
    """Return the names of the pods to use, in order."""
    by_state = {state: [name for name in sorted(found) if found[name].state is state] for state in _State}
    in_use = [name for name in by_state[_State.WAITING] if name in known]
    return by_state[_State.READY] or by_state[_State.SERVING_TO_ITS_END] or in_use


def _found(source: DiscoverSettings, slices: Iterable[EndpointSlice]) -> dict[str, _Found]:
    """Return the pods by name, at their IPv4 address if they have one."""
    found: dict[str, _Found] = {}
    for each in sorted(slices, key=lambda each: (each.address_type, each.metadata.name)):  # IPv4 is first
        if each.address_type in ("IPv4", "IPv6") and each.endpoints:
            port = _port(source, each.ports or [])
            for name, endpoint in _named(each.endpoints, port):
                seen = found.get(name)
                found[name] = endpoint if seen is None else seen._replace(state=max(seen.state, endpoint.state))
    return found


def _named(endpoints: Iterable[Endpoint], port: int) -> Iterator[tuple[str, _Found]]:
    for endpoint in endpoints:
        if not endpoint.addresses:
            continue
        address = ipaddress.ip_address(endpoint.addresses[0])  # of several only the first is used, as by kube-proxy
        host = f"[{address}]" if address.version == 6 else str(address)
        target = endpoint.target_ref
        is_pod = target is not None and target.kind == "Pod" and 0 < len(target.name) <= _NAME_CHARS_MAX
        name = target.name if target is not None and is_pod else f"{host}:{port}"
        yield name, _Found(host, port, endpoint.zone, _state(endpoint.conditions or Conditions()))


def _state(conditions: Conditions) -> _State:
    """Return the state of a pod; an unknown `ready` is true, an unknown `serving` as `ready` (Kubernetes API)."""
    is_ready = conditions.ready is not False
    if conditions.terminating:
        is_serving = is_ready if conditions.serving is None else conditions.serving
        return _State.SERVING_TO_ITS_END if is_serving else _State.ENDED
    return _State.READY if is_ready else _State.WAITING


def _port(source: DiscoverSettings, ports: Iterable[EndpointPort]) -> int:
    """Return the port of the pods of a slice."""
    if isinstance(source.port, int):
        return source.port
    listed = {each.name or "": each.port for each in ports if each.protocol in (None, "TCP")}
    by_name = {name: port for name, port in listed.items() if port is not None}
    if source.port in by_name:
        return by_name[source.port]
    if source.port is None and len(by_name) == 1:
        return next(iter(by_name.values()))
    names = ", ".join(sorted(name or str(port) for name, port in by_name.items())) or "none"
    if source.port is None:
        raise SourceFailed(f"the Service has these ports: {names}; write one of them in `port`")
    raise SourceFailed(f'the Service has no port "{source.port}"; its ports: {names}')


def _row(source: DiscoverSettings, name: str, found: _Found, pod: Pod | None, *, is_far: bool) -> ReplicaSettings:
    base_url = f"http://{found.host}:{found.port}/v1"
    row = completed(ReplicaSettings(name=name, kind=source.kind or "", base_url=base_url), source)
    update: dict[str, object] = {"backup_only": True} if is_far else {}
    weight = ((pod.metadata.labels if pod is not None else None) or {}).get(WEIGHT_LABEL, "")
    if re.fullmatch("[0-9]{1,9}", weight) and 1 <= int(weight) <= _WEIGHT_MAX:
        update["weight"] = int(weight)
    return row.model_copy(update=update)
