"""The kinds of replicas as values of a setting, and their facts that rules between settings need. No units."""

from typing import Annotated

from pydantic import AfterValidator, WithJsonSchema

from gateway.config.values import invalid_value
from ttft_gateway.apis.catalog import CATALOG


def _kind(value: str) -> str:
    if value not in CATALOG:
        raise invalid_value("it is not a supported kind", "one of " + ", ".join(sorted(CATALOG)))
    return value


Kind = Annotated[str, AfterValidator(_kind), WithJsonSchema({"type": "string", "enum": sorted(CATALOG)})]


def headers_of_kind(kind: str) -> list[str]:
    """Return the names of the headers that every request to a kind has; none for an unknown kind."""
    return [name.decode() for name, _ in CATALOG[kind].headers] if kind in CATALOG else []
