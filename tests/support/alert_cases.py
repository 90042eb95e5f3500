"""Cases of the alerts in docker/monitoring/rules.yaml: series with which an alert fires, and with which it does not.

Most alerts fire while the gateway's verdict has a trouble of their name; the conditions of the verdict have cases in
tests/health. Series are written as promtool expects them, one sample a minute. Each alert is checked 12 minutes after
the start. Units: minutes.
"""

from collections.abc import Mapping
from dataclasses import dataclass

Series = Mapping[str, str]

_GATEWAY = 'job="ttft-gateway",instance="a:8081"'
_MODEL = f'{_GATEWAY},gen_ai_request_model="llama"'
_JOB = {"job": "ttft-gateway"}
_AT_GATEWAY = {**_JOB, "instance": "a:8081"}
_OF_MODEL = {**_JOB, "gen_ai_request_model": "llama"}
_AT_MODEL = {**_AT_GATEWAY, "gen_ai_request_model": "llama"}
_OF_REPLICA = {**_AT_MODEL, "replica": "r1"}
_OF_POOL = {**_AT_MODEL, "pool": "llama"}
_OF_QUOTA = {**_JOB, "quota": "openai", "resource": "tokens"}


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


def _limited(rate: float, code: str) -> Series:
    return {
        **_requests(_2xx=60 - rate),
        f'ttft_gateway_requests_total{{{_MODEL},status_class="4xx",error_type="{code}"}}': _rising(rate),
    }


def _first_tokens(late: float) -> Series:
    name = "gen_ai_server_time_to_first_token_seconds"
    return {
        f'{name}_bucket{{{_MODEL},le="5.0"}}': _rising(100 - late),
        f"{name}_count{{{_MODEL}}}": _rising(100),
    }


def _trouble(alert: str, value: str, labels: Mapping[str, str]) -> Series:
    given = {**_AT_GATEWAY, "alert": alert, **labels}
    written = ",".join(f'{name}="{text}"' for name, text in given.items())
    return {f"ttft_gateway_trouble{{{written}}}": value}


def _of_verdict(alert: str, value: float, labels: Mapping[str, str], summary: str) -> Case:
    """Return the case of an alert that fires while the verdict has its trouble.

    It is silent after the trouble, when the series has ended, and for the trouble of another name.
    """
    ended = {**_trouble(alert, f"{value:g}x3 stale", labels), **_trouble("TtftOther", _constant(value), labels)}
    return Case(alert, _trouble(alert, f"_x11 {value:g}x10", labels), ended, labels, summary)


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
    *(
        Case(
            "TtftCallersGet429",
            _limited(3, code),
            _limited(0.3, code),
            _OF_MODEL,
            "5% of the requests for llama get a 429 of the providers",
        )
        for code in ("upstream_rate_limited", "rate_limit_exceeded", "insufficient_quota")
    ),
    Case(
        "TtftGatewayDown",
        {f"up{{{_GATEWAY}}}": _constant(0)},
        {f"up{{{_GATEWAY}}}": _constant(1), 'up{job="other",instance="b:1"}': _constant(0)},
        _AT_GATEWAY,
        "the admin address of gateway a:8081 does not answer",
    ),
    *(
        _of_verdict(*row)
        for row in (
            ("TtftRequestsFail", 0.03, _OF_MODEL, "3% of the requests for llama fail"),
            ("TtftCallersGet429", 0.05, _OF_MODEL, "5% of the requests for llama get a 429 of the providers"),
            ("TtftFirstTokensLate", 0.15, _OF_MODEL, "15% of the first tokens of llama take more than 5 s"),
            ("TtftModelDown", 2, _AT_MODEL, "every replica of llama fails"),
            ("TtftReplicaDown", 1, _OF_REPLICA, "replica r1 of llama fails and gets no requests"),
            ("TtftReplicaSlow", 15, _OF_REPLICA, "replica r1 of llama is slow"),
            (
                "TtftReplicaMisconfigured",
                1,
                _OF_REPLICA,
                "replica r1 of llama rejects the key, the account or the model name of the gateway",
            ),
            ("TtftReplicaOut", 1, _OF_REPLICA, "replica r1 of llama has been taken out for 2 hours"),
            ("TtftDiscoveryFails", 1, _OF_POOL, "the source of the replicas of llama has no usable answer"),
            ("TtftReplicaGets429", 0.1, _OF_REPLICA, "10% of the attempts at r1 of llama get a 429"),
            ("TtftQuotaLow", 0.95, _OF_QUOTA, "less than 10% of the tokens of quota openai is left"),
            ("TtftQuotaUsedByOthers", 0.5, _OF_QUOTA, "other clients use 50% of the tokens of quota openai"),
            (
                "TtftHedgeBudgetSpent",
                0.08,
                _OF_MODEL,
                "8% of the requests for llama are late and not hedged, because the budget is spent",
            ),
            ("TtftHedgingCostly", 0.25, _OF_MODEL, "25% of the billed tokens of llama are of hedges that lost"),
            ("TtftHedgingOff", 1, _OF_POOL, "hedging of llama has been switched off for 2 hours"),
            (
                "TtftGatewayOverloaded",
                0.5,
                _AT_GATEWAY,
                "gateway a:8081 rejects 0.5 requests per second, because a queue or the memory for bodies is full",
            ),
            ("TtftGatewayBusy", 0.95, _AT_GATEWAY, "gateway a:8081 uses 95% of its cores"),
            ("TtftGatewaySlow", 0.1, _AT_GATEWAY, "gateway a:8081 adds more than 0.1 s to 10% of the requests"),
            ("TtftNoConnections", 1, _AT_GATEWAY, "gateway a:8081 could not accept connections"),
            (
                "TtftReloadRejected",
                1,
                _AT_GATEWAY,
                "gateway a:8081 has rejected its configuration; the previous one is in force",
            ),
            ("TtftLogLinesLost", 100, _AT_GATEWAY, "gateway a:8081 has lost 100.0 log lines in a minute"),
            ("TtftSpansLost", 200, _AT_GATEWAY, "gateway a:8081 has lost 200.0 spans in a minute"),
            (
                "TtftStateDropped",
                3,
                {**_AT_GATEWAY, "source": "share"},
                "gateway a:8081 has dropped damaged state from share",
            ),
            ("TtftLearnedFileFails", 1, _AT_GATEWAY, "gateway a:8081 cannot keep what it has learned"),
            (
                "TtftComponentFails",
                2,
                {**_AT_GATEWAY, "component": "plan"},
                "gateway a:8081 goes on without plan, which has failed",
            ),
            (
                "TtftWorkersRestart",
                1,
                _AT_GATEWAY,
                "gateway a:8081 has replaced a process, or a worker does not answer",
            ),
            (
                "TtftShareAway",
                1,
                _AT_GATEWAY,
                "gateway a:8081 counts limits alone, because the server of shared limits does not answer",
            ),
            (
                "TtftKeyUnusual",
                2,
                {**_JOB, "key": "team-a"},
                "key team-a sends 2.0 requests per second, more than five times its mean",
            ),
            ("TtftInvalidKeys", 1, _JOB, "1.0 requests per second have no valid key"),
        )
    ),
)
