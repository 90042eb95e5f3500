"""Converts the settings that concern callers: keys, limits on requests and on attempts, headers to pass on. Pure.

Part of the composition root, used by topology.py.
"""

from collections.abc import Callable, Sequence

from gateway.api.auth import Keyring
from gateway.api.serving import AttemptLimits, RequestLimits
from gateway.api.web_pages import HostCheck, PageCheck
from gateway.config import settings as config
from gateway.config.settings import KeySettings
from ttft_gateway.hedging.contract import ATTEMPTS_MAX
from ttft_gateway.requests.parsed import NumberLimits

_PASSED_HEADERS = frozenset({b"anthropic-beta", b"openai-beta", b"traceparent", b"tracestate"})


def request_limits(settings: config.Settings) -> RequestLimits:
    """Return the limits on requests and the headers to pass on."""
    limits = settings.limits
    passed_headers = _PASSED_HEADERS.union(map(str.encode, settings.pass_headers))
    if settings.tracing is not None:
        passed_headers -= {b"traceparent"}  # each attempt has its own
    bounds = NumberLimits(n_max=limits.n_max, max_tokens_max=limits.max_tokens_max)
    return RequestLimits(bounds, passed_headers, settings.default_model)


def keyring(settings: config.Settings, on_previous: Callable[[str], object]) -> Keyring:
    """Return the keys; a key for a model may use its aliases, too.

    Args:
        on_previous: called with the name of a key for each use of its previous secret.
    """
    names = {key.key.get_secret_value(): key.name for key in settings.keys}
    previous = {key.previous_key.get_secret_value(): key.name for key in settings.keys if key.previous_key is not None}
    aliases = {model.name: model.aliases for model in settings.models}
    return Keyring(
        names,
        {
            key.name: frozenset(name for model in key.models for name in (model, *aliases[model]))
            for key in settings.keys
            if key.models is not None
        },
        HostCheck(settings.own_hosts),
        previous,
        on_previous,
        PageCheck(settings.cors_origins, is_local=settings.listen.loopback),
    )


def attempt_limits(keys: Sequence[KeySettings]) -> dict[str, AttemptLimits]:
    """Return the limits on attempts by name of the key, for keys that have some."""
    limits = {key.name: AttemptLimits(key.hedge and key.attempts_max > 1, key.attempts_max) for key in keys}
    usual = AttemptLimits(hedge=True, attempts_max=ATTEMPTS_MAX)
    return {name: given for name, given in limits.items() if given != usual}
