"""A panel of the dashboard, and parts of the queries of panels.

Units are Grafana's.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final, NamedTuple

JOB: Final = 'job=~"$job"'
MODEL: Final = f'{JOB},gen_ai_request_model=~"$model"'
WINDOW: Final = "[$__rate_interval]"


class Query(NamedTuple):
    """One query of a panel, with the legend of its lines."""

    expr: str
    legend: str


@dataclass(frozen=True, slots=True)
class Panel:
    """One panel.

    Attributes:
        title: its title, unique in the dashboard.
        why: the meaning of the values.
        unit: Grafana's name of their unit.
        queries: queries of its lines.
        least: number below which the axis does not end; None for Grafana's choice.
        needs: the condition for any series; None for a panel that is never empty on a gateway with traffic.
    """

    title: str
    why: str
    unit: str
    queries: Sequence[Query]
    least: float | None = None
    needs: str | None = None


def rate(name: str, by: str, labels: str = MODEL) -> str:
    """Return the sum of the rates of a counter."""
    return f"sum by ({by}) (rate({name}{{{labels}}}{WINDOW}))"


def share(part: str, whole: str) -> str:
    """Return a share that is 0, instead of absent, before the first count of its part."""
    return f"{part} / {whole} or 0 * {whole}"


def quantile(q: float, name: str, by: str = "", labels: str = MODEL) -> str:
    """Return a quantile of a histogram."""
    groups = f"le, {by}" if by else "le"
    return f"histogram_quantile({q}, sum by ({groups}) (rate({name}_bucket{{{labels}}}{WINDOW})))"


TTFT = "gen_ai_server_time_to_first_token_seconds"
REQUESTS = "ttft_gateway_requests_total"
ATTEMPTS = "ttft_gateway_attempts_total"
BY_MODEL = "gen_ai_request_model"
BY_REPLICA = "gen_ai_request_model, replica"
REPLICA = "{{gen_ai_request_model}} {{replica}}"


def later_than(bound: str) -> str:
    """Return the share of the first tokens that come later."""
    early = rate(f"{TTFT}_bucket", BY_MODEL, f'{MODEL},le="{bound}"')
    return f"1 - {early} / {rate(f'{TTFT}_count', BY_MODEL)}"


def gauge(name: str, labels: str = MODEL) -> str:
    """Return a gauge."""
    return f"{name}{{{labels}}}"
