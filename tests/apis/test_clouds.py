"""Addresses of models at clouds: the route is chosen by the model, and the facts of a replica follow its route."""

import pytest

from ttft_gateway.apis.base import Api
from ttft_gateway.apis.catalog import CATALOG, Auth
from ttft_gateway.apis.clouds import Place, RouteFault, base_url_of, kind_at, route_fault

AWS = Place(region="eu-west-1")
GOOGLE = Place(region="europe-west1", project="p")
MICROSOFT = Place(resource="res")
MANTLE, RUNTIME = "https://bedrock-mantle.eu-west-1.api.aws", "https://bedrock-runtime.eu-west-1.amazonaws.com"
VERTEX = "https://europe-west1-aiplatform.googleapis.com/v1/projects/p/locations/europe-west1"
FOUNDRY = "https://res.services.ai.azure.com"


@pytest.mark.parametrize(
    ("kind", "place", "model", "url", "apis"),
    [
        ("bedrock", AWS, "anthropic.claude-opus-4-8", f"{MANTLE}/anthropic/v1", {Api.MESSAGES}),
        ("bedrock", AWS, "eu.anthropic.claude-opus-4-8", f"{RUNTIME}/anthropic/v1", {Api.MESSAGES}),
        ("bedrock", AWS, "global.anthropic.claude-haiku-4-5-20251001-v1:0", f"{RUNTIME}/anthropic/v1", {Api.MESSAGES}),
        ("bedrock", AWS, "us-gov.anthropic.claude-opus-4-8", f"{RUNTIME}/anthropic/v1", {Api.MESSAGES}),
        ("bedrock", AWS, "anthropic.claude-opus-4-6-v1", f"{RUNTIME}/anthropic/v1", {Api.MESSAGES}),
        ("bedrock", AWS, "openai.gpt-oss-120b-1:0", f"{RUNTIME}/openai/v1", {Api.CHAT}),
        ("bedrock", AWS, "openai.gpt-oss-120b", f"{MANTLE}/v1", {Api.CHAT}),
        ("bedrock", AWS, "openai.gpt-5.6-terra", f"{MANTLE}/openai/v1", {Api.RESPONSES}),
        ("bedrock", AWS, "openai.gpt-6-astra", f"{MANTLE}/openai/v1", {Api.CHAT, Api.RESPONSES}),
        ("bedrock", AWS, "global.openai.gpt-6-sol", f"{RUNTIME}/openai/v1", {Api.CHAT, Api.RESPONSES}),
        ("bedrock", AWS, "xai.grok-4.3", f"{MANTLE}/openai/v1", {Api.CHAT}),
        ("bedrock", AWS, "google.gemma-4-31b", f"{MANTLE}/openai/v1", {Api.CHAT}),
        ("bedrock", AWS, "google.gemma-3-27b-it", f"{MANTLE}/v1", {Api.CHAT}),
        ("bedrock", AWS, "nvidia.nemotron-nano-9b-v2", f"{MANTLE}/v1", {Api.CHAT}),
        ("bedrock", AWS, "qwen.qwen3-coder-480b-a35b-v1:0", f"{RUNTIME}/openai/v1", {Api.CHAT}),
        ("vertex", GOOGLE, "claude-sonnet-4-5@20250929", f"{VERTEX}/publishers/anthropic", {Api.MESSAGES}),
        ("vertex", GOOGLE, "google/gemini-3-flash", f"{VERTEX}/endpoints/openapi", {Api.CHAT}),
        (
            "vertex",
            Place(region="global", project="p"),
            "claude-opus-4-8",
            "https://aiplatform.googleapis.com/v1/projects/p/locations/global/publishers/anthropic",
            {Api.MESSAGES},
        ),
        (
            "vertex",
            Place(region="eu", project="p"),
            "claude-opus-4-8",
            "https://aiplatform.eu.rep.googleapis.com/v1/projects/p/locations/eu/publishers/anthropic",
            {Api.MESSAGES},
        ),
        ("foundry", MICROSOFT, "claude-opus-4-8", f"{FOUNDRY}/anthropic/v1", {Api.MESSAGES}),
        ("foundry", MICROSOFT, "gpt-5", f"{FOUNDRY}/openai/v1", {Api.CHAT, Api.RESPONSES, Api.EMBEDDINGS}),
        ("azure", MICROSOFT, "my-gpt", "https://res.openai.azure.com/openai/v1", CATALOG["azure"].apis),
    ],
)
def test_the_model_chooses_the_route(kind: str, place: Place, model: str, url: str, apis: set[Api]) -> None:
    """Each model has one derived address, which passes the check of written ones; its APIs follow from the address."""
    assert base_url_of(kind, place, model) == url
    assert kind_at(kind, url, model).apis == apis
    assert route_fault(kind, url, model) is None


