"""Cases of the alerts in docker/monitoring/rules.yaml: series with which an alert fires, and with which it does not.

Series are written as promtool expects them, one sample a minute. Each alert is checked 12 minutes after the start,
unless its case has another time. Units: minutes.
"""

from collections.abc import Mapping
from dataclasses import dataclass

Series = Mapping[str, str]

_GATEWAY = 'job="ttft-gateway",instance="a:8081"'
_MODEL = f'{_GATEWAY},gen_ai_request_model="llama"'
_REPLICA = f'{_MODEL},replica="r1"'
_JOB = {"job": "ttft-gateway"}
_AT_GATEWAY = {**_JOB, "instance": "a:8081"}
_OF_MODEL = {**_JOB, "gen_ai_request_model": "llama"}
_OF_REPLICA = {**_AT_GATEWAY, "gen_ai_request_model": "llama", "replica": "r1"}
_OF_POOL = {**_AT_GATEWAY, "gen_ai_request_model": "llama", "pool": "llama"}


@dataclass(frozen=True, slots=True)
class Case:
    """One alert.

    Attributes:
        alert: its name.
        fires: series with which it fires.
        silent: series with which it does not, close to the others.
        labels: labels of the alert, without its name and severity.
        summary: its text.
        at: time at which it is checked.
    """

    alert: str
    fires: Series
    silent: Series
    labels: Mapping[str, str]
    summary: str
    at: int = 12


def _rising(per_minute: float) -> str:
    return f"0+{per_minute:g}x200"


def _constant(value: float) -> str:
    return f"{value:g}x200"


def _requests(**by_class: float) -> Series:
    return {
        f'ttft_gateway_requests_total{{{_MODEL},status_class="{name.lstrip("_")}"}}': _rising(rate)
        for name, rate in by_class.items()
    }


def _limited(rate: float) -> Series:
    return {
        **_requests(_2xx=60 - rate),
        f'ttft_gateway_requests_total{{{_MODEL},status_class="4xx",error_type="upstream_rate_limited"}}': _rising(rate),
    }


def _first_tokens(late: float) -> Series:
    name = "gen_ai_server_time_to_first_token_seconds"
    return {
        f'{name}_bucket{{{_MODEL},le="5.0"}}': _rising(100 - late),
        f"{name}_count{{{_MODEL}}}": _rising(100),
    }


def _attempts(outcome: str, rate: float) -> Series:
    return {
        f'ttft_gateway_attempts_total{{{_REPLICA},outcome="finished"}}': _rising(100 - rate),
        f'ttft_gateway_attempts_total{{{_REPLICA},outcome="{outcome}"}}': _rising(rate),
    }


def _breakers(first: float, second: float) -> Series:
    return {
        f'ttft_gateway_breaker_state{{{_MODEL},replica="{name}"}}': _constant(state)
        for name, state in (("r1", first), ("r2", second))
    }


def _quota(others: float, left: float) -> Series:
    labels = f'{_GATEWAY},quota="openai",resource="tokens"'
    return {
        f"ttft_gateway_quota_others_seconds{{{labels}}}": _rising(60 * others),
        f"ttft_gateway_quota_left_share{{{labels}}}": _constant(left),
    }


def _denied(rate: float) -> Series:
    labels = f'{_MODEL},reason="budget"'
    return {**_requests(_2xx=100), f"ttft_gateway_hedges_denied_total{{{labels}}}": _rising(rate)}


def _billed(lost: float) -> Series:
    return {
        f'ttft_gateway_billed_tokens_total{{{_MODEL},disposition="{name}"}}': _rising(rate)
        for name, rate in (("winner", 1000 - lost), ("loser", lost))
    }


def _rejected(code: str, rate: float) -> Series:
    return {f'ttft_gateway_rejected_requests_total{{{_GATEWAY},code="{code}"}}': _rising(rate)}


def _cpu(share: float, workers: int) -> Series:
    count = {f"ttft_gateway_workers{{{_GATEWAY}}}": _constant(workers)} if workers else {}
    return {
        **count,
        f"process_cpu_seconds_total{{{_GATEWAY}}}": _rising(60 * share),
        'process_cpu_seconds_total{job="other",instance="b:1"}': _rising(600),
        f'ttft_gateway_build_info{{{_GATEWAY},version="1"}}': _constant(1),
    }


def _overhead(late: float) -> Series:
    name = "ttft_gateway_overhead_seconds_bucket"
    return {
        f'{name}{{{_GATEWAY},le="0.1"}}': _rising(1000 - late),
        f'{name}{{{_GATEWAY},le="1.0"}}': _rising(1000),
        f'{name}{{{_GATEWAY},le="+Inf"}}': _rising(1000),
    }


def _key(usual: float, now: float) -> Series:
    """A key with 90 minutes of its usual rate, and 20 of another one."""
    labels = f'{_GATEWAY},key="team-a",status_class="2xx"'
    return {f"ttft_gateway_key_requests_total{{{labels}}}": f"0+{usual:g}x90 {90 * usual + now:g}+{now:g}x100"}


