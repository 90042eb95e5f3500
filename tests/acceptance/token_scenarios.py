"""A gateway with tokens that end, in real time: a program issues them, and a simulated cloud accepts no other.

The program is a shell script that prints an ExecCredential. Files beside it make it fail, wait or print garbage. Units:
seconds.
"""

import asyncio
import json
import time
from collections import Counter
from pathlib import Path
from typing import Final, NamedTuple

from cloud_servers import Cloud, clouds, row, sent
from gateway.process_events import CredentialChanged
from gateway_fixture import fronting
from raw_http import request_bytes

PER_S: Final = 20.0
_PROGRAM: Final = """#!/bin/sh
cd "$(dirname "$0")"
[ -e down ] && exit 3
[ -e slow ] && sleep 5
now=$(date +%s%N)
end=$(date -u -d "+{lifetime} seconds" +%Y-%m-%dT%H:%M:%SZ)
[ -e garbage ] && echo "token sk-$now is garbage" && exit 0
printf '{{"kind": "ExecCredential", "status": {{"token": "sk-%s", "expirationTimestamp": "%s"}}}}' "$now" "$end"
"""


class Tokens(NamedTuple):
    """What the clients and the cloud got.

    Attributes:
        statuses: number of responses by status.
        rejected: requests that the cloud rejected, because their token was not valid.
        issued: different tokens that the cloud has accepted.
        told: errors of the events about tokens.
        locked: reason for which the replica was out in the end, None if it was in use.
        leaks: number of outputs with a token.
    """

    statuses: Counter[int]
    rejected: int
    issued: int
    told: list[str | None]
    locked: str | None
    leaks: int


async def tokens(folder: Path, *, lifetime_s: int, for_s: float, trouble: str = "", trouble_s: float = 10.0) -> Tokens:
    """Offer 20 requests a second to one replica at Vertex AI.

    Args:
        folder: for the program.
        lifetime_s: lifetime of the tokens.
        for_s: length.
        trouble: "down", "slow" or "garbage" from the third second on.
        trouble_s: length of the trouble.
    """
    program = folder / "issue-token"
    program.write_text(_PROGRAM.format(lifetime=lifetime_s), encoding="utf-8")
    program.chmod(0o700)
    accepted: set[str] = set()

    def accepts(value: str | None) -> bool:
        number = (value or "").removeprefix("sk-")
        is_valid = number.isdecimal() and time.time_ns() - int(number) < (lifetime_s + 1) * 1_000_000_000
        accepted.update({number} if is_valid else ())
        return is_valid

    async with clouds() as found:
        cloud: Cloud = found["vertex"]
        cloud.accepts = accepts
        own = {"vertex": row(cloud, credential={"source": "command", "command": [str(program)]})}
        async with fronting({"vertex": cloud.root}, own=own, allow_anonymous=True) as site:
            statuses: Counter[int] = Counter()
            async with asyncio.TaskGroup() as tasks:
                if trouble:
                    tasks.create_task(_trouble(folder / trouble, trouble_s))
                for _ in range(round(for_s * PER_S)):
                    tasks.create_task(_ask(site.port, statuses))
                    await asyncio.sleep(1 / PER_S)
            gateway = site.gateway
            assert gateway is not None
            described = json.dumps(await gateway.view.describe("m", (0.5,)), default=str)
            told = [event.error for event in site.events if isinstance(event, CredentialChanged)]
            leaks = sum(f"sk-{number}" in described + repr(site.events) for number in accepted)
            locked = gateway.in_force.topology.replicas["m", "vertex"].locked
    return Tokens(statuses, cloud.rejected, len(accepted), told, locked, leaks)


async def _trouble(file: Path, for_s: float) -> None:
    await asyncio.sleep(3.0)
    await asyncio.to_thread(file.touch)
    await asyncio.sleep(for_s)
    await asyncio.to_thread(file.unlink)


async def _ask(port: int, statuses: Counter[int]) -> None:
    body = {"model": "m", "max_tokens": 16, "stream": True, "messages": [{"role": "user", "content": "hi"}]}
    status, _, raw = await sent(port, request_bytes(json.dumps(body).encode(), "/v1/messages"))
    statuses[status if raw.rstrip().endswith(b'{"type": "message_stop"}') or status != 200 else 0] += 1
