"""Tokens that end, of targets: fetched off the loop, renewed before their end, kept from all but their own host."""

import asyncio
import copy
import json
import logging
import pickle
import threading
from collections.abc import Callable
from typing import Any

import aiohttp
import openai
import pytest

import client_fixtures
from aiohttp_client import chat
from aiohttp_client import run as run_session
from client_kits import KITS, Kit, Session
from client_replicas import CHAT, Replicas, ScriptedReplica, whole
from ttft_gateway import Credential, HedgeConfig, Target
from ttft_gateway.client import tokens
from ttft_gateway.client.messages import headers_to
from ttft_gateway.credentials.sources import Source, SourceFault
from ttft_gateway.credentials.token import Token

site = client_fixtures.site

_SECRET = "sk-token"
_NEVER_LATE = HedgeConfig(warmup_delay=3600.0)
_ANSWERS = {**CHAT, "rejected": whole(b"401 Unauthorized", b"{}"), "forbidden": whole(b"403 Forbidden", b"{}")}


class _Source:
    """Returns `sk-token1`, `sk-token2` and so on; raises exceptions in their place.

    Args:
        faults: exceptions by the number of the fetch.
        lifetime_s: time until the end of each token.
    """

    def __init__(self, faults: dict[int, Exception] | None = None, lifetime_s: float = 3600.0) -> None:
        self.fetches = 0
        self.threads: set[threading.Thread] = set()
        self._faults = faults or {}
        self._lifetime_s = lifetime_s

    def __call__(self) -> Token:
        self.fetches += 1
        self.threads.add(threading.current_thread())
        if self.fetches in self._faults:
            raise self._faults[self.fetches]
        return Token(f"{_SECRET}{self.fetches}", self._lifetime_s)


def _target(base_url: str, source: Callable[[], Token], **options: Any) -> Target:
    """Return a target with a token of its own."""
    target = Target(base_url, credential=Credential("command", [f"/token-for/{id(source)}"]), **options)
    assert target.token is not None
    target.token._fetch = source
    return target


def _text(kit: Kit | None, replica: ScriptedReplica, targets: list[Target], config: HedgeConfig = _NEVER_LATE) -> str:
    """Stream one chat completion through a client; None: aiohttp's."""
    if kit is None:
        return run_session(lambda session: chat(session, replica.url), config=config, replicas=targets)
    text: str = kit.run(lambda session: session.chat(replica.url), config, replicas=targets)[0]
    return text


EVERY = pytest.mark.parametrize("kit", [*KITS.values(), None], ids=[*KITS, "aiohttp"])


@EVERY
def test_the_first_request_waits_for_a_token(kit: Kit | None, site: Replicas, caplog: pytest.LogCaptureFixture) -> None:
    """A token is fetched in another thread and replaces the request's key; it is in no log, text or pickle."""
    caplog.set_level(logging.DEBUG)
    replica, source = site.add("quick"), _Source()
    target = _target(replica.url, source)
    assert _text(kit, replica, [target]) == "Hello"
    assert replica.seen[0].headers["authorization"] == f"Bearer {_SECRET}1"
    assert threading.current_thread() not in source.threads
    assert _SECRET not in caplog.text + repr(target) + repr(target.token) + str(pickle.dumps(target))


@EVERY
@pytest.mark.parametrize("status", ["rejected", "forbidden"])
def test_a_rejected_token_is_renewed_at_once(kit: Kit | None, site: Replicas, status: str) -> None:
    """The request is sent once more with the new token, and its caller sees no rejection."""
    replica, source = site.add(status, "quick", answers=_ANSWERS), _Source()
    assert _text(kit, replica, [_target(replica.url, source)]) == "Hello"
    assert [each.headers["authorization"] for each in replica.seen] == [f"Bearer {_SECRET}{at}" for at in (1, 2)]
    assert replica.seen[0].body == replica.seen[1].body


def test_a_token_that_is_always_rejected_is_renewed_once(site: Replicas) -> None:
    """After a second rejection the caller gets the status, and requests of the next minute renew nothing."""
    replica, source = site.add("rejected", answers=_ANSWERS), _Source()
    target = _target(replica.url, source)

    def work(session: Session) -> None:
        for _ in range(3):
            with pytest.raises(openai.AuthenticationError):
                session.chat(replica.url)

    KITS["httpx"].run(work, _NEVER_LATE, replicas=[target])
    assert (source.fetches, len(replica.seen)) == (2, 4)


