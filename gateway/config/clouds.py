"""Derives the base URLs of replicas at clouds from their settings, and checks written ones against the model.

Changes the raw data of the file before it is validated, as secrets are read: after that, every replica has a base URL.
The addresses are in ttft_gateway/apis/clouds.py. Pure.
"""

import re
from collections.abc import Iterator
from typing import Annotated, Final

from pydantic import AfterValidator

from gateway.config.document import Finding, Loc, RawMapping
from gateway.config.values import invalid_value
from ttft_gateway.apis.catalog import CATALOG
from ttft_gateway.apis.clouds import Place, RouteFault, base_url_of, route_fault

_is_part = re.compile(r"[A-Za-z0-9][A-Za-z0-9.:-]{0,62}").fullmatch  # of a host name or a path
_EXAMPLES: Final = {"region": "us-east-1", "project": "my-project", "resource": "my-resource"}
_UNUSED: Final = "https://placeholder.invalid/v1"  # base URL of a replica that is reported for another reason


def _part(value: str) -> str:
    if _is_part(value) is None:
        raise invalid_value("it is not a name of at most 63 letters, digits, dots, colons and hyphens")
    return value


PlacePart = Annotated[str, AfterValidator(_part)]
"""A region, project or resource."""


def take_address(replica: RawMapping, at: Loc, public_name: object) -> list[Finding]:
    """Set the base URL of a replica at a cloud, or check the written one; return the problems.

    Args:
        replica: raw settings of the replica.
        at: path of the replica.
        public_name: name of its model, which is the replica's name of the model unless that is set.
    """
    kind, model = replica.get("kind"), replica.get("model", public_name)
    if not isinstance(kind, str) or kind not in CATALOG:
        return []
    needed = CATALOG[kind].place
    findings = [
        ((*at, name), f"only {_kinds_with(name)} `{name}`; remove this line")
        for name in _EXAMPLES
        if name in replica and name not in needed and not (name == "region" and "credential" in replica)
    ]
    if not needed and "base_url" not in replica and (usual := CATALOG[kind].base_url):
        return [*findings, ((*at, "base_url"), f"this setting is missing; write `base_url: {usual}`")]
    if not needed or not isinstance(model, str):
        return findings
    if "base_url" in replica:
        url = replica["base_url"]
        fault = route_fault(kind, url, model) if isinstance(url, str) else None
        return findings if fault is None else [*findings, ((*at, "base_url"), fault)]
    missing = [name for name in needed if name not in replica]
    replica["base_url"] = _UNUSED
    found = [*findings, *(((*at, name), _missing(name)) for name in missing)]
    return [*found, *_derive(replica, at, kind, model)]


def _derive(replica: RawMapping, at: Loc, kind: str, model: str) -> Iterator[Finding]:
    place = {name: value for name in _EXAMPLES if isinstance(value := replica.get(name), str)}
    if not all(map(_is_part, place.values())):
        return  # the values are reported where they are validated
    try:
        url = base_url_of(kind, Place(**place), model)
    except RouteFault as fault:
        yield (*at, "model" if "model" in replica else "kind"), fault.text
    else:
        replica["base_url"] = url or _UNUSED


def _missing(name: str) -> str:
    return f"this setting is missing; write `{name}: {_EXAMPLES[name]}`, or the whole address in `base_url`"


def _kinds_with(name: str) -> str:
    kinds = [kind for kind, row in CATALOG.items() if name in row.place]
    return f"kinds {' and '.join(kinds)} use" if kinds[1:] else f"kind {kinds[0]} uses"
