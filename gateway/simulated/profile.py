"""Defines the behaviour of one simulated replica: a frozen `Profile`, and its text form for files, flags and HTTP.

A `Profile` holds seconds and tokens; its text form maps the keys of KEYS to values with units. All values are bounded
here. Independent of requests.
"""

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any, Literal, NamedTuple, get_args

from gateway.simulated.completion import Lengths
from gateway.simulated.faults import FaultRule, parse_rule
from gateway.simulated.quantities import Distribution, UnitError, distribution, duration, fixed, share
from gateway.simulated.rate_limiter import LIMIT_HEADERS
from gateway.simulated.render import Role

HeaderMode = Literal["at_once", "with_first_content"]
ReasoningKey = Literal["reasoning_content", "reasoning"]

_TTFT = fixed(0.02)
_NOTHING = fixed(0.0)


class ProfileError(ValueError):
    """An invalid profile; the message names the key, its value and the correction.

    Args:
        message: the mistake and its correction, without the key.
        key: the invalid key; empty: an unknown one.
    """

    def __init__(self, message: str, key: str = "") -> None:
        super().__init__(f"{key}: {message}" if key else message)
        self.message = message
        self.key = key


class Stall(NamedTuple):
    """A second distribution of TTFT, used with the probability `share`."""

    text: str
    share: float
    ttft: Distribution


class Episode(NamedTuple):
    """A period in which TTFT and gaps are `factor` times as long.

    Attributes:
        text: the text it was parsed from.
        factor: factor of TTFT and gaps.
        start_s: time from the first request to the start.
        length_s: length of the period.
        every_s: time from start to start; None: the episode happens once.
    """

    text: str
    factor: float
    start_s: float
    length_s: float
    every_s: float | None

    def covers(self, since_s: float) -> bool:
        """Return True if the episode is active at this time after the first request."""
        within = since_s - self.start_s
        if self.every_s is not None and within >= 0:
            within %= self.every_s
        return 0 <= within < self.length_s


class SimulatedTier(NamedTuple):
    """The answers to requests that ask for one tier.

    Attributes:
        text: the text it was parsed from.
        name: its name in `service_tier`.
        ttft: time to first content.
        refused: share of the requests that get a 429.
        served_as: tier that answers state.
    """

    text: str
    name: str
    ttft: Distribution
    refused: float
    served_as: str


