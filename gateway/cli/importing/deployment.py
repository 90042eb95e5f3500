"""Turns one entry of LiteLLM's `model_list` into a replica.

Units: LiteLLM's prices are per token, the gateway's per million tokens.
"""

import re
from collections.abc import Mapping
from types import MappingProxyType

import msgspec

from gateway.cli.importing.clouds import CLOUDS, READ, cloud_replica, entra, has_entra
from gateway.cli.importing.endpoints import (
    PROVIDERS,
    Provider,
    azure_base_url,
    base_url_fault,
    plain_base_url,
    provider_and_model,
    upstream_model,
)
from gateway.cli.importing.report import Report, reference
from gateway.config.document import Loc
from ttft_gateway.hedging.contract import ATTEMPTS_MAX

NAME = re.compile(r"[!-~]{1,128}")
Json = dict[str, object]

_NO_KEY = frozenset({"", "none", "empty", "dummy", "fake", "fake-key", "no-key", "not-needed", "n/a", "na"})
_PUBLIC_HEADERS = frozenset({"anthropic-beta", "openai-beta", "openai-organization", "http-referer", "x-title"})
_OWN_HEADERS = frozenset(
    {"authorization", "host", "content-type", "content-length", "accept", "accept-encoding", "connection"}
)
_MODES = frozenset({"chat", "completion", "embedding", "rerank", "moderation", "responses"})
_COSTS = MappingProxyType(  # LiteLLM's price of a token -> price of a million
    {
        "input_cost_per_token": "prompt",
        "cache_read_input_token_cost": "cached_prompt",
        "output_cost_per_token": "completion",
    }
)
_READ = frozenset({"model", "custom_llm_provider", "api_base", "base_url", "api_key", "api_version", "order", "weight"})
_TYPES: Mapping[str, type] = MappingProxyType(
    {"extra_headers": dict, "headers": dict, "organization": str, "drop_params": bool, "custom_llm_provider": str}
)
_WHY_NOT: Mapping[str, str] = MappingProxyType(
    {
        "timeout": "the replicas of a model have one value; see `models[].timeouts.total`",
        "stream_timeout": "the replicas of a model have one value; see `models[].timeouts.ttft_failover`",
        "max_retries": f"a request has at most {ATTEMPTS_MAX} attempts; `keys[].attempts_max` lowers this",
        "num_retries": f"a request has at most {ATTEMPTS_MAX} attempts; `keys[].attempts_max` lowers this",
        "max_parallel_requests": "there is no limit for one replica; `models[].concurrency` limits a model",
        "extra_body": "its values may be secret; write them in `body: {set: ...}` of the replica",
        "max_tokens": "there is no default for the caller's value; `body: {max: ...}` of the replica is a cap",
        "region_name": "requests may move between regions; write `boundary` in all replicas of the model",
        "litellm_credential_name": "credentials are not shared by name; write `api_key` in the replica",
        "tags": "requests are not routed by tags",
        "ssl_verify": "certificates are always verified; write the authority in `connection: {ca_file: ...}`",
    }
)
_DEFAULTED = frozenset(
    {"temperature", "top_p", "seed", "stop", "presence_penalty", "frequency_penalty", "reasoning_effort"}
)


class Deployment(msgspec.Struct):
    """One usable entry of `model_list`.

    Attributes:
        loc: path of the entry.
        group: its `model_name`.
        id: its `model_info.id`, if this can be a name; None for none.
        order: its priority, 1 first; None for none.
        weight: its weight; None for none.
        quota: its limits, without a name; empty for none.
        drop_params: drops parameters that its API does not have.
        replica: settings of the replica, without its name.
    """

    loc: Loc
    group: str
    id: str | None
    order: int | None
    weight: float | None
    quota: dict[str, int]
    drop_params: bool
    replica: dict[str, object]