def _gauge(name: str, value: float, labels: str = _GATEWAY) -> Series:
    return {f"{name}{{{labels}}}": _constant(value)}


CASES = (
    Case(
        "TtftRequestsFail",
        _requests(_2xx=97, _5xx=3),
        _requests(_2xx=99, _4xx=5, _5xx=1),
        _OF_MODEL,
        "3% of the requests for llama fail",
    ),
    Case(
        "TtftFirstTokensLate",
        _first_tokens(15),
        _first_tokens(5),
        _OF_MODEL,
        "15% of the first tokens of llama take more than 5 s",
    ),
    Case(
        "TtftCallersGet429",
        _limited(3),
        _limited(0.3),
        _OF_MODEL,
        "5% of the requests for llama get a 429 of the providers",
    ),
    Case(
        "TtftReplicaDown",
        _breakers(2, 0),
        {f"ttft_gateway_breaker_state{{{_REPLICA}}}": "0x18 2 0x200"},
        _OF_REPLICA,
        "replica r1 of llama fails and gets no requests",
        at=20,
    ),
    Case(
        "TtftReplicaDown",
        {**_breakers(2, 0), f"ttft_gateway_replica_out{{{_REPLICA}}}": _constant(0)},
        {**_breakers(2, 0), f"ttft_gateway_replica_out{{{_REPLICA}}}": _constant(1)},
        _OF_REPLICA,
        "replica r1 of llama fails and gets no requests",
    ),
    Case(
        "TtftModelDown",
        _breakers(2, 1),
        _breakers(2, 0),
        {**_AT_GATEWAY, "gen_ai_request_model": "llama"},
        "every replica of llama fails",
    ),
    Case(
        "TtftReplicaSlow",
        {f"ttft_gateway_replica_level{{{_REPLICA}}}": "1x5 4x100"},
        {
            f"ttft_gateway_replica_level{{{_REPLICA}}}": "1x14 6 1x100",
            f"ttft_gateway_suspect{{{_REPLICA}}}": _constant(0),
        },
        _OF_REPLICA,
        "replica r1 of llama is slow",
        at=20,
    ),
    Case(
        "TtftReplicaSlow",
        {f"ttft_gateway_suspect{{{_REPLICA}}}": "0 1 0 1 0 1 1 0 1 0 1 0 1 0 1 0 1 0 1 0 1 0 1"},
        {f"ttft_gateway_suspect{{{_REPLICA}}}": "0x14 1 0x100"},
        _OF_REPLICA,
        "replica r1 of llama is slow",
        at=20,
    ),
    Case(
        "TtftReplicaMisconfigured",
        {f'ttft_gateway_attempts_total{{{_REPLICA},outcome="misconfigured",role="primary"}}': "_x17 1x20"},
        _attempts("misconfigured", 0),
        _OF_REPLICA,
        "replica r1 of llama rejects the key, the account or the model name of the gateway",
        at=20,
    ),
    Case(
        "TtftReplicaOut",
        _gauge("ttft_gateway_replica_out", 1, _REPLICA),
        {f"ttft_gateway_replica_out{{{_REPLICA}}}": "1x98 0x5 1x100"},
        _OF_REPLICA,
        "replica r1 of llama has been taken out for 2 hours",
        at=125,
    ),
    Case(
        "TtftDiscoveryFails",
        _gauge("ttft_gateway_discovery_up", 0, f'{_MODEL},pool="llama"'),
        _gauge("ttft_gateway_discovery_up", 1, f'{_MODEL},pool="llama"'),
        _OF_POOL,
        "the source of the replicas of llama has no usable answer",
    ),
    Case(
        "TtftReplicaGets429",
        _attempts("rate_limited", 10),
        _attempts("rate_limited", 2),
        {**_OF_MODEL, "replica": "r1"},
        "10% of the attempts at r1 of llama get a 429",
    ),
    Case(
        "TtftQuotaLow",
        _quota(0, 0.05),
        _quota(0, 0.5),
        {**_JOB, "quota": "openai", "resource": "tokens"},
        "5% of the tokens of quota openai are left",
    ),
    Case(
        "TtftQuotaUsedByOthers",
        _quota(0.5, 0.3),
        _quota(0.3, 0.3),
        {**_JOB, "quota": "openai", "resource": "tokens"},
        "other clients use 50% of the tokens of quota openai",
    ),
    Case(
        "TtftHedgeBudgetSpent",
        _denied(8),
        _denied(2),
        _OF_MODEL,
        "8% of the requests for llama are late and not hedged, because the budget is spent",
    ),
    Case(
        "TtftHedgingCostly",
        _billed(250),
        _billed(100),
        _OF_MODEL,
        "25% of the billed tokens of llama are of hedges that lost",
        at=70,
    ),
    Case(
        "TtftHedgingOff",
        _gauge("ttft_gateway_hedging_on", 0, f'{_MODEL},pool="llama"'),
        _gauge("ttft_gateway_hedging_on", 1, f'{_MODEL},pool="llama"'),
        _OF_POOL,
        "hedging of llama has been switched off for 2 hours",
        at=125,
    ),
    Case(
        "TtftGatewayDown",
        _gauge("up", 0),
        {**_gauge("up", 1), 'up{job="other",instance="b:1"}': _constant(0)},
        _AT_GATEWAY,
        "the admin address of gateway a:8081 does not answer",
    ),
    Case(
        "TtftGatewayOverloaded",
        _rejected("overloaded", 30),
        {**_rejected("overloaded", 1), **_rejected("rate_limit_exceeded", 100)},
        _AT_GATEWAY,
        "gateway a:8081 rejects 0.5 requests per second, because a queue or the memory for bodies is full",
    ),
    Case("TtftGatewayBusy", _cpu(0.95, 0), _cpu(0.7, 0), _AT_GATEWAY, "gateway a:8081 uses 95% of its cores"),
    Case("TtftGatewayBusy", _cpu(1.8, 2), _cpu(1.8, 4), _AT_GATEWAY, "gateway a:8081 uses 90% of its cores"),
    Case(
        "TtftGatewaySlow", _overhead(100), _overhead(5), _AT_GATEWAY, "gateway a:8081 adds 910ms to one request in 100"
    ),
    Case(
        "TtftGatewaySlow",
        {**_overhead(100), **_gauge("ttft_gateway_quota_cooling_seconds", 0, f'{_GATEWAY},quota="q"')},
        {**_overhead(100), **_gauge("ttft_gateway_quota_cooling_seconds", 2, f'{_GATEWAY},quota="q"')},
        _AT_GATEWAY,
        "gateway a:8081 adds 910ms to one request in 100",
    ),
    Case(
        "TtftNoConnections",
        {f"ttft_gateway_accept_stops_total{{{_GATEWAY}}}": "_x15 1x100"},
        {f"ttft_gateway_accept_stops_total{{{_GATEWAY}}}": "1x100"},
        _AT_GATEWAY,
        "gateway a:8081 could not accept connections",
        at=20,
    ),
    Case(
        "TtftReloadRejected",
        _gauge("ttft_gateway_config_last_reload_successful", 0),
        _gauge("ttft_gateway_config_last_reload_successful", 1),
        _AT_GATEWAY,
        "gateway a:8081 has rejected its configuration; a restart would fail",
    ),
    Case(
        "TtftLogLinesLost",
        {f"ttft_gateway_log_lines_lost_total{{{_GATEWAY}}}": _rising(20)},
        {f"ttft_gateway_log_lines_lost_total{{{_GATEWAY}}}": _constant(20)},
        _AT_GATEWAY,
        "gateway a:8081 has lost 100 log lines in 5 minutes",
    ),
    Case(
        "TtftSpansLost",
        {f"ttft_gateway_spans_lost_total{{{_GATEWAY}}}": _rising(20)},
        {f"ttft_gateway_spans_lost_total{{{_GATEWAY}}}": _constant(20)},
        _AT_GATEWAY,
        "gateway a:8081 has lost 200 spans in 10 minutes",
    ),
    Case(
        "TtftStateDropped",
        {f'ttft_gateway_state_dropped_total{{{_GATEWAY},source="share"}}': "0x8 3x100"},
        {f'ttft_gateway_state_dropped_total{{{_GATEWAY},source="share"}}': _constant(3)},
        {**_AT_GATEWAY, "source": "share"},
        "gateway a:8081 has dropped damaged state from share",
    ),
    Case(
        "TtftLearnedFileFails",
        _gauge("ttft_gateway_learned_file_up", 0),
        _gauge("ttft_gateway_learned_file_up", 1),
        _AT_GATEWAY,
        "gateway a:8081 cannot keep what it has learned",
    ),
    Case(
        "TtftComponentFails",
        {f'ttft_gateway_component_failures_total{{{_GATEWAY},component="plan"}}': "_x15 1x100"},
        {f'ttft_gateway_component_failures_total{{{_GATEWAY},component="plan"}}': "1x100"},
        {**_AT_GATEWAY, "component": "plan"},
        "gateway a:8081 goes on without plan, which has failed",
        at=20,
    ),
    Case(
        "TtftWorkersRestart",
        {f"ttft_gateway_worker_restarts_total{{{_GATEWAY}}}": "0x10 1 2 3 3x100"},
        {f"ttft_gateway_worker_restarts_total{{{_GATEWAY}}}": "0x10 1x100"},
        _AT_GATEWAY,
        "gateway a:8081 has replaced 3 workers in 15 minutes",
        at=20,
    ),
    Case(
        "TtftShareAway",
        _gauge("ttft_gateway_share_up", 0),
        _gauge("ttft_gateway_share_up", 1),
        _AT_GATEWAY,
        "gateway a:8081 counts limits alone, because the server of shared limits does not answer",
    ),
    Case(
        "TtftKeyUnusual",
        _key(12, 120),
        _key(12, 36),
        {**_JOB, "key": "team-a"},
        "key team-a sends 2.0 requests per second, more than five times its mean",
        at=105,
    ),
    Case(
        "TtftInvalidKeys",
        _rejected("invalid_api_key", 60),
        _rejected("invalid_api_key", 3),
        _JOB,
        "1.0 requests per second have no valid key",
    ),
)
