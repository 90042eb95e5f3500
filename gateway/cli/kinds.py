"""Finds the kinds of replicas that are given as URLs alone (`serve --replica URL` without `--kind`).

OpenAI is known by its host. Another server is asked: engines name themselves in `owned_by` of their list of models, TGI
in /info, Ollama by a version at a path of its own. A proxy copies OpenAI's form, so `owned_by: openai` is no evidence.
A server that cannot be identified is `compatible`: no fact of billing is assumed for it. Units: seconds.
"""

import asyncio
import json
import sys
from collections import defaultdict
from collections.abc import Awaitable, Callable, Mapping
from typing import Final
from urllib.parse import urlsplit

from gateway.cli.event_loop import new_loop
from gateway.cli.fetch import fetch
from gateway.cli.terminal import warn
from gateway.config.settings import ModelSettings, ReplicaSettings, Settings
from gateway.server.upstreams import client_to, origin_of, upstream_headers

UNKNOWN: Final = "compatible"

_OPENAI_HOST: Final = "api.openai.com"  # and its regions, such as eu.api.openai.com
_ASK_S_MAX: Final = 2.0  # for all requests to a replica; the start waits for it
_AT_ONCE_MAX: Final = 50
_ENGINES: Final = frozenset({"vllm", "sglang", "llamacpp", "simulated"})  # each writes its own name
_OLLAMA_OWNER: Final = "library"  # of models from its public registry
_TGI_ROUTER: Final = "text-generation-router"

Ask = Callable[[str], Awaitable[bytes | None]]
"""Requests a path below the API's root, such as "/v1/models"; None unless the status is 200."""


def detect_kinds(settings: Settings) -> Settings:
    """Return settings with the kind of each replica of the only model, and print the kinds with their source."""
    [model] = settings.models
    with asyncio.Runner(loop_factory=new_loop) as runner:
        kinds = runner.run(_kinds(model))
    known: dict[str, list[str]] = defaultdict(list)
    for replica, kind in zip(model.replicas, kinds, strict=True):
        if kind is None:
            warn(
                f"the kind of {replica.name} is unknown (GET {replica.base_url}/models names none), so {UNKNOWN} is "
                "assumed, which gets no hedges; write --kind vllm, or another kind of docs/providers.md"
            )
        else:
            known[kind].append(replica.name)
    for kind, names in known.items():
        print(f"kind {kind} was found for {', '.join(names)}; write --kind to set another", file=sys.stderr)
    replicas = tuple(
        replica.model_copy(update={"kind": kind or UNKNOWN})
        for replica, kind in zip(model.replicas, kinds, strict=True)
    )
    return settings.model_copy(update={"models": (model.model_copy(update={"replicas": replicas}),)})


async def find_kind(base_url: str, ask: Ask) -> str | None:
    """Return the kind of the server at a URL; None if it cannot be identified."""
    host = urlsplit(base_url).hostname or ""
    if host == _OPENAI_HOST or host.endswith(f".{_OPENAI_HOST}"):
        return "openai"
    path = urlsplit(base_url).path
    root = path.removesuffix("/v1")
    owners = _owners(await ask(f"{path}/models"))
    if owners is None:
        return None
    if len(owners) == 1 and owners <= _ENGINES:
        return owners.pop()
    if _OLLAMA_OWNER in owners and isinstance(_field(await ask(f"{root}/api/version"), "version"), str):
        return "ollama"
    return "tgi" if _field(await ask(f"{root}/info"), "router") == _TGI_ROUTER else None


def _owners(document: bytes | None) -> set[str] | None:
    """Return the owners of the listed models; None if the document is no such list."""
    models = _field(document, "data")
    if not isinstance(models, list):
        return None
    return {str(model.get("owned_by")) for model in models if isinstance(model, Mapping)}


def _field(document: bytes | None, name: str) -> object:
    try:
        value = json.loads(document or b"")
    except (ValueError, RecursionError):
        return None
    return value.get(name) if isinstance(value, dict) else None


async def _kinds(model: ModelSettings) -> list[str | None]:
    slots = asyncio.Semaphore(_AT_ONCE_MAX)

    async def one(replica: ReplicaSettings) -> str | None:
        client, headers = client_to(origin_of(replica, _ASK_S_MAX), tasks), upstream_headers(replica, model.name)
        try:
            async with slots, asyncio.timeout(_ASK_S_MAX):
                return await find_kind(replica.base_url, lambda path: fetch(client, path, headers))
        except TimeoutError:
            return None
        finally:
            client.close()

    async with asyncio.TaskGroup() as tasks:
        running = [tasks.create_task(one(replica)) for replica in model.replicas]
    return [task.result() for task in running]