def default_variables(entries: object) -> frozenset[str]:
    """Return the variables from which LiteLLM reads the keys of entries without a key."""
    found = set()
    for entry in entries if isinstance(entries, list) else ():
        params = entry.get("litellm_params") if isinstance(entry, dict) else None
        if isinstance(params, dict) and str(params.get("api_key") or "").lower() in _NO_KEY:
            name, _ = provider_and_model(str(params.get("model")), params.get("custom_llm_provider"))
            if name in PROVIDERS:
                found.add(PROVIDERS[name].key_variable)
    return frozenset(found)


def read_deployment(entry: object, loc: Loc, report: Report) -> Deployment | None:
    """Return an entry as a replica, or None if it cannot be one; the report has the reason."""
    if not isinstance(entry, dict) or not isinstance(params := entry.get("litellm_params"), dict):
        report.skip(loc, "the entry has no `litellm_params`")
        return None
    group, info = entry.get("model_name"), entry.get("model_info")
    info = info if isinstance(info, dict) else {}
    if not isinstance(group, str) or not NAME.fullmatch(group) or "${" in group:
        report.skip(loc, "its `model_name` is missing or is not 1 to 128 visible ASCII characters without spaces")
        return None
    if "*" in group or "*" in str(params.get("model")):
        report.skip(loc, "wildcards do not exist; add an entry for each model")
        return None
    mode = info.get("mode", "chat")
    if mode not in _MODES:
        report.skip(loc, "the gateway serves no audio, images or other modes than text, embeddings and moderations")
        return None
    at = (*loc, "litellm_params")
    replica = _endpoint(params, at, report)
    if replica is None:
        return None
    quota = {
        new: number
        for old, new in (("rpm", "requests_per_min"), ("tpm", "tokens_per_min"))
        if (number := _whole(params, old, at, report)) is not None
    }
    _options(params, info, replica, loc, report)
    _others(entry, info, loc, report)
    weight = params.get("weight")
    return Deployment(
        loc=loc,
        group=group,
        id=_replica_name(info),
        order=_whole(params, "order", at, report),
        weight=_number(weight),
        quota=quota,
        drop_params=params.get("drop_params") is True,
        replica=replica,
    )


def _endpoint(params: Mapping[str, object], at: Loc, report: Report) -> Json | None:
    """Return kind, address, key and model of a replica."""
    named = params.get("model")
    if not isinstance(named, str) or not named or "${" in named or len(named) > 256:
        report.skip(at[:-1], "`litellm_params.model` is missing or is not the name of a model")
        return None
    name, model = provider_and_model(named, params.get("custom_llm_provider"))
    if name in CLOUDS and model:
        return cloud_replica(name, model, params, at, report)
    provider = PROVIDERS.get(name)
    if provider is None or not model:
        which = (
            f"LiteLLM's provider {name} has" if re.fullmatch("[a-z0-9_]{1,40}", name) else "the model's provider has"
        )
        report.skip(
            (*at, "model"),
            f"{which} no kind here; keep the entry in LiteLLM, and use LiteLLM as a replica of kind compatible",
        )
        return None
    base_key = "base_url" if "api_base" not in params and "base_url" in params else "api_base"
    given = params.get(base_key)
    base = _base(given, (*at, base_key), provider, report)
    if base is None:
        return None
    kind = provider.kind
    if name in ("openai", "gemini") and given is not None and base != provider.base_url:
        kind, provider = "compatible", PROVIDERS["litellm_proxy"]
        text = "leads to another server than the provider's, so the kind is compatible, which gets no hedges; "
        report.add((*at, base_key), f"{text}write vllm, sglang or another kind if it is one")
    replica: Json = {"kind": kind, "base_url": base}
    if kind == "azure":
        _azure(params, base, model, replica, at, report)
    elif "api_version" in params:
        report.idle((*at, "api_version"), "only kind azure has a version")
    if kind == "azure" and has_entra(params):
        replica["credential"] = entra(params, at, report)
    elif key := _key(params, PROVIDERS[name], kind, at, report):
        replica["api_key"] = key
    replica["model"] = upstream_model(name, model)
    return replica


