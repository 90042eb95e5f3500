"""Panels of requests, replicas and hedges.

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
    TTFT,
    WINDOW,
    Panel,
    Query,
    gauge,
    later_than,
    quantile,
    rate,
    share,
)

ROWS: Final[dict[str, Sequence[Panel]]] = {
    "Do clients wait?": (
        Panel(
            "Time to first token",
            "Arrival of the request to its first content, of all models shown.",
            "s",
            [Query(quantile(q, TTFT), name) for q, name in ((0.5, "p50"), (0.9, "p90"), (0.99, "p99"))],
            0,
        ),
        Panel(
            "Time to first token, p99 by model",
            "The slowest request in 100.",
            "s",
            [Query(quantile(0.99, TTFT, BY_MODEL), "{{gen_ai_request_model}}")],
            0,
        ),
        Panel(
            "First tokens later than 1 s and 5 s",
            "Share of the requests with a first token. Above 10% later than 5 s, TtftFirstTokensLate fires.",
            "percentunit",
            [Query(later_than(f"{bound}.0"), f"{{{{gen_ai_request_model}}}} over {bound} s") for bound in (1, 5)],
            0,
        ),
        Panel(
            "Requests by status",
            "Requests that reached a replica, by final status.",
            "reqps",
            [Query(rate(REQUESTS, "status_class"), "{{status_class}}")],
            0,
        ),
        Panel(
            "Requests that fail",
            "Share of requests with a final status of 5xx; above 2%, TtftRequestsFail fires.",
            "percentunit",
            [
                Query(
                    share(
                        rate(REQUESTS, BY_MODEL, f'{MODEL},status_class="5xx"'),
                        rate(REQUESTS, BY_MODEL),
                    ),
                    "{{gen_ai_request_model}}",
                )
            ],
            0,
        ),
        Panel(
            "Time per output token",
            "From the first content to the end, for each further token. Only replicas that report usage.",
            "s",
            [
                Query(
                    quantile(q, "gen_ai_server_time_per_output_token_seconds", BY_MODEL),
                    f"{{{{gen_ai_request_model}}}} {name}",
                )
                for q, name in ((0.5, "p50"), (0.9, "p90"))
            ],
            0,
        ),
    ),
    "Why do they wait?": (
        Panel(
            "Time to first token, p90 by kind of request",
            "primary: no race; backup_won, backup_lost: hedged; denied: late, but not hedged.",
            "s",
            [Query(quantile(0.9, TTFT, "result"), "{{result}}")],
            0,
        ),
        Panel(
            "Slowness of replicas",
            "Factor of the predicted time to first token; 1 is usual. Above 2 for some minutes, TtftReplicaSlow fires.",
            "none",
            [Query(gauge("ttft_gateway_replica_level"), REPLICA)],
            0,
        ),
        Panel(
            "First content of attempts, p90 by replica",
            "Without attempts that lost their race.",
            "s",
            [Query(quantile(0.9, "ttft_gateway_attempt_content_seconds", BY_REPLICA), REPLICA)],
            0,
        ),
        Panel(
            "Attempts that failed",
            "By replica and outcome, with the outcomes of the log.",
            "reqps",
            [
                Query(
                    rate(
                        ATTEMPTS,
                        f"{BY_REPLICA}, outcome",
                        f'{MODEL},outcome=~"failed|cut|ttft_timeout|misconfigured|wrong_4xx|unclear_4xx|rate_limited|out_of_resources"',
                    ),
                    f"{REPLICA} {{{{outcome}}}}",
                )
            ],
            0,
            "failed attempts",
        ),
        Panel(
            "State of replicas",
            "Breaker: 0 closed, 1 half open, 2 open. Suspect, out: 1 while it does not answer, or is taken out.",
            "none",
            [
                Query(gauge("ttft_gateway_breaker_state"), f"{REPLICA} breaker"),
                Query(gauge("ttft_gateway_suspect"), f"{REPLICA} suspect"),
                Query(gauge("ttft_gateway_replica_out"), f"{REPLICA} out"),
            ],
            0,
        ),
        Panel(
            "Attempts in flight",
            "By replica.",
            "none",
            [Query(gauge("ttft_gateway_in_flight"), REPLICA)],
            0,
        ),
        Panel(
            "Errors that callers get",
            "By code; client_gone is a disconnect of the client.",
            "reqps",
            [Query(rate(REQUESTS, "error_type", f'{MODEL},error_type!=""'), "{{error_type}}")],
            0,
            "requests with an error",
        ),
        Panel(
            "Streams that broke",
            "Attempts to continue them, by result.",
            "reqps",
            [Query(rate("ttft_gateway_recoveries_total", "result"), "{{result}}")],
            0,
            "broken streams",
        ),
        Panel(
            "Parts that failed",
            "Exceptions in a part of the gateway, without which it went on.",
            "none",
            [
                Query(
                    f"sum by (component) (increase(ttft_gateway_component_failures_total{{{JOB}}}{WINDOW}))",
                    "{{component}}",
                )
            ],
            0,
            "a defect of the gateway",
        ),
    ),
    "What does hedging do, and what does it cost?": (
        Panel(
            "Requests that are hedged",
            "Backups started for each request. The budget is 10% by default.",
            "percentunit",
            [
                Query(
                    share(rate("ttft_gateway_hedges_fired_total", BY_MODEL), rate(REQUESTS, BY_MODEL)),
                    "{{gen_ai_request_model}}",
                )
            ],
            0,
        ),
        Panel(
            "Hedges by result",
            "won: the backup's answer was sent. If few win, the replicas are slow for the same reason.",
            "reqps",
            [Query(rate("ttft_gateway_hedges_total", "result"), "{{result}}")],
            0,
        ),
        Panel(
            "Late requests that were not hedged",
            "By reason. With budget above 5% of the requests, TtftHedgeBudgetSpent fires.",
            "reqps",
            [Query(rate("ttft_gateway_hedges_denied_total", "reason"), "{{reason}}")],
            0,
        ),
        Panel(
            "Budget left",
            "Credits, as a share of the most that are kept.",
            "percentunit",
            [
                Query(
                    f"{gauge('ttft_gateway_budget_credits')} / {gauge('ttft_gateway_budget_credits_max')}",
                    "{{gen_ai_request_model}} {{pool}}",
                )
            ],
        ),
        Panel(
            "Billed tokens of hedges that lost",
            "Share of all billed tokens; above 20%, TtftHedgingCostly fires.",
            "percentunit",
            [
                Query(
                    share(
                        rate("ttft_gateway_billed_tokens_total", BY_MODEL, f'{MODEL},disposition="loser"'),
                        rate("ttft_gateway_billed_tokens_total", BY_MODEL),
                    ),
                    "{{gen_ai_request_model}}",
                )
            ],
            0,
        ),
        Panel(
            "Cost for each hour",
            "In the currency of the configured prices; loser is the cost of hedging.",
            "none",
            [Query(f"3600 * {rate('ttft_gateway_cost_total', 'disposition')}", "{{disposition}}")],
            0,
            "prices in the configuration",
        ),
        Panel(
            "Delay before a hedge",
            "Learned, for each replica.",
            "s",
            [Query(gauge("ttft_gateway_hedge_delay_seconds"), REPLICA)],
            0,
        ),
        Panel(
            "Time of replicas spent on losers",
            "Seconds in each second: 1 is one request at all times.",
            "none",
            [Query(rate("ttft_gateway_wasted_seconds_total", BY_REPLICA), REPLICA)],
            0,
        ),
        Panel(
            "Hedging switch",
            "1 if the on-call switch allows hedging.",
            "none",
            [Query(f"min by (gen_ai_request_model) ({gauge('ttft_gateway_hedging_on')})", "{{gen_ai_request_model}}")],
            0,
        ),
    ),
}
