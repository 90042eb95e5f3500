"""The rules of the session for aiohttp on sockets: where requests go, with which keys; for all, which are hedged."""

import asyncio
import base64
import subprocess
import sys
from typing import Any

import pytest

import client_fixtures

pytest.importorskip("aiohttp")

import aiohttp

from aiohttp_client import CALL, SOON, chat, run
from checkout import ROOT
from client_kits import KITS, Session
from client_replicas import Replicas, ScriptedReplica
from ttft_gateway import HedgingSession, Stats, Target
from ttft_gateway.client.config import HedgeConfig

site = client_fixtures.site

NEVER = HedgeConfig(warmup_delay=3600.0)
OFF, ON, KEY = {"x-ttft-hedge": "off"}, {"X-TTFT-Hedge": "on"}, {"Idempotency-Key": "k"}
CHAT = "/chat/completions"
WHOLE = {"model": "m", "messages": CALL["messages"]}


def _send(library: str, replica: ScriptedReplica, method: str, path: str, **options: Any) -> tuple[Stats, int]:
    """Send one request, which is late when it has reached the replica; return the counts and the status."""
    stats, first, config = Stats(), options.pop("first", "content"), options.pop("config")
    if library != "aiohttp":

        def by_httpx(session: Session) -> Any:
            session.transport.hedger.clock = lambda: 1.0 if replica.seen else 0.0
            return session.send(method, replica.url + path, **options)

        return stats, KITS[library].run(by_httpx, config, stats=stats, first=first).status_code
    options["data"] = options.pop("content", None)

    async def by_aiohttp(session: HedgingSession) -> int:
        async with session.request(method, replica.url + path, **options) as response:
            await response.read()
            return response.status

    return stats, run(by_aiohttp, replica, config, stats=stats, first=first)


@pytest.mark.parametrize("library", ["httpx", "httpx async", "aiohttp"])
@pytest.mark.parametrize(
    ("method", "path", "options", "plan"),
    [
        ("GET", "/files?q=1", {}, ("late_headers", "plain")),
        ("GET", "/files", {}, ("late_headers", "missing")),
        ("HEAD", "/files", {}, ("late_headers", "empty_head")),
        ("OPTIONS", "/files", {}, ("late_headers", "plain")),
        ("GET", "/files", {"headers": OFF}, ("plain",)),
        ("GET", "/events", {"headers": {"accept": "text/event-stream"}}, ("pings",)),
        ("PUT", "/files", {"content": b"a"}, ("plain",)),
        ("DELETE", "/files", {}, ("plain",)),
        ("PATCH", "/files", {"content": b"a"}, ("plain",)),
        ("POST", "/orders", {"content": b"a"}, ("plain",)),
        ("POST", "/orders", {"content": b"a", "headers": KEY}, ("plain",)),
        ("POST", "/orders", {"content": b"a", "headers": ON}, ("plain",)),
        ("POST", "/orders", {"content": b"a", "headers": ON | KEY}, ("late_headers", "plain")),
        ("POST", "/orders", {"json": {"a": 1}, "headers": ON | KEY}, ("late_headers", "plain")),
        ("PUT", "/orders", {"content": "text", "headers": ON | KEY}, ("late_headers", "plain")),
        ("DELETE", "/orders/1", {"headers": ON | KEY}, ("late_headers", "plain")),
        ("POST", CHAT, {"json": CALL}, ("role", "quick")),
        ("POST", CHAT, {"json": CALL, "headers": OFF}, ("quick",)),
        ("POST", CHAT, {"json": CALL, "headers": {"x-stainless-retry-count": "1"}}, ("quick",)),
        ("POST", CHAT, {"json": WHOLE}, ("whole",)),
        ("POST", "/embeddings", {"json": {"model": "m", "input": "a"}}, ("late_headers", "vectors")),
        ("POST", CHAT, {"json": CALL, "first": "headers"}, ("late_headers", "quick")),
        ("POST", CHAT, {"json": CALL, "first": lambda event: b"Hel" in event}, ("role", "quick")),
        ("GET", "/files", {"first": lambda piece: piece == b"hello"}, ("late_headers", "plain")),
        ("HEAD", "/files", {"first": lambda _: True}, ("empty_head",)),
    ],
)
def test_which_requests_are_raced(
    library: str, site: Replicas, method: str, path: str, options: dict[str, Any], plan: tuple[str, ...]
) -> None:
    """The rules for methods, idempotency keys and first events are the same in all libraries; a 404 is an answer."""
    replica = site.add(*plan)
    options = {**options, "config": SOON if len(plan) > 1 else NEVER}
    stats, status = _send(library, replica, method, path, **options)
    counts = stats.snapshot()
    assert status == (404 if plan[-1] == "missing" else 200)
    is_raced = len(plan) > 1 or callable(options.get("first"))
    assert (counts.requests, counts.hedges) == (int(is_raced), len(plan) - 1)
    assert all("x-ttft-hedge" not in seen.headers for seen in replica.seen)
    assert len({(seen.head.split(" ")[1], seen.body) for seen in replica.seen}) == 1
    assert all(seen.closed.wait() for seen in replica.seen[: len(plan) - 1])


