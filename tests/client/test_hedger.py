"""The policy of a client as a library uses it: budget, quotas, populations, on a clock of the test's own."""

import json
import math
import random
from typing import Any, Literal

import msgspec
import pytest

from ttft_gateway.apis.base import Api
from ttft_gateway.client.asked import Asked, Event, ask
from ttft_gateway.client.config import HedgeConfig
from ttft_gateway.client.first import failure_of
from ttft_gateway.client.hedger import ClientRace, Hedger
from ttft_gateway.client.rules import Rules
from ttft_gateway.client.stats import Stats
from ttft_gateway.client.targets import Target, kind_name
from ttft_gateway.hedging.outcomes import Denial, Outcome

RULES = Rules(HedgeConfig())
ORIGIN = "https://llm.example:443"
A, B = Target("https://a.example/v1", api_key="ka"), Target("https://b.example/v1", api_key="kb")


class Bench:
    """A hedger with a clock that the test advances."""

    def __init__(self, config: HedgeConfig | None = None, *targets: Target) -> None:
        self.now_s = 0.0
        self.hedger = Hedger(config or HedgeConfig(), targets, Stats(), lambda: self.now_s, random.Random(1).random)

    def request(self, first_s: float, backup_s: float = math.inf, asked: Asked | None = None) -> bool:
        """Run one request, with the first events of primary and backup after these times; return True if hedged."""
        race = self.hedger.race(asked or chat())
        attempts = [(race.begin(), self.now_s + first_s)]
        while True:
            attempt, content_s = min(attempts, key=lambda each: each[1])
            if race.due_s >= content_s:
                break
            self.now_s = max(self.now_s, race.due_s)
            backup = race.late()
            if backup is not None:
                attempts.append((backup, self.now_s + backup_s))
        self.now_s = content_s
        assert race.on_first(attempt)
        race.on_end(attempt, outcome=Outcome.FINISHED)
        race.close()
        return len(attempts) > 1


def chat(headers: tuple[tuple[bytes, bytes], ...] = (), origin: str = ORIGIN, **fields: Any) -> Asked:
    """Return a streamed chat completion."""
    body = json.dumps({"model": "m", "messages": [{"role": "user", "content": "hello"}], "stream": True} | fields)
    return ask("POST", origin, b"/v1/chat/completions", headers, body.encode(), 0.5, RULES)


def limited(race: ClientRace, headers: tuple[tuple[bytes, bytes], ...] = ((b"Retry-After", b"60"),)) -> Any:
    """Let the primary of a race fail with status 429; return its target."""
    attempt = race.begin()
    race.on_headers(attempt, 429, headers)
    race.on_failed(attempt, failure_of(429, headers))
    race.close()
    return attempt.target


def test_hedges_stay_within_the_budget_of_the_measured_traffic() -> None:
    """With one late request in four, at most a tenth of the requests is hedged, and a small reserve."""
    bench = Bench()
    hedged = sum(bench.request(2.0 if number % 4 == 0 else 0.1, 0.1) for number in range(2_000))
    counts = bench.hedger.stats.snapshot()
    assert 100 <= hedged <= 215
    assert (counts.requests, counts.hedges, counts.hedged_requests) == (2_000, hedged, hedged)
    assert counts.hedge_wins > 0.9 * hedged
    assert counts.budget_exhausted + sum(counts.denied.values()) > 0
    assert 0.5 * hedged < counts.saved_s < 2.0 * hedged  # each saves 1.9 s less the delay


def test_a_short_program_can_hedge_its_first_late_requests() -> None:
    """The first requests that are answered in time lend what they earn, up to twelve backups in all."""
    for in_time, hedged in ((0, (0, 3)), (4, (1, 3)), (25, (3, 8)), (300, (11, 21))):
        bench = Bench(HedgeConfig(warmup_delay=0.01))
        assert not any(bench.request(0.005, 0.005) for _ in range(in_time))
        assert hedged[0] <= sum(bench.request(0.2, 0.005) for _ in range(20)) <= hedged[1]