@EVERY
def test_a_target_without_a_token_gets_no_request(kit: Kit | None, site: Replicas) -> None:
    """Another target gets it; the token never reaches that target's host."""
    home, other = site.add("quick"), site.add("quick")
    source = _Source({at: SourceFault("no login") for at in range(1, 99)})
    other_url = other.url.replace("127.0.0.1", "localhost")
    targets = [_target(home.url, source), Target(other_url, api_key="sk-other")]
    assert _text(kit, home, targets) == "Hello"
    assert (len(home.seen), other.seen[0].headers["authorization"]) == (0, "Bearer sk-other")


@EVERY
@pytest.mark.parametrize(
    ("error", "text"),
    [(SourceFault("no login"), "no login"), (ValueError(_SECRET), "the fetch failed with an internal error")],
)
def test_without_any_token_the_error_has_the_reason(
    kit: Kit | None, site: Replicas, error: Exception, text: str
) -> None:
    """It is the client library's error for a connection; a bug of a package is named by no text of its own."""
    replica = site.add("quick")
    target = _target(replica.url, _Source({1: error}), name="vertex")
    with pytest.raises((openai.APIConnectionError, aiohttp.ClientConnectionError)) as caught:
        _text(kit, replica, [target])
    assert str(caught.value.__cause__ or caught.value) == f"nothing was sent to vertex: {text}"
    assert replica.seen == []


def test_a_loop_runs_while_a_token_is_fetched(site: Replicas) -> None:
    """A fetch that needs the loop to go on ends, because it waits in a thread."""
    replica, gate = site.add("quick"), threading.Event()

    def fetch() -> Token:
        gate.wait()
        return Token(_SECRET, None)

    async def work(session: Session) -> str:
        asyncio.get_running_loop().call_later(0.01, gate.set)
        text, _ = await session.chat(replica.url)
        return str(text)

    assert KITS["httpx async"].run(work, _NEVER_LATE, replicas=[_target(replica.url, fetch)]) == "Hello"


def test_a_backup_goes_to_a_target_with_a_token(site: Replicas) -> None:
    """Each attempt of a race has the token of its target."""
    home, other = site.add("late_headers"), site.add("quick")
    sources = _Source(), _Source()
    targets = [_target(each.url, source) for each, source in zip((home, other), sources, strict=True)]

    assert [_settled(target.token) for target in targets if target.token is not None] == [None, None]

    def work(session: Session) -> Any:
        session.transport.hedger.clock = lambda: 1.0 if home.seen else 0.0
        session.transport.hedger.rand = lambda: 0.0  # home is the first one
        return session.chat(home.url)

    text, counts = KITS["httpx"].run(work, HedgeConfig(warmup_delay=0.02, budget_percent=100.0), replicas=targets)
    assert (text, counts.hedge_wins, [source.fetches for source in sources]) == ("Hello", 1, [1, 1])
    assert {each.headers["authorization"] for each in (*home.seen, *other.seen)} == {f"Bearer {_SECRET}1"}


class _Clock:
    """A clock that a test sets."""

    now_s = 0.0

    def __call__(self) -> float:
        return self.now_s


def _settled(token: tokens.TargetToken) -> str | None:
    """Return the fault of a token after the fetch that it may start."""
    token.fault()
    if token._fetching is not None:
        token._fetching.result(60.0)
    return token.fault()


def test_a_token_is_renewed_before_its_end_without_a_wait() -> None:
    """Half of the lifetime before the end a request starts the renewal and has the old token."""
    clock, source = _Clock(), _Source(lifetime_s=100.0)
    token = tokens.TargetToken(Source("command", ("c",)), source, clock)
    assert token.fault() == "its token has not arrived yet"
    assert (_settled(token), token.value) == (None, f"{_SECRET}1")
    clock.now_s = 39.0
    assert (_settled(token), source.fetches) == (None, 1)
    clock.now_s = 51.0
    assert token.fault() is None
    assert (_settled(token), token.value, source.fetches) == (None, f"{_SECRET}2", 2)


def test_a_token_is_used_until_its_end_if_it_cannot_be_renewed() -> None:
    """Failures are repeated after waits, and matter at the end of the token."""
    clock, source = _Clock(), _Source({2: SourceFault("away"), 3: SourceFault("away")}, lifetime_s=100.0)
    token = tokens.TargetToken(Source("command", ("c",)), source, clock)
    faults = []
    for clock.now_s in (0.0, 60.0, 60.5, 99.0, 100.0, 102.0, 110.0):
        faults.append(_settled(token))
    assert faults == [None, None, None, None, "away", None, None]
    assert source.fetches == 4


