"""The cost bench: its back end and its client work with the gateway, and its table shows the figures."""

from pathlib import Path

import pytest

from streaming_bench.errors import BenchError
from streaming_bench.overhead import cost_table
from streaming_bench.overhead.client import StreamLoad
from streaming_bench.overhead.processes import KEY, Machine, backend, gateway, limited_settings, settings
from streaming_bench.overhead.rows import CostRow, measure

ROWS = [CostRow("requests", "us", 120.0, 80.0, 100.0, 20.0), CostRow("memory", "MB", 64.0)]


@pytest.mark.skipif(not Path("/proc/self/schedstat").exists(), reason="CPU times are read from /proc")
def test_every_answer_is_complete(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each answer through a gateway is complete, paced or not; the gateway uses CPU time; a wrong key fails."""
    monkeypatch.setattr("os.sched_setaffinity", lambda *_: None)  # this process runs other tests, too
    machine = Machine()
    with backend(2) as back, gateway(machine, limited_settings(back.ports)) as target:
        for gap_ms in (0, 3):
            seen, cpu_s, user_share, rss_mb, upstream, foreign = measure(
                StreamLoad(8, 5, gap_ms, key=KEY), target, back
            )
            assert (seen.requests, seen.errors, seen.tokens, upstream) == (8, 0, 40, 8)
            assert len(seen.ttfts_s) == 8
            assert cpu_s > 0
            assert 0 <= user_share <= 1
            assert rss_mb > 1
            assert 0 <= foreign <= 1
        with pytest.raises(BenchError, match="8 of 8 answers failed"):
            measure(StreamLoad(8, 5, key="another"), target, back)


@pytest.mark.skipif(not Path("/proc/self/schedstat").exists(), reason="CPU times are read from /proc")
def test_a_gateway_without_keys_answers(monkeypatch: pytest.MonkeyPatch) -> None:
    """The requests have a host that a gateway without keys permits."""
    monkeypatch.setattr("os.sched_setaffinity", lambda *_: None)  # this process runs other tests, too
    with backend(1) as back, gateway(Machine(), settings(back.ports)) as target:
        assert measure(StreamLoad(2, 5), target, back).seen.requests == 2


def test_a_run_is_compared_with_the_recorded_one(tmp_path: Path) -> None:
    """The table has the ratio of each figure to nginx and to the recorded run, and empty cells without them."""
    file = tmp_path / "kept.json"
    assert cost_table.read(file) == {}
    cost_table.write(file, [ROWS[0]._replace(ours=240.0)], {"cores": 2})
    requests, memory = cost_table.table(ROWS, cost_table.read(file)).rows
    assert requests == ("requests", "us", "120", "80 + 40", "100", "20 + 80", "1.20", "240", "0.50")
    assert memory == ("memory", "MB", "64", *[""] * 6)
