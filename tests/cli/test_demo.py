"""The demo's counting and showing, and its settings. The demo as a whole: tests/wire/test_process.py."""

import math

from gateway.cli.demo.command import demo_settings
from gateway.cli.demo.table import HedgeCount, ModeTally, TtftSample, line, summary, table
from gateway.cli.environment import Environment


def tally(ttfts_ms: list[float], *, hedged: int = 0, won: int = 0, denied: int = 0) -> ModeTally:
    """A tally of answers with these TTFTs, the first ones hedged, won, denied."""
    made = ModeTally()
    for number, ttft_ms in enumerate(ttfts_ms):
        backup = number < hedged
        made.add(TtftSample(ttft_ms / 1000, 2 if backup else 1, backup, number < won, number < denied))
    return made


def test_quantiles_are_exact() -> None:
    """Quantiles follow the nearest-rank definition: of 1 to 100, the 99th is 99; of nothing, none."""
    hundred = tally([float(ms) for ms in range(100, 0, -1)])
    assert hundred.quantiles_s(0.5, 0.9, 0.99, 1.0) == [0.05, 0.09, 0.099, 0.1]
    assert math.isnan(ModeTally().quantiles_s(0.5)[0])


def test_failed_requests_are_no_samples() -> None:
    """A failed request has no TTFT and no attempts, and is counted as failed."""
    off, on = tally([200.0]), tally([200.0])
    on.add(None)
    assert (on.requests, on.failed, on.extra_load) == (1, 1, 0.0)
    assert table(off, on, None)[-1] == "failed: 0 with hedging off, 1 with it on"
    assert "failed 0 and 1" in line(5.0, off, on, None)


def test_memory_is_bounded() -> None:
    """However long it runs, at most the latest 5,000 times are stored; counts go on."""
    many = tally([1000.0] * 5000 + [1.0] * 5000)
    assert (many.requests, len(many.ttfts_s)) == (10_000, 5000)
    assert many.quantiles_s(1.0) == [0.001]


def test_table() -> None:
    """The table puts off above on, fits 80 columns, and shows what hedging cost."""
    off = tally([200.0] * 490 + [2000.0] * 10)
    on = tally([200.0] * 490 + [400.0] * 10, hedged=45, won=4, denied=3)
    lines = table(off, on, HedgeCount(2.25, 4.0))
    assert [row.split() for row in lines[1:]] == [
        ["off", "500", "200", "200", "2,000", "-", "-", "-", "-", "-"],
        ["on", "500", "200", "200", "400", "45", "4", "3", "+9.0%", "2.2", "of", "4.0"],
    ]
    assert max(map(len, lines)) < 80
    assert summary(off, on) == "p99: 2,000 ms with hedging off, 400 ms with 9.0% more upstream requests"
    assert summary(off, tally([200.0])).endswith("(from few requests so far)")


def test_a_busy_machine_gets_no_comparison() -> None:
    """If more than one request in twenty was sent late, the times are of the machine's queue and are not shown."""
    off, on = tally([200.0] * 50), tally([100_000.0] * 50)
    off.late, on.late = 2, 3
    assert summary(off, on).startswith("p99: 200 ms")
    on.late = 4
    assert summary(off, on).startswith("no comparison: this machine cannot keep the rate; 6% of the requests")
    assert table(off, on, None)[2].split()[:5] == ["on", "50", "-", "-", "-"]
    assert "on: 50 requests, -/-/- ms" in line(5.0, off, on, None)


def test_nothing_yet() -> None:
    """Before the first answer there is a table, too."""
    assert table(ModeTally(), ModeTally(), None)[1].split() == ["off", "0", "-", "-", "-", "-", "-", "-", "-", "-"]


def test_settings_name_two_models_over_the_same_replicas() -> None:
    """Both models have the same replicas and differ in hedging only; the drain fits the 2 s that Ctrl-C may take."""
    settings = demo_settings([1001, 1002, 1003], 0, 0, Environment())
    on, off = settings.models
    assert on.replicas == off.replicas
    assert settings.hedge_of(off).policy == "off"
    assert settings.hedge_of(on).policy == type(settings.hedge)().policy
    assert settings.drain_timeout_s < 0.5
