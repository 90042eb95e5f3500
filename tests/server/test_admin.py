"""The admin application over plain ASGI: state, access to the switch, and start and end of the feed."""

import asyncio
from collections.abc import Mapping, Sequence

import msgspec
import pytest
from msgspec.structs import replace

from admin_site import AdminUnderTest, Exchange
from gateway.observe.exposition import CONTENT_TYPE
from gateway.observe.proof import Goal
from running import run_virtual
from sample_events import HEDGED, REQUEST, SHADOWED
from scrapes import text_of


def test_metrics_are_served() -> None:
    """GET /metrics is what the metrics write, with their content type."""
    site = AdminUnderTest()
    site.metrics.on_events([REQUEST])
    answer = site.ask("GET", "/metrics")
    assert (answer.status, answer.headers["content-type"]) == (200, CONTENT_TYPE)
    assert answer.body.decode() == text_of(site.metrics)
    assert b"ttft_gateway_requests_total{" in answer.body


def test_models() -> None:
    """The list has every model with the current state of its pools; a model's own route has its full state."""
    site = AdminUnderTest()
    listed = site.ask("GET", "/admin/models").json["models"]
    assert [row["model"] for row in listed] == ["llama", "org/qwen"]
    assert [row["hedging_possible"] for row in listed] == [True, True]
    assert listed[0]["pools"][0]["replicas"][1] == {
        "replica": "b",
        "in_flight": 0,
        "breaker": "half_open",
        "samples": 0,
        "out": False,
        "locked": None,
        "backup_only": False,
        "suspect": True,
        "never_hedged": "billed",
        "takes_hedges": True,
        "draining": False,
        "cancel_stops_billing": True,
        "level": 7.5,
        "token_gap_s": None,
        "answer_slowness": 1.0,
        "predicted_s": None,
        "hedge_delay_s": None,
        "ttfb_p50_s": None,
        "ttfb_p99_s": None,
        "ttft_p50_s": None,
        "ttft_p99_s": None,
    }
    assert site.ask("GET", "/admin/models/org/qwen").json == {"model": "org/qwen", "pools": ["a picture"]}
    assert site.refusal("GET", "/admin/models/gpt") == (404, "model_not_found")


def test_health_and_history() -> None:
    """The verdict is what the view gives; the history of a model has 288 windows, and needs a known model."""
    site = AdminUnderTest()
    assert site.ask("GET", "/admin/health").json == {"state": "well"}
    day = site.ask("GET", "/admin/history/org/qwen").json
    assert (day["model"], len(day["requests"]), len(day["ttft"])) == ("org/qwen", 288, 288)
    assert site.refusal("GET", "/admin/history/gpt") == (404, "model_not_found")


@pytest.mark.parametrize(("query", "asked"), [(b"q=0.97", [0.97]), (b"q=0.5,%200.9&q=0.999", [0.5, 0.9, 0.999])])
def test_a_model_at_any_quantile(query: bytes, asked: list[float]) -> None:
    """The picture of a model is made for the quantiles that are asked for, one or several."""
    assert AdminUnderTest().ask("GET", "/admin/models/llama", query=query).json["pools"] == ["a picture", *asked]


@pytest.mark.parametrize(
    "query",
    [b"q=", b"q=high", b"q=97", b"q=0", b"q=1", b"q=nan", b"q=-0.5", b"q=0.5,", b"q=0.5&q=2", b"q=.5" + 16 * b",.5"],
)
def test_a_quantile_that_is_none(query: bytes) -> None:
    """A quantile outside 0 to 1, or too many of them, get a 400 with param `q` and a code."""
    answer = AdminUnderTest().ask("GET", "/admin/models/llama", query=query)
    error = answer.json["error"]
    assert (answer.status, error["param"], error["code"]) == (400, "q", "invalid_value")


def test_reload() -> None:
    """A reload returns its result, a failed one the reason; a foreign web page gets a 403."""
    answer = AdminUnderTest().ask("POST", "/admin/reload")
    assert (answer.status, answer.json) == (200, {"models": 2, "replicas": {"kept": 3, "new": 1, "rekeyed": 0}})
    answer = AdminUnderTest(fault="gateway.yaml:3:5: no").ask("POST", "/admin/reload")
    assert (answer.status, answer.json["error"]["code"]) == (422, "config_refused")
    assert answer.json["error"]["message"] == "gateway.yaml:3:5: no"
    foreign = {"origin": "https://elsewhere.example", "host": "127.0.0.1:8081"}
    assert AdminUnderTest().refusal("POST", "/admin/reload", headers=foreign) == (403, "forbidden")


