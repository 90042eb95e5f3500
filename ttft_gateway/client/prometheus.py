"""The counts of clients as metrics: `prometheus_client.REGISTRY.register(StatsCollector(stats))`.

Needs prometheus_client, which the program installs. Label values are names of targets and reasons from a closed set.
"""

from collections.abc import Iterator

from prometheus_client.core import CounterMetricFamily, Metric
from prometheus_client.registry import Collector

from ttft_gateway.client.stats import Stats

_TARGET_COUNTERS = (
    ("requests", "Attempts sent, backups included."),
    ("hedges", "Backups sent."),
    ("wins", "Backups that brought the first event."),
    ("lost", "Attempts closed because another one brought the first event."),
    ("errors", "Attempts that failed."),
    ("rate_limited", "Attempts with status 429."),
)


class StatsCollector(Collector):
    """Exports a `Stats` object.

    Args:
        stats: the counts.
        prefix: beginning of the metrics' names.
    """

    def __init__(self, stats: Stats, prefix: str = "ttft_client") -> None:
        self._stats = stats
        self._prefix = prefix

    def collect(self) -> Iterator[Metric]:
        """Return the counts at this moment."""
        counts, prefix = self._stats.snapshot(), self._prefix
        yield CounterMetricFamily(f"{prefix}_requests", "Requests that may be hedged.", counts.requests)
        yield CounterMetricFamily(f"{prefix}_hedged_requests", "Requests with a backup.", counts.hedged_requests)
        yield CounterMetricFamily(f"{prefix}_saved_seconds", "Estimated time saved by backups.", counts.saved_s)
        results = CounterMetricFamily(f"{prefix}_hedges", "Requests with a backup, by winner.", labels=["winner"])
        results.add_metric(["backup"], counts.hedge_wins)
        results.add_metric(["primary"], counts.primary_wins)
        yield results
        denied = CounterMetricFamily(f"{prefix}_hedges_denied", "Late requests without a backup.", labels=["reason"])
        for reason, number in counts.denied.items():
            denied.add_metric([reason], number)
        yield denied
        for name, text in _TARGET_COUNTERS:
            family = CounterMetricFamily(f"{prefix}_target_{name}", text, labels=["target"])
            for target, each in counts.targets.items():
                family.add_metric([target], getattr(each, name))
            yield family
