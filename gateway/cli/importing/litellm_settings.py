"""LiteLLM's settings outside of `model_list`: those that are taken over, and the reasons for the others.

Units: LiteLLM's timeouts are seconds.
"""

from collections.abc import Mapping
from types import MappingProxyType

from gateway.cli.importing.report import Report
from ttft_gateway.hedging.contract import ATTEMPTS_MAX

_RETRIES = f"a request has at most {ATTEMPTS_MAX} attempts; `keys[].attempts_max` lowers this"
_CALLBACKS = "there are no callbacks; see docs/logs.md and docs/metrics.md"
_CACHE = "answers are not cached"
_REDIS = "several gateways share limits and loads over Redis or Valkey 7 with `share`, which needs an extra"
_BREAKER = "the gateway takes failing replicas out by itself"
_DATABASE = "the gateway has no database: no virtual keys, no teams, no spending limits; see `keys`"
_OTHER_FALLBACKS = "fallbacks are used after any failure; there are none for one kind of error"
_SWITCHED = "logs are JSON lines, one for each request"

WHY_NOT: Mapping[str, str] = MappingProxyType(
    {
        "num_retries": _RETRIES,
        "max_retries": _RETRIES,
        "retry_policy": _RETRIES,
        "model_group_retry_policy": _RETRIES,
        "retry_after": "the wait before a retry is that of the replica's Retry-After",
        "callbacks": _CALLBACKS,
        "success_callback": _CALLBACKS,
        "failure_callback": _CALLBACKS,
        "service_callbacks": _CALLBACKS,
        "service_callback": _CALLBACKS,
        "callback_settings": _CALLBACKS,
        "cache": _CACHE,
        "cache_params": _CACHE,
        "cache_responses": _CACHE,
        "redis_host": _REDIS,
        "redis_port": _REDIS,
        "redis_password": _REDIS,
        "redis_url": _REDIS,
        "allowed_fails": _BREAKER,
        "allowed_fails_policy": _BREAKER,
        "cooldown_time": _BREAKER,
        "disable_cooldowns": _BREAKER,
        "background_health_checks": _BREAKER,
        "health_check_interval": _BREAKER,
        "context_window_fallbacks": _OTHER_FALLBACKS,
        "content_policy_fallbacks": _OTHER_FALLBACKS,
        "database_url": _DATABASE,
        "store_model_in_db": _DATABASE,
        "max_budget": _DATABASE,
        "alerting": "alerts come from Prometheus; see docs/monitoring.md",
        "set_verbose": _SWITCHED,
        "json_logs": _SWITCHED,
        "turn_off_message_logging": "messages are never logged",
        "enable_pre_call_checks": "prompts are not counted against a context window",
        "max_request_size_mb": "the largest body is `limits.request_body_max`",
        "max_parallel_requests": "`models[].concurrency` limits a model, `keys[].concurrency` a caller",
        "global_max_parallel_requests": "`models[].concurrency` limits a model, `keys[].concurrency` a caller",
        "include": "included files are not read; import each, and combine the results",
        "credential_list": "credentials are not shared by name; write `api_key` in the replica",
        "guardrails": "the gateway does not inspect content",
        "mcp_servers": "the gateway serves no tools",
    }
)
"""Setting -> reason why it is not taken over."""

ROUTING: Mapping[str, str] = MappingProxyType(
    {
        "least-busy": "becomes `hedge.routing: least_in_flight`, the less busy of two random replicas",
        "latency-based-routing": (
            "is replaced by the gateway's default, `hedge.routing: predicted`: the lowest predicted TTFT, not the "
            "lowest mean latency of whole answers"
        ),
        "simple-shuffle": (
            "is replaced by the gateway's default, `hedge.routing: predicted`, the lowest predicted TTFT; "
            "`weight` shifts the shares, `rpm` and `tpm` do not"
        ),
    }
    | dict.fromkeys(
        ("usage-based-routing", "usage-based-routing-v2"),
        "is replaced by the gateway's default, `hedge.routing: predicted`, the lowest predicted TTFT; hedges "
        "keep away from the limits in `quotas`",
    )
    | {
        "cost-based-routing": (
            "is not taken over: there is no routing by price; requests go to the lowest predicted TTFT, and hedges "
            "are limited by `hedge.budget`"
        )
    }
)
"""Strategy of the router -> its replacement."""
OTHER_ROUTING = (
    "is not taken over: there is no such strategy here; requests go to the lowest predicted TTFT, and `hedge.routing` "
    "has the alternatives"
)

_TAKEN = {  # section -> settings that are read
    "litellm_settings": ("request_timeout", "drop_params", "fallbacks", "default_fallbacks", "model_alias_map"),
    "router_settings": (
        "timeout",
        "stream_timeout",
        "fallbacks",
        "default_fallbacks",
        "model_group_alias",
        "routing_strategy",
    ),
    "general_settings": ("master_key", "completion_model"),
}
_TOTAL_S_MAX = 86_400


def taken(where: str) -> tuple[str, ...]:
    """Return the settings of a section that are read."""
    return _TAKEN[where]


def section(data: Mapping[str, object], name: str) -> Mapping[str, object]:
    """Return a section; an empty one if it is missing."""
    found = data.get(name)
    return found if isinstance(found, dict) else {}


def timeouts(data: Mapping[str, object], report: Report) -> dict[str, object]:
    """Return the section `timeouts`; the router's timeout takes precedence over the library's, as in LiteLLM."""
    found: dict[str, object] = {}
    for where, key, ours in (
        ("litellm_settings", "request_timeout", "total"),
        ("router_settings", "timeout", "total"),
        ("router_settings", "stream_timeout", "ttft_failover"),
    ):
        value = section(data, where).get(key)
        if value is None:
            continue
        if isinstance(value, bool) or not isinstance(value, int | float) or not 0.001 <= value <= _TOTAL_S_MAX:
            report.skip((where, key), "a number of seconds from 0.001 to 86400 is expected")
            continue
        found[ours] = f"{value:.3f}".rstrip("0").rstrip(".") + "s"
        if ours == "ttft_failover":
            text = "becomes `timeouts.ttft_failover`: another replica is tried then, and the late one may still answer"
            report.add((where, key), text)
    return {"timeouts": found} if found else {}