@dataclass(frozen=True, slots=True)
class Profile:
    """The behaviour of a replica.

    Attributes:
        ttft: time to first content, from the time at which the request gets a slot.
        stall: rare values in place of ttft; None: none.
        prefill_per_1k: addition to ttft for each 1,000 prompt tokens not in the prefix cache; None: none.
        gap: time between the tokens of a stream.
        headers: "at_once": the response head is sent before the content; "with_first_content": together with it.
        headers_delay: time from arrival to a head that is sent at once.
        role: see `RenderOptions.role`.
        first_comment: comment sent with the head; empty: none.
        tokens: tokens of a response without max_tokens.
        tokens_max: maximum of tokens in a response.
        per_event: tokens in an event of a stream.
        reasoning_tokens: thinking tokens before the text of each response.
        reasoning_key: field of thinking tokens.
        slots: maximum of requests in work; 0: unlimited.
        queue_max: maximum of requests that wait for a slot; further requests get a 503.
        cache_tokens: size of the prefix cache; 0: no cache.
        episodes: slow periods; factors of overlapping periods multiply.
        provider: provider that sets the form of the rate-limit headers.
        requests_per_min: limit of requests, above which they get a 429; 0: none.
        tokens_per_min: limit of prompt and completion tokens, above which requests get a 429; 0: none.
        extra_headers: "name: value", sent with every response.
        models: models listed by /v1/models; requests may name any model.
        continues: True if `continue_final_message` is supported; else it gets a 400.
        tiers: tiers with a ttft of their own; other requests have the profile's.
        faults: fault rules.
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
    tiers: tuple[SimulatedTier, ...] = ()
    faults: tuple[FaultRule, ...] = ()

    @property
    def lengths(self) -> Lengths:
        """Token counts of completions."""
        return Lengths(self.tokens, self.tokens_max, self.reasoning_tokens)


def parse_profile(changes: Mapping[str, object], base: Profile | None = None) -> Profile:
    """Change a profile.

    Args:
        changes: new values by key of KEYS.
        base: profile to change; None: the default profile.

    Raises:
        ProfileError: A key is unknown or its value is invalid.
    """
    parsed: dict[str, Any] = {}
    for key, value in changes.items():
        if key not in KEYS:
            raise ProfileError(f"the key {key!r} is unknown; write one of {', '.join(KEYS)}")
        try:
            parsed[key] = KEYS[key].read(value)
        except UnitError as error:
            raise ProfileError(str(error), key) from error
    return replace(base or Profile(), **parsed)


def show_profile(profile: Profile) -> dict[str, object]:
    """Return the text form of a profile, which `parse_profile` accepts."""
    return {key: described.show(getattr(profile, key)) for key, described in KEYS.items()}


class ProfileKey(NamedTuple):
    """One key of the text form.

    Attributes:
        text: description for the help.
        read: parses a value.
        show: formats a value.
        many: True if the value is a list.
    """

    text: str
    read: Callable[[object], object]
    show: Callable[[Any], object]
    many: bool = False


def _same(value: object) -> object:
    return value


def _text_of(value: Distribution | Stall | Episode | SimulatedTier | FaultRule | None) -> str:
    return "off" if value is None else value.text


def _number(text: str, least: int, most: int) -> ProfileKey:
    def read(value: object) -> int:
        number = int(value) if isinstance(value, str) and value.isdigit() else value
        if not isinstance(number, int) or not least <= number <= most:
            raise UnitError(f"{value!r} is not a whole number from {least} to {most}; write one")
        return number

    return ProfileKey(text, read, _same)


def _word(text: str, words: tuple[str, ...]) -> ProfileKey:
    def read(value: object) -> object:
        if value not in words:
            raise UnitError(f"{value!r} is unknown; write one of {', '.join(words)}")
        return value

    return ProfileKey(f"{text}: {', '.join(words)}", read, _same)


def _list(text: str, read_one: Callable[[object], object], show_one: Callable[[Any], object]) -> ProfileKey:
    def read(value: object) -> tuple[object, ...]:
        if not isinstance(value, list) or len(value) > _LIST_MAX:
            raise UnitError(f"{value!r} is not a list of at most {_LIST_MAX} texts; write one")
        return tuple(read_one(one) for one in value)

    return ProfileKey(text, read, lambda values: [show_one(one) for one in values], many=True)


def _line(value: object) -> str:
    if not isinstance(value, str) or not value.isprintable():
        raise UnitError(f"{value!r} is not a line of text; write one without control characters")
    return value


def _header(value: object) -> str:
    if not re.fullmatch(r"[a-z0-9-]+: \S.*", _line(value)):
        raise UnitError(f"{value!r} is not a header; write 'name: value' with the name in lower case")
    return str(value)


def _flag(value: object) -> bool:
    if value not in (True, False, "true", "false"):
        raise UnitError(f"{value!r} is neither true nor false; write one of them")
    return value in (True, "true")


def _prefill(value: object) -> Distribution | None:
    return None if value in (None, "off") else distribution(value)


def _stall(value: object) -> Stall | None:
    if value in (None, "off"):
        return None
    fraction, colon, shape = str(value).partition(":")
    if not colon:
        raise UnitError(f"{value!r} is not a stall; write SHARE:DISTRIBUTION such as '4%:1s', or 'off'")
    return Stall(str(value), share(fraction), distribution(shape))


def _episode(value: object) -> Episode:
    match = re.fullmatch(r"x(\d+(?:\.\d+)?) from (\S+) for (\S+)(?: every (\S+))?", str(value))
    if match is None:
        raise UnitError(f"{value!r} is not an episode; write 'x5 from 60s for 20s' or 'x5 from 60s for 20s every 140s'")
    factor, start, length, every = match.groups()
    every_s = duration(every) if every else None
    if every_s == 0:
        raise UnitError(f"the period of {value!r} is 0; write a longer one")
    return Episode(str(value), float(factor), duration(start), duration(length), every_s)


def _tier(value: object) -> SimulatedTier:
    match = re.fullmatch(r"([\w-]+): (.+?)(?:, (\S+) refused)?(?:, served as ([\w-]+))?", str(value))
    if match is None:
        raise UnitError(f"{value!r} is not a tier; write 'flex: lognormal:1s,0.3s, 3% refused, served as default'")
    name, ttft, refused, served = match.groups()
    return SimulatedTier(str(value), name, distribution(ttft), share(refused) if refused else 0.0, served or name)


_LIST_MAX = 100
_TOKENS_MAX = 100_000
_PER_MIN_MAX = 1_000_000_000

KEYS: dict[str, ProfileKey] = {
    "ttft": ProfileKey("time to first content: 20ms, lognormal:20ms,5ms, '20ms | 4% 1s', ...", distribution, _text_of),
    "stall": ProfileKey("rare values in place of ttft: 4%:1s, or off", _stall, _text_of),
    "prefill_per_1k": ProfileKey("addition to ttft for each 1,000 uncached prompt tokens, or off", _prefill, _text_of),
    "gap": ProfileKey("time between tokens", distribution, _text_of),
    "headers": _word("time of the response head", get_args(HeaderMode)),
    "headers_delay": ProfileKey("delay of a head that is sent at once", distribution, _text_of),
    "role": _word("chunk with the role", get_args(Role)),
    "first_comment": ProfileKey("comment sent with the head", _line, _same),
    "tokens": _number("tokens of a response without max_tokens", 0, _TOKENS_MAX),
    "tokens_max": _number("maximum of tokens in a response", 1, _TOKENS_MAX),
    "per_event": _number("tokens in an event of a stream", 1, _TOKENS_MAX),
    "reasoning_tokens": _number("thinking tokens before the text", 0, _TOKENS_MAX),
    "reasoning_key": _word("field of thinking tokens", get_args(ReasoningKey)),
    "slots": _number("maximum of requests in work, 0: unlimited", 0, _TOKENS_MAX),
    "queue_max": _number("maximum of requests that wait for a slot, more get a 503", 0, _TOKENS_MAX),
    "cache_tokens": _number("size of the prefix cache in tokens, 0: no cache", 0, 100_000_000),
    "episodes": _list("slow periods: 'x5 from 60s for 20s every 140s'", _episode, _text_of),
    "provider": _word("provider of rate-limit headers", tuple(LIMIT_HEADERS)),
    "requests_per_min": _number("request limit, stated in headers and enforced with 429s, 0: none", 0, _PER_MIN_MAX),
    "tokens_per_min": _number("limit of prompt and completion tokens, stated and enforced, 0: none", 0, _PER_MIN_MAX),
    "extra_headers": _list("'name: value', sent with every response", _header, _same),
    "models": _list("models listed by /v1/models", _line, _same),
    "continues": ProfileKey("support of continue_final_message: true, false", _flag, _same),
    "tiers": _list("tiers by service_tier: 'flex: pareto:1s,1.2, 3% refused, served as default'", _tier, _text_of),
    "faults": _list("fault rules: NAME[:ARG] [once | always | first N | P%]", parse_rule, _text_of),
}
"""All keys of the text form, which are the attributes of `Profile`."""
