"""The counts of a client as metrics."""

from prometheus_client import CollectorRegistry, generate_latest

from ttft_gateway import Stats, StatsCollector


def test_counts_are_exported() -> None:
    """Each count is a counter, by target, winner or reason."""
    stats, registry = Stats(), CollectorRegistry()
    registry.register(StatsCollector(stats))
    stats.sent("a", 0)
    stats.sent("b", 1)
    stats.won("b", backup=True, saved_s=1.5)
    stats.lost("a")
    stats.failed("b", rate_limited=True)
    stats.deny("budget")
    lines = generate_latest(registry).decode().splitlines()
    for line in (
        "ttft_client_requests_total 1.0",
        "ttft_client_hedged_requests_total 1.0",
        "ttft_client_saved_seconds_total 1.5",
        'ttft_client_hedges_total{winner="backup"} 1.0',
        'ttft_client_hedges_denied_total{reason="budget"} 1.0',
        'ttft_client_target_requests_total{target="a"} 1.0',
        'ttft_client_target_lost_total{target="a"} 1.0',
        'ttft_client_target_rate_limited_total{target="b"} 1.0',
    ):
        assert line in lines