def test_usage() -> None:
    """Usage is reported by key and model since the start, with a total; it can be filtered by key and model."""
    site = AdminUnderTest()
    for event in (HEDGED, REQUEST, replace(REQUEST, key_name="team-b", model="org/qwen")):
        site.metrics.on_events([event])
    usage = site.ask("GET", "/admin/usage").json
    assert usage["since"] == "2026-03-01T12:30:00Z"
    winners = {"attempts": 2, "prompt_tokens": 200, "cached_tokens": 80, "completion_tokens": 22}
    losers = {"attempts": 1, "prompt_tokens": 90, "estimated": 1}
    assert usage["rows"][0] == {"requests": 2, "key": "team-a", "model": "llama", "winner": winners, "loser": losers}
    assert [(row["key"], row["model"], row["requests"]) for row in usage["rows"][1:]] == [("team-b", "org/qwen", 1)]
    assert (usage["total"]["requests"], usage["total"]["winner"]["prompt_tokens"]) == (3, 300)
    one = site.ask("GET", "/admin/usage", query=b"key=team-b&model=org/qwen").json
    assert [row["key"] for row in one["rows"]] == ["team-b"]
    assert one["total"]["requests"] == 1
    assert site.ask("GET", "/admin/usage", query=b"key=nobody").json["rows"] == []
    unknown = site.ask("GET", "/admin/usage", query=b"model=gpt")
    assert (unknown.status, unknown.json["error"]["code"]) == (404, "model_not_found")


def test_share_of_a_process_alone() -> None:
    """There is no engine."""
    assert AdminUnderTest().ask("GET", "/admin/share").json == {"engine": None}


def test_proof() -> None:
    """The report of each measured model; models and hours are checked."""
    site = AdminUnderTest()
    site.proof.goals = {"llama": Goal(2.0, 10.0)}
    site.proof.on_event(HEDGED)
    (row,) = site.ask("GET", "/admin/proof").json["models"]
    assert (row["model"], row["requests"], row["effect"], row["enough"]) == ("llama", 1, "direct", False)
    assert row["missing"].startswith("0 of 20 measured requests")
    assert row["misses"] == {"without": None, "with": {"value": 0.0, "low": 0.0, "high": 0.0}, "saved": None}
    assert site.ask("GET", "/admin/proof", query=b"model=org/qwen&hours=24").json == {"models": [], "shadow": []}
    assert site.ask("GET", "/admin/proof", query=b"model=gpt").status == 404
    for hours in (b"0", b"25", b"all", b"99999999999999999999", b"00000000199999999999"):
        assert site.ask("GET", "/admin/proof", query=b"hours=" + hours).status == 400


def test_proof_of_a_model_in_shadow() -> None:
    """It has a list of its own."""
    site = AdminUnderTest()
    site.proof.goals = {"llama": Goal(2.0, 10.0, is_shadow=True)}
    site.proof.on_event(SHADOWED)
    found = site.ask("GET", "/admin/proof").json
    (row,) = found["shadow"]
    assert (found["models"], row["model"], row["requests"], row["reasons"]) == ([], "llama", 1, {"late": 1})
    assert row["misses"] == {"observed": 0.0, "independent": 0.0, "correlated": 0.0}


def test_blocks() -> None:
    """A body begins a block; one without a usable name is refused, and so are foreign web pages."""
    site = AdminUnderTest()
    assert site.ask("POST", "/admin/blocks", b'{"block": "a"}').json == {"blocks": []}
    for body in (b"{}", b'{"block": ""}', b'{"block": "%s"}' % (b"x" * 101)):
        assert site.refusal("POST", "/admin/blocks", body) == (422, "invalid_value")
    foreign = {"host": "127.0.0.1:8081", "origin": "https://example.com"}
    assert site.refusal("POST", "/admin/blocks", b'{"block": "a"}', foreign) == (403, "forbidden")


def test_switch() -> None:
    """The switch turns one model or all of them, and answers with the new state."""
    site = AdminUnderTest()
    assert site.ask("GET", "/admin/hedging").json == {"on": True, "models": {"llama": True, "org/qwen": True}}
    one = site.ask("POST", "/admin/hedging", b'{"on": false, "model": "org/qwen"}')
    assert one.json == {"on": False, "models": {"llama": True, "org/qwen": False}}
    everything = site.ask("POST", "/admin/hedging", b'{"on": false}')
    assert everything.json == {"on": False, "models": {"llama": False, "org/qwen": False}}
    assert site.ask("POST", "/admin/hedging", b'{"on": true, "model": null}').json["on"] is True
    assert site.ask("GET", "/admin/hedging").json["on"] is True


