"""Plan of a probe: replicas, maximum cost, and the limits above which it needs confirmation. Pure.

Units: tokens.
"""

from collections.abc import Sequence

import msgspec

from gateway.cli.probe.cancel import COUNTERS, LONG_TOKENS
from gateway.config.discovered import pools
from gateway.config.settings import ModelSettings, ReplicaSettings, Settings
from gateway.server.upstreams import native_apis
from ttft_gateway.apis.base import Api

PROMPT = "Count from 1 to 1000, in digits, separated by spaces, and say nothing else."

_SIGN_TOKENS_MIN = 16  # smallest max_output_tokens that OpenAI accepts
_PROMPT_TOKENS = 40  # of the prompt above with the chat template that servers add; an upper estimate
_REQUESTS_MAX, _TOKENS_MAX = 50, 2_000  # without --yes: cents at the most expensive provider
_REQUESTS_CAP, _TOKENS_CAP = 1_000, 100_000  # with --yes


class ProbeTarget(msgspec.Struct, frozen=True):
    """One replica of one model; `connect_s` is its timeout of connecting, in seconds."""

    model: ModelSettings
    replica: ReplicaSettings
    connect_s: float

    @property
    def name(self) -> str:
        """Name in reports: MODEL/REPLICA."""
        return f"{self.model.name}/{self.replica.name}"


def targets(settings: Settings, model: str | None, replica: str | None) -> list[ProbeTarget]:
    """Return the replicas of a configuration, with the replicas of fallbacks.

    Args:
        model: name of the model; None for all.
        replica: name of the replicas; None for all.
    """
    return [
        ProbeTarget(each, candidate, timeouts.connect_s)
        for each in settings.models
        if model in (None, each.name)
        for pool, timeouts in zip(pools(each), settings.timeouts_by_pool(each), strict=True)
        for candidate in pool.replicas
        if replica in (None, candidate.name)
    ]


def cancel_test_tokens(target: ProbeTarget, max_tokens: int) -> int:
    """Return `max_tokens` of the cancelled answer: long where the replica reports its running requests."""
    return max(max_tokens, LONG_TOKENS) if target.replica.kind in COUNTERS else max_tokens


def sign_apis(target: ProbeTarget) -> list[Api]:
    """Return the native APIs of a replica that have signs of work in streams; one request is sent in each."""
    return [api for api in (Api.RESPONSES, Api.MESSAGES) if api in native_apis(target.replica, target.model.name)]


def sign_tokens(max_tokens: int) -> int:
    """Return `max_tokens` of an answer with a sign of work."""
    return max(_SIGN_TOKENS_MIN, max_tokens)


class ProbePlan(msgspec.Struct, frozen=True):
    """Maximum cost of a probe.

    Attributes:
        replicas: number of replicas.
        requests: number of requests to all replicas together.
        tokens: generated tokens if every answer, cancelled ones included, has its maximum length.
    """

    replicas: int
    requests: int
    tokens: int

    def __str__(self) -> str:
        prompts = self.requests * _PROMPT_TOKENS
        replicas = "1 replica" if self.replicas == 1 else f"{self.replicas} replicas"
        return (
            f"{self.requests} requests to {replicas}: at most {self.tokens:,} generated tokens "
            f"and about {prompts:,} prompt tokens"
        )

    def objection(self, *, confirmed: bool) -> str | None:
        """Return why the probe is not run, None if it is."""
        if self.requests > _REQUESTS_CAP or self.tokens > _TOKENS_CAP:
            most = f"{_REQUESTS_CAP:,} requests and {_TOKENS_CAP:,} tokens"
            return f"the probe exceeds its maximum of {most}; choose fewer replicas with --model or --replica"
        if confirmed or (self.requests <= _REQUESTS_MAX and self.tokens <= _TOKENS_MAX):
            return None
        most = f"{_REQUESTS_MAX} requests or {_TOKENS_MAX:,} tokens"
        return f"more than {most} need --yes; or reduce --requests, --max-tokens or the replicas (--model, --replica)"


def plan(chosen: Sequence[ProbeTarget], requests: int, max_tokens: int) -> ProbePlan:
    """Return the maximum cost of a probe: of each replica complete answers, its cancel test, and each sign of work."""
    # A second request of a cancel test shows how long the answer is without a cancel.
    tests = [2 if target.replica.kind in COUNTERS else 1 for target in chosen]
    signs = [len(sign_apis(target)) for target in chosen]
    tokens = requests * max_tokens * len(chosen) + sum(signs) * sign_tokens(max_tokens)
    tokens += sum(tests[at] * cancel_test_tokens(target, max_tokens) for at, target in enumerate(chosen))
    return ProbePlan(len(chosen), requests * len(chosen) + sum(tests) + sum(signs), tokens)
