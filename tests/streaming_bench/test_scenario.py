"""Scenario files: an error names the table, the key and the correction."""

from pathlib import Path

import pytest

from streaming_bench.simulation.scenario import FOLDER, load, names
from streaming_bench.simulation.toml_section import ScenarioError

GOOD = """
name = "X"
about = "a test"
requests = 10
replicas = 2

[arrivals]
per_second = 5

[drawn]
ttft = "lognormal:5ms,2ms"

[drawn.rare]
share = "5%"
factor = 10

[reference]
static_delay = "10ms"
"""


def read(tmp_path: Path, old: str = "", new: str = "") -> str:
    """Return the message for the good scenario with one change."""
    assert old in GOOD
    path = tmp_path / "x.toml"
    path.write_text(GOOD.replace(old, new, 1) if old else GOOD)
    with pytest.raises(ScenarioError) as caught:
        load(str(path))
    return str(caught.value)


def test_a_good_scenario_is_read(tmp_path: Path) -> None:
    """Units become seconds and fractions, missing keys have their defaults, and the file's hash is recorded."""
    path = tmp_path / "x.toml"
    path.write_text(GOOD)
    scenario = load(str(path))
    assert scenario.drawn is not None
    assert scenario.drawn.rare is not None
    assert (scenario.drawn.rare.share, scenario.drawn.rare.factor) == (0.05, 10.0)
    assert (scenario.reference.static_delay_s, scenario.reference.library_rps) == (0.010, 100.0)
    assert (scenario.arrivals.concurrency, scenario.arrivals.per_second) == (None, 5.0)
    assert len(scenario.sha256) == 64


@pytest.mark.parametrize("name", [*names("W"), *names("U")])
def test_every_scenario_of_the_package_is_read(name: str) -> None:
    """W1 to W8 and U1 to U25 can be loaded by name, with their variants, and have the name of their file."""
    assert load(name).name == name


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ("replicas = 2", "replicas = 0", "x.toml: replicas: 0 is not valid; write a whole number, at least 1"),
        ("replicas = 2", "", "x.toml: replicas is missing; add it"),
        ("per_second", "rps", "x.toml [arrivals]: there is no key 'rps'; known here: concurrency, per_second, "),
        ("per_second = 5", "", "x.toml [arrivals]: write exactly one of concurrency and per_second"),
        ('static_delay = "10ms"', "", "x.toml [reference]: static_delay is missing; add it"),
        ("factor = 10", "factor = 'x'", "x.toml [drawn.rare]: factor: 'x' is not valid; write a number above 0"),
        ("[drawn.rare]", "rare = 3\n[other]", "x.toml [drawn]: rare: 3 is not valid; write a table"),
        ("requests = 10", "requests = 10\ncolour = 1", "x.toml: there is no key 'colour'; known here: "),
        ("factor = 10", "factor = 10\nextra = '1s'", "[drawn.rare]: write exactly one of factor, extra, ttft"),
        ("factor = 10", "factor = 10\nfoo = 1", "x.toml [drawn.rare]: there is no key 'foo'; known here: share, "),
        ('"10ms"', "10", "x.toml [reference]: static_delay: 10 is not a duration; write a duration with its unit"),
        ('"5%"', '"105%"', "x.toml [drawn.rare]: share: '105%' is not a share from 0% to 100%; write a share"),
        ("name", "name =", "x.toml: not a TOML file: "),
        (
            GOOD[GOOD.index("[drawn]") : GOOD.index("[ref")],
            "",
            "write exactly one of [drawn], [serving], [law] and [tiers]",
        ),
        ('name = "X"', "name = 3", "x.toml: name: 3 is not valid; write a text in quotes"),
        ("[arrivals]\nper_second = 5", "arrivals = 3", "x.toml: arrivals: 3 is not valid; write a table"),
    ],
)
def test_a_mistake_is_explained(tmp_path: Path, old: str, new: str, message: str) -> None:
    """An error names file, table, key, value and correction."""
    assert message in read(tmp_path, old, new)


def test_an_unknown_workload_is_answered_with_the_known_ones() -> None:
    """The error about an unknown name lists the known ones."""
    with pytest.raises(
        ScenarioError,
        match=r"there is no workload 'W99'; write one of C1, .*F1, T1, U1, U2, .*U25, W1, .*W8 or the path",
    ):
        load("W99")


def test_a_choice_lists_its_values(tmp_path: Path) -> None:
    """An error lists the values of a choice, and the keys of a nested table."""
    text = (FOLDER / "w5.toml").read_text()
    path = tmp_path / "y.toml"
    path.write_text(text.replace('"one replica"', '"all"'))
    with pytest.raises(
        ScenarioError, match=r"\[serving.slow\]: at: 'all' is not valid; write 'each replica' or 'one replica'"
    ):
        load(str(path))
    path.write_text(text.replace("speed = { min = 0.12", "pace = { min = 0.12"))
    with pytest.raises(
        ScenarioError, match=r"y.toml \[serving.slow\]: there is no key 'pace'; known here: at, every, "
    ):
        load(str(path))
    path.write_text(text.replace("per_second = 12 #", "concurrency = 12 #"))
    with pytest.raises(
        ScenarioError,
        match=r"y.toml: \[serving\], \[law\] and \[tiers\] have no closed loop; write per_second in \[arrivals\]",
    ):
        load(str(path))


def test_a_variant_changes_some_values(tmp_path: Path) -> None:
    """A variant replaces values, merges tables and has a name of its own; an unknown one is answered with the known."""
    base, changed = load("U8"), load("U8/0.5")
    assert base.law is not None
    assert changed.law is not None
    assert base.law.misses is not None
    assert changed.law.misses is not None
    assert (base.law.misses.correlation, changed.law.misses.correlation) == (0.0, 0.5)
    assert changed.law.misses.share == base.law.misses.share
    assert (changed.name, changed.requests) == ("U8/0.5", base.requests)
    with pytest.raises(ScenarioError, match=r"u8.toml has no variant '2'; write one of 0.2, 0.5, 0.8, 1"):
        load("U8/2")
    path = tmp_path / "x.toml"
    path.write_text('wanted = ["p99 < 1"]\n' + GOOD.lstrip())
    with pytest.raises(ScenarioError, match=r"wanted: .*is not a bound; write a figure and a value"):
        load(str(path))
