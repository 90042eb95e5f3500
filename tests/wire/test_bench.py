"""The bench over real sockets: its counts match the server's. Times are not tested."""

import asyncio
import json
import os
import signal
from pathlib import Path

import pytest

from running import run_real
from simulated_sockets import serving
from spawned import spawn
from streaming_bench.__main__ import main
from streaming_bench.load.client import Target
from streaming_bench.load.plan import TrafficPlan, plan_requests
from streaming_bench.load.session import Measurement, Session, measure
from streaming_bench.load.token_distribution import token_distribution
from streaming_bench.report.records import Run, read_runs
from streaming_bench.report.results import read_manifest

COMPARE = "compare --requests 30 --warm 10 --rps 300 --policy direct,ttfb --headers flushed --part headers"


def traffic(count: int, rate_per_s: float | None = 200.0, block: int = 10) -> TrafficPlan:
    """A few short requests."""
    return TrafficPlan(count, rate_per_s, token_distribution("30"), token_distribution("5"), block=block)


def test_compare_counts_at_the_replicas(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A tiny comparison has a run for each row, its requests, what replicas counted, and its files."""
    assert main([*COMPARE.split(), "--out", str(tmp_path)]) == 0
    direct, ttfb = read_runs(tmp_path)
    assert [direct.name, ttfb.name] == ["direct, flushed", "ttfb, flushed"]
    for run in (direct, ttfb):
        assert [record.number for record in run.records] == list(range(30))
        assert {(record.error, record.tokens) for record in run.records} == {("", 8)}
    assert direct.facts["upstream_requests"] == 30
    hedged = ttfb.facts["upstream_requests"]
    assert isinstance(hedged, int)
    assert 30 <= hedged <= sum(record.attempts for record in ttfb.records)  # a backup may be cancelled on its way
    assert {record.replica for record in direct.records} == {""}
    assert {record.replica for record in ttfb.records} <= {f"replica-{number}" for number in range(4)}
    assert read_manifest(tmp_path)["kind"] == "compare"
    assert "Headers at once; times in ms" in capsys.readouterr().out


def test_load_records_every_answer() -> None:
    """Open and closed loops record every answer with its tokens, and a closed loop reuses its connections."""

    async def scenario() -> tuple[list[Measurement], int]:
        async with serving(ttft="1ms", gap="1ms", headers="at_once", role="early") as server:
            targets = {"endpoint": Target(server.url, "m")}
            outcomes = [
                await measure(Session(targets, plan_requests(traffic(30)))),
                await measure(Session(targets, plan_requests(traffic(30, None)), concurrency=3)),
            ]
            return outcomes, server.stats.connections_opened

    outcomes, connections = run_real(scenario())
    for outcome in outcomes:
        [run] = outcome.runs
        assert not outcome.ended_early
        assert [record.number for record in run.records] == list(range(30))
        for record in run.records:
            assert (record.error, record.status, record.tokens, record.events) == ("", 200, 5, 5)
            assert record.headers_s is not None
            assert record.byte_s is not None
            assert record.content_s is not None
            assert record.due_s <= record.sent_s <= record.headers_s <= record.byte_s <= record.content_s
            assert record.content_s <= record.end_s
    assert connections <= 30 + 3


def test_two_targets_take_turns() -> None:
    """Both targets get the same requests, block by block, and alternate at the beginning of a block."""

    async def scenario() -> tuple[Measurement, list[int]]:
        async with serving() as one, serving() as other:
            targets = {"endpoint": Target(one.url, "m"), "against": Target(other.url, "m")}
            outcome = await measure(Session(targets, plan_requests(traffic(20))))
            return outcome, [one.stats.requests, other.stats.requests]

    outcome, requests = run_real(scenario())
    assert requests == [20, 20]
    first, second = outcome.runs
    assert [record.number for record in first.records] == [record.number for record in second.records]
    begun = {(run.name, block): min(r.due_s for r in run.records if r.block == block) for run in outcome.runs
             for block in (0, 1)}  # fmt: skip
    assert begun["endpoint", 0] < begun["against", 0] < begun["against", 1] < begun["endpoint", 1]


@pytest.mark.parametrize(
    ("fault", "error"),
    [
        ("429", "http_429"),
        ("500", "http_500"),
        ("error_frame", "error_frame"),
        ("empty", "cut"),
        ("reset", "cut"),
        ("cut_fin:2", "cut"),
    ],
)
def test_failures_have_their_class(fault: str, error: str) -> None:
    """Each failure is counted by its class, and never as an answer."""

    async def scenario() -> list[Run]:
        async with serving(faults=[fault]) as server:
            outcome = await measure(Session({"endpoint": Target(server.url, "m")}, plan_requests(traffic(3))))
            return outcome.runs

    [run] = run_real(scenario())
    assert {record.error for record in run.records} == {error}
    assert {record.ttft_s for record in run.records} == {float("inf")}


def test_a_missing_server_is_a_result() -> None:
    """A closed port gives failures of the class `connect`, and a silent server of the class `timeout`."""

    async def scenario() -> list[str]:
        async with serving(ttft="60s") as server:
            url, silent = "http://127.0.0.1:9/v1", Target(server.url, "m", timeout_s=0.05)
            outcomes = [
                await measure(Session({"endpoint": target}, plan_requests(traffic(1))))
                for target in (Target(url, "m"), silent)
            ]
            return [outcome.runs[0].records[0].error for outcome in outcomes]

    assert run_real(scenario()) == ["connect", "timeout"]


def test_tokens_are_bounded_while_it_runs() -> None:
    """A run ends early, with its results so far, when a server sends more tokens than allowed."""

    async def scenario() -> Measurement:
        async with serving() as server:
            session = Session(
                {"endpoint": Target(server.url, "m")}, plan_requests(traffic(50, None)), 1, tokens_max=100
            )
            return await measure(session)

    outcome = run_real(scenario())
    assert "more than --tokens-max 100" in outcome.ended_early
    assert 1 <= len(outcome.runs[0].records) < 50


def test_ctrl_c_keeps_the_results(tmp_path: Path) -> None:
    """After Ctrl-C `load` writes requests, tables and a manifest; no file contains the key."""

    async def scenario() -> int:
        async with serving(ttft="50ms") as server:  # a thousand answers, two at a time, are not over before we look
            os.environ["BENCH_TEST_KEY"] = "sk-very-secret"
            process = await spawn(
                *("-m", "streaming_bench", "load", "--url", server.url, "--model", "m", "--concurrency", "2"),
                *(
                    "--requests",
                    "1000",
                    "--tokens-max",
                    "9000000",
                    "--key-env",
                    "BENCH_TEST_KEY",
                    "--out",
                    str(tmp_path),
                ),
            )
            while server.stats.complete < 20:
                assert process.returncode is None
                await asyncio.sleep(0.01)
            process.send_signal(signal.SIGINT)
            out, err = await process.communicate()
            assert b"ended early (Ctrl-C)" in err, (out, err)
            assert process.returncode is not None
            return process.returncode

    try:
        assert run_real(scenario()) == 0
    finally:
        del os.environ["BENCH_TEST_KEY"]
    [run] = read_runs(tmp_path)
    assert 20 <= len(run.records) < 1000
    assert read_manifest(tmp_path)["ended_early"] == "Ctrl-C"
    assert not [path for path in tmp_path.iterdir() if b"sk-very-secret" in path.read_bytes()]
    assert json.loads((tmp_path / "runs.json").read_text())["runs"][0]["model"] == "m"
