"""A result folder: bytes that depend only on the data, and a manifest that verifies the files."""

import json
import math
from pathlib import Path

import pytest

from streaming_bench.report.grid import Grid, percent, short
from streaming_bench.report.plots import Frontier, Point, cdf, frontier, picture
from streaming_bench.report.results import Results, ResultsError, csv_text, read_csv, read_json, read_manifest


def written(folder: Path) -> Results:
    """A folder with one file of each kind."""
    results = Results(folder, ["compare", "--seed", "7"], 7)
    results.json("a.json", {"x": 1 / 3, "bad": math.nan, "list": [1, True, None]})
    results.csv("a.csv", ("name", "value", "on"), [("p", 0.1 + 0.2, True), ("q", math.inf, None)])
    results.markdown("a.md", "Title", Grid(("policy", "p50"), [("off", "20")]), "A sentence.")
    with picture(results, "a", "A picture", panels=2, below="small print") as (left, right):
        cdf(left, {"off": [20.0, 30.0, math.inf], "adaptive": [20.0, 21.0, 22.0]})
        points = (Point(0.0, 200.0), Point(0.1, 50.0))
        frontier(right, Frontier({"adaptive": points}, {"best single hedge": points}))
    results.close(requests=10)
    return results


def test_files_are_written_alike(tmp_path: Path) -> None:
    """The same data give the same bytes, plots included; numbers have nine digits, and NaN is omitted."""
    written(tmp_path / "one")
    written(tmp_path / "two")
    names = {path.name for path in (tmp_path / "one").iterdir()}
    assert names == {"a.json", "a.csv", "a.md", "a.png", "a.svg", "manifest.json"}
    for name in names - {"manifest.json"}:
        assert (tmp_path / "one" / name).read_bytes() == (tmp_path / "two" / name).read_bytes(), name
    assert (tmp_path / "one" / "a.csv").read_text() == "name,value,on\np,0.3,1\nq,,\n"
    assert json.loads((tmp_path / "one" / "a.json").read_text()) == {
        "x": 0.333333333,
        "bad": None,
        "list": [1, True, None],
    }
    assert "| off    |  20 |" in (tmp_path / "one" / "a.md").read_text()
    assert read_csv(tmp_path / "one" / "a.csv")[0] == {"name": "p", "value": "0.3", "on": "1"}


def test_the_manifest_describes_the_run(tmp_path: Path) -> None:
    """The manifest has command, seed, versions, machine, other facts, and the SHA-256 of each file."""
    written(tmp_path)
    manifest = read_manifest(tmp_path)
    assert manifest["command"] == ["ttft-bench", "compare", "--seed", "7"]
    assert (manifest["seed"], manifest["requests"]) == (7, 10)
    assert {"versions", "machine", "began", "ended"} <= set(manifest)
    files = manifest["files"]
    assert isinstance(files, dict)
    assert sorted(files) == ["a.csv", "a.json", "a.md", "a.png", "a.svg"]


def test_a_changed_folder_is_rejected(tmp_path: Path) -> None:
    """The error names a changed or removed file, and a folder without a manifest."""
    written(tmp_path)
    (tmp_path / "a.csv").write_text("name\n")
    with pytest.raises(ResultsError, match=r"a\.csv is not the file listed in the manifest"):
        read_manifest(tmp_path)
    (tmp_path / "a.csv").unlink()
    with pytest.raises(ResultsError, match=r"a\.csv is missing"):
        read_manifest(tmp_path)
    with pytest.raises(ResultsError, match="cannot read"):
        read_manifest(tmp_path / "nowhere")
    with pytest.raises(ResultsError, match="cannot read"):
        read_csv(tmp_path / "nowhere.csv")
    (tmp_path / "b.json").write_text("[")
    with pytest.raises(ResultsError, match="is not JSON"):
        read_json(tmp_path / "b.json")
    (tmp_path / "b.json").write_text("[]")
    with pytest.raises(ResultsError, match="holds no JSON object"):
        read_json(tmp_path / "b.json")
    with pytest.raises(ResultsError, match="cannot make the folder"):
        Results(tmp_path / "b.json" / "below", [], None)


def test_tables_line_up() -> None:
    """The first column is left-aligned, the others to the right; Markdown has the same cells."""
    grid = Grid(("policy", "p50"), [("off", "200"), ("adaptive", "20")])
    assert grid.lines() == ["policy    p50", "off       200", "adaptive   20"]
    assert grid.markdown()[1:3] == ["| :------- | --: |", "| off      | 200 |"]
    assert [short(value) for value in (0.0, 1.234, 99.9, 123.4, 12345.6, math.nan)] == [
        *("0", "1.23", "99.9", "123", "12,346"),
        "n/a",
    ]
    assert (percent(0.1234), percent(math.nan)) == ("12.3%", "n/a")


def test_csv_quotes() -> None:
    """A cell with a comma is quoted."""
    assert csv_text(("a",), [("x,y",)]) == 'a\n"x,y"\n'