def test_a_forked_child_fetches_again() -> None:
    """A fetch that was under way in the parent is not waited for."""
    gate = threading.Event()
    token = tokens.TargetToken(Source("command", ("c",)), lambda: Token(str(gate.wait())))
    token.fault()
    parents = token._fetching
    token.forget()
    token._fetch = _Source()
    assert (_settled(token), token.value) == (None, f"{_SECRET}1")
    gate.set()
    assert parents is not None
    parents.result(60.0)


def test_equal_credentials_share_a_token() -> None:
    """Of a login there is one token in a process, also after a target was copied."""
    first, second, third = (
        Target(f"http://{host}", credential=Credential("file", file=file))
        for host, file in (("a", "/token"), ("b", "/token"), ("a", "/other"))
    )
    assert first.token is second.token
    assert first.token is not third.token
    assert copy.copy(first).token is first.token


@pytest.mark.parametrize(
    ("url", "kind", "credential", "sent"),
    [
        ("https://r.services.ai.azure.com/anthropic/v1", None, "azure", "authorization: Bearer T"),
        ("https://r.services.ai.azure.com/anthropic/v1", None, Credential("file", file="/t"), "x-api-key: T"),
        ("https://r.openai.azure.com/openai/v1", None, "azure", "authorization: Bearer T"),
        ("https://r.openai.azure.com/openai/v1", None, Credential("file", file="/t"), "api-key: T"),
        ("https://aiplatform.googleapis.com/v1/endpoints/openapi", None, "google", "authorization: Bearer T"),
        ("https://bedrock-mantle.us-east-1.api.aws/anthropic/v1", None, "aws", "authorization: Bearer T"),
        ("https://example.com/v1", None, Credential("file", file="/t"), "x-api-key: T"),
        ("https://example.com/v1", "vllm", Credential("file", file="/t"), "authorization: Bearer T"),
    ],
)
def test_a_token_has_the_header_of_its_server(
    url: str, kind: str | None, credential: Any, sent: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Tokens of clouds are bearer tokens; any other token is sent as a key is, and the request's key is not."""
    monkeypatch.setattr(tokens, "package_fault", lambda _: None)
    target = Target(url, kind=kind, credential=credential)
    assert target.token is not None
    monkeypatch.setattr(target.token, "value", "T")
    assert headers_to([(b"x-api-key", b"sk-home")], target, target) == [tuple(sent.encode().split(b": "))]


def test_the_region_and_the_scope_are_the_servers(monkeypatch: pytest.MonkeyPatch) -> None:
    """A token of Bedrock is for the region in the base URL, a token of Entra for the service of the kind."""
    monkeypatch.setattr(tokens, "package_fault", lambda _: None)
    targets = (
        Target("https://bedrock-runtime.eu-west-1.amazonaws.com/openai/v1", credential="aws"),
        Target("https://r.services.ai.azure.com/openai/v1", credential="azure"),
        Target("https://r.openai.azure.com/openai/v1", credential="azure"),
    )
    assert [(each.source.region, each.source.scope) for each in (target.token for target in targets) if each] == [
        ("eu-west-1", None),
        (None, "https://ai.azure.com/.default"),
        (None, "https://cognitiveservices.azure.com/.default"),
    ]


def _any(value: object) -> Any:
    return value


WRONG: dict[str, tuple[dict[str, Any], str]] = {
    "a key, too": ({"api_key": "k", "credential": "google"}, "api_key and credential are set; remove one of the two"),
    "no source": ({"credential": "gcp"}, "credential is 'gcp'; use one of aws, google, azure, command, file"),
    "a command by name": ({"credential": "command"}, r"write Credential\('command', command=...\)"),
    "a file of a cloud": ({"credential": Credential("google", file="t")}, "only the credential file uses file"),
    "a string": ({"credential": Credential("command", _any("a b"))}, "use a list of the program and its arguments"),
    "no region": ({"credential": "aws"}, r"write Credential\('aws', region='us-east-1'\)"),
    "no package": ({"credential": "google"}, r"needs the package google-auth; install ttft-gateway\[google\]"),
}


@pytest.mark.parametrize("name", WRONG)
def test_a_wrong_credential_has_an_error_with_the_right_one(name: str) -> None:
    """The error is raised where the target is made."""
    options, text = WRONG[name]
    with pytest.raises((ValueError, TypeError, ModuleNotFoundError), match=text):
        Target("https://example.com/v1", **options)


def test_a_program_is_named_without_its_arguments() -> None:
    """An argument may be a secret."""
    credential = Credential("command", ["/bin/token", _SECRET])
    target = Target("http://a", credential=credential)
    assert _SECRET not in f"{credential!r} {target!r} {target.token!r} {json.dumps(repr(target.token))}"
