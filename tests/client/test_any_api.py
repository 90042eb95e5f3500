"""Rules for any HTTP API: which requests have comparable times, which may be sent twice, and when a backup is due."""

import random
import statistics
from typing import Any

import pytest

import client_fixtures
from client_kits import KITS, Kit, Session
from client_replicas import Replicas
from ttft_gateway import HedgeConfig, HedgingTransport
from ttft_gateway.client.asked import Asked, Event, ask
from ttft_gateway.client.hedger import Hedger
from ttft_gateway.client.rules import Rules
from ttft_gateway.hedging.outcomes import Denial, Outcome

site = client_fixtures.site

ORIGIN = "https://api.example:"
RULES = Rules(HedgeConfig())
BOTH = pytest.mark.parametrize("kit", [KITS["httpx"], KITS["httpx async"]], ids=["httpx", "httpx async"])


class Site:
    """A policy, and requests one at a time on a clock of the test's own."""

    def __init__(self, config: HedgeConfig | None = None) -> None:
        self.now_s = 0.0
        rand = random.Random(1).random
        self.hedger = Hedger(config or HedgeConfig(), clock=lambda: self.now_s, rand=rand)

    def get(self, path: str, first_s: float, backup_s: float | None = None, **given: Any) -> float:
        """Send one request; return its time. The backup takes `backup_s`, by default as long as the primary."""
        race = self.hedger.race(self.asked(path, **given))
        primary, start_s = race.begin(), self.now_s
        attempt, end_s = primary, start_s + first_s
        while race.due_s < end_s:
            self.now_s = race.due_s
            backup = race.late()
            if backup is not None:
                backup_end_s = self.now_s + (first_s if backup_s is None else backup_s)
                if backup_end_s < end_s:
                    attempt, end_s = backup, backup_end_s
        self.now_s = end_s
        assert race.on_first(attempt)
        race.on_end(attempt, outcome=Outcome.FINISHED)
        return end_s - start_s

    def asked(self, path: str, method: str = "GET", body: bytes = b"") -> Asked:
        """Read a request."""
        return ask(method, ORIGIN, path.encode(), (), body, self.hedger.rand(), self.hedger.rules)


@pytest.mark.parametrize(
    ("path", "template"),
    [
        ("/", "/"),
        ("/search?q=1", "/search"),
        ("/v1/items/12345", "/v1/items/{}"),
        ("/v1/items/12345/parts", "/v1/items/{}/parts"),
        ("/orders/9f8b1c2d-1111-4222-8333-444455556666", "/orders/{}"),
        ("/blobs/deadbeef01", "/blobs/{}"),
        ("/users/ann@example.com", "/users/{}"),
        ("/files/report%20final.pdf", "/files/{}"),
        ("/v2.1/health-check", "/v2.1/health-check"),
        ("/a/", "/a/"),
        ("/" + "x" * 60, "/{}"),
    ],
)
def test_an_endpoint_is_a_path_without_identifiers(path: str, template: str) -> None:
    """Segments that look like identifiers are left out, and so is the query."""
    assert Rules(HedgeConfig()).of("GET", ORIGIN, path.encode()).population == (ORIGIN, f"GET {template}")


def test_a_segment_with_many_values_is_an_identifier() -> None:
    """Names that look like words are learned to be identifiers."""
    rules = Rules(HedgeConfig())
    names = [f"/users/{letter}{other}/posts" for letter in "abcdefgh" for other in "abcdefgh"]
    for name in names:
        rules.of("GET", ORIGIN, name.encode())
    assert {rules.of("GET", ORIGIN, name.encode()).population[1] for name in names} == {"GET /users/{}/posts"}
    assert rules.of("GET", ORIGIN, b"/health").population[1] == "GET /health"


def test_what_is_remembered_of_addresses_is_bounded() -> None:
    """Paths without end leave a bounded memory."""
    rules = Rules(HedgeConfig())
    for number in range(5_000):
        rules.of("GET", ORIGIN, f"/{'abcdefghijkl'[number % 12]}{number}/{number}x/y{number}z?{number}".encode())
    assert len(rules._known) <= 1024
    assert len(rules._values) <= 512
    rules.of("GET", ORIGIN, b"/a" * 2_000)
    assert max(len(path) for _, _, path in rules._known) <= 1024


@pytest.mark.parametrize(("key", "is_apart"), [("endpoint", True), ("origin", False), (lambda _, url: url, True)])
def test_a_quick_endpoint_is_hedged_beside_a_slow_one(key: Any, *, is_apart: bool) -> None:
    """Stragglers of 60 ms of a path that takes 5 ms get a backup although another path of the host takes 300 ms."""
    site, rng = Site(HedgeConfig(key=key)), random.Random(7)
    quick = []
    for number in range(1_500):
        site.get("/slow", 0.3 * rng.lognormvariate(0.0, 0.3))
        late = number % 20 == 0
        quick.append(site.get("/quick", (0.06 if late else 0.005) * rng.lognormvariate(0.0, 0.2), 0.005))
    p99_s = statistics.quantiles(quick[500:], n=100)[98]
    assert (p99_s < 0.03) is is_apart


def test_endpoints_that_are_rarely_asked_have_the_times_of_their_host() -> None:
    """Below 20 requests an endpoint has no population of its own, so that its requests are hedged as the host's."""
    site = Site()
    for number in range(100):
        site.get("/usual", 0.01)
        if number % 10 == 0:
            site.get("/rare", 0.01)
    race = site.hedger.race(site.asked("/rare"))
    race.begin()
    assert race.due_s - site.now_s < 0.1


