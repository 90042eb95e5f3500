"""What one simulated replica is like: a frozen `Profile` and its readable form for files, flags and HTTP.

Inside, seconds and tokens; outside, one mapping of names to values with units, as KEYS lists them. Whatever a profile
may ask for is bounded here. Knows nothing of requests in progress.
"""

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any, Literal, NamedTuple, get_args

from providers.simulated.completion import Lengths
from providers.simulated.faults import FaultRule, parse_rule
from providers.simulated.quantities import Distribution, UnitError, distribution, duration, fixed, share
from providers.simulated.rate_limiter import LIMIT_HEADERS
from providers.simulated.render import Role

HeaderMode = Literal["at_once", "with_first_content"]
ReasoningKey = Literal["reasoning_content", "reasoning"]

_TTFT = fixed(0.02)
_NOTHING = fixed(0.0)


class ProfileError(ValueError):
    """A profile cannot be read; the message names the key, what was found and what to write instead."""


class Stall(NamedTuple):
    """With probability `share` a request's TTFT is drawn from `ttft` instead."""

    text: str
    share: float
    ttft: Distribution


class Episode(NamedTuple):
    """From `start_s` after the first request on, for `length_s`, TTFT and gaps are `factor` times as long.

    `every_s` repeats it so often; None: once.
    """

    text: str
    factor: float
    start_s: float
    length_s: float
    every_s: float | None

    def covers(self, since_s: float) -> bool:
        """Whether it is on, so long after the first request."""
        within = since_s - self.start_s
        if self.every_s is not None and within >= 0:
            within %= self.every_s
        return 0 <= within < self.length_s


@dataclass(frozen=True, slots=True)
class Profile:
    """A replica's behaviour.

    Attributes:
        ttft: time to first content, from when a slot is taken.
        stall: rare values in place of ttft.
        prefill_per_1k: added to ttft for each 1,000 prompt tokens not in the prefix cache; None: nothing.
        gap: between the tokens of a stream.
        headers: the response head is sent at once, or held until the first content.
        headers_delay: until the head is sent, when it is sent at once.
        role: see `Style.role`.
        first_comment: a comment that goes out with the head, empty: none.
        tokens: of an answer without max_tokens.
        tokens_max: no answer is longer, whatever the request says.
        per_event: tokens in an event of a stream.
        reasoning_tokens: before the text of each answer.
        reasoning_key: what their field is called.
        slots: requests worked on at a time, 0: unlimited.
        queue_max: requests that may wait for a slot; more get a 503.
        cache_tokens: size of the prefix cache, 0: none.
        episodes: when it is slow; factors of overlapping ones multiply.
        provider: whose rate-limit headers it sends.
        requests_per_min: its limit, 0: none; requests beyond it get a 429.
        tokens_per_min: likewise, of prompts and answers together.
        extra_headers: "name: value", sent with every answer.
        models: what it says it serves; any model is answered.
        continues: an answer may be continued from a prefix (`continue_final_message`), else that is a 400.
        faults: its misbehaviour.
    """

    ttft: Distribution = _TTFT
    stall: Stall | None = None
    prefill_per_1k: Distribution | None = None
    gap: Distribution = _NOTHING
    headers: HeaderMode = "at_once"
    headers_delay: Distribution = _NOTHING
    role: Role = "early"
    first_comment: str = ""
    tokens: int = 20
    tokens_max: int = 8192
    per_event: int = 1
    reasoning_tokens: int = 0
    reasoning_key: ReasoningKey = "reasoning_content"
    slots: int = 0
    queue_max: int = 1000
    cache_tokens: int = 0
    episodes: tuple[Episode, ...] = ()
    provider: str = "vllm"
    requests_per_min: int = 0
    tokens_per_min: int = 0
    extra_headers: tuple[str, ...] = ()
    models: tuple[str, ...] = ("simulated",)
    continues: bool = True
    faults: tuple[FaultRule, ...] = ()

    @property
    def lengths(self) -> Lengths:
        """How long answers are."""
        return Lengths(self.tokens, self.tokens_max, self.reasoning_tokens)


def parse_profile(changes: Mapping[str, object], base: Profile | None = None) -> Profile:
    """Change a profile.

    Args:
        changes: a value for each key that changes, as KEYS describes them.
        base: what keys not given keep; None: the default profile.

    Raises:
        ProfileError: A key does not exist or its value cannot be read.
    """
    parsed: dict[str, Any] = {}
    for key, value in changes.items():
        if key not in KEYS:
            raise ProfileError(f"found the key {key!r}; write one of {', '.join(KEYS)}")
        try:
            parsed[key] = KEYS[key].read(value)
        except UnitError as error:
            raise ProfileError(f"{key}: {error}") from error
    return replace(base or Profile(), **parsed)


def show_profile(profile: Profile) -> dict[str, object]:
    """The profile in the form that `parse_profile` reads."""
    return {key: described.show(getattr(profile, key)) for key, described in KEYS.items()}


class ProfileKey(NamedTuple):
    """How a key's value is written, read and shown; `many`: it is a list of such values."""

    text: str
    read: Callable[[object], object]
    show: Callable[[Any], object]
    many: bool = False


def _same(value: object) -> object:
    return value


