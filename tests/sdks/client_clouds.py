"""Sends requests with Anthropic's own classes for Bedrock, Vertex AI and Foundry; runs in an environment with the SDK.

Arguments: a URL of each cloud's server, and its token, as JSON. The API version is the gateway's: the SDK sends a newer
one, which not every model at a cloud accepts.
"""

import json
import sys
from typing import Any

import anthropic

VERSION = {"anthropic-version": "2023-06-01"}


def client_of(name: str, url: str, token: str, region: str, project: str) -> Any:
    """Return the SDK's client for a cloud."""
    if name == "bedrock":
        return anthropic.AnthropicBedrockMantle(
            aws_region=region, api_key=token, base_url=f"{url}/anthropic", default_headers=VERSION
        )
    if name == "vertex":
        return anthropic.AnthropicVertex(region=region, project_id=project, access_token=token, base_url=f"{url}/v1")
    if name == "foundry-entra":
        return anthropic.AnthropicFoundry(
            azure_ad_token_provider=lambda: token, base_url=f"{url}/anthropic/", default_headers=VERSION
        )
    return anthropic.AnthropicFoundry(api_key=token, base_url=f"{url}/anthropic/", default_headers=VERSION)


def main() -> None:
    """Send a stream and a whole request to each cloud."""
    given = json.loads(sys.argv[1])
    for name, (url, token, model) in given["clouds"].items():
        client = client_of(name, url, token, given["region"], given["project"])
        more = {"extra_body": {"anthropic_version": "vertex-2023-10-16"}} if name == "vertex" else {}
        with client.messages.create(model=model, stream=True, **given["request"], **more) as stream:
            kinds = [event.type for event in stream]
        assert kinds[-1] == "message_stop", kinds
        message = client.messages.create(model=model, **given["request"], **more)
        assert message.stop_reason == "end_turn", message


if __name__ == "__main__":
    main()