def test_a_warm_up_waits_by_the_service_s_own_times() -> None:
    """Before 20 requests, a backup is sent after three times the predicted time, not after two seconds."""
    site = Site()
    first = site.hedger.race(site.asked("/"))
    first.begin()
    assert first.due_s == 2.0
    times_s = [site.get("/", 1.5 if number % 5 == 4 else 0.1, 0.1) for number in range(20)]
    assert statistics.mean(times_s) < 0.25
    given = Site(HedgeConfig(warmup_delay=1.0))
    given.get("/", 0.1)
    race = given.hedger.race(given.asked("/"))
    race.begin()
    assert race.due_s - given.now_s == 1.0  # a delay that is set is kept


@pytest.mark.parametrize(
    ("rule", "method", "path", "is_safe"),
    [
        ("POST /search", "POST", "/search", True),
        ("POST /search", "POST", "/search?q=1", True),
        ("POST /search", "POST", "/search/deep", False),
        ("POST /search/*", "POST", "/search/deep/er", True),
        ("POST /search", "PUT", "/search", False),
        ("* /kv/*", "DELETE", "/kv/1", True),
        ("POST *", "POST", "/any", True),
        ("POST https://api.example/search", "POST", "/search", True),
        ("POST https://other.example/search", "POST", "/search", False),
    ],
)
def test_a_rule_names_requests_that_may_be_sent_twice(rule: str, method: str, path: str, *, is_safe: bool) -> None:
    """Method and path match, with wildcards, at any host or at one."""
    rules = Rules(HedgeConfig(safe={rule: "body"}))
    asked = ask(method, ORIGIN, path.encode(), (), b"{}", 0.5, rules)
    assert (asked.facts.hedge_off is None, asked.first) == (is_safe, "body" if is_safe else None)


@pytest.mark.parametrize(
    ("method", "accept", "rules", "is_safe"),
    [
        ("GET", "text/event-stream", {}, False),
        ("GET", "application/json, Text/Event-Stream;q=0.9", {}, False),
        ("GET", "*/*", {}, True),
        ("HEAD", "text/event-stream", {}, True),
        ("GET", "text/event-stream", {"GET /events": "headers"}, True),
        ("GET", "text/event-stream", {"GET /other": "headers"}, False),
    ],
)
def test_a_subscription_is_hedged_only_by_a_rule(method: str, accept: str, rules: Any, *, is_safe: bool) -> None:
    """A GET that accepts a stream of events may last for hours, and a second one would be a second subscriber."""
    headers = [(b"Accept", accept.encode())]
    asked = ask(method, ORIGIN, b"/events", headers, b"", 0.5, Rules(HedgeConfig(safe=rules)))
    assert (asked.facts.hedge_off is None) is is_safe


def test_a_rule_may_allow_an_answer_in_one_piece() -> None:
    """A call of an LLM API without a stream is raced on its headers by a rule, with times of its own."""
    body = b'{"model":"m","messages":[{"role":"user","content":"hello"}]}'
    path = b"/v1/chat/completions"
    plain = ask("POST", ORIGIN, path, (), body, 0.5, RULES)
    ruled = ask("POST", ORIGIN, path, (), body, 0.5, Rules(HedgeConfig(safe={"POST */chat/completions": "headers"})))
    assert (plain.facts.hedge_off, ruled.facts.hedge_off) == (Denial.OFF, None)
    assert (ruled.event, ruled.facts.timed) == (Event.HEADERS, True)
    stream = ask("POST", ORIGIN, path, (), body[:-1] + b',"stream":true}', 0.5, RULES)
    assert stream.population != ruled.population


@pytest.mark.parametrize("rule", ["POST", "/search", "post /search", "POST search", "POST ftp://a/b", ""])
def test_a_rule_of_another_form_is_rejected(rule: str) -> None:
    """The error has the form that a rule must have."""
    with pytest.raises(ValueError, match="use a method and a path"):
        HedgingTransport(HedgeConfig(safe={rule: "headers"}))


def test_settings_of_the_wrong_kind_are_rejected() -> None:
    """`key` and `safe` have errors that show what to write."""
    wrong: Any = "host"
    with pytest.raises(ValueError, match="key is 'host'; use 'endpoint', 'origin' or a function"):
        HedgeConfig(key=wrong)
    with pytest.raises(ValueError, match="first is 'first'"):
        HedgeConfig(safe={"POST /a": "first"})  # type: ignore[dict-item]
    rules: Any = ["POST /a"]
    with pytest.raises(TypeError, match="use rules with events"):
        HedgeConfig(safe=rules)


@BOTH
@pytest.mark.parametrize(("method", "status"), [("GET", "moved"), ("GET", "found"), ("POST", "moved")])
def test_the_request_after_a_redirect_is_hedged(kit: Kit, site: Replicas, method: str, status: str) -> None:
    """Httpx makes it of a stream, which can be sent again."""
    away = site.add("late_headers", "plain")
    location = f"location: {away.url}/there\r\n".encode()
    home = site.add(status, headers=location)
    config = HedgeConfig(warmup_delay=0.02, budget_percent=100.0, safe={"POST *": "headers"})

    def work(session: Session) -> Any:
        session.transport.hedger.clock = lambda: 1.0 if away.seen else 0.0
        options: Any = {"content": b"body"} if method == "POST" else {}
        return session.send(method, f"{home.url}/here", follow_redirects=True, **options)

    assert kit.run(work, config).content == b"hello"
    assert [seen.body for seen in away.seen] == [b"body" if method == "POST" else b""] * 2
