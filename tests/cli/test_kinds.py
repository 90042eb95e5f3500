"""The kind of a replica that was given as a URL alone: found by its own words, or not assumed."""

import asyncio
import json
from collections.abc import Mapping

import pytest

from gateway.cli.kinds import find_kind


def models(*owners: object) -> dict[str, object]:
    """A list of models."""
    return {"object": "list", "data": [{"id": f"m{at}", "owned_by": owner} for at, owner in enumerate(owners)]}


@pytest.mark.parametrize(
    ("documents", "kind"),
    [
        ({"/v1/models": models("vllm")}, "vllm"),
        ({"/v1/models": models("vllm", "vllm")}, "vllm"),  # a base model and its LoRA adapters
        ({"/v1/models": models("sglang")}, "sglang"),
        ({"/v1/models": models("llamacpp")}, "llamacpp"),
        ({"/v1/models": models("simulated")}, "simulated"),
        ({"/v1/models": models("library", "library"), "/api/version": {"version": "0.12.3"}}, "ollama"),
        ({"/v1/models": models("library", "me"), "/api/version": {"version": "0.12.3"}}, "ollama"),
        ({"/v1/models": models("org/name"), "/info": {"router": "text-generation-router"}}, "tgi"),
        ({"/v1/models": models("library")}, None),
        ({"/v1/models": models("openai"), "/version": {"version": "1"}}, None),  # LiteLLM, in front of anything
        ({"/v1/models": models("vllm", "sglang")}, None),  # a router over several engines
        ({"/v1/models": models("openai", "system")}, None),
        ({"/v1/models": models("ttft-gateway")}, None),
        ({"/v1/models": models(None)}, None),
        ({"/v1/models": models()}, None),
        ({"/v1/models": {"data": [3, "x"]}}, None),
        ({"/v1/models": []}, None),
        ({"/info": {"router": "text-generation-router"}}, None),  # a key is missing or wrong
        ({}, None),
    ],
    ids=str,
)
def test_a_server_is_known_by_its_own_words(documents: Mapping[str, object], kind: str | None) -> None:
    """Only a name that a server writes of itself is evidence."""
    assert asyncio.run(found("http://10.0.0.1:8000/v1", documents)) == kind


async def found(url: str, documents: Mapping[str, object]) -> str | None:
    """The kind of a server with these documents."""

    async def ask(path: str) -> bytes | None:
        return json.dumps(documents[path]).encode() if path in documents else None

    return await find_kind(url, ask)


def test_a_path_before_v1() -> None:
    """Behind a path of a proxy, documents of the server are asked below that path."""
    documents = {"/llm/v1/models": models("library"), "/llm/api/version": {"version": "0"}}
    assert asyncio.run(found("http://proxy/llm/v1", documents)) == "ollama"


@pytest.mark.parametrize(
    ("url", "kind"),
    [
        ("https://api.openai.com/v1", "openai"),
        ("https://eu.api.openai.com/v1", "openai"),
        ("https://api.openai.com.example/v1", None),
        ("https://my-api.openai.com.internal/v1", None),
        ("https://notapi.openai.com/v1", None),
        ("http+unix://%2Frun%2Fapi.openai.com/v1", None),
    ],
)
def test_openai_is_known_by_its_host(url: str, kind: str | None) -> None:
    """Its server is not asked, and no other host is taken for it."""
    assert asyncio.run(found(url, {})) == kind


@pytest.mark.parametrize("document", [b"", b"[" * 100_000, b"<html>", b'{"data":null}', b"\xff"])
def test_what_is_no_list_of_models(document: bytes) -> None:
    """Whatever a server sends, the start goes on."""

    async def ask(_path: str) -> bytes:
        return document

    assert asyncio.run(find_kind("http://h/v1", ask)) is None
