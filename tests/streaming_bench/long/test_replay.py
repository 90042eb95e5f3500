"""Replays: predictions against the truth, savings, recommendations, stripped logs and the command."""

import json
import math
import random
from pathlib import Path

import numpy as np
import pytest

from replay_truth import check
from streaming_bench.__main__ import main
from streaming_bench.replay.donors import columns_of, draw
from streaming_bench.replay.estimates import WaitBounds, compared, half_width, shown_figures
from streaming_bench.replay.frontier import ReplayPlan, replay
from streaming_bench.replay.hedged import hedge, settings_of
from streaming_bench.replay.logged import LoggedRequest
from streaming_bench.replay.reader import read_log

BOUNDS = WaitBounds(slo_s=1.0, restricted_s=120.0)


def requests(count: int, *, stalls: float = 0.03, seed: int = 1) -> list[LoggedRequest]:
    """Requests at three replicas, of which a share stalls for a second."""
    rng = random.Random(seed)
    return [
        LoggedRequest(
            number / 10,
            "m",
            f"r{rng.randrange(3)}",
            100.0,
            0.2 * rng.lognormvariate(0.0, 0.2) + (rng.random() < stalls) * (1.0 + rng.random()),
        )
        for number in range(count)
    ]


def csv_of(folder: Path, logged: list[LoggedRequest]) -> Path:
    """A CSV file with the requests."""
    path = folder / "log.csv"
    rows = [f"{one.arrived_s},{one.model},{one.tokens:g},{one.replica},{1000 * one.ttft_s}\n" for one in logged]
    path.write_text("arrival,model,prompt_tokens,replica,ttft_ms\n" + "".join(rows))
    return path


def test_the_prediction_contains_the_truth() -> None:
    """The log of a run without hedging predicts the p99 of the same run with hedging; scripts/nightly has all cases."""
    found = check("W1", 301, 2_000)
    assert found.is_inside
    assert half_width(found.predicted) <= 0.30
    assert found.row.independent["p99"].saved.low > 0.45 * found.off_s


def test_the_band_contains_the_truth_of_correlated_misses() -> None:
    """With fully correlated misses the truth is outside the interval for independent ones, but within the band."""
    found = check("W1", 301, 1_500, 1.0)
    assert not found.is_inside
    assert found.is_in_band


def test_fully_correlated_waits_save_nothing_and_stop_hedges() -> None:
    """If a slow request is as slow everywhere, no figure improves, and the gateway's own guard sends few hedges."""
    log = columns_of(requests(1_000), 2)
    row = replay(log, ReplayPlan(budgets=(0.1,))).rows[0]
    assert row.correlated["p99"].saved.value < 0.05 * row.correlated["p99"].value.value
    assert row.correlated_hedges < 0.5 * row.hedges
    assert row.independent["p99"].saved.low > 0.0


def test_own_times_are_kept_and_others_drawn_nearby() -> None:
    """A request keeps its time at its own replica; elsewhere it takes a time from the same minutes."""
    logged = [one._replace(ttft_s=one.ttft_s + (5.0 if one.arrived_s > 100 else 0.0)) for one in requests(2_000)]
    log = columns_of(logged, 2)
    times_s, own_s = draw(log, 1, correlated=False)
    assert own_s == pytest.approx([one.ttft_s for one in logged])
    late = log.arrived_s > 115
    assert times_s[late].min() > 5.0
    assert times_s[log.arrived_s < 85].max() < 5.0


def test_cancelled_waits_are_drawn_beyond_their_bound() -> None:
    """A primary that was cancelled after 0.5 s takes longer than that."""
    logged = [one._replace(ttft_s=min(one.ttft_s, 0.5), cancelled=one.ttft_s > 0.5) for one in requests(2_000)]
    _, own_s = draw(columns_of(logged[:1_000] + requests(2_000)[1_000:], 2), 1, correlated=False)
    cut = np.array([one.cancelled for one in logged[:1_000]])
    assert own_s[:1_000][cut].min() > 0.5
    assert np.median(own_s[:1_000][cut]) > 1.0


def test_requests_that_may_not_be_hedged_are_not() -> None:
    """Requests that the log marks as never hedged get no backup."""
    logged = [one._replace(hedgeable=number % 2 == 0) for number, one in enumerate(requests(1_000, stalls=0.1))]
    log = columns_of(logged, 2)
    found = hedge(log, draw(log, 1, correlated=False)[0], settings_of(0.2, 0.02), 1, engines=False)
    assert found.hedges[1::2].sum() == 0
    assert found.hedges[::2].sum() > 0


def test_unnamed_replicas_are_assumed_alike() -> None:
    """Without names of replicas, the asked number of alike ones is assumed."""
    log = columns_of([one._replace(replica="") for one in requests(500)], 3)
    assert log.alike
    assert list(log.names) == ["replica-1", "replica-2", "replica-3"]
    assert replay(log, ReplayPlan(budgets=(0.1,))).rows[0].hedges > 0