def test_defaults_of_the_session_may_switch_hedging_off(site: Replicas) -> None:
    """`x-ttft-hedge` is obeyed among the headers of the session, too, and not sent on."""
    replica = site.add("quick")

    async def work(session: HedgingSession) -> int:
        await chat(session, replica.url)
        return session.stats.snapshot().requests

    assert run(work, replica, headers=OFF) == 0
    assert "x-ttft-hedge" not in replica.seen[0].headers


@pytest.mark.parametrize("where", ["call", "session"])
def test_a_key_never_reaches_another_host(site: Replicas, where: str) -> None:
    """Another replica's host gets its own key, model and headers, and no secret of the request, session or redirect."""
    home, other, third = site.add("late_headers"), site.add("moved"), site.add("quick")
    there = third.url.replace("127.0.0.1", "localhost")
    other.headers = f"location: {there}/moved/chat/completions\r\n".encode()
    away = Target(
        other.url.replace("127.0.0.1", "localhost") + "/deep/",
        api_key="sk-away",
        model="away",
        headers={"x-own": "sk-own"},
    )
    secret = {"authorization": "Bearer sk-home", "x-gateway-key": "sk-more", "host": "home", "accept": "a/b"}
    ours = {"headers": secret, "cookies": {"a": "sk-cookie"}}
    given: dict[str, Any] = ours if where == "call" else {}
    options: dict[str, Any] = ours if where == "session" else {}

    async def work(session: HedgingSession) -> str:
        session.hedger.clock = lambda: 1.0 if home.seen else 0.0
        session.hedger.rand = lambda: 0.0
        url = home.url + "/chat/completions?key=sk-query"
        async with session.post(url, json=CALL, params={"api-version": "1"}, **given) as response:
            return await response.text()

    assert "Hel" in run(work, replicas=[Target(home.url), away], **options)
    [at_home], [at_away], [at_third] = home.seen, other.seen, third.seen
    assert "sk-home" in at_home.head
    assert "sk-cookie" in at_home.head
    assert at_away.head.startswith("POST /v1/deep/chat/completions?api-version=1 HTTP/1.1\r\n")
    assert "sk-" not in at_away.head.replace("sk-away", "").replace("sk-own", "")
    assert at_away.headers["authorization"] == "Bearer sk-away"
    assert (at_away.headers["host"], at_away.headers["accept"]) == (f"localhost:{other.port}", "a/b")
    assert b'"model": "away"' in at_away.body or b'"model":"away"' in at_away.body
    assert int(at_away.headers["content-length"]) == len(at_away.body)
    assert "sk-" not in at_third.head
    assert at_third.headers["host"] == f"localhost:{third.port}"


def test_the_key_of_a_target_replaces_the_callers(site: Replicas) -> None:
    """The target at the request's own address gets its own key, also with a user name in the URL."""
    replica = site.add("quick")
    basic = "Basic " + base64.b64encode(b"user:word").decode()

    async def work(session: HedgingSession) -> None:
        await chat(session, replica.url.replace("127", "user:word@127"))
        session.hedger.forget()
        await chat(session, replica.url, headers={"x-ttft-hedge": "off"})

    run(work, replica, config=NEVER)
    run(work, replica, config=NEVER, replicas=[Target(replica.url, api_key="sk-own")])
    assert [seen.headers.get("authorization") for seen in replica.seen] == [
        basic,
        None,
        "Bearer sk-own",
        "Bearer sk-own",
    ]