@pytest.mark.parametrize(
    ("kind", "place", "model", "text"),
    [
        ("bedrock", AWS, "amazon.nova-pro-v1:0", "over Converse and Invoke only"),
        ("bedrock", AWS, "us.meta.llama3-3-70b-instruct-v1:0", "over Converse and Invoke only"),
        ("bedrock", AWS, "claude-opus-4-8", "is not the name of a model at Bedrock"),
        ("bedrock", AWS, "arn:aws:bedrock:eu-west-1:1:application-inference-profile/x", "write `base_url`"),
        ("vertex", GOOGLE, "gemini-3-flash", "write google/gemini-3-flash"),
        ("vertex", GOOGLE, "anthropic/claude-opus-4-8", "write claude-opus-4-8"),
    ],
)
def test_a_model_without_a_route_is_a_fault(kind: str, place: Place, model: str, text: str) -> None:
    """A model that no route serves has no address, and the error states the reason."""
    with pytest.raises(RouteFault, match=text):
        base_url_of(kind, place, model)


@pytest.mark.parametrize(
    ("kind", "url", "model", "text"),
    [
        ("bedrock", f"{MANTLE}/anthropic/v1", "us.anthropic.claude-opus-4-8", "write the name without them"),
        ("bedrock", f"{MANTLE}/v1", "anthropic.claude-opus-4-8", "does not serve anthropic.claude-opus-4-8"),
        ("bedrock", f"{MANTLE}/v1", "xai.grok-4.3", r"use https://bedrock-mantle.REGION.api.aws/openai/v1"),
        ("bedrock", f"{MANTLE}/openai/v1", "openai.gpt-oss-120b", r"use https://bedrock-mantle.REGION.api.aws/v1"),
        ("bedrock", f"{RUNTIME}/openai/v1", "us.anthropic.claude-opus-4-8", "does not serve"),
        ("bedrock", "https://vpce.internal/openai/v1", "amazon.nova-pro-v1:0", "over Converse and Invoke only"),
        ("vertex", f"{VERTEX}/endpoints/openapi", "claude-opus-4-8", "ends in /publishers/anthropic"),
        ("vertex", f"{VERTEX}/publishers/anthropic", "google/gemini-3-flash", "ends in /endpoints/openapi"),
        ("bedrock", f"{RUNTIME}/anthropic/v1", "anthropic.claude-opus-4-8", None),
        ("bedrock", f"{RUNTIME}/openai/v1", "openai.gpt-6-astra", None),
        ("bedrock", "https://vpce.internal/anthropic/v1", "anthropic.claude-opus-4-8", None),
        ("bedrock", f"{RUNTIME}/anthropic/v1", "arn:aws:bedrock:eu-west-1:1:application-inference-profile/x", None),
        ("foundry", f"{FOUNDRY}/anthropic/v1", "our-deployment", None),
    ],
)
def test_a_written_address_is_checked_against_the_model(kind: str, url: str, model: str, text: str | None) -> None:
    """A written route that does not serve the model is a fault; other hosts and names of deployments are accepted."""
    fault = route_fault(kind, url, model)
    assert (fault is None) == (text is None)
    assert text is None or text in str(fault)


def test_the_header_of_the_key_follows_the_route() -> None:
    """Claude's routes have the version as a header, or at Vertex in the body; Foundry takes a key in two headers."""
    claude = {kind: kind_at(kind, f"https://h{path}", "claude-x") for kind, path in _CLAUDE.items()}
    version = ((b"anthropic-version", b"2023-06-01"),)
    assert {kind: (facts.auth, facts.headers, facts.body_version) for kind, facts in claude.items()} == {
        "bedrock": (Auth.BEARER, version, None),
        "vertex": (Auth.BEARER, (), "vertex-2023-10-16"),
        "foundry": (Auth.X_API_KEY, version, None),
    }
    assert {facts.prefills for facts in claude.values()} == {CATALOG["anthropic"].prefills}  # recovery continues
    other = kind_at("foundry", f"{FOUNDRY}/openai/v1", "gpt-5")
    assert not other.prefills
    assert (other.auth, other.headers, other.limits) == (Auth.API_KEY, (), CATALOG["azure"].limits)


_CLAUDE = {"bedrock": "/anthropic/v1", "vertex": "/v1/publishers/anthropic", "foundry": "/anthropic/v1"}


def test_billing_at_clouds_is_unknown() -> None:
    """No source states what a cancelled request costs at a cloud, so that it is taken as billed."""
    assert {name: CATALOG[name].cancel_stops_billing for name in _CLAUDE} == dict.fromkeys(_CLAUDE)


def test_an_older_address_of_azure_has_no_responses() -> None:
    """Azure serves the Responses API below /openai/v1 only."""
    older = kind_at("azure", "https://res.openai.azure.com/openai/deployments/d", "d")
    assert CATALOG["azure"].apis - older.apis == {Api.RESPONSES}
