"""Panels of quotas, of the gateway's own limits, and of callers.

Units are Grafana's.
"""

from collections.abc import Sequence
from typing import Final

from panel import (
    ATTEMPTS,
    BY_MODEL,
    BY_REPLICA,
    JOB,
    MODEL,
    REPLICA,
    REQUESTS,
    WINDOW,
    Panel,
    Query,
    gauge,
    quantile,
    rate,
    share,
)

ROWS: Final[dict[str, Sequence[Panel]]] = {
    "How near are the limits of providers?": (
        Panel(
            "Quota left",
            "Share of the limit, at the gateway with the least. Hedges end below 60%; below 10%, TtftQuotaLow fires.",
            "percentunit",
            [
                Query(
                    f"min by (quota, resource) ({gauge('ttft_gateway_quota_left_share', JOB)})",
                    "{{quota}} {{resource}}",
                )
            ],
            0,
            "replicas of providers with limits",
        ),
        Panel(
            "Quota used by others",
            "Share of the limit that other clients use, from the responses.",
            "percentunit",
            [
                Query(
                    f"max by (quota, resource) (deriv({gauge('ttft_gateway_quota_others_seconds', JOB)}[5m]))",
                    "{{quota}} {{resource}}",
                )
            ],
            None,
            "limits in response headers",
        ),
        Panel(
            "Cool-down",
            "Remaining time in which nothing is sent to a quota.",
            "s",
            [Query(f"max by (quota) ({gauge('ttft_gateway_quota_cooling_seconds', JOB)})", "{{quota}}")],
            0,
            "replicas of providers",
        ),
        Panel(
            "Attempts with a 429",
            "Share of the attempts at each replica; above 5%, TtftReplicaGets429 fires.",
            "percentunit",
            [
                Query(
                    share(rate(ATTEMPTS, BY_REPLICA, f'{MODEL},outcome="rate_limited"'), rate(ATTEMPTS, BY_REPLICA)),
                    REPLICA,
                )
            ],
            0,
        ),
        Panel(
            "Requests with a 429 of a provider",
            "Share of the requests; above 1%, TtftCallersGet429 fires.",
            "percentunit",
            [
                Query(
                    share(
                        rate(
                            REQUESTS,
                            BY_MODEL,
                            f'{MODEL},error_type=~"(upstream_)?rate_limit.*|insufficient_quota"',
                        ),
                        rate(REQUESTS, BY_MODEL),
                    ),
                    "{{gen_ai_request_model}}",
                )
            ],
            0,
        ),
    ),
    "Is the gateway at its limit?": (
        Panel(
            "Time that the gateway adds",
            "Arrival to the first attempt, without the queue; waits for the cool-down of a quota included.",
            "s",
            [
                Query(quantile(q, "ttft_gateway_overhead_seconds", labels=JOB), name)
                for q, name in ((0.5, "p50"), (0.99, "p99"))
            ],
            0,
        ),
        Panel(
            "CPU",
            "Cores in use by each gateway; a process uses at most one, several workers one each.",
            "none",
            [
                Query(
                    f"rate(process_cpu_seconds_total{{{JOB}}}{WINDOW}) and on (job, instance) ttft_gateway_build_info",
                    "{{instance}}",
                )
            ],
            0,
        ),
        Panel(
            "Memory",
            "Resident memory of each gateway.",
            "bytes",
            [
                Query(
                    f"process_resident_memory_bytes{{{JOB}}} and on (job, instance) ttft_gateway_build_info",
                    "{{instance}}",
                )
            ],
            0,
        ),
        Panel(
            "Requests in flight and waiting",
            "Of models with a concurrency limit.",
            "none",
            [
                Query(
                    f"sum by (gen_ai_request_model) ({gauge('ttft_gateway_admitted')})",
                    "{{gen_ai_request_model}} in flight",
                ),
                Query(
                    f"sum by (gen_ai_request_model) ({gauge('ttft_gateway_queue_length')})",
                    "{{gen_ai_request_model}} waiting",
                ),
            ],
            0,
            "a model with `concurrency`",
        ),
        Panel(
            "Wait in the queue, p90",
            "Of requests that waited.",
            "s",
            [Query(quantile(0.9, "ttft_gateway_queue_seconds", BY_MODEL), "{{gen_ai_request_model}}")],
            0,
            "waiting requests",
        ),
        Panel(
            "Requests that the gateway rejects",
            "By code. With overloaded, TtftGatewayOverloaded fires.",
            "reqps",
            [Query(rate("ttft_gateway_rejected_requests_total", "code", JOB), "{{code}}")],
            0,
            "rejected requests",
        ),
        Panel(
            "Memory for request bodies",
            "Bounded by limits.buffered_bodies_max.",
            "bytes",
            [Query(gauge("ttft_gateway_request_body_bytes", JOB), "{{instance}}")],
            0,
        ),
        Panel(
            "Lost log lines and spans",
            "Lines that could not be written, and spans that the receiver of traces has not accepted.",
            "none",
            [
                Query(f"increase(ttft_gateway_log_lines_lost_total{{{JOB}}}{WINDOW})", "{{instance}} lines"),
                Query(f"increase(ttft_gateway_spans_lost_total{{{JOB}}}{WINDOW})", "{{instance}} spans"),
            ],
            0,
        ),
        Panel(
            "Gateways",
            "By version, and the result of their last reload.",
            "none",
            [
                Query(f"count by (version) ({gauge('ttft_gateway_build_info', JOB)})", "version {{version}}"),
                Query(
                    f"sum({gauge('ttft_gateway_config_last_reload_successful', JOB)})",
                    "with the configuration of their file",
                ),
            ],
            0,
        ),
        Panel(
            "Damaged state",
            "Parts that were received or read, and not used. Above 0, TtftStateDropped fires.",
            "none",
            [
                Query(
                    f"sum by (instance, source) (increase(ttft_gateway_state_dropped_total{{{JOB}}}{WINDOW}))",
                    "{{instance}} {{source}}",
                )
            ],
            0,
        ),
    ),
    "Who?": (
        Panel(
            "Requests by key",
            "Rejected ones included. Above five times the mean of a day, TtftKeyUnusual fires.",
            "reqps",
            [Query(rate("ttft_gateway_key_requests_total", "key", JOB), "{{key}}")],
            0,
        ),
        Panel(
            "Requests with an error, by key",
            "Share of the requests of the key with a status of 4xx or 5xx.",
            "percentunit",
            [
                Query(
                    share(
                        rate("ttft_gateway_key_requests_total", "key", f'{JOB},status_class!="2xx"'),
                        rate("ttft_gateway_key_requests_total", "key", JOB),
                    ),
                    "{{key}}",
                )
            ],
            0,
        ),
        Panel(
            "Tokens by model",
            "Tokens that replicas reported, losers included. By key: GET /admin/usage.",
            "none",
            [
                Query(
                    rate(f"gen_ai_client_inference_usage_{name}_tokens_total", BY_MODEL),
                    f"{{{{gen_ai_request_model}}}} {name}",
                )
                for name in ("input", "output")
            ],
            0,
            "replicas that report usage",
        ),
    ),
}
