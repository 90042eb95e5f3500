"""The rules of the verdict: one row for each kind of trouble, ordered by harm. Pure.

Each row has the condition, the sentence, the severity, and what the alert of the same name needs; docker/monitoring's
rules are generated from the same rows by scripts/generate. The conditions and their thresholds are in conditions.py and
gateway_conditions.py; the times for which they must hold are in the row, and verdict.py applies them.

Units: seconds; shares from 0 to 1.
"""

from collections.abc import Callable, Iterator
from typing import Final

import msgspec

from gateway.health import conditions, gateway_conditions
from gateway.health.facts import Facts
from gateway.health.finding import MODEL, REPLICA, Found, Severity

INSTANCE: Final = "instance"
_OUT: Final = (
    'curl -s "$ADMIN/admin/replicas" -d '
    """'{{"replica": "{replica}", "model": "{gen_ai_request_model}", "out": true}}'"""
)
_PROBE: Final = "ttft-gateway probe --model {gen_ai_request_model} --replica {replica}"
_SWITCH_S: Final = 7200.0  # after which a switch may have been forgotten


class Rule(msgspec.Struct, frozen=True):
    """One row.

    Attributes:
        alert: name of the rule and of its alert.
        group: group of the alerts.
        severity: harm.
        find: condition; None for a trouble that only Prometheus can see.
        labels: labels of the alert, apart from the job.
        summary: text of the alert; `{name}` for a label, `{percent}`, `{number}` or `{duration}` for the value.
        section: heading of the runbook.
        command: command to look or to act, with names in braces.
        holds_s: time for which the condition must hold.
        wait_s: time for which a finding is only a note, and no alert.
        fleet: expression over the counters of all gateways, which finds what is too rare at each of them.
        expr: expression of an alert without a condition.
        for_: duration of such an alert.
    """

    alert: str
    group: str
    severity: Severity
    find: Callable[[Facts], Iterator[Found]] | None
    labels: tuple[str, ...]
    summary: str
    section: str
    command: str = ""
    holds_s: float = 0.0
    wait_s: float = 0.0
    fleet: str = ""
    expr: str = ""
    for_: str = ""


_ON_MODEL: Final = "and on (job, gen_ai_request_model) sum by (job, gen_ai_request_model)"
_LIMITED: Final = 'ttft_gateway_requests_total{error_type=~"(upstream_)?rate_limit.*|insufficient_quota"}'
_FAILED: Final = 'ttft_gateway_requests_total{status_class="5xx"}'
_PAGE, _TICKET, _NOTE = Severity.PAGE, Severity.TICKET, Severity.NOTE
_OF_MODEL: Final = (MODEL,)
_OF_REPLICA: Final = (INSTANCE, MODEL, REPLICA)

