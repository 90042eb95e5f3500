"""Replays of logs with tiers: the bill against the truth, its interval, and logs that cannot be replayed."""

import json
import random
from pathlib import Path

import numpy as np
import pytest

from streaming_bench.__main__ import main
from streaming_bench.errors import BenchError
from streaming_bench.replay import tiers
from streaming_bench.replay.donors import columns_of, draw
from streaming_bench.replay.logged import LoggedAttempt, LoggedRequest
from streaming_bench.replay.tiers import TierPlan, replay_tiers

PRICES = {"flex": 0.5, "default": 1.0}


@pytest.fixture(autouse=True)
def one_draw(monkeypatch: pytest.MonkeyPatch) -> None:
    """One draw of each case: half of the time."""
    monkeypatch.setattr(tiers, "_DRAWS", 1)


def requests(count: int = 1_000, *, refused: float = 0.0) -> list[LoggedRequest]:
    """Half of the requests at a cheap tier, which is slower and never too late for a target of 3 s."""
    rng = random.Random(1)
    found = []
    for number in range(count):
        cheap = number % 2 == 0
        ttft_s = (0.6 if cheap else 0.3) * rng.lognormvariate(0.0, 0.2)
        name = f"openai/{'flex' if cheap else 'default'}"
        request = LoggedRequest(number / 10, "m", name, 100.0, ttft_s, 1.0, answer_tokens=25.0)
        if cheap and rng.random() < refused:
            again = LoggedAttempt(number / 10 + 0.02, "openai/default", ttft_s, cancelled=False, refused=False)
            request = request._replace(ttft_s=1e-6, cancelled=True, refused=True, later=(again,))
        found.append(request)
    return found


def test_a_cheap_tier_that_keeps_the_target_halves_the_bill() -> None:
    """After the start, all but the refused requests cost half; a refused one costs as much as on the usual tier."""
    found = replay_tiers(requests(refused=0.2), TierPlan(PRICES, (3.0,), 1.0, 4.0))
    row = found.rows[0].independent
    flex = next(way for way in found.ways if way.name == "openai/flex")
    start = 0.15  # of the requests are at the usual tier, until the cheap one is known
    expected = start + (1.0 - start) * (0.5 * (1.0 - flex.refused) + flex.refused)
    assert flex.refused == pytest.approx(0.2, abs=0.05)
    assert row.bill.value == pytest.approx(expected, abs=0.07)
    assert row.bill.low < row.bill.value < row.bill.high < 1.0
    assert row.over.value == found.rows[0].usual_over == 0.0
    assert found.usual_cost == pytest.approx((100 + 4 * 25) / 1e6)


def test_the_command_prints_and_writes_the_bill(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The page has the bill with its interval, the setting, and what is unknown; JSON has the same."""
    log, data = tmp_path / "log.csv", tmp_path / "out.json"
    rows = [f"{one.arrived_s},{one.replica},{1000 * one.ttft_s},100,25\n" for one in requests()]
    log.write_text("arrival,replica,ttft_ms,prompt_tokens,completion_tokens\n" + "".join(rows))
    options = ["--tiers", "flex,default", "--ttft-target", "2s", "--price", "2,8", "--json", str(data)]
    assert main(["replay", str(log), *options]) == 0
    page = capsys.readouterr().out
    assert "ways: openai/flex (price 0.5) 500 attempts; openai/default (price 1) 500 attempts" in page
    assert "With a target of 2 s the bill falls by " in page
    assert "instead of 0.4, at 2 and 8 for a million tokens" in page
    assert "refusals: only the gateway's log has them." in page
    (row,) = json.loads(data.read_text())["targets"]
    assert row["independent"]["bill"]["low"] < row["independent"]["bill"]["value"] < 0.7


@pytest.mark.parametrize(
    ("change", "prices", "message"),
    [
        ({}, {"flex": 0.5}, "replicas without a price: 'openai/default'; add them to --tiers"),
        ({}, {"flex": 0.5, "default": 0.9}, "no replica with a price of 1, the usual tier, and 150 attempts"),
        ({}, {"flex": 2.0, "default": 1.0}, "no replica with a price of below 1, and 150 attempts"),
        ({"answer_tokens": 0.0}, PRICES, "no tokens of prompts and answers"),
    ],
)
def test_logs_that_cannot_be_replayed_are_explained(
    change: dict[str, float], prices: dict[str, float], message: str
) -> None:
    """A log without a tier, a price or tokens is rejected with the action."""
    logged = [one._replace(**change) for one in requests()]  # type: ignore[arg-type]
    with pytest.raises(BenchError, match=message):
        replay_tiers(logged, TierPlan(prices, (3.0,), 1.0, 4.0))


def test_waits_that_were_cut_are_not_taken_for_rare() -> None:
    """Three in ten waits are longer than 2 s, and most of them are cut before 2.5 s; as many drawn ones are longer."""
    rng = np.random.default_rng(1)
    waits_s = np.where(rng.random(2_000) < 0.3, 2.0 + rng.exponential(10.0, 2_000), rng.random(2_000))
    cuts_s = 2.0 + 0.5 * rng.random(2_000)
    logged = [
        LoggedRequest(number / 10, "m", "ab"[number % 2], 100.0, min(wait_s, cut_s), cancelled=wait_s > cut_s)
        for number, (wait_s, cut_s) in enumerate(zip(waits_s.tolist(), cuts_s.tolist(), strict=True))
    ]
    times_s, _ = draw(columns_of(logged, 2), 1, correlated=False)
    assert (times_s > 2.0).mean() == pytest.approx(0.3, abs=0.03)
    assert (times_s > 2.5).mean() == pytest.approx((waits_s > 2.5).mean(), abs=0.06)


def test_a_wrong_tier_is_explained(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    """A tier without a known price, and prompts without a price of answers, have messages."""
    with pytest.raises(SystemExit):
        main(["replay", "log", "--tiers", "batch,default"])
    assert "the price of 'batch' is unknown; write batch=0.5" in capsys.readouterr().err
    log = tmp_path / "log.csv"
    log.write_text("arrival,ttft_ms\n1,5\n")
    assert main(["replay", str(log), "--tiers", "flex,default", "--price", "2"]) == 1
    assert "--price has no price of answers" in capsys.readouterr().err
