"""LiteLLM's logs, and other rows with a time to the first token, as logged requests. Pure.

LiteLLM: its standard logging payload, bare or inside `standard_logging_object`. Other lines: one object a request,
with fields as proxies and instrumented clients of OpenAI-compatible APIs write them, or one line of a CSV file.
"""

from collections.abc import Mapping, Sequence
from http import HTTPStatus
from typing import Final

from streaming_bench.replay.logged import LineError, LoggedRequest, Unused
from streaming_bench.replay.values import checked_ttft, found_at, text, time_s, tokens, ttft_s

LITELLM_WRAPPERS: Final = ("standard_logging_object", "standard_logging_payload", "kwargs.standard_logging_object")
_TIMED_CALLS: Final = ("completion", "text_completion", "responses", "anthropic_messages")
ARRIVED: Final = (
    *("arrived_at", "arrival", "started_at", "start_time", "startTime", "request_time", "requested_at"),
    *("request.created_at", "timestamp", "time", "created_at", "created", "response.created"),
    *("arrived", "arrival_s", "at_s", "start"),
)
_MODEL: Final = ("model", "request.model", "response.model", "body.model", "request.body.model")
_TOKENS: Final = (
    *("usage.prompt_tokens", "usage.input_tokens", "response.usage.prompt_tokens", "response.usage.input_tokens"),
    *("response.body.usage.prompt_tokens", "prompt_tokens", "input_tokens", "tokens"),
)
_ANSWER_TOKENS: Final = (
    *("usage.completion_tokens", "usage.output_tokens", "response.usage.completion_tokens"),
    *("response.usage.output_tokens", "response.body.usage.completion_tokens", "completion_tokens", "output_tokens"),
)
_REPLICA: Final = (
    *("replica", "deployment", "upstream", "backend", "api_base", "base_url", "provider", "host", "url"),
    *("request.url", "region"),
)
TTFT: Final = {
    "ttft_s": 1.0,
    "ttft_ms": 1e-3,
    "ttft": None,
    "time_to_first_token_s": 1.0,
    "time_to_first_token_ms": 1e-3,
    "time_to_first_token": None,
    "first_token_ms": 1e-3,
    "first_token_s": 1.0,
    "metrics.ttft_ms": 1e-3,
    "metrics.ttft_s": 1.0,
    "metrics.time_to_first_token_ms": 1e-3,
}
_FIRST_TOKEN_AT: Final = ("first_token_at", "first_token_time", "completion_start_time", "completionStartTime")
_TOTAL: Final = {"total_s": 1.0, "total_ms": 1e-3, "duration_s": 1.0, "duration_ms": 1e-3, "latency_ms": 1e-3}
_STREAM: Final = ("stream", "request.stream", "body.stream", "request.body.stream")
_STATUS: Final = ("status", "status_code", "response.status_code", "response.status")
_FAILED: Final = ("failure", "failed", "error")


def litellm_payload(row: Mapping[str, object]) -> Mapping[str, object] | None:
    """Return the standard logging payload of a line; None if the line has none."""
    for path in LITELLM_WRAPPERS:
        inner = found_at(row, path)
        if isinstance(inner, Mapping):
            return inner
    return row if "startTime" in row and ("call_type" in row or "completionStartTime" in row) else None


def read_litellm(row: Mapping[str, object]) -> LoggedRequest | Unused:
    """Read one line of LiteLLM.

    Raises:
        LineError: The line has no standard logging payload, or a value is wrong.
    """
    payload = litellm_payload(row)
    if payload is None:
        raise LineError("the line has no startTime and call_type; log LiteLLM's standard logging payload")
    if text(payload.get("call_type")).removeprefix("a") not in (*_TIMED_CALLS, "nthropic_messages", ""):
        return Unused("calls without a first token, such as embeddings")
    if text(payload.get("status")) in _FAILED:
        return Unused("failed")
    if payload.get("cache_hit") in (True, "True", "true"):
        return Unused("answered from LiteLLM's cache")
    started, first = payload.get("startTime"), payload.get("completionStartTime")
    if payload.get("stream") is False or first in (None, "") or first == payload.get("endTime"):
        return Unused("not streamed, so without a first token")
    start_s, first_s = time_s("startTime", started), time_s("completionStartTime", first)
    ended = payload.get("endTime")
    rest_s = 0.0 if ended in (None, "") else max(0.0, time_s("endTime", ended) - first_s)
    model = text(payload.get("model_group")) or text(payload.get("model"))
    replica = (text(payload.get(name)) for name in ("model_id", "api_base", "custom_llm_provider", "model"))
    count = tokens("prompt_tokens", payload.get("prompt_tokens"))
    waited_s = checked_ttft("completionStartTime - startTime", first_s - start_s)
    answer = tokens("completion_tokens", payload.get("completion_tokens"))
    name = next(filter(None, replica), "")
    return LoggedRequest(start_s, model, name, count, waited_s, rest_s, answer_tokens=answer)


def read_plain(row: Mapping[str, object]) -> LoggedRequest | Unused:
    """Read one row of another program; empty values count as missing.

    Raises:
        LineError: A field is missing or wrong.
    """
    if _has_failed(_first(row, _STATUS)[1]):
        return Unused("failed")
    if _first(row, _STREAM)[1] is False:
        return Unused("not streamed, so without a first token")
    name, arrived = _first(row, ARRIVED)
    if arrived is None:
        raise LineError(f"the line has no time of arrival; add one of the fields {', '.join(ARRIVED[:5])}")
    arrived_s = time_s(name, arrived)
    waited_s = _waited_s(row, arrived_s)
    if waited_s is None:
        return Unused("no first token")
    total, total_s = _first(row, tuple(_TOTAL))
    rest_s = 0.0 if total_s is None else max(0.0, ttft_s(total, total_s, _TOTAL[total]) - waited_s)
    return LoggedRequest(
        arrived_s,
        text(_first(row, _MODEL)[1]),
        text(_first(row, _REPLICA)[1]),
        tokens(*_first(row, _TOKENS)),
        waited_s,
        rest_s,
        answer_tokens=tokens(*_first(row, _ANSWER_TOKENS)),
    )


def _waited_s(row: Mapping[str, object], arrived_s: float) -> float | None:
    """Return the TTFT; None for a row with an empty field for it."""
    name, value = _first(row, tuple(TTFT))
    if value is not None:
        return ttft_s(name, value, TTFT[name])
    name, value = _first(row, _FIRST_TOKEN_AT)
    if value is None:
        if any(each in row for each in (*TTFT, *_FIRST_TOKEN_AT)):
            return None
        raise LineError(
            "the line has no time to the first token; add the field ttft_ms, or log the time of the first streamed "
            "event that has text"
        )
    return checked_ttft(f"{name} after the arrival", time_s(name, value) - arrived_s)


def _first(row: Mapping[str, object], paths: Sequence[str]) -> tuple[str, object]:
    """Return the first path with a value, and the value; None if no path has a value."""
    for path in paths:
        value = found_at(row, path)
        if value not in (None, "") and not isinstance(value, dict | list):
            return path, value
    return paths[0], None


def _has_failed(status: object) -> bool:
    if isinstance(status, int):
        return status >= HTTPStatus.BAD_REQUEST
    shown = text(status).lower()
    return shown in _FAILED or (shown.isdecimal() and int(shown) >= HTTPStatus.BAD_REQUEST)
