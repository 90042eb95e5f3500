"""The picture of a model for people: estimates at the quantiles asked for, and what they rest on."""

import random
from typing import Any

import pytest

from defaults import default_hedging, default_timeouts
from gateway.observe.describe import describe, pool_state
from gateway.race.context import Model
from pooled import send
from scripted import Scripted, answer
from ttft_gateway.apis.base import RateLimit, Resource
from ttft_gateway.hedging.contract import RequestFacts
from ttft_gateway.hedging.outcomes import Outcome
from ttft_gateway.limits.bucket import Limit, Spend
from ttft_gateway.limits.ledger import Ledger
from ttft_gateway.pool.pool import Pool
from ttft_gateway.routing.replicas import Replica


def picture(*quantiles: float) -> dict[str, Any]:
    """A pool; its replica `a` has answered in 0.1 to 9 s, and a tenth of its attempts was given up, after 8 s."""
    pool = Pool("m", [Replica(name, Scripted(answer(0.1))) for name in "ab"], default_hedging())
    for n in range(1, 91):
        pool.learning.add_content("a", n / 10, 1.0, 0.0)
    for _ in range(10):
        pool.learning.add_given_up("a", 8.0, 1.0, 0.0)
    pools = describe(Model("m", [pool], default_timeouts()), 0.0, quantiles)["pools"]
    assert isinstance(pools, list)
    found: dict[str, Any] = pools[0]
    return found


def near(actual: float, expected: float) -> bool:
    """Compare within the accuracy of a sketch: its bins are 2 % wide."""
    return abs(actual - expected) <= 0.021 * expected


def test_estimates_at_any_quantile() -> None:
    """Quantiles ignore the waits that were given up, estimates count them; both include their numbers of samples."""
    found = picture(0.5, 0.75)
    replica = found["replicas"][0]
    seen, estimate, ratio = replica["ttft_ms"], replica["ttft_estimate_ms"], found["ttft_x"]
    assert list(seen) == ["samples", "p50", "p75"]
    assert list(estimate) == list(ratio) == ["samples", "given_up", "p50", "p75"]
    assert (seen["samples"], estimate["samples"], estimate["given_up"]) == (90, 90, 10)
    assert near(seen["p75"], 6700)
    assert near(estimate["p75"], 7500)  # of 100 attempts 75 have ended by then
    assert near(ratio["p75"], 7.5)


@pytest.mark.parametrize(
    ("names", "factor", "levels"),
    [("a", 1.0, (1.0, 1.0)), ("a", 0.3, (1.0, 1.0)), ("a", 6.0, (1.5, 6.0)), ("ab", 0.3, (0.0, 0.9))],
)
def test_levels_and_predictions_of_short_prompts(names: str, factor: float, levels: tuple[float, float]) -> None:
    """A lone replica has level 1 unless it is slower than usual; predictions are for the median prompt, never 0."""
    rng, pool = random.Random(1), Pool("m", [Replica(name, Scripted()) for name in names], default_hedging())
    for number in range(400):
        ttft_s = 0.2 * rng.lognormvariate(0.0, 0.4) * (factor if number >= 360 else 1.0)
        attempt = send(pool, number % len(names), float(number), RequestFacts(prompt_tokens=rng.uniform(12.0, 20.0)))
        attempt.content_s = number + ttft_s
        pool.on_content(attempt, attempt.content_s)
        pool.on_end(attempt, Outcome.FINISHED, attempt.content_s, None)
    pool.learning.predictor.fold(400.0)
    pools: Any = describe(Model("m", [pool], default_timeouts()), 400.0)["pools"]
    for replica in pools[0]["replicas"]:
        assert levels[0] <= replica["level"] <= levels[1]
        predicted = replica["predicted_ms"]
        assert 20.0 < predicted["p10"] < predicted["ttft"] < predicted["p90"] < 3_000.0


def test_unknown_quantiles_are_not_estimated() -> None:
    """Beyond what was seen of the longest waits there is no figure, nor where nothing was seen; never a made-up one."""
    pool = Pool("m", [Replica(name, Scripted(answer(0.1))) for name in "ab"], default_hedging())
    pool.learning.add_content("a", 0.1, 1.0, 0.0)
    pool.learning.add_given_up("a", 0.2, 1.0, 0.0)
    pools: Any = describe(Model("m", [pool], default_timeouts()), 0.0, [0.4, 0.97])["pools"]
    first, second = pools[0]["replicas"]
    assert near(first["ttft_estimate_ms"]["p40"], 100)
    assert first["ttft_estimate_ms"]["p97"] is None
    assert second["ttft_estimate_ms"] == {"samples": 0, "given_up": 0, "p40": None, "p97": None}