def test_intervals_need_blocks_and_quantiles_need_requests() -> None:
    """Below 200 requests there are no intervals of blocks; a p99 needs 1,000 requests, a p95 200."""
    few = np.random.default_rng(1).random(150)
    assert not compared([few], [few], BOUNDS, 1)["mean"].value.known
    assert compared([few], [few], BOUNDS, 1)["mean"].saved.value == 0.0
    assert shown_figures(199) == ["misses", "mean"]
    assert shown_figures(200) == ["p95", "misses", "mean"]
    assert shown_figures(1_000) == ["p95", "p99", "misses", "mean"]


def test_intervals_cover_the_truth() -> None:
    """The interval from one sample contains the p95 of another one in about 95 % of the pairs."""
    rng = np.random.default_rng(7)
    inside = 0
    for seed in range(40):
        one, other = rng.lognormal(size=1_000), rng.lognormal(size=1_000)
        low, high = compared([one], [one], BOUNDS, seed)["p95"].value[1:]
        inside += low <= float(np.quantile(other, 0.95)) <= high
    assert inside >= 34


def test_no_saving_is_no_recommendation() -> None:
    """Where all waits are nearly alike, no budget is recommended."""
    logged = [one._replace(ttft_s=0.2 + 0.001 * (number % 7)) for number, one in enumerate(requests(600))]
    found = replay(columns_of(logged, 2), ReplayPlan(budgets=(0.1,)))
    assert found.recommended is None


def test_the_command_prints_writes_and_draws(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The page has both tables, a recommendation with its setting, cost and what is unknown; files are written."""
    log, data, plot = csv_of(tmp_path, requests(1_000)), tmp_path / "out.json", tmp_path / "out.svg"
    options = ["--budgets", "5", "--json", str(data), "--plot", str(plot), "--price", "2"]
    assert main(["replay", str(log), *options]) == 0
    page = capsys.readouterr().out
    for part in ("1,000 requests with a first token", "fully correlated", "Recommended budget: 5%", "Not in this log:"):
        assert part in page
    assert "          hedge:\n            budget: 5%" in page.replace("  set     ", "          ")
    assert " for 1,000 requests, " in page
    result = json.loads(data.read_text())
    assert [row["budget"] for row in result["budgets"]] == [0.05]
    low, high = result["budgets"][0]["band"]["p99"]
    assert low <= result["budgets"][0]["independent"]["p99"]["value"]["value"] <= high
    assert plot.exists()
    assert plot.with_suffix(".png").read_bytes()[:4] == b"\x89PNG"


def test_too_little_data_is_stated(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Below 200 requests the page has no figures, but the number that is needed."""
    assert main(["replay", str(csv_of(tmp_path, requests(150)))]) == 0
    page = capsys.readouterr().out
    assert "Too little data: 150 requests with a first token. A p95 needs 200, a p99 1,000" in page
    assert "Recommended" not in page


def test_a_stripped_log_gives_nearly_the_same_replay(tmp_path: Path) -> None:
    """A stripped log has no name or time of day of the log, and the times of all requests."""
    logged = [one._replace(model="secret", replica=f"{one.replica}.secret") for one in requests(300)]
    source, target = csv_of(tmp_path, logged), tmp_path / "stripped.csv"
    assert main(["replay", str(source), "--strip", str(target)]) == 0
    assert "secret" not in target.read_text()
    (kept,) = read_log(target, 1_000).requests.values()
    assert len(kept) == 300
    assert [one.ttft_s for one in kept] == pytest.approx([one.ttft_s for one in logged], rel=1e-4)
    assert kept[0].arrived_s == 0.0
    assert math.isclose(kept[-1].arrived_s, logged[-1].arrived_s, abs_tol=1e-3)


def test_wrong_options_are_explained(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A model that the log does not have, the log as target of --strip, and wrong numbers have messages."""
    log = str(csv_of(tmp_path, requests(10)))
    assert main(["replay", log, "--model", "x"]) == 1
    assert "the log has no model 'x'; name one of: m" in capsys.readouterr().err
    assert main(["replay", log, "--strip", log]) == 1
    assert "is the log itself; name another file after --strip" in capsys.readouterr().err
    for option, value in (("--budgets", "0,5"), ("--replicas", "1"), ("--slo", "5")):
        with pytest.raises(SystemExit):
            main(["replay", log, option, value])
        assert "write" in capsys.readouterr().err


def test_simulate_writes_the_log_of_one_run(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """`simulate --log` writes the gateway's own lines of a single run, and rejects several runs."""
    log = tmp_path / "log.jsonl"
    base = ["simulate", "--workload", "W3", "--requests", "50", "--log", str(log)]
    assert main([*base, "--policy", "off", "--seeds", "1"]) == 0
    assert read_log(log, 100).models == {"bench": 50}
    assert main([*base, "--policy", "off,adaptive", "--seeds", "1"]) == 1
    assert "--log has several runs; name one --policy, and set --seeds 1" in capsys.readouterr().err
