"""Published figures: every figure of the five publications that is reproduced here, by table and row.

Facts only. Sources: the article on adaptive hedging (`article`), the reference library's README (`readme`), the
three-server study (`study`), the deterministic lab (`lab`), the Python port's page (`port`). Units: milliseconds,
`extra` as a fraction of the requests.
"""

from collections.abc import Mapping
from typing import Final

PublishedFigures = Mapping[str, float]


def _row(p50: float, p90: float, p95: float, p99: float, p999: float, extra: float) -> PublishedFigures:
    return {"p50": p50, "p90": p90, "p95": p95, "p99": p99, "p999": p999, "extra": extra}


MICROSERVICE: Final[Mapping[str, Mapping[str, PublishedFigures]]] = {
    "no hedging": {
        "article": _row(5.1, 9.0, 18.8, 65.0, 103.8, 0.0),
        "readme": _row(5.0, 8.9, 17.1, 64.3, 104.5, 0.0),
    },
    "static 10 ms": {
        "article": _row(5.0, 9.0, 13.3, 17.5, 61.2, 0.077),
        "readme": _row(5.0, 8.9, 13.1, 17.4, 46.5, 0.074),
    },
    "static 50 ms": {
        "article": _row(5.0, 9.0, 16.5, 54.9, 59.7, 0.021),
        "readme": _row(5.0, 8.9, 18.9, 54.7, 60.2, 0.021),
    },
    "adaptive, as published": {
        "article": _row(5.0, 8.9, 12.3, 17.3, 63.5, 0.089),
        "readme": _row(5.0, 8.9, 12.3, 17.0, 59.4, 0.089),
    },
}

STREAMING_FLUSHED: Final[Mapping[str, Mapping[str, PublishedFigures]]] = {
    "time to headers": {"readme": {"p50": 1.2, "p90": 2.0, "p95": 2.3, "p99": 3.0, "p80": 1.6}},
    "time to first token": {"readme": {"p50": 16.4, "p90": 199.4, "p95": 216.0, "p99": 243.5, "p80": 25.9}},
}

STREAMING_HELD: Final[Mapping[str, Mapping[str, PublishedFigures]]] = {
    "no hedging": {
        "readme": {"p50": 16.4, "p90": 199.6, "p95": 217.5, "p99": 245.6, "extra": 0.0},
        "article": {"p50": 5.1, "p90": 26.3, "p99": 28.1, "extra": 0.0},
    },
    "learned from headers: 1 ms": {
        "readme": {"p50": 14.7, "p90": 19.4, "p95": 23.6, "p99": 198.7, "extra": 1.0},
        "article": {"p50": 2.6, "p90": 13.1, "p99": 14.2, "extra": 1.0},
    },
    "learned from TTFT: p80, 47 ms": {
        "readme": {"p50": 16.4, "p90": 61.6, "p95": 182.5, "p99": 224.2, "extra": 0.17},
        "article": {"p50": 4.9, "p90": 12.3, "p99": 14.0, "extra": 0.198},
    },
}

THREE_SERVERS: Final[Mapping[str, Mapping[str, PublishedFigures]]] = {
    "round robin": {"study": {"mean": 12.13, "p95": 18.75, "p99": 87.88, "p100": 278.62, "extra": 0.0}},
    "20 ms to all others": {"study": {"mean": 9.71, "p95": 17.25, "p99": 19.13, "p100": 19.94, "extra": 0.068}},
}

COST: Final[Mapping[str, tuple[float, ...]]] = {
    "p90": (27, 200.0, 41.0, 79.5, 7.5, 377, 5000, 3412, 0),
    "p95": (29, 200.0, 43.0, 78.5, 3.7, 186, 5000, 2987, 0),
    "p99": (200, 200.0, 200.0, 0.0, 0.6, 31, 5000, 6845, 0),
}

FAN_OUT: Final[Mapping[int, float]] = {10: 0.096, 100: 0.63}
"""Share of requests with a slow call, by number of calls with 1 % slow ones."""

FRAMEWORKS: Final[Mapping[str, Mapping[str, PublishedFigures]]] = {
    "httpx": {
        "no hedging": _row(5.8, 10.3, 12.2, 51.3, 78.3, 0.0),
        "adaptive": _row(6.2, 10.5, 12.1, 18.8, 22.2, 0.07),
    },
    "aiohttp": {
        "no hedging": _row(6.3, 10.7, 13.0, 52.4, 79.0, 0.0),
        "adaptive": _row(6.5, 11.3, 13.8, 20.5, 25.1, 0.046),
    },
    "grpc-unary": {
        "no hedging": _row(6.5, 10.8, 12.7, 59.9, 82.0, 0.0),
        "adaptive": _row(6.9, 11.6, 13.7, 20.4, 23.5, 0.056),
    },
}
"""The port's rows by client library; 500 requests each. Its stream of gRPC is not published."""

SKETCH_UPDATE_NS: Final = 35.0
"""Nanoseconds of one update of the article's sketch, in Go."""