def _base(given: object, at: Loc, provider: Provider, report: Report) -> str | None:
    """Return the base URL, or None if there is no usable one."""
    if given is None and provider.base_url is not None:
        return provider.base_url
    variable = reference(given) or (provider.base_variable if given is None else "")
    if variable:
        if given is None:
            report.add(at, f"is missing, as LiteLLM reads ${variable}; the gateway reads the same variable")
        root = report.variable(variable, "host" if provider.kind == "azure" else "url")
        if provider.kind != "azure":
            report.add(
                at, f"is a variable; ${variable} must hold the URL with its path, such as http://10.0.0.1:8000/v1"
            )
        return root
    if not isinstance(given, str) or "${" in given or (fault := base_url_fault(given)):
        reason = fault if isinstance(given, str) and "${" not in given else "it is not a URL"
        report.skip(at[:-2], f"its `{at[-1]}` is unusable: {reason}")
        return None
    return given if provider.kind == "azure" else plain_base_url(given, provider)


def _azure(params: Mapping[str, object], base: str, model: str, replica: Json, at: Loc, report: Report) -> None:
    """Set the address and the version of a replica at Azure."""
    version = params.get("api_version")
    variable = reference(version)
    versioned = variable is not None or (
        isinstance(version, str) and re.fullmatch(r"\d{4}-[0-9a-z-]{5,30}", version) is not None
    )
    replica["base_url"] = url = azure_base_url(base, model, versioned=versioned)
    if versioned and "/deployments/" in url:
        replica["api_version"] = report.variable(variable, "version") if variable else version
    elif version is not None:
        report.skip((*at, "api_version"), "the address has the newer form, which ends in /openai/v1 and has no version")
    else:
        report.add((*at, "api_base"), "has no `api_version` with it; the newer form of the address is used")
    if base.startswith("${"):
        report.add((*at, "api_base"), f"is a variable; {base[2:-1]} must not end with a slash or a path")


def _key(params: Mapping[str, object], provider: Provider, kind: str, at: Loc, report: Report) -> str | None:
    """Return the reference to the variable with the key; None for a replica without key."""
    given = params.get("api_key")
    optional = kind == "compatible" or not provider.needs_key
    if isinstance(given, dict | list):
        report.skip((*at, "api_key"), "it is not text")
    elif given is not None and str(given).lower() not in _NO_KEY:
        name = "UPSTREAM_API_KEY" if kind == "compatible" else provider.key_variable
        return report.secret(str(given), (*at, "api_key"), name)
    elif given is not None and optional:
        report.idle((*at, "api_key"), "it is a placeholder; no key is sent")
    elif not optional:
        report.add(at, f"has no `api_key`; the key is read from ${provider.key_variable}, as by LiteLLM")
        return report.variable(provider.key_variable)
    else:
        text = f". LiteLLM sends ${provider.key_variable} if it is set; if so, write `api_key` in the replica"
        report.add(at, "has no `api_key`; no key is sent" + text)
    return None


def _options(params: Json, info: Json, replica: Json, loc: Loc, report: Report) -> None:
    """Set headers, prices and the default of max_tokens."""
    at = (*loc, "litellm_params")
    headers: Json = {}
    for field in ("extra_headers", "headers"):
        given = params.get(field)
        for name, value in given.items() if isinstance(given, dict) else ():
            _header(str(name), value, (*at, field, name), headers, report)
    if isinstance(organization := params.get("organization"), str):
        _header("openai-organization", organization, (*at, "organization"), headers, report)
    if headers:
        replica["headers"] = headers
    if replica["kind"] == "anthropic" and (most := _whole(params, "max_tokens", at, report)) is not None:
        replica["max_tokens_default"] = most
    _prices(params, info, replica, at, report)
    _rest(params, replica, at, report)


