"""Compares the requests of Anthropic's own SDK classes for three clouds with the gateway's, field by field.

Both send a stream and a whole request to the same simulated servers (tests/support/cloud_servers.py), which also check
them. A program, not a test: the SDK has an environment of its own below build/sdk-matrix. Prints a line for each
request; exits with 1 if a field differs.
"""

import asyncio
import json
import subprocess
import sys
from collections.abc import Mapping
from typing import Any

from checks import Sdk
from clients import HERE, environment
from cloud_servers import MODELS, PROJECT, REGION, Cloud, clouds, row, sent
from gateway_fixture import fronting
from raw_http import request_bytes

_SDK = Sdk("anthropic, clouds", "client_clouds.py", ("anthropic[bedrock,vertex]==2.14.0",))
_REQUEST: Mapping[str, Any] = {
    "max_tokens": 64,
    "system": "Be brief.",
    "messages": [{"role": "user", "content": "hello"}],
    "metadata": {"user_id": "u1"},
    "tools": [{"name": "f", "description": "d", "input_schema": {"type": "object", "properties": {}}}],
}
# what an HTTP client decides, and what describes the SDK
_OWN = frozenset({"host", "user-agent", "accept", "accept-encoding", "connection", "content-length"})

Fields = tuple[str, dict[str, str], dict[str, Any]]


def compared(request: Fields) -> Fields:
    """Return the fields of a request that must be equal; the gateway requests a stream for whole answers, too."""
    path, headers, body = request
    path = path.replace(":streamRawPredict", ":rawPredict")
    kept = {name: value for name, value in headers.items() if name not in _OWN and not name.startswith("x-stainless")}
    kept.pop("api-key", None)  # the SDK sends a key of Foundry twice, "for backwards compatibility"
    return path, kept, {key: value for key, value in body.items() if key != "stream"}


async def by_sdk(found: dict[str, Cloud]) -> None:
    """Send the requests with the SDK."""
    named = {name: name for name in ("bedrock", "vertex", "foundry")} | {"foundry-entra": "foundry"}
    given = {
        "clouds": {each: [found[name].host, found[name].token, MODELS[name]] for each, name in named.items()},
        "region": REGION,
        "project": PROJECT,
        "request": _REQUEST,
    }
    python = environment(_SDK) / "bin" / "python"
    program = await asyncio.create_subprocess_exec(python, HERE / "client_clouds.py", json.dumps(given))
    if await program.wait():
        raise subprocess.CalledProcessError(program.returncode or 1, "client_clouds.py")


async def by_gateway(found: dict[str, Cloud]) -> None:
    """Send the requests through the gateway."""
    own = {name: row(found[name]) for name in ("bedrock", "vertex", "foundry")}
    own["foundry-entra"] = row(found["foundry"], auth="bearer", name="foundry-entra")
    for name, settings in own.items():
        pool = {name: str(settings["base_url"])}
        async with fronting(pool, own={name: settings}, allow_anonymous=True) as site:
            for stream in ({"stream": True}, {}):
                body = json.dumps({"model": "m", **_REQUEST, **stream}).encode()
                status, _, raw = await sent(site.port, request_bytes(body, "/v1/messages"))
                assert status == 200, raw


async def main() -> int:
    """Send everything; return the exit code."""
    async with clouds() as found:
        await by_sdk(found)
        sdk = {name: [compared(each) for each in cloud.seen] for name, cloud in found.items()}
        for cloud in found.values():
            cloud.seen.clear()
        await by_gateway(found)
        gateway = {name: [compared(each) for each in cloud.seen] for name, cloud in found.items()}
        faults = [fault for cloud in found.values() for fault in cloud.faults]
    differences = 0
    for name in ("bedrock", "vertex", "foundry"):
        for theirs, ours in zip(sdk[name], gateway[name], strict=True):
            differences += theirs != ours
            fields = len(theirs[1]) + len(theirs[2]) + 1
            print(f"{name} {theirs[0]}: {'equal' if theirs == ours else f'{theirs} != {ours}'} in {fields} fields")
    print(f"{differences} requests differ, {len(faults)} failed a check {faults}")
    return 1 if differences or faults else 0


if __name__ == "__main__":
    sys.exit(asyncio.run(main()))