RULES: Final = (
    Rule(
        "TtftGatewayDown",
        "process",
        _PAGE,
        None,
        (INSTANCE,),
        "the admin address of gateway {instance} does not answer",
        "A gateway is down",
        expr='up{job=~".*ttft-gateway.*"} == 0',
        for_="1m",
    ),
    Rule(
        "TtftNoConnections",
        "process",
        _PAGE,
        gateway_conditions.no_connections,
        (INSTANCE,),
        "gateway {instance} could not accept connections",
        "The gateway is overloaded",
        "ulimit -n",
    ),
    Rule(
        "TtftModelDown",
        "replicas",
        _PAGE,
        conditions.model_down,
        (INSTANCE, MODEL),
        "every replica of {gen_ai_request_model} fails",
        "A replica is dead",
        "ttft-gateway probe --model {gen_ai_request_model}",
    ),
    Rule(
        "TtftCallersGet429",
        "callers",
        _PAGE,
        conditions.callers_get_429,
        _OF_MODEL,
        "{percent} of the requests for {gen_ai_request_model} get a 429 of the providers",
        "Providers answer 429",
        'curl -s "$ADMIN/admin/usage?model={gen_ai_request_model}"',
        fleet=(
            f"model:ttft_gateway_requests_limited:share2m > {conditions.LIMITED_SHARE} "
            f"{_ON_MODEL} (increase({_LIMITED}[2m])) > 2"
        ),
    ),
    Rule(
        "TtftGatewayOverloaded",
        "process",
        _PAGE,
        gateway_conditions.overloaded,
        (INSTANCE,),
        "gateway {instance} rejects {number} requests per second, because a queue or the memory for bodies is full",
        "The gateway is overloaded",
        'curl -s "$ADMIN/admin/admission"',
    ),
    Rule(
        "TtftRequestsFail",
        "callers",
        _PAGE,
        conditions.requests_fail,
        _OF_MODEL,
        "{percent} of the requests for {gen_ai_request_model} fail",
        "A replica is dead",
        "ttft-gateway probe --model {gen_ai_request_model}",
        fleet=(
            f"model:ttft_gateway_requests_failed:share2m > {conditions.FAILED_SHARE} "
            f"{_ON_MODEL} (increase({_FAILED}[2m])) > 2"
        ),
    ),
    Rule(
        "TtftFirstTokensLate",
        "callers",
        _PAGE,
        conditions.first_tokens_late,
        _OF_MODEL,
        "{percent} of the first tokens of {gen_ai_request_model} take more than 5 s",
        "All replicas are slow",
        'curl -s "$ADMIN/admin/models/{gen_ai_request_model}"',
        fleet=(
            f"model:ttft_gateway_ttft_over_5s:share2m > {conditions.LATE_SHARE} {_ON_MODEL} "
            "(increase(gen_ai_server_time_to_first_token_seconds_count[2m])) > 20"
        ),
    ),
    Rule(
        "TtftGatewayBusy",
        "process",
        _PAGE,
        gateway_conditions.busy,
        (INSTANCE,),
        "gateway {instance} uses {percent} of its cores",
        "The gateway is overloaded",
        holds_s=120.0,
    ),
    Rule(
        "TtftGatewaySlow",
        "process",
        _PAGE,
        gateway_conditions.slow,
        (INSTANCE,),
        "gateway {instance} adds more than 0.1 s to {percent} of the requests",
        "The gateway is overloaded",
        holds_s=60.0,
    ),
    Rule(
        "TtftReplicaMisconfigured",
        "replicas",
        _TICKET,
        conditions.misconfigured,
        _OF_REPLICA,
        "replica {replica} of {gen_ai_request_model} rejects the key, the account or the model name of the gateway",
        "A replica rejects the gateway",
        _PROBE,
    ),
    Rule(
        "TtftReplicaDown",
        "replicas",
        _TICKET,
        conditions.replica_down,
        _OF_REPLICA,
        "replica {replica} of {gen_ai_request_model} fails and gets no requests",
        "A replica is dead",
        _PROBE,
    ),
    Rule(
        "TtftReplicaSlow",
        "replicas",
        _TICKET,
        conditions.replica_slow,
        _OF_REPLICA,
        "replica {replica} of {gen_ai_request_model} is slow",
        "A replica is slow",
        _OUT,
        holds_s=5.0,
    ),
    Rule(
        "TtftShareAway",
        "process",
        _TICKET,
        gateway_conditions.share_away,
        (INSTANCE,),
        "gateway {instance} counts limits alone, because the server of shared limits does not answer",
        "The server of shared limits is away",
        'curl -s "$ADMIN/admin/share"',
    ),
    Rule(
        "TtftQuotaUsedByOthers",
        "quotas",
        _TICKET,
        conditions.quota_used_by_others,
        ("quota", "resource"),
        "other clients use {percent} of the {resource} of quota {quota}",
        "Others use the quota",
        'curl -s "$ADMIN/metrics" | grep \'quota="{quota}"\'',
        holds_s=5.0,
    ),
    Rule(
        "TtftReplicaGets429",
        "quotas",
        _TICKET,
        conditions.replica_gets_429,
        _OF_REPLICA,
        "{percent} of the attempts at {replica} of {gen_ai_request_model} get a 429",
        "Providers answer 429",
        'curl -s "$ADMIN/metrics" | grep ttft_gateway_quota_',
        holds_s=10.0,
    ),
    Rule(
        "TtftQuotaLow",
        "quotas",
        _TICKET,
        conditions.quota_low,
        ("quota", "resource"),
        f"less than {conditions.percent(conditions.QUOTA_LEFT_SHARE)} of the {{resource}} of quota {{quota}} is left",
        "Providers answer 429",
        'curl -s "$ADMIN/metrics" | grep \'quota="{quota}"\'',
        holds_s=20.0,
    ),
    Rule(
        "TtftHedgeBudgetSpent",
        "hedging",
        _TICKET,
        conditions.budget_spent,
        _OF_MODEL,
        "{percent} of the requests for {gen_ai_request_model} are late and not hedged, because the budget is spent",
        "The hedge budget is spent",
        'curl -s "$ADMIN/admin/models/{gen_ai_request_model}"',
        holds_s=15.0,
    ),
    Rule(
        "TtftReloadRejected",
        "process",
        _TICKET,
        gateway_conditions.reload_rejected,
        (INSTANCE,),
        "gateway {instance} has rejected its configuration; the previous one is in force",
        "A reload was bad",
        'ttft-gateway check-config --config "$CONFIG"',
    ),
    Rule(
        "TtftWorkersRestart",
        "process",
        _TICKET,
        gateway_conditions.workers_end,
        (INSTANCE,),
        "gateway {instance} has replaced a process, or a worker does not answer",
        "A part of the gateway fails",
        'curl -s "$ADMIN/admin/workers"',
    ),
    Rule(
        "TtftLogLinesLost",
        "process",
        _TICKET,
        gateway_conditions.log_lines_lost,
        (INSTANCE,),
        "gateway {instance} has lost {number} log lines in a minute",
        "The disk is full",
        "df -h",
    ),
    Rule(
        "TtftLearnedFileFails",
        "process",
        _TICKET,
        gateway_conditions.learned_file_fails,
        (INSTANCE,),
        "gateway {instance} cannot keep what it has learned",
        "The disk is full",
        "df -h",
    ),
    Rule(
        "TtftSpansLost",
        "process",
        _TICKET,
        gateway_conditions.spans_lost,
        (INSTANCE,),
        "gateway {instance} has lost {number} spans in a minute",
        "Traces are missing",
    ),
    Rule(
        "TtftComponentFails",
        "process",
        _TICKET,
        gateway_conditions.component_fails,
        (INSTANCE, "component"),
        "gateway {instance} goes on without {component}, which has failed",
        "A part of the gateway fails",
    ),
    Rule(
        "TtftStateDropped",
        "process",
        _TICKET,
        gateway_conditions.state_dropped,
        (INSTANCE, "source"),
        "gateway {instance} has dropped damaged state from {source}",
        "State is damaged",
    ),
    Rule(
        "TtftDiscoveryFails",
        "replicas",
        _TICKET,
        conditions.discovery_fails,
        (INSTANCE, MODEL, "pool"),
        "the source of the replicas of {gen_ai_request_model} has no usable answer",
        "Replicas are not discovered",
        'curl -s "$ADMIN/admin/models/{gen_ai_request_model}"',
        holds_s=60.0,
    ),
    Rule(
        "TtftKeyUnusual",
        "keys",
        _TICKET,
        gateway_conditions.key_unusual,
        ("key",),
        "key {key} sends {number} requests per second, more than five times its mean",
        "A key has leaked",
        'curl -s "$ADMIN/admin/usage?key={key}"',
    ),
    Rule(
        "TtftInvalidKeys",
        "keys",
        _TICKET,
        gateway_conditions.invalid_keys,
        (),
        "{number} requests per second have no valid key",
        "A key has leaked",
        holds_s=60.0,
    ),
    Rule(
        "TtftHedgingCostly",
        "hedging",
        _TICKET,
        conditions.hedging_costly,
        _OF_MODEL,
        "{percent} of the billed tokens of {gen_ai_request_model} are of hedges that lost",
        "Hedging costs too much",
        "ttft-gateway prove --model {gen_ai_request_model}",
    ),
    Rule(
        "TtftHedgingOff",
        "hedging",
        _TICKET,
        conditions.hedging_off,
        (INSTANCE, MODEL, "pool"),
        "hedging of {gen_ai_request_model} has been switched off for 2 hours",
        "A switch was forgotten",
        'curl -s "$ADMIN/admin/hedging" -d \'{{"on": true, "model": "{gen_ai_request_model}"}}\'',
        wait_s=_SWITCH_S,
    ),
    Rule(
        "TtftReplicaOut",
        "replicas",
        _TICKET,
        conditions.replica_out,
        _OF_REPLICA,
        "replica {replica} of {gen_ai_request_model} has been taken out for 2 hours",
        "A switch was forgotten",
        _OUT.replace("true", "false"),
        wait_s=_SWITCH_S,
    ),
    Rule("TtftHedgesDenied", "", _NOTE, conditions.hedges_denied, _OF_MODEL, "", "The hedge budget is spent"),
    Rule(
        "TtftLimitsOwed",
        "",
        _NOTE,
        gateway_conditions.limits_owed,
        ("limit",),
        "",
        "The server of shared limits is away",
        'curl -s "$ADMIN/admin/share"',
    ),
)


def anchor(section: str) -> str:
    """Return the link to a section of the runbook."""
    return f"docs/runbook.md#{section.lower().replace(' ', '-')}"