@pytest.mark.parametrize(
    ("body", "refusal"),
    [
        (b"", (400, "invalid_json")),
        (b"on", (400, "invalid_json")),
        (b'{"on": false', (400, "invalid_json")),
        (b"[]", (422, "invalid_value")),
        (b"{}", (422, "invalid_value")),
        (b'{"on": 0}', (422, "invalid_value")),
        (b'{"on": "false"}', (422, "invalid_value")),
        (b'{"on": false, "model": 7}', (422, "invalid_value")),
        (b'{"on": false, "modell": "llama"}', (422, "invalid_value")),
        (b'{"on": false, "model": "gpt"}', (404, "model_not_found")),
        (b'{"on": false, "model": "' + b"x" * 5000 + b'"}', (413, "request_too_large")),
    ],
)
def test_bad_switching_changes_nothing(body: bytes, refusal: tuple[int, str]) -> None:
    """A body that is not exactly what the switch takes turns nothing."""
    site = AdminUnderTest()
    assert site.refusal("POST", "/admin/hedging", body) == refusal
    assert site.off == set()


def test_slow_switching_is_refused() -> None:
    """A body that does not arrive does not hold a connection for ever."""
    site = AdminUnderTest()

    async def never_send_the_rest() -> tuple[int, float]:
        exchange = Exchange()
        exchange.send_body(b'{"on"', more=True)
        await exchange.run(site.admin.app, "POST", "/admin/hedging", {})
        return exchange.status, asyncio.get_running_loop().time()

    assert run_virtual(never_send_the_rest()) == (408, 5.0)


def test_foreign_pages_cannot_switch() -> None:
    """A foreign web page cannot turn the switch through an operator's browser."""
    site, off = AdminUnderTest(), b'{"on": false}'
    foreign = {"host": "127.0.0.1:8081", "origin": "https://example.com"}
    assert site.refusal("POST", "/admin/hedging", off, foreign) == (403, "forbidden")
    assert site.off == set()
    unnamed = {"host": "127.0.0.1:8081", "sec-fetch-site": "same-site"}
    assert site.refusal("POST", "/admin/hedging", off, unnamed) == (403, "forbidden")
    assert site.off == set()
    own = {"host": "127.0.0.1:8081", "origin": "http://127.0.0.1:8081"}
    assert site.ask("POST", "/admin/hedging", off, own).status == 200
    proxied = {"host": "127.0.0.1:8081", "origin": "https://admin.example", "sec-fetch-site": "same-origin"}
    assert site.ask("POST", "/admin/hedging", off, proxied).status == 200


def test_replicas_are_taken_out_and_in() -> None:
    """The route passes name, model and direction on, and answers with the state of every replica."""
    site = AdminUnderTest(models=("llama",))
    state = {name: {"out": name == "c", "in_flight": count} for name, count in (("a", 3), ("b", 0), ("c", 1))}
    assert site.ask("GET", "/admin/replicas").json == {"models": {"llama": state}}
    assert site.ask("POST", "/admin/replicas", b'{"replica": "a", "out": true}').json == {"models": {"llama": state}}
    assert site.ask("POST", "/admin/replicas", b'{"replica": "c", "out": false, "model": "llama"}').status == 200
    assert site.switched == [("a", None, True), ("c", "llama", False)]


@pytest.mark.parametrize(
    ("body", "refusal"),
    [
        (b"a", (400, "invalid_json")),
        (b'{"replica": "a"}', (422, "invalid_value")),
        (b'{"out": true}', (422, "invalid_value")),
        (b'{"replica": "a", "out": "yes"}', (422, "invalid_value")),
        (b'{"replica": "a", "out": true, "models": ["llama"]}', (422, "invalid_value")),
        (b'{"replica": "a", "out": true, "model": "gpt"}', (404, "model_not_found")),
        (b'{"replica": "' + b"x" * 5000 + b'", "out": true}', (413, "request_too_large")),
    ],
)
def test_a_bad_body_takes_nothing_out(body: bytes, refusal: tuple[int, str]) -> None:
    """A body that is not exactly what the route takes changes nothing, nor does a foreign web page."""
    site = AdminUnderTest()
    assert site.refusal("POST", "/admin/replicas", body) == refusal
    foreign = {"host": "127.0.0.1:8081", "origin": "https://example.com"}
    assert site.refusal("POST", "/admin/replicas", b'{"replica": "a", "out": true}', foreign) == (403, "forbidden")
    assert site.switched == []


GUARDED = [
    "/admin/replicas",
    "/metrics",
    "/admin/proof",
    "/admin/share",
    "/admin/usage",
    "/admin/models",
    "/admin/models/llama",
    "/admin/hedging",
]


@pytest.mark.parametrize("path", [*GUARDED, "/admin/events"])
@pytest.mark.parametrize("given", [None, "Bearer", "Bearer wrong", "Bearer s\xe9cret", "Basic secret", "secret"])
def test_key_is_required(path: str, given: str | None) -> None:
    """With an admin key, every route but /healthz answers 401 to everything but that key."""
    site = AdminUnderTest(key="secret")
    headers = {} if given is None else {"authorization": given}
    assert site.refusal("GET", path, headers=headers) == (401, "invalid_api_key")
    assert site.ask("GET", path, headers=headers).headers["www-authenticate"] == "Bearer"
    assert site.ask("GET", "/healthz").json == {"status": "ok"}


