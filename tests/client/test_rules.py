"""The rules of hedging transports on sockets; test_aiohttp_rules.py has those for methods and first events."""

import asyncio
import subprocess
import sys
from typing import Any

import httpx
import pytest

import client_fixtures
from checkout import ROOT
from client_kits import KITS, PROMPT, Kit, Session
from client_replicas import Replicas, ScriptedReplica
from ttft_gateway import AsyncHedgingTransport, Stats, Target
from ttft_gateway.client.config import HedgeConfig

site = client_fixtures.site

AT_ONCE = HedgeConfig(warmup_delay=0.0, min_delay=0.0, budget_percent=100.0)
BOTH = pytest.mark.parametrize("kit", [KITS["httpx"], KITS["httpx async"]], ids=["httpx", "httpx async"])
CALL = {"model": "m", "messages": PROMPT, "stream": True}


def _send(kit: Kit, replica: ScriptedReplica, method: str, path: str = "/chat/completions", **options: Any) -> Any:
    """Send one request with the client; the request is late as soon as it has reached the replica."""
    made = {name: options.pop(name) for name in ("config", "first", "replicas", "stats") if name in options}

    def work(session: Session) -> Any:
        session.transport.hedger.clock = lambda: 1.0 if replica.seen else 0.0
        return session.send(method, replica.url + path, **options)

    return kit.run(work, **made)


@BOTH
def test_a_retry_of_the_sdk_is_not_hedged_again(kit: Kit, site: Replicas) -> None:
    """Three tries of an SDK bring at most one backup, the backup of the first try."""
    replica = site.add("error_500", headers=b"retry-after-ms: 1\r\n")
    stats = Stats()
    with pytest.raises(Exception, match="broken"):
        kit.run(lambda session: session.chat(replica.url, retries=2), AT_ONCE, stats=stats)
    counts = [seen.headers["x-stainless-retry-count"] for seen in replica.seen]
    assert (counts.count("1"), counts.count("2")) == (1, 1)
    assert stats.snapshot().hedges <= 1


@BOTH
def test_the_first_event_may_be_found_by_a_function(kit: Kit, site: Replicas) -> None:
    """A function receives whole events of a stream, and decides which one ends the race."""
    replica = site.add("role", "quick")
    seen: list[bytes] = []

    def first(event: bytes) -> bool:
        seen.append(event)
        return b"Hel" in event

    assert b"Hel" in _send(kit, replica, "POST", json=CALL, first=first).content
    assert all(event.startswith(b"data: ") and event.endswith(b"\n\n") for event in seen)


@BOTH
def test_a_key_never_reaches_another_host(kit: Kit, site: Replicas) -> None:
    """Another replica's host gets its own key, model and headers, and no secret of the request."""
    home, other = site.add("late_headers"), site.add("quick")
    away = Target(
        other.url.replace("127.0.0.1", "localhost") + "/deep/", api_key="sk-away", model="away", headers={"x-own": "1"}
    )
    secret = {"authorization": "Bearer sk-home", "x-gateway-key": "sk-more", "cookie": "sk-cookie", "accept": "a/b"}

    def work(session: Session) -> Any:
        session.transport.hedger.clock = lambda: 1.0 if home.seen else 0.0
        session.transport.hedger.rand = lambda: 0.0
        url = home.url + "/chat/completions?key=sk-query&api-version=1"
        return session.send("POST", url, json=CALL, headers=secret)

    assert b"Hel" in kit.run(work, replicas=[Target(home.url), away]).content
    [at_home], [at_away] = home.seen, other.seen
    assert "sk-home" in at_home.head
    assert at_away.head.startswith("POST /v1/deep/chat/completions?api-version=1 HTTP/1.1\r\n")
    assert "sk-" not in at_away.head.replace("sk-away", "")
    assert at_away.headers["authorization"] == "Bearer sk-away"
    assert (at_away.headers["host"], at_away.headers["x-own"], at_away.headers["accept"]) == (
        f"localhost:{other.port}",
        "1",
        "a/b",
    )
    assert b'"model":"away"' in at_away.body
    assert int(at_away.headers["content-length"]) == len(at_away.body)