@pytest.mark.parametrize(
    ("config", "usual_s", "delay_s"),
    [
        (HedgeConfig(), 0.1, 0.3),
        (HedgeConfig(), 3.0, 4.5),
        (HedgeConfig(min_delay=0.5), 0.1, 0.5),
        (HedgeConfig(warmup_delay=1.0), 0.1, 1.0),
        (HedgeConfig(warmup_delay=0.05), 0.1, 0.15),
        (HedgeConfig(warmup_delay=0.05, min_delay=0.2), 0.1, 0.2),
        (HedgeConfig(warmup_delay=0.05, budget_percent=100.0), 0.1, 0.05),
    ],
)
def test_the_first_delays_are_not_among_the_usual_times(config: HedgeConfig, usual_s: float, delay_s: float) -> None:
    """Once some times are known, a backup of a usual answer would spend the credits of the next straggler."""
    bench = Bench(config)
    for _ in range(4):
        bench.request(usual_s)
    race = bench.hedger.race(chat())
    race.begin()
    race.close()
    assert race.delay_s == pytest.approx(delay_s)


def test_a_short_delay_after_the_start_is_that_of_the_plan() -> None:
    """A learned delay that is as short as the one of the start is not made longer."""
    bench = Bench(HedgeConfig(policy="percentile", percentile=0.5, warmup_delay=0.01, min_delay=0.5))
    for _ in range(60):
        bench.request(0.4)
    race = bench.hedger.race(chat())
    race.begin()
    race.close()
    assert race.delay_s == 0.5


def test_the_first_answer_of_an_address_is_not_learned() -> None:
    """It waits for a connection and for code that runs for the first time, and predicts no other answer."""
    bench = Bench()
    predicted_s = []
    for first_s in (0.6, 0.1, 0.1, 0.1, 0.1):
        bench.request(first_s)
        race = bench.hedger.race(chat())
        forecast = race.begin().forecast
        race.close()
        predicted_s.append(forecast and forecast.ttft_s)
    assert predicted_s[0] is None
    assert {round(each, 3) for each in predicted_s if each} == {0.1}


def test_the_percentile_policy_waits_for_its_percentile() -> None:
    """With `percentile`, a backup is sent after this quantile of recent times."""
    bench = Bench(HedgeConfig(policy="percentile", percentile=0.8, budget_percent=100.0))
    for number in range(200):
        bench.request(0.1 + 0.01 * (number % 10), 0.01)
    race = bench.hedger.race(chat())
    race.begin()
    assert race.due_s - bench.now_s == pytest.approx(0.17, rel=0.1)


@pytest.mark.parametrize("policy", ["adaptive", "percentile"])
def test_times_that_are_not_kept_decide_nothing(policy: Literal["adaptive", "percentile"]) -> None:
    """Decisions equal a policy's that stores the times of each replica, as a gateway does to show them."""
    config = HedgeConfig(policy=policy, max_hedges=2, warmup_delay=0.2)
    benches = [Bench(config, A, B), Bench(config, A, B)]
    kept = benches[1].hedger
    kept._parameters = msgspec.structs.replace(kept._parameters, shows_replicas=True)
    rng = random.Random(3)
    for _ in range(500):
        first_s, backup_s = rng.expovariate(5.0), rng.expovariate(5.0)
        decided = [(bench.request(first_s, backup_s), bench.now_s) for bench in benches]
        assert decided[0] == decided[1]
    counts = [bench.hedger.stats.snapshot() for bench in benches]
    assert counts[0] == counts[1]
    assert counts[0].hedges > 20


def test_no_backup_without_hedging() -> None:
    """`off`, no hedges and no budget all send each request once."""
    for config in (HedgeConfig(policy="off"), HedgeConfig(max_hedges=0), HedgeConfig(budget_percent=0)):
        bench = Bench(config)
        assert not any(bench.request(5.0, 0.1) for _ in range(50))


