"""Converts token counts between Anthropic's Messages API and chat completions.

`input_tokens` of the Messages API exclude cached tokens; `prompt_tokens` of chat completions include them. Counts
accumulate over a stream: a later event repeats or omits counts of an earlier one. Units: tokens.
"""

from ttft_gateway.apis.base import Usage
from ttft_gateway.apis.json_fields import dict_or_empty
from ttft_gateway.apis.tolerant_json import as_count

_INPUTS = ("input_tokens", "cache_creation_input_tokens", "cache_read_input_tokens")


class Counts:
    """The counts of one answer, collected from its events."""

    __slots__ = ("_seen",)

    def __init__(self) -> None:
        self._seen: dict[str, object] = {}

    def add(self, usage: object) -> None:
        """Take the `usage` of one event; nulls are ignored."""
        if isinstance(usage, dict):
            self._seen.update((key, value) for key, value in usage.items() if value is not None)

    def usage(self) -> Usage | None:
        """Return the counts so far, None if there were none."""
        seen = self._seen
        if not seen:
            return None
        inputs = [count for key in _INPUTS if (count := as_count(seen.get(key))) is not None]
        return Usage(
            sum(inputs) if inputs else None,
            as_count(seen.get("output_tokens")),
            as_count(seen.get("cache_read_input_tokens")),
            as_count(dict_or_empty(seen.get("output_tokens_details")).get("thinking_tokens")),
            tier=tier if isinstance(tier := seen.get("service_tier"), str) else None,
        )

    def chat(self) -> dict[str, object] | None:
        """Return the `usage` of a chat completion."""
        usage = self.usage()
        if usage is None:
            return None
        prompt, completion = usage.prompt_tokens or 0, usage.completion_tokens or 0
        details: dict[str, object] = {"cached_tokens": usage.cached_tokens or 0}
        written = as_count(self._seen.get("cache_creation_input_tokens"))
        if written:
            details |= {"cache_write_tokens": written, "cache_creation_tokens": written}  # OpenAI's name, LiteLLM's
        made: dict[str, object] = {
            "prompt_tokens": prompt,
            "completion_tokens": completion,
            "total_tokens": prompt + completion,
            "prompt_tokens_details": details,
        }
        if usage.reasoning_tokens is not None:
            made["completion_tokens_details"] = {"reasoning_tokens": usage.reasoning_tokens}
        return made


def counted(usage: object, _tier: object = None) -> Usage | None:
    """Read the `usage` of a whole message, None if it has none; the tier is in it."""
    counts = Counts()
    counts.add(usage)
    return counts.usage()


def message_usage(usage: Usage | None) -> dict[str, object]:
    """Return the `usage` of a message; zero for missing counts, because clients require a number."""
    known = usage or Usage()
    cached = known.cached_tokens or 0
    made: dict[str, object] = {
        "input_tokens": max(0, (known.prompt_tokens or 0) - cached),
        "cache_creation_input_tokens": 0,
        "cache_read_input_tokens": cached,
        "output_tokens": known.completion_tokens or 0,
    }
    if known.reasoning_tokens is not None:
        made["output_tokens_details"] = {"thinking_tokens": known.reasoning_tokens}
    return made
