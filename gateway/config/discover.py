"""The settings of sources of replicas, and of the cluster that some are in. Units: `_s` seconds."""

import re
from typing import Annotated
from urllib.parse import urlsplit

from pydantic import AfterValidator, Field, PlainValidator, WithJsonSchema

from gateway.config.section import Section
from gateway.config.values import HostName, Interval, Kind, Name, invalid_value

_LABEL = "[a-z0-9]([a-z0-9-]{0,61}[a-z0-9])?"
_SELECTOR_CHARS = r"[A-Za-z0-9_./=!, ()-]{1,500}"


def _service(value: str) -> str:
    if not re.fullmatch(rf"{_LABEL}(\.{_LABEL})?", value):
        example = ".".join(value.split(".")[:2]) if re.fullmatch(rf"({_LABEL}\.)+{_LABEL}", value) else "vllm.llm"
        raise invalid_value("a Service must be SERVICE, or SERVICE.NAMESPACE in another namespace", example)
    return value


def _pod_port(value: object) -> int | str:
    text = str(value)
    if isinstance(value, int | str) and not isinstance(value, bool):
        if re.fullmatch("[0-9]{1,5}", text) and 1 <= int(text) <= 65_535:
            return int(text)
        if re.fullmatch(_LABEL, text) and not text.isdecimal():
            return text
    raise invalid_value("a port must be a number from 1 to 65535, or a name in `ports` of the Service", "8000 or http")


def _selector(value: str) -> str:
    if not re.fullmatch(_SELECTOR_CHARS, value):
        raise invalid_value("it is not a label selector", "labels such as `app=vllm`, separated by commas")
    return value


def _api_url(value: str) -> str:
    example = "for example https://10.0.0.1:6443"
    try:
        url = urlsplit(value)
        host = url.hostname if url.port != 0 else None
    except ValueError:
        raise invalid_value("it is not a URL", example) from None
    if "@" in url.netloc:
        raise invalid_value("a URL with a user or password would appear in logs", "the token in `token_file`")
    if url.scheme not in ("http", "https") or not host or not re.fullmatch("[!-~]+", value):
        raise invalid_value("a URL must be http:// or https:// with a host", example)
    if url.query or url.fragment or value.endswith(("?", "#")):
        raise invalid_value("a URL must not contain ? or #", "the part before it")
    return value.rstrip("/")


PodPort = Annotated[
    int | str,
    PlainValidator(_pod_port),
    WithJsonSchema(
        {"oneOf": [{"type": "integer", "minimum": 1, "maximum": 65535}, {"type": "string", "minLength": 1}]}
    ),
]
"""Port of a pod, or the name of a port of its Service."""


class DiscoverSource(Section):
    """The settings of a source of replicas."""

    dns: HostName | None = Field(default=None, examples=["vllm.llm.svc.cluster.local"])
    """Name in DNS; each of its addresses is a replica."""
    endpointslices: Annotated[str, AfterValidator(_service)] | None = Field(default=None, examples=["vllm.llm"])
    """Service in Kubernetes, as SERVICE or SERVICE.NAMESPACE; each of its pods is a replica."""
    port: PodPort | None = Field(default=None, examples=["8000"])
    """Port of the replicas, with `endpointslices` also its name; required with `dns`."""
    pods: Annotated[str, AfterValidator(_selector)] | None = Field(default=None, examples=["lora.example/sql=loaded"])
    """Labels of the pods of `endpointslices` that are used, as a label selector; unset: all pods."""
    zone: Name | None = Field(default=None, examples=["${ZONE}"])
    """Zone of the gateway: with `endpointslices`, pods in other zones are `backup_only`; unset: zones do not matter."""
    file: str | None = Field(default=None, min_length=1, examples=["replicas.yaml"])
    """File with a list of replicas, instead of `dns`; relative to the configuration file."""
    every_s: Interval = 5.0
    """Time between two look-ups of `dns` or `file`."""
    kind: Kind | None = Field(default=None, examples=["vllm"])
    """Kind of the replicas; required with `dns` and `endpointslices`."""


class KubernetesSettings(Section):
    """The API of a Kubernetes cluster. File paths are relative to the configuration file."""

    url: Annotated[str, AfterValidator(_api_url)] | None = Field(default=None, examples=["https://10.0.0.1:6443"])
    """URL of the API server; unset: the server of the cluster that the gateway runs in."""
    token_file: str | None = Field(default=None, examples=["/run/secrets/kubernetes/token"])
    """File with a token, which is read for each request; unset: the token of the pod, with `url` none."""
    ca_file: str | None = Field(default=None, examples=["/run/secrets/kubernetes/ca.crt"])
    """Certificate authorities to trust, in PEM form; unset: the authorities of the pod, with `url` of the system."""