def _rest(params: Json, replica: Json, at: Loc, report: Report) -> None:
    """Report the parameters that are not taken over, and those with an unusable value."""
    for name, expected in _TYPES.items():
        if params.get(name) is not None and not isinstance(params[name], expected):
            report.skip((*at, name), "its value has another type than in LiteLLM's documentation")
    for name in (each for each in ("weight", *_COSTS) if params.get(each) is not None):
        if _number(params[name]) is None:
            report.skip((*at, name), "a number is expected")
    taken = {*_READ, *_COSTS, "rpm", "tpm", "organization", "extra_headers", "headers", "drop_params"}
    if replica["kind"] in ("azure", "bedrock", "foundry", "vertex"):
        taken |= READ
    if replica["kind"] == "anthropic":
        taken.add("max_tokens")
    for name in params:
        if name in _DEFAULTED:
            text = "it is a default for the caller's value; `body: {set: ...}` of the replica replaces that value"
            report.skip((*at, name), text)
        elif name not in taken:
            report.skip((*at, name), _WHY_NOT.get(name, "there is no such setting"))


def _prices(params: Json, info: Json, replica: Json, at: Loc, report: Report) -> None:
    prices = {}
    for old, new in _COSTS.items():
        cost = _number(params.get(old, info.get(old)))
        if cost is not None:
            prices[new] = round(cost * 1_000_000, 6)
    if "prompt" in prices and "completion" in prices and prices.get("cached_prompt", 0) <= prices["prompt"]:
        replica["prices"] = prices
    elif prices:
        report.skip(
            at,
            "its price needs `input_cost_per_token` and `output_cost_per_token`, and cached tokens must not cost more",
        )


def _header(name: str, value: object, at: Loc, headers: Json, report: Report) -> None:
    if not re.fullmatch(r"[A-Za-z0-9_-]{1,100}", name) or name.lower() in _OWN_HEADERS or not isinstance(value, str):
        report.skip(at, "the gateway sets this header itself, or it is not a header")
    elif (
        name.lower() in _PUBLIC_HEADERS
        and reference(value) is None
        and re.fullmatch(r"[ !-~]+", value)
        and "${" not in value
    ):
        headers[name.lower()] = value
    else:
        headers[name.lower()] = report.secret(value, at, re.sub(r"[^A-Z0-9]", "_", f"HEADER_{name.upper()}"))


def _others(entry: Mapping[str, object], info: Mapping[str, object], loc: Loc, report: Report) -> None:
    """Report what an entry contains in addition to its parameters."""
    if entry.get("model_info") is not None and not isinstance(entry["model_info"], dict):
        report.skip((*loc, "model_info"), "a mapping is expected")
    if "id" in info and _replica_name(info) is None:
        report.skip((*loc, "model_info", "id"), "the name of a replica is 1 to 128 visible ASCII characters")
    for name in info:
        if name not in (*_COSTS, "id", "mode"):
            report.idle((*loc, "model_info", name), "the gateway needs no description of the model")
    for name in entry:
        if name not in ("model_name", "litellm_params", "model_info"):
            report.skip((*loc, name), "there is no such setting")


def _replica_name(info: Mapping[str, object]) -> str | None:
    name = info.get("id")
    return name if isinstance(name, str) and NAME.fullmatch(name) and "${" not in name else None


def _whole(params: Mapping[str, object], name: str, at: Loc, report: Report) -> int | None:
    """Return a count of at least 1; None if there is none."""
    value = params.get(name)
    if value is None or (isinstance(value, int) and not isinstance(value, bool) and value >= 1):
        return value
    report.skip((*at, name), "a whole number of at least 1 is expected")
    return None


def _number(value: object) -> float | None:
    if isinstance(value, bool):
        return None
    try:
        found = float(value) if isinstance(value, int | float | str) else -1.0  # `1e-6` is text in YAML 1.1
    except ValueError:
        return None
    return found if 0 <= found < 1e9 else None