@BOTH
def test_other_addresses_are_sent_without_a_race(kit: Kit, site: Replicas) -> None:
    """With replicas, a request for another address goes there, once."""
    home, elsewhere = site.add("quick"), site.add("plain")
    response = _send(kit, elsewhere, "GET", "/files", replicas=[home.url], config=AT_ONCE)
    assert (response.content, len(elsewhere.seen), len(home.seen)) == (b"hello", 1, 0)


@BOTH
def test_a_timeout_ends_all_attempts(kit: Kit, site: Replicas) -> None:
    """The client's own timeout is reported, and no attempt outlives it."""
    replica = site.add("late_headers")
    with pytest.raises(httpx.ReadTimeout):
        kit.run(lambda session: session.send("GET", replica.url, timeout=0.3))
    assert all(seen.closed.wait() for seen in replica.seen)


@BOTH
def test_a_body_that_can_be_sent_once_is_sent_once(kit: Kit, site: Replicas) -> None:
    """A body from a generator cannot be repeated."""
    replica = site.add("quick")

    async def pieces() -> Any:
        yield b'{"model":"m","messages":[],"stream":true}'

    content = pieces() if kit.is_async else iter([b'{"model":"m","messages":[],"stream":true}'])
    headers = {"content-length": "41"}
    assert _send(kit, replica, "POST", content=content, headers=headers, config=AT_ONCE).status_code == 200
    assert len(replica.seen) == 1


def test_a_synchronous_transport_needs_interruptible_sockets() -> None:
    """HTTP/2, which cannot be interrupted, is rejected when the transport is created."""
    with pytest.raises(TypeError, match="the inner transport"):
        KITS["httpx"].transport(transport=httpx.HTTPTransport(http2=True, verify=False))


FORKED = """
import os, sys, httpx
from ttft_gateway import HedgeConfig, HedgingTransport
client = httpx.Client(transport=HedgingTransport(HedgeConfig(policy="off")))
transport = client._transport
client.get(sys.argv[1])
pid = os.fork()
found = client.get(sys.argv[1]).text
os.write(1, f"{found} {transport.stats.snapshot().requests}\\n".encode())
if pid:
    os.waitpid(pid, 0)
else:
    os._exit(0)
"""


def test_a_forked_child_shares_no_connection_and_no_counts(site: Replicas) -> None:
    """After a fork the child opens connections of its own and counts from 0."""
    replica = site.add("plain")
    done = subprocess.run(
        [sys.executable, "-c", FORKED, replica.url], cwd=ROOT, capture_output=True, text=True, timeout=120, check=True
    )
    assert sorted(done.stdout.split("\n")) == ["", "hello 1", "hello 2"]
    assert replica.accepted == 2


def test_a_caller_that_goes_leaves_no_failed_answer_open(site: Replicas) -> None:
    """While a backup is awaited, the answer of a primary that has failed is closed with its caller's request."""
    replica = site.add("late:error_500", "late_headers")
    transport = AsyncHedgingTransport(AT_ONCE, transport=httpx.AsyncHTTPTransport(verify=False))

    async def main() -> None:
        async with httpx.AsyncClient(transport=transport, timeout=60.0) as client:
            transport.hedger.clock = lambda: 1.0 if replica.seen else 0.0
            async with asyncio.TaskGroup() as tasks:
                task = tasks.create_task(client.get(f"{replica.url}/files"))
                while not any(target.errors for target in transport.stats.snapshot().targets.values()):
                    await asyncio.sleep(0.001)
                task.cancel()
            while transport._tasks:
                await asyncio.sleep(0)
            assert transport._inner._pool.connections == []

    asyncio.run(main())