def test_a_rate_limited_replica_rests_for_its_retry_after() -> None:
    """After a 429 with Retry-After, primaries go elsewhere, and no backup goes there."""
    bench = Bench(HedgeConfig(warmup_delay=0.5), A, B)
    refused = limited(bench.hedger.race(chat()))
    for _ in range(20):
        race = bench.hedger.race(chat())
        primary = race.begin()
        assert primary.target is not refused
        bench.now_s = race.due_s
        assert race.late() is None
        race.on_first(primary)
        race.on_end(primary, outcome=Outcome.FINISHED)
    assert bench.hedger.stats.snapshot().denied == {"no_replica": 20}
    bench.now_s += 60.0
    assert {bench.hedger.race(chat()).begin().target for _ in range(8)} == {A, B}


def test_a_rate_limited_address_gets_no_backup() -> None:
    """Request and backup to one address use one quota: after a 429, no backup is sent for its Retry-After."""
    bench = Bench(HedgeConfig(warmup_delay=0.5, budget_percent=100.0))
    limited(bench.hedger.race(chat()))
    assert not any(bench.request(2.0, 0.1) for _ in range(10))
    bench.now_s += 60.0
    assert bench.request(2.0, 0.1)


def test_a_request_is_sent_although_all_replicas_rest() -> None:
    """A client library rejects no request; the SDK waits for Retry-After itself."""
    bench = Bench(None, A, B)
    assert {limited(bench.hedger.race(chat())) for _ in range(2)} == {A, B}
    assert bench.hedger.race(chat()).begin().target in (A, B)


def test_a_backup_leaves_the_quota_to_primaries() -> None:
    """Without room in the quota that response headers report, a late request gets no backup."""
    bench = Bench(HedgeConfig(warmup_delay=0.5))
    asked = chat(origin="https://api.openai.com:443")
    headers = (
        (b"X-RateLimit-Limit-Requests", b"100"),
        (b"x-ratelimit-remaining-requests", b"1"),
        (b"x-ratelimit-reset-requests", b"60s"),
    )
    race = bench.hedger.race(asked)
    primary = race.begin()
    race.on_headers(primary, 200, headers)
    bench.now_s = 1.0
    assert race.late() is None
    assert bench.hedger.stats.snapshot().denied == {"quota": 1}


def test_a_provider_that_bills_cancelled_requests_is_not_hedged() -> None:
    """Unless the configuration accepts the bill."""
    asked = chat(origin="https://api.groq.com:443")
    bench = Bench(HedgeConfig(warmup_delay=0.5))
    assert not bench.request(5.0, 0.1, asked)
    assert bench.hedger.stats.snapshot().denied == {"billed": 1}
    accepting = Bench(HedgeConfig(warmup_delay=0.5, allow_billed_hedges=True, budget_percent=100.0))
    short = chat(origin="https://api.groq.com:443", max_tokens=1)  # the whole answer is charged to the budget
    assert any(accepting.request(5.0, 0.1, short) for _ in range(10))


def test_a_request_with_a_hedged_idempotency_key_is_not_hedged_again() -> None:
    """The same key is the same request, retried."""
    bench = Bench(HedgeConfig(warmup_delay=0.5, budget_percent=100.0))
    asked = chat(((b"Idempotency-Key", b"k"),))
    assert bench.request(5.0, 0.1, asked)
    assert not bench.request(5.0, 0.1, asked)
    assert bench.request(5.0, 0.1, chat(((b"Idempotency-Key", b"other"),)))


def test_a_stored_answer_is_not_generated_twice() -> None:
    """OpenAI stores answers of the Responses API by default, other servers do not."""
    body = b'{"model":"m","input":"hello","stream":true}'
    for origin, hedged in (("https://api.openai.com:443", False), ("http://engine:8000", True)):
        bench = Bench(HedgeConfig(warmup_delay=0.5, budget_percent=100.0))
        assert bench.request(5.0, 0.1, ask("POST", origin, b"/v1/responses", (), body, 0.5, RULES)) is hedged


def test_models_and_apis_are_learned_apart() -> None:
    """A slow model does not delay the backups of a quick one."""
    bench = Bench()
    for _ in range(60):
        bench.request(8.0, 8.0, chat(model="slow"))
        bench.request(0.1, 0.1, chat(model="quick"))
    delays_s = []
    for model in ("slow", "quick"):
        race = bench.hedger.race(chat(model=model))
        race.begin()
        delays_s.append(race.due_s - bench.now_s)
    assert delays_s[0] > 10 * delays_s[1]