def _text_of(value: Distribution | Stall | Episode | FaultRule | None) -> str:
    return "off" if value is None else value.text


def _number(text: str, least: int, most: int) -> ProfileKey:
    def read(value: object) -> int:
        number = int(value) if isinstance(value, str) and value.isdigit() else value
        if not isinstance(number, int) or not least <= number <= most:
            raise UnitError(f"found {value!r}; write a whole number from {least} to {most}")
        return number

    return ProfileKey(text, read, _same)


def _word(text: str, words: tuple[str, ...]) -> ProfileKey:
    def read(value: object) -> object:
        if value not in words:
            raise UnitError(f"found {value!r}; write one of {', '.join(words)}")
        return value

    return ProfileKey(f"{text}: {', '.join(words)}", read, _same)


def _list(text: str, read_one: Callable[[object], object], show_one: Callable[[Any], object]) -> ProfileKey:
    def read(value: object) -> tuple[object, ...]:
        if not isinstance(value, list) or len(value) > _LIST_MAX:
            raise UnitError(f"found {value!r}; write a list of at most {_LIST_MAX} texts")
        return tuple(read_one(one) for one in value)

    return ProfileKey(text, read, lambda values: [show_one(one) for one in values], many=True)


def _line(value: object) -> str:
    if not isinstance(value, str) or not value.isprintable():
        raise UnitError(f"found {value!r}; write a line of text")
    return value


def _header(value: object) -> str:
    if not re.fullmatch(r"[a-z0-9-]+: \S.*", _line(value)):
        raise UnitError(f"found {value!r}; write 'name: value', the name in lower case")
    return str(value)


def _flag(value: object) -> bool:
    if value not in (True, False, "true", "false"):
        raise UnitError(f"found {value!r}; write true or false")
    return value in (True, "true")


def _prefill(value: object) -> Distribution | None:
    return None if value in (None, "off") else distribution(value)


def _stall(value: object) -> Stall | None:
    if value in (None, "off"):
        return None
    fraction, colon, shape = str(value).partition(":")
    if not colon:
        raise UnitError(f"found {value!r}; write SHARE:DISTRIBUTION such as '4%:1s', or 'off'")
    return Stall(str(value), share(fraction), distribution(shape))


def _episode(value: object) -> Episode:
    match = re.fullmatch(r"x(\d+(?:\.\d+)?) from (\S+) for (\S+)(?: every (\S+))?", str(value))
    if match is None:
        raise UnitError(f"found {value!r}; write 'x5 from 60s for 20s', or the same with 'every 140s' behind it")
    factor, start, length, every = match.groups()
    every_s = duration(every) if every else None
    if every_s == 0:
        raise UnitError(f"found {value!r}; an episode cannot return every 0 s")
    return Episode(str(value), float(factor), duration(start), duration(length), every_s)


_LIST_MAX = 100
_TOKENS_MAX = 100_000
_PER_MIN_MAX = 1_000_000_000

KEYS: dict[str, ProfileKey] = {
    "ttft": ProfileKey("time to first content: 20ms, lognormal:20ms,5ms, '20ms | 4% 1s', ...", distribution, _text_of),
    "stall": ProfileKey("rare times instead: 4%:1s, or off", _stall, _text_of),
    "prefill_per_1k": ProfileKey("added for each 1,000 uncached prompt tokens, or off", _prefill, _text_of),
    "gap": ProfileKey("between tokens", distribution, _text_of),
    "headers": _word("when the response head is sent", get_args(HeaderMode)),
    "headers_delay": ProfileKey("until the head, when it is sent at once", distribution, _text_of),
    "role": _word("the role chunk", get_args(Role)),
    "first_comment": ProfileKey("a comment with the head", _line, _same),
    "tokens": _number("of an answer without max_tokens", 0, _TOKENS_MAX),
    "tokens_max": _number("of any answer", 1, _TOKENS_MAX),
    "per_event": _number("tokens in an event", 1, _TOKENS_MAX),
    "reasoning_tokens": _number("thinking before the text", 0, _TOKENS_MAX),
    "reasoning_key": _word("the field of thinking tokens", get_args(ReasoningKey)),
    "slots": _number("requests worked on at a time, 0: unlimited", 0, _TOKENS_MAX),
    "queue_max": _number("requests that may wait for a slot", 0, _TOKENS_MAX),
    "cache_tokens": _number("size of the prefix cache", 0, 100_000_000),
    "episodes": _list("slow times: 'x5 from 60s for 20s every 140s'", _episode, _text_of),
    "provider": _word("whose rate-limit headers", tuple(LIMIT_HEADERS)),
    "requests_per_min": _number("its limit, stated in headers and kept with 429s, 0: none", 0, _PER_MIN_MAX),
    "tokens_per_min": _number("likewise, of prompts and answers", 0, _PER_MIN_MAX),
    "extra_headers": _list("'name: value' with every answer", _header, _same),
    "models": _list("what /v1/models lists", _line, _same),
    "continues": ProfileKey("answers may be continued from a prefix: true, false", _flag, _same),
    "faults": _list("misbehaviour: NAME[:ARG] [once | always | first N | P%]", parse_rule, _text_of),
}
"""Every key of a profile's readable form; the keys are the attributes of `Profile`."""
