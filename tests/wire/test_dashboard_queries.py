"""Queries of the dashboard and the rules against a real Prometheus server that scrapes a gateway in trouble."""

from pathlib import Path

from monitored import RULES, empty_queries, failing_conditions, monitored, trouble
from running import run_real

_ROUNDS_MAX = 12  # of a loaded machine


def test_no_query_is_empty(tmp_path: Path) -> None:
    """Each panel and each recording rule has a series, and each alert can be evaluated."""
    with monitored(tmp_path, RULES, 0.5) as (served, server, limited):
        for _ in range(_ROUNDS_MAX):
            run_real(trouble(served, limited, 5.0))
            if not empty_queries(server, "60s"):
                break
        assert empty_queries(server, "60s") == []
        assert failing_conditions(server) == []
