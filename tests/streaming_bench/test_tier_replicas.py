"""Workloads with tiers: the bill, the same draws for every policy, and the form of the table."""

from pathlib import Path

import pytest

from streaming_bench.simulation.comparison import ComparisonPlan, SeedSamples, compare
from streaming_bench.simulation.scenario import FOLDER, load, names
from streaming_bench.simulation.toml_section import ScenarioError


def test_the_usual_tier_costs_what_it_costs() -> None:
    """With hedging off every request goes to the usual tier, and the bill is the bill of all-default."""
    run = SeedSamples(load("C1", 200), ComparisonPlan((), ()), 1).run("off")
    assert {record.cost for record in run.records} != {0.0}
    assert all(record.cost == pytest.approx(record.usual_cost) for record in run.records)
    assert not any(record.cheap or record.dear or record.hedges for record in run.records)


def test_a_calm_cheap_tier_lowers_the_bill() -> None:
    """In the first minutes, learning included, the bill falls and the target is kept."""
    found = compare(load("C1/calm", 1_500), ComparisonPlan(("adaptive", "off"), (1,), slo_s=3.0))["rows"]
    assert isinstance(found, list)
    adaptive, off = found
    assert off["bill"] == pytest.approx(1.0)
    assert adaptive["bill"] < 0.8
    assert adaptive["over_slo"] < 0.01
    assert adaptive["cheap"] > 0.6


def test_the_tier_that_was_used_is_billed(tmp_path: Path) -> None:
    """A request that a dear tier serves as the usual one is billed as the usual one."""
    text = (FOLDER / "c1.toml").read_text().partition("[variants.calm]")[0]
    path = tmp_path / "served.toml"
    path.write_text(
        text.replace("price = 2.0", 'price = 2.0\nserved_as = "default"').replace("price = 1.0", "price = 1.0")
    )
    run = SeedSamples(load(str(path), 400), ComparisonPlan((), ()), 1).run("adaptive")
    saved = [record for record in run.records if record.won and not record.cheap]
    assert all(record.cost < 1.7 * record.usual_cost for record in saved)


@pytest.mark.parametrize("name", names("C"))
def test_every_scenario_is_read(name: str) -> None:
    """The workloads with tiers can be loaded by name."""
    assert load(name).tiers is not None


def test_a_usual_tier_is_needed(tmp_path: Path) -> None:
    """Without a tier to compare bills with, the file is rejected."""
    path = tmp_path / "x.toml"
    path.write_text((FOLDER / "c1.toml").read_text().replace("of.default", "of.standard"))
    with pytest.raises(ScenarioError, match="there is no tier 'default'"):
        load(str(path))
