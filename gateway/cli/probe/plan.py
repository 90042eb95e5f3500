"""What a probe will ask of whom, what that may cost at most, and when it needs a second thought. Pure.

Units: tokens.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from gateway.cli.config import pools
from gateway.cli.probe.cancel import COUNTERS, LONG_TOKENS
from gateway.config.settings import ModelSettings, ReplicaSettings, Settings

PROMPT = "Count from 1 to 1000, in digits, separated by spaces, and say nothing else."

_PROMPT_TOKENS = 40  # of the prompt above with the frame that servers put around it, generously
_REQUESTS_MAX, _TOKENS_MAX = 50, 2_000  # without --yes: cents at the dearest provider
_REQUESTS_CAP, _TOKENS_CAP = 1_000, 100_000  # with it


@dataclass(frozen=True, slots=True)
class ProbeTarget:
    """One replica of one model."""

    model: ModelSettings
    row: ReplicaSettings

    @property
    def name(self) -> str:
        """What a person calls it."""
        return f"{self.model.name}/{self.row.name}"


def targets(settings: Settings, model: str | None, replica: str | None) -> list[ProbeTarget]:
    """The replicas of a configuration, those of fallbacks included.

    Args:
        settings: the configuration.
        model: only this model's; None: of all.
        replica: only those with this name; None: all.
    """
    return [
        ProbeTarget(each, row)
        for each in settings.models
        if model in (None, each.name)
        for pool in pools(each)
        for row in pool
        if replica in (None, row.name)
    ]


def left_tokens(target: ProbeTarget, max_tokens: int) -> int:
    """`max_tokens` of the answer that is left: long where it can be seen whether the replica stops."""
    return max(max_tokens, LONG_TOKENS) if target.row.kind in COUNTERS else max_tokens


@dataclass(frozen=True, slots=True)
class ProbePlan:
    """What a probe costs at most.

    Attributes:
        replicas: how many are probed.
        requests: sent to all of them together.
        tokens: generated if every answer is as long as it may be, and the ones that are left go on.
    """

    replicas: int
    requests: int
    tokens: int

    def __str__(self) -> str:
        prompts = self.requests * _PROMPT_TOKENS
        replicas = "1 replica" if self.replicas == 1 else f"{self.replicas} replicas"
        return (
            f"{self.requests} requests to {replicas}: at most {self.tokens:,} generated tokens, "
            f"and about {prompts:,} of prompts"
        )

    def objection(self, *, confirmed: bool) -> str | None:
        """Why it is not carried out, None if it is."""
        if self.requests > _REQUESTS_CAP or self.tokens > _TOKENS_CAP:
            most = f"{_REQUESTS_CAP:,} requests and {_TOKENS_CAP:,} tokens"
            return f"this is more than {most}, the most one probe may ask; choose replicas with --model or --replica"
        if confirmed or (self.requests <= _REQUESTS_MAX and self.tokens <= _TOKENS_MAX):
            return None
        most = f"{_REQUESTS_MAX} requests or {_TOKENS_MAX:,} tokens"
        return f"more than {most} need --yes; or ask for less with --model, --replica, --requests or --max-tokens"


def plan(chosen: Sequence[ProbeTarget], requests: int, max_tokens: int) -> ProbePlan:
    """What a probe of some replicas costs: so many whole answers of each, and one that is left."""
    tokens = sum(requests * max_tokens + left_tokens(target, max_tokens) for target in chosen)
    return ProbePlan(len(chosen), (requests + 1) * len(chosen), tokens)