def test_the_usual_quantiles() -> None:
    """Without a wish the usual four are shown, named as people name them."""
    assert list(picture()["replicas"][0]["ttft_ms"]) == ["samples", "p50", "p90", "p95", "p99"]
    assert "p99.9" in picture(0.999)["ttft_x"]


def test_a_quota_shows_its_remaining_amount_and_the_source() -> None:
    """Configured and stated limits, the cool-down and the tokens under way, for people and for metrics."""
    ledger = Ledger([Limit(Resource.REQUESTS, 60.0, enforce=True)])
    pool = Pool(
        "m", [Replica("a", Scripted([]), "main"), Replica("b", Scripted([]))], default_hedging(), {"main": ledger}
    )
    ticket = ledger.reserve(Spend(80, 20), 0.0)
    ledger.observe(ticket, [RateLimit(Resource.TOKENS, 60.0, 1_000.0, 900.0)], 0.0)
    ledger.cool_down(5.0)
    pools: Any = describe(Model("m", [pool], default_timeouts()), 0.0, ())["pools"]
    assert pools[0]["quotas"] == [
        {
            "quota": "main",
            "cooling_s": 5.0,
            "limits": [
                {
                    "resource": "requests",
                    "window_s": 60.0,
                    "limit": 60.0,
                    "left": 59.0,
                    "from": "configuration",
                    "enforced": True,
                    "age_s": None,
                    "others_s": None,
                },
                {
                    "resource": "tokens",
                    "window_s": 60.0,
                    "limit": 1_000.0,
                    "left": 900.0,
                    "from": "responses",
                    "enforced": False,
                    "age_s": 0.0,
                    "others_s": 0.0,
                },
            ],
            "tokens": {"reserved": 100, "settled": 0, "released": 0},
        }
    ]
    *_, state = pool_state("m", pool, 0.0)
    assert state is not None
    (quota,) = state.quotas
    assert (quota.quota, quota.cooling_s, [limit.left for limit in quota.limits]) == ("main", 5.0, [59.0, 900.0])


def test_replicas_show_whether_they_can_be_hedged() -> None:
    """Each replica shows why its requests cannot be hedged, and the facts behind it; the model, if any can be."""
    billed = Replica("a", Scripted(), hedgeable=False, bills_cancelled=True)
    unknown = Replica("b", Scripted(), hedgeable=False, bills_cancelled=True, billing_unknown=True)
    found: Any = describe(Model("m", [Pool("m", [billed, unknown], default_hedging())], default_timeouts()), 0.0)
    keys = ("never_hedged", "takes_hedges", "cancel_stops_billing")
    assert found["hedging_possible"] is False
    assert [tuple(replica[key] for key in keys) for replica in found["pools"][0]["replicas"]] == [
        ("billing_unknown", False, False),
        ("billed", False, None),
    ]
    fallback = Pool("m/fallback-1", [Replica("c", Scripted()), Replica("d", Scripted())], default_hedging())
    found = describe(Model("m", [Pool("m", [billed, unknown], default_hedging()), fallback], default_timeouts()), 0.0)
    assert found["hedging_possible"] is True
    (state,) = filter(None, pool_state("m", fallback, 0.0))
    assert {(each.never_hedged, each.takes_hedges, each.cancel_stops_billing) for each in state.replicas} == {
        (None, True, True)
    }


def test_predictions_are_shown_for_the_usual_prompt() -> None:
    """Prompts of one length: the prediction shown is near the times seen, with an interval from the ratios; never 0."""
    pool = Pool("m", [Replica(name, Scripted(answer(0.1))) for name in "ab"], default_hedging())
    shown: Any = describe(Model("m", [pool], default_timeouts()), 0.0, ())["pools"]
    assert shown[0]["replicas"][0]["predicted_ms"] is None
    for n in range(200):
        ttft_s = 0.2 * (0.8 + 0.4 * (n % 10) / 9)
        pool.learning.predictor.add("a", ttft_s, 1_000.0 + n % 7, 0.0, n / 10)
        pool.learning.add_content("a", ttft_s, 0.2, n / 10)
    pool.learning.predictor.fold(20.0)
    shown = describe(Model("m", [pool], default_timeouts()), 20.0, ())["pools"]
    usual = shown[0]["replicas"][0]["predicted_ms"]
    assert abs(shown[0]["predictor"]["usual_prompt_tokens"] - 1_003) <= 60
    assert abs(usual["ttft"] - 200.0) < 15.0
    assert 150.0 < usual["p10"] < 180.0
    assert 220.0 < usual["p90"] < 250.0
