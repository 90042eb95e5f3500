"""The paths of Azure OpenAI, which name the model: clients made for Azure work with another host name. Pure.

Example: `/openai/deployments/llama-70b/chat/completions?api-version=2024-10-21` is `/v1/chat/completions` with
`"model": "llama-70b"`. The version is not read: the gateway has one form of each API.
"""

import re

from providers.base import Api

_APIS = {"chat/completions": Api.CHAT, "completions": Api.COMPLETIONS, "embeddings": Api.EMBEDDINGS}
_deployment = re.compile(rf"/openai/deployments/([^/].*?)/({'|'.join(_APIS)})").fullmatch


def deployment_of(path: str) -> tuple[Api, str] | None:
    """Return the API and the model of one of Azure's paths, None for any other path."""
    found = _deployment(path)
    return None if found is None else (_APIS[found[2]], found[1])