@pytest.mark.parametrize("path", [*GUARDED, "/admin/events"])
def test_without_a_key_the_host_must_be_known(path: str) -> None:
    """A name that only a web page knows (DNS rebinding) gets a 421 everywhere, also with a matching origin."""
    site = AdminUnderTest()
    page = {"host": "evil.example:8081", "origin": "http://evil.example:8081"}
    assert site.refusal("GET", path, headers=page) == (421, "unknown_host")
    assert site.refusal("POST", "/admin/hedging", b'{"on": false}', page) == (421, "unknown_host")
    assert site.off == set()
    assert site.ask("GET", "/healthz", headers=page).json == {"status": "ok"}


def test_a_configured_host_and_a_key() -> None:
    """A configured name is served; with a key any name is, because a web page has no key."""
    site = AdminUnderTest(hosts=("gateway.internal",))
    assert site.ask("GET", "/admin/hedging", headers={"host": "gateway.internal:8081"}).status == 200
    site = AdminUnderTest(key="secret")
    headers = {"host": "any.example", "authorization": "Bearer secret"}
    assert site.ask("GET", "/admin/hedging", headers=headers).status == 200


@pytest.mark.parametrize("path", GUARDED)
def test_key_opens(path: str) -> None:
    """The right key opens; the scheme's case does not matter."""
    site = AdminUnderTest(key="secret")
    assert site.ask("GET", path, headers={"authorization": "bearer secret"}).status == 200
    refused = site.refusal("POST", "/admin/hedging", b'{"on": false}', {"authorization": "Bearer no"})
    assert (refused, site.off) == ((401, "invalid_api_key"), set())


def test_unknown_routes_and_methods() -> None:
    """An unknown route gets an error in OpenAI's shape, a wrong method one with the allowed methods."""
    site = AdminUnderTest()
    assert site.refusal("GET", "/admin") == (404, "unknown_url")
    assert site.refusal("GET", "/admin/models/") == (404, "model_not_found")
    assert site.refusal("GET", "/docs") == (404, "unknown_url")
    public = site.ask("GET", "/v1/models").json["error"]["message"]
    assert public.endswith("(requests for models go to the address in `listen`)")
    assert site.refusal("DELETE", "/metrics") == (405, "method_not_allowed")
    assert site.ask("DELETE", "/metrics").headers["allow"] == "GET, HEAD"


def test_bug_is_reported_without_its_text() -> None:
    """An exception in a route causes a 500 in OpenAI's shape without its text; the server receives the exception."""

    class Broken(AdminUnderTest):
        def describe(self, name: str, quantiles: Sequence[float]) -> Mapping[str, object] | None:
            raise ValueError("a secret detail")

    exchange = Exchange()
    exchange.send_body(b"")
    with pytest.raises(ValueError, match="a secret detail"):
        run_virtual(exchange.run(Broken().admin.app, "GET", "/admin/models/llama", {}))
    assert exchange.status == 500
    assert msgspec.json.decode(exchange.pieces.get_nowait())["error"]["code"] == "internal_error"


@pytest.mark.parametrize(
    ("method", "path", "query", "name", "takes"),
    [
        ("GET", "/admin/models", b"model=llama", "model", "none"),
        ("GET", "/admin/models/llama", b"q=0.5&quantile=0.9", "quantile", "q"),
        ("GET", "/admin/usage", b"keys=team-a", "keys", "key and model"),
        ("GET", "/admin/proof", b"days=2", "days", "model and hours"),
        ("POST", "/admin/hedging", b"on=false", "on", "none"),
        ("POST", "/admin/reload", b"dry_run=", "dry_run", "none"),
        ("POST", "/admin/blocks", b"block=a", "block", "none"),
    ],
)
def test_an_unknown_query_parameter_is_named(method: str, path: str, query: bytes, name: str, takes: str) -> None:
    """An unknown query parameter gets a 400 that names it and the supported ones, and has no effect."""
    site = AdminUnderTest()
    answer = site.ask(method, path, query=query)
    assert answer.status == 400
    assert answer.json["error"]["param"] == name
    assert f"{name!r}; this route takes {takes}" in answer.json["error"]["message"]
    assert not site.off


@pytest.mark.parametrize("path", ["/metrics", "/healthz"])
def test_scrapers_and_probes_may_add_parameters(path: str) -> None:
    """Routes for tools accept any query parameter, because tools may add their own."""
    assert AdminUnderTest().ask("GET", path, query=b"target=a").status == 200
