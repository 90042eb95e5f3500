"""Turns entries of LiteLLM for Bedrock, Vertex AI, Azure AI Foundry, and Azure with Entra into replicas at clouds.

The parameters: docs.litellm.ai/docs/providers, pages bedrock, vertex, azure_ai and azure (read on 28 November 2026).
LiteLLM logs in with the packages of the clouds, and so does `credential` here: literal secrets become variables that
these packages read themselves. No units.
"""

import re
from collections.abc import Callable, Mapping
from typing import Final
from urllib.parse import urlsplit

from gateway.cli.importing.endpoints import base_url_fault
from gateway.cli.importing.report import Report, reference
from gateway.config.document import Loc
from ttft_gateway.apis.clouds import Place, RouteFault, base_url_of

Json = dict[str, object]

_REGION_PART = re.compile(r"([a-z]{2}(?:-[a-z]+)+-\d)/(.+)")
_ROUTE_PART = re.compile(r"(?:converse_like|converse|invoke|responses|mantle)/(.+)")
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9.:-]{0,62}")
_FOUNDRY_HOST = re.compile(r"([A-Za-z0-9-]{1,63})\.services\.ai\.azure\.com")

_AWS_VARIABLES: Final = {
    "aws_access_key_id": "AWS_ACCESS_KEY_ID",
    "aws_secret_access_key": "AWS_SECRET_ACCESS_KEY",
    "aws_session_token": "AWS_SESSION_TOKEN",
}
_ENTRA_VARIABLES: Final = {
    "tenant_id": "AZURE_TENANT_ID",
    "client_id": "AZURE_CLIENT_ID",
    "client_secret": "AZURE_CLIENT_SECRET",
}
_ROLE: Final = ("aws_role_name", "aws_web_identity_token", "aws_sts_endpoint", "aws_external_id")
_ENTRA_OTHERS: Final = ("azure_username", "azure_password", "azure_scope")
READ: Final = frozenset(
    {
        *_AWS_VARIABLES,
        *_ENTRA_VARIABLES,
        *_ROLE,
        *_ENTRA_OTHERS,
        "aws_region_name",
        "aws_profile_name",
        "aws_session_name",
        "aws_bedrock_runtime_endpoint",
        "azure_ad_token",
        "vertex_project",
        "vertex_location",
        "vertex_credentials",
    }
)
"""Parameters that are read, or reported with a reason of their own."""


def cloud_replica(name: str, model: str, params: Mapping[str, object], at: Loc, report: Report) -> Json | None:
    """Return the address, the model and the login of a replica; None if it cannot be one, with the reason reported.

    Args:
        name: LiteLLM's provider, one of `CLOUDS`.
        model: LiteLLM's name for the model, without the provider.
        params: `litellm_params` of the entry.
        at: path of the parameters.
        report: receives the findings.
    """
    replica = CLOUDS[name](model, params, at, report)
    if replica is None:
        return None
    place = Place(*(_known(replica.get(part)) for part in ("region", "project", "resource")))
    try:
        base_url_of(str(replica["kind"]), place, str(replica["model"]))
    except RouteFault as fault:
        report.skip((*at, "model"), fault.text)
        return None
    return replica


def has_entra(params: Mapping[str, object]) -> bool:
    """Return True if an entry logs in with Microsoft Entra."""
    return any(params.get(each) is not None for each in (*_ENTRA_VARIABLES, *_ENTRA_OTHERS, "azure_ad_token"))


def entra(params: Mapping[str, object], at: Loc, report: Report) -> str:
    """Report the parts of an Entra login, and return the source of tokens."""
    for each, variable in _ENTRA_VARIABLES.items():
        _to_variable(params, each, variable, "azure", at, report)
    for each in _ENTRA_OTHERS:
        if params.get(each) is not None:
            report.skip((*at, each), "azure-identity's default chain has no such login; use a service principal")
    if params.get("azure_ad_token") is not None:
        report.add((*at, "azure_ad_token"), "is not copied, because tokens end; `credential: azure` renews them")
    return "azure"


def _bedrock(model: str, params: Mapping[str, object], at: Loc, report: Report) -> Json | None:
    region = _value(params.get("aws_region_name"), "region", report)
    if match := _REGION_PART.fullmatch(model):
        region, model = region or match[1], match[2]
    if match := _ROUTE_PART.fullmatch(model):
        model = match[1]
        report.add(
            (*at, "model"), "is requested in the API of its route, Messages or chat completions, not over Converse"
        )
    if region is None:
        report.add(at, "has no `aws_region_name`; the region is read from $AWS_REGION_NAME, as by LiteLLM")
        region = report.variable("AWS_REGION_NAME", "region")
    replica: Json = {"kind": "bedrock", "region": region, "model": model}
    for each in ("aws_bedrock_runtime_endpoint", "api_base", "base_url"):
        if params.get(each) is not None:
            report.skip((*at, each), "the address is derived; for another one write `base_url` with the route")
    _aws_login(replica, params, at, report)
    return replica


