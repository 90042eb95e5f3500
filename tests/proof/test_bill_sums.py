"""The bill against all requests on the usual tier: sums, the interval for further requests, and the report."""

import random

import pytest
from msgspec.structs import replace

from gateway.cli.prove import as_text
from gateway.config.settings import Settings
from gateway.observe.proof import Goal, count_request, goals
from gateway.proof.bill import BillSums
from gateway.proof.report import report
from gateway.proof.tally import Tally
from sample_events import PRIMARY, REQUEST


def sums(rng: random.Random, count: int) -> BillSums:
    """Requests that cost half of the usual bill, or a third more after a backup."""
    found = BillSums()
    for _ in range(count):
        usual = rng.lognormvariate(0.0, 0.8)
        found.add((1.3 if rng.random() < 0.3 else 0.5) * usual, usual)
    return found


def test_the_interval_holds_further_requests() -> None:
    """In at least 9 of 10 cases, as many further requests save an amount within the interval."""
    rng = random.Random(7)
    held = 0
    for _ in range(200):
        seen, further = sums(rng, 200), sums(rng, 200)
        held += seen.saved.low <= further.usual - further.cost <= seen.saved.high
    assert held >= 0.9 * 200


def test_the_sums_of_gateways_add_up() -> None:
    """Two halves have the sums and the interval of the whole."""
    rng = random.Random(1)
    whole, half = BillSums(), BillSums()
    other = BillSums()
    for index in range(100):
        bill = rng.random(), 1.0
        whole.add(*bill)
        (half if index % 2 else other).add(*bill)
    half.merge(other)
    assert half.requests == whole.requests == 100
    assert half.saved.value == pytest.approx(whole.saved.value)
    assert half.saved.low == pytest.approx(whole.saved.low)


def test_a_request_is_counted_with_all_its_attempts() -> None:
    """The bill has every attempt, the usual bill the answer; the report and the printed text have both."""
    tally = Goal(2.0, 10.0).tally()
    attempts = tuple(replace(PRIMARY, charge=replace(PRIMARY.charge, cost=cost)) for cost in (0.2, 0.4))
    count_request(replace(REQUEST, attempts=attempts, usual_cost=1.0), tally)
    count_request(replace(REQUEST, usual_cost=None), tally)
    merged = Tally(2.0, 10.0)
    merged.merge(tally)
    bill = report("m", merged).bill
    assert bill is not None
    assert (bill.cost, bill.usual, bill.saved_share) == (0.6, 1.0, 0.4)
    assert bill.saved.value == pytest.approx(0.4)
    assert "bill: 0.6 instead of 1 on the usual tier; saved 0.4" in as_text(report("m", merged))
    assert report("m", Goal(2.0, 10.0).tally()).bill is None


def test_a_model_that_prefers_a_low_bill_is_counted() -> None:
    """It needs no measured hedges, and has no line in the log."""
    row = {"name": "a", "kind": "vllm", "base_url": "http://h:1/v1"}
    model = {"replicas": [row], "prices": {"prompt": 1, "completion": 2}}
    settings = Settings.model_validate(
        {
            "models": [
                {**model, "name": "m", "hedge": {"prefer": "cost", "ttft_target": "3s"}},
                {**model, "name": "n"},
            ]
        }
    )
    found = goals(settings)
    assert list(found) == ["m"]
    assert not found["m"].is_measured