def test_populations_are_bounded() -> None:
    """A client of many hosts forgets the one that it used least recently."""
    bench = Bench()
    for number in range(1_000):
        bench.request(0.1, asked=chat(origin=f"https://host-{number}:443"))
    assert len(bench.hedger._populations) == 256


def test_a_bug_in_the_policy_costs_no_answer(monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> None:
    """A first event wins although the policy raises."""
    bench = Bench()
    race = bench.hedger.race(chat())
    attempt = race.begin()
    monkeypatch.setattr(race._pool, "on_content", None)
    assert race.on_first(attempt)
    assert "the hedging policy failed" in caplog.text


def test_requests_that_end_in_any_way_leave_nothing_in_flight() -> None:
    """Every attempt is counted out once."""
    bench = Bench(HedgeConfig(warmup_delay=0.1, budget_percent=100.0, max_hedges=2))
    for number in range(60):
        race = bench.hedger.race(chat())
        race.begin()
        bench.now_s = race.due_s if math.isfinite(race.due_s) else bench.now_s + 1.0
        race.late()
        if number % 3:
            race.on_first(race.attempts[0])
        race.close()
        race.close()
    [population] = bench.hedger._populations.values()
    assert [replica.in_flight for replica in population.pool.replicas] == [0, 0, 0]


@pytest.mark.parametrize(
    ("path", "fields", "api"),
    [
        (b"/v1/chat/completions", '"messages":[{"role":"user","content":"a"}]', Api.CHAT),
        (b"/deployments/d/chat/completions?api-version=1", '"messages":[{"role":"user","content":"a"}]', Api.CHAT),
        (b"/v1/completions", '"prompt":"a"', Api.COMPLETIONS),
        (b"/v1/messages", '"messages":[{"role":"user","content":"a"}],"max_tokens":1', Api.MESSAGES),
        (b"/v1/responses", '"input":"a"', Api.RESPONSES),
        (b"/v1/embeddings", '"input":"a"', Api.EMBEDDINGS),
        (b"/v1/messages/count_tokens", '"messages":[{"role":"user","content":"a"}]', None),
        (b"/v1/files", '"input":"a"', None),
    ],
)
def test_apis_are_found_below_any_base_url(path: bytes, fields: str, api: Api | None) -> None:
    """An API is recognised by the end of its path."""
    asked = ask("POST", ORIGIN, path, (), f'{{"model":"m",{fields}}}'.encode(), 0.5, RULES)
    assert asked.api is api


def test_a_call_with_side_effects_is_not_hedged() -> None:
    """The gateway's rules hold: several choices and stored answers are sent once."""
    for fields in ({"n": 2}, {"store": True}, {"stream": False}):
        assert chat(**fields).facts.hedge_off is Denial.OFF
    assert chat().facts.hedge_off is None


def test_an_invalid_body_is_the_servers_to_reject() -> None:
    """What is no valid call is sent once, unchanged."""
    asked = ask("POST", ORIGIN, b"/v1/chat/completions", (), b'{"stream":true}', 0.5, RULES)
    assert (asked.api, asked.event, asked.facts.hedge_off) == (None, Event.HEADERS, Denial.OFF)


@pytest.mark.parametrize(
    ("host", "kind"),
    [
        ("api.openai.com", "openai"),
        ("eu.openai.azure.com", "azure"),
        ("api.tokenfactory.nebius.com", "nebius"),
        ("api.studio.nebius.com", "nebius"),
        ("notopenrouter.ai", "compatible"),
        ("bedrock-runtime.us-east-1.amazonaws.com", "bedrock"),
        ("europe-west1-aiplatform.googleapis.com", "vertex"),
        ("aiplatform.eu.rep.googleapis.com", "vertex"),
        ("r.services.ai.azure.com", "foundry"),
    ],
)
def test_a_host_has_the_name_of_its_kind(host: str, kind: str) -> None:
    """A provider is found by the host of its base URL, by its further hosts, by their subdomains and regions."""
    assert kind_name(f"https://{host}/v1") == kind