def _aws_login(replica: Json, params: Mapping[str, object], at: Loc, report: Report) -> None:
    if params.get("api_key") is not None:
        replica["api_key"] = report.secret(str(params["api_key"]), (*at, "api_key"), "AWS_BEARER_TOKEN_BEDROCK")
        return
    profile = params.get("aws_profile_name")
    is_named = isinstance(profile, str) and _NAME.fullmatch(profile) is not None
    replica["credential"] = {"source": "aws", "profile": profile} if is_named else "aws"
    for each, variable in _AWS_VARIABLES.items():
        _to_variable(params, each, variable, "aws", at, report)
    for each in _ROLE:
        if params.get(each) is not None:
            report.skip((*at, each), "write the role into a profile of the AWS configuration, and name it in `profile`")
    if params.get("aws_session_name") is not None:
        report.idle((*at, "aws_session_name"), "it names the session of a role, which the profile does")


def _vertex(model: str, params: Mapping[str, object], at: Loc, report: Report) -> Json | None:
    if model.startswith("gemini"):
        model = f"google/{model}"
    elif not model.startswith("claude-") and "/" not in model:
        report.skip((*at, "model"), "its publisher is not known; write the entry here with `model: PUBLISHER/NAME`")
        return None
    replica: Json = {"kind": "vertex"}
    for each, field, variable in (
        ("vertex_location", "region", "VERTEXAI_LOCATION"),
        ("vertex_project", "project", "VERTEXAI_PROJECT"),
    ):
        value = _value(params.get(each), field, report)
        if value is None:
            report.add(at, f"has no `{each}`; it is read from ${variable}, as by LiteLLM")
            value = report.variable(variable, field)
        replica[field] = value
    if params.get("vertex_credentials") is not None:
        text = "is not copied: set GOOGLE_APPLICATION_CREDENTIALS to the file with it, which `credential: google` reads"
        report.add((*at, "vertex_credentials"), text)
    for each in ("api_base", "base_url", "api_key"):
        if params.get(each) is not None:
            report.skip((*at, each), "the address is derived, and the login is Google's")
    return {**replica, "model": model, "credential": "google"}


def _foundry(model: str, params: Mapping[str, object], at: Loc, report: Report) -> Json | None:
    given = params.get("api_base", params.get("base_url"))
    replica: Json = {"kind": "foundry"}
    host = urlsplit(given).hostname or "" if isinstance(given, str) and base_url_fault(given) is None else ""
    if match := _FOUNDRY_HOST.fullmatch(host):
        replica["resource"] = match[1]
    else:
        text = "has no resource at services.ai.azure.com; set AZURE_AI_RESOURCE to its name"
        report.add((*at, "api_base"), text)
        replica["resource"] = report.variable("AZURE_AI_RESOURCE", "resource")
    replica["model"] = model
    if has_entra(params):
        replica["credential"] = entra(params, at, report)
    elif isinstance(params.get("api_key"), str) and params["api_key"]:
        replica["api_key"] = report.secret(str(params["api_key"]), (*at, "api_key"), "AZURE_AI_API_KEY")
    else:
        report.add(at, "has no `api_key`; the key is read from $AZURE_AI_API_KEY, as by LiteLLM")
        replica["api_key"] = report.variable("AZURE_AI_API_KEY")
    return replica


CLOUDS: Final[Mapping[str, Callable[[str, Mapping[str, object], Loc, Report], Json | None]]] = {
    "bedrock": _bedrock,
    "bedrock_converse": _bedrock,
    "bedrock_mantle": _bedrock,
    "vertex_ai": _vertex,
    "vertex_ai_beta": _vertex,
    "azure_ai": _foundry,
}
"""LiteLLM's providers at clouds."""


def _value(given: object, purpose: str, report: Report) -> str | None:
    """Return a name, or the reference to its variable; None if there is none."""
    if (variable := reference(given)) is not None:
        return report.variable(variable, purpose)
    return given if isinstance(given, str) and _NAME.fullmatch(given) else None


def _known(value: object) -> str | None:
    """Return a value for the check of the route; a variable has any value."""
    return None if value is None else "x" if str(value).startswith("${") else str(value)


def _to_variable(params: Mapping[str, object], name: str, variable: str, source: str, at: Loc, report: Report) -> None:
    if params.get(name) is not None and reference(params[name]) != variable:
        report.add((*at, name), f"is not copied: set ${variable} to it, which `credential: {source}` reads")