def test_other_addresses_are_sent_without_a_race(site: Replicas) -> None:
    """With replicas, a request for another address goes there, once."""
    home, elsewhere = site.add("quick"), site.add("plain")

    async def work(session: HedgingSession) -> bytes:
        async with session.get(f"{elsewhere.url}/files") as response:
            return await response.read()

    assert run(work, elsewhere, replicas=[home.url]) == b"hello"
    assert (len(elsewhere.seen), len(home.seen)) == (1, 0)


@pytest.mark.parametrize("with_replicas", [False, True])
def test_a_body_that_can_be_sent_once_is_sent_once(site: Replicas, *, with_replicas: bool) -> None:
    """A body from a generator, or of a form, cannot be repeated."""
    replica = site.add("plain")

    async def pieces() -> Any:
        yield b'{"model":"m","messages":[],"stream":true}'

    async def work(session: HedgingSession) -> int:
        for data in (pieces(), aiohttp.FormData({"a": "b"}), {"a": "b"}):
            headers = ON | KEY | {"content-length": "41"} if data is not None else {}
            headers = headers if not isinstance(data, dict | aiohttp.FormData) else ON | KEY
            async with session.post(f"{replica.url}/orders", data=data, headers=headers) as response:
                await response.read()
        return session.stats.snapshot().hedges

    assert run(work, replica, replicas=[replica.url] if with_replicas else []) == 0
    assert len(replica.seen) == 3


def test_an_upload_tracker_follows_the_primary(site: Replicas) -> None:
    """A tracker, which aiohttp accepts for one request only, costs the backup nothing."""
    replica = site.add("late_headers", "quick")

    async def work(session: HedgingSession) -> str:
        return await chat(session, replica.url, upload_tracker=aiohttp.UploadTracker())

    assert run(work, replica) == "Hello"


def test_middlewares_of_the_caller_run_for_each_attempt(site: Replicas) -> None:
    """Middlewares of the session or of a call see each attempt, and cannot add a key for another host."""
    home, other = site.add("late_headers"), site.add("quick")
    away = Target(other.url.replace("127.0.0.1", "localhost"), api_key="sk-away")

    async def add(request: Any, handler: Any) -> Any:
        request.headers["x-added"] = "sk-added"
        return await handler(request)

    async def work(session: HedgingSession) -> str:
        session.hedger.clock = lambda: 1.0 if home.seen else 0.0
        session.hedger.rand = lambda: 0.0
        return await chat(session, home.url)

    assert run(work, replicas=[home.url, away], middlewares=[add]) == "Hello"
    assert home.seen[0].headers["x-added"] == "sk-added"
    assert "x-added" not in other.seen[0].headers


FORKED = """
import asyncio, os, sys
from ttft_gateway import HedgingTransport, Stats
assert "aiohttp" not in sys.modules
from ttft_gateway import HedgingSession
stats = Stats()
async def main():
    async with HedgingSession(stats=stats) as session:
        async with session.get(sys.argv[1]) as response:
            return await response.text()
def show():
    os.write(1, f"{asyncio.run(main())} {stats.snapshot().requests}\\n".encode())
asyncio.run(main())
pid = os.fork()
show()
if pid:
    os.waitpid(pid, 0)
else:
    os._exit(0)
"""


def test_counts_of_a_forked_child_start_from_0(site: Replicas) -> None:
    """After a fork the child counts from 0; a program that uses another client library does not load aiohttp."""
    replica = site.add("plain")
    done = subprocess.run(
        [sys.executable, "-c", FORKED, replica.url], cwd=ROOT, capture_output=True, text=True, timeout=120, check=True
    )
    assert sorted(done.stdout.split("\n")) == ["", "hello 1", "hello 2"]


def test_a_policy_with_a_bug_costs_no_answer(site: Replicas, monkeypatch: pytest.MonkeyPatch) -> None:
    """A request is sent without a race, with its body, if its race cannot begin."""
    replica = site.add("quick")
    monkeypatch.setattr("ttft_gateway.client.hedger.Hedger.race", None)

    async def main() -> str:
        async with HedgingSession(SOON) as session:
            return await chat(session, replica.url)

    assert asyncio.run(main()) == "Hello"
    assert b'"stream": true' in replica.seen[0].body
