"""Races of streams in the Messages and Responses APIs; test_races.py has the races of chat completions.

scripts/sdk-matrix runs the same through the SDKs.
"""

from typing import Any

import pytest

import client_fixtures
from client_dialects import DIALECTS
from client_kits import KITS, PROMPT, Session
from client_replicas import SILENT, Replicas, ScriptedReplica
from ttft_gateway import StatsSnapshot

site = client_fixtures.site

BODIES: dict[str, tuple[str, dict[str, Any]]] = {
    "messages": ("/messages", {"model": "m", "max_tokens": 8, "messages": PROMPT, "stream": True}),
    "responses": ("/responses", {"model": "m", "input": "hello", "store": False, "stream": True}),
}

pytestmark = pytest.mark.parametrize("api", BODIES)


def _stream(api: str, replica: ScriptedReplica) -> tuple[bytes, StatsSnapshot]:
    """Stream one answer, which is late as soon as it has reached the replica; return its body and the counts."""
    path, body = BODIES[api]

    def work(session: Session) -> tuple[bytes, StatsSnapshot]:
        session.transport.hedger.clock = lambda: 1.0 if replica.seen else 0.0
        content: bytes = session.send("POST", replica.url + path, json=body).content
        return content, session.transport.stats.snapshot()

    found: tuple[bytes, StatsSnapshot] = KITS["httpx"].run(work)
    return found


@pytest.mark.parametrize("behaviour", SILENT)
def test_a_primary_without_content_loses_and_is_closed(api: str, site: Replicas, behaviour: str) -> None:
    """Events before the content, pings among them, do not win."""
    replica = site.add(behaviour, "quick", answers=DIALECTS[api])
    content, counts = _stream(api, replica)
    assert (b'"Hel"' in content, b'"lo"' in content, counts.hedge_wins) == (True, True, 1)
    assert replica.seen[0].closed.wait()


@pytest.mark.parametrize("behaviour", ["only_done", "error_event", "error_500", "dies"])
def test_a_failure_never_wins(api: str, site: Replicas, behaviour: str) -> None:
    """An attempt that fails leaves the race to the other one."""
    replica = site.add(f"late:{behaviour}", "patient:quick", answers=DIALECTS[api])
    content, counts = _stream(api, replica)
    assert (b'"Hel"' in content, b'"lo"' in content, counts.hedge_wins) == (True, True, 1)
