"""Computes the script of a simulated response from a request, a profile and a seeded generator. Pure.

The script holds frames and their times; its player (server.py, on sockets) owns the clock and connections. The order of
the requests and the seed decide every result. Units: seconds.
"""

import dataclasses
import random
import zlib
from collections.abc import Sequence
from typing import NamedTuple

from msgspec.structs import replace

from gateway.simulated import apis
from gateway.simulated.completion import Completion, TextGenerator
from gateway.simulated.engine import PrefixCache, Slots
from gateway.simulated.faults import ConnectionAction, InjectedFault
from gateway.simulated.messages import message_events, parse_messages_request, whole_message, with_message_errors
from gateway.simulated.profile import Profile, SimulatedTier
from gateway.simulated.rate_limiter import LIMIT_HEADERS, RateLimiter, rate_limited
from gateway.simulated.render import Event, RenderOptions, stream, whole
from gateway.simulated.request import ParsedRequest, RequestError, StreamOptions, parse_request
from gateway.simulated.script import EVENT_STREAM, JSON, ErrorFields, Framing, Script, Step, error_script
from ttft_gateway.apis.base import Api, Frame, FrameKind

FAULT_HEADER = b"x-sim-fault"
"""Request header that injects faults, in the syntax of faults.py."""

_WITH_USAGE = StreamOptions(include_usage=True)
_PREPARED_MAX = 256
_PREPARED_BYTES_MAX = 2048  # longer bodies are unlikely to repeat
_PREPARED_EVENTS_MAX = 256


class RawRequest(NamedTuple):
    """An unparsed request.

    Attributes:
        api: API of the request.
        body: JSON of the request.
        streamed: True if the response is a stream with usage, regardless of the body.
    """

    api: Api
    body: bytes
    streamed: bool = False


_UNAVAILABLE = ErrorFields(429, "rate_limit_error", "resource_unavailable", "Resource unavailable")


class _Prepared(NamedTuple):
    """A response without times, cached if it is repeatable; its document is None for a stream.

    Attributes:
        tier: the tier that was asked for, None for none that the profile has.
    """

    completion: Completion
    events: list[Event]
    document: Frame | None
    tier: SimulatedTier | None = None


class SimulatedReplica:
    """One replica and its state.

    Args:
        profile: behaviour; may be replaced at any time.
        rng: generator of all draws.
        seed: seed of texts; replicas with one seed give the same text for a prompt at temperature 0.
        name: name from which the ids of completions differ between replicas.
    """

    def __init__(self, profile: Profile, rng: random.Random, seed: int = 0, name: str = "") -> None:
        self._rng = rng
        self._generator = TextGenerator(seed, zlib.crc32(name.encode()))
        self._requests = 0
        self._limits = (0, 0)
        self._limiter = RateLimiter(*self._limits)
        self._epoch_s: float | None = None  # time of the first request; None: none yet
        self.slots = Slots(profile.slots, profile.queue_max)
        self.profile = profile

    @property
    def profile(self) -> Profile:
        """Behaviour of the replica; setting it empties the prefix cache and resets the counts of `first N`."""
        return self._profile

    @profile.setter
    def profile(self, profile: Profile) -> None:
        self._profile = profile
        self._rule_uses_left = [rule.first for rule in profile.faults]
        self._options = RenderOptions(
            profile.role, profile.provider == "azure", profile.reasoning_key, profile.per_event
        )
        self._prepared: dict[RawRequest, _Prepared] = {}
        self._extra = tuple(
            (name, value) for name, _, value in (line.encode().partition(b": ") for line in profile.extra_headers)
        )
        self._cache = PrefixCache(profile.cache_tokens) if profile.cache_tokens else None
        self.slots.resize(profile.slots, profile.queue_max)
        limits = (profile.requests_per_min, profile.tokens_per_min)
        if limits != self._limits:
            self._limits, self._limiter = limits, RateLimiter(*limits)

    def choose_faults(self, *, accepting: bool) -> tuple[InjectedFault, ...]:
        """Choose the faults of the next connection or request by the profile's rules.

        Args:
            accepting: True for a connection that was accepted just now; False for a request.
        """
        chosen: list[InjectedFault] = []
        for index, rule in enumerate(self._profile.faults):
            on_accept = any(each.fault.action is ConnectionAction.RESET_ACCEPT for each in rule.faults)
            left = self._rule_uses_left[index]
            if on_accept != accepting or left == 0 or (rule.share < 1 and self._rng.random() >= rule.share):
                continue
            self._rule_uses_left[index] = None if left is None else left - 1
            chosen += rule.faults
        return tuple(chosen)

    def script(self, request: RawRequest, faults: Sequence[InjectedFault], now_s: float, wall_s: float) -> Script:
        """Return the script of the response to one request.

        Args:
            request: the request.
            faults: faults of the response.
            now_s: time of a monotonic clock, which decides the active episodes.
            wall_s: wall time, for headers that state one.
        """
        number = self._requests
        self._requests += 1
        try:
            script = self._healthy(request, faults, number, now_s, wall_s)
        except RequestError as error:
            script = error_script(ErrorFields(400, "invalid_request_error", None, error.message, error.param))
        if script.slot and self.slots.full:
            script = error_script(ErrorFields(503, "server_error", "queue_full", "The queue is full"))
        script = self._in_api_form(script, request)
        for fault, args in faults:
            if fault.on_script is not None:
                provider = args.provider or self._profile.provider
                known = dataclasses.replace(args, provider=provider, wall_s=wall_s, api=request.api)
                script = fault.on_script(script, known)
                if not fault.wire_only:  # else steps are no whole events
                    script = self._in_api_form(script, request)
        limit_headers = LIMIT_HEADERS[self._profile.provider]
        limits = limit_headers(self._limiter.status(), wall_s) if script.status == 200 else ()
        if limits or self._extra:
            script = replace(script, headers=(*script.headers, *limits, *self._extra))
        return script

    @staticmethod
    def _in_api_form(script: Script, request: RawRequest) -> Script:
        return with_message_errors(script) if request.api is Api.MESSAGES else script

    def _healthy(
        self, request: RawRequest, faults: Sequence[InjectedFault], number: int, now_s: float, wall_s: float
    ) -> Script:
        """Return the script before faults edit it; a 429 above the rate limits."""
        prepared = None if faults else self._prepared.get(request)
        if prepared is None:
            prepared = self._prepare(request, faults)
        profile, usage = self._profile, prepared.completion.usage
        wait_s = self._limiter.take((usage.prompt_tokens or 0) + (usage.completion_tokens or 0), now_s)
        if wait_s:
            return rate_limited(profile.provider, wait_s, wall_s, self._limiter.status())
        tier = prepared.tier
        if tier is not None and self._rng.random() < tier.refused:
            return error_script(_UNAVAILABLE)
        factor = self._slowness(now_s)
        ttft_s = factor * (self._ttft(number) if tier is None else tier.ttft.draw(self._rng, number))
        if profile.prefill_per_1k is not None:
            uncached = (usage.prompt_tokens or 0) - (usage.cached_tokens or 0)
            ttft_s += factor * profile.prefill_per_1k.draw(self._rng, number) * uncached / 1000
        if prepared.document is None:
            return self._streamed(prepared.events, ttft_s, factor)
        return self._whole(prepared.document, prepared.completion, ttft_s, factor)

    def _prepare(self, request: RawRequest, faults: Sequence[InjectedFault]) -> _Prepared:
        """Return the response without times, and cache it if it is repeatable."""
        profile = self._profile
        api, body, streamed = request
        chat_api, chat_body = apis.to_chat_request(api, body)
        parsed = parse_messages_request(chat_body) if chat_api is Api.MESSAGES else parse_request(chat_api, chat_body)
        if streamed:
            parsed = replace(parsed, stream=True, stream_options=_WITH_USAGE)
        if parsed.continue_final_message and not profile.continues:
            raise RequestError("continue_final_message is unsupported; remove it", "continue_final_message")
        cached = 0 if self._cache is None else self._cache.use(bytes(parsed.text))
        for fault, _ in faults:
            if fault.on_request is not None:
                parsed = fault.on_request(parsed)
        completion = self._generator.generate(chat_api, parsed, self._rng, profile.lengths, cached)
        tier = next((each for each in profile.tiers if each.name == parsed.service_tier), None)
        if tier is not None:
            completion = replace(completion, usage=replace(completion.usage, tier=tier.served_as))
        for fault, args in faults:
            if fault.on_completion is not None:
                completion = fault.on_completion(completion, args)
        prepared = self._rendered(request, chat_api, parsed, completion)._replace(tier=tier)
        small = len(body) <= _PREPARED_BYTES_MAX and len(prepared.events) <= _PREPARED_EVENTS_MAX
        if parsed.fixed and small and not faults and self._cache is None:
            if len(self._prepared) == _PREPARED_MAX:
                self._prepared.clear()
            self._prepared[request] = prepared
        return prepared

    def _rendered(self, request: RawRequest, chat_api: Api, parsed: ParsedRequest, completion: Completion) -> _Prepared:
        api, body, _ = request
        if chat_api is Api.MESSAGES:
            events = message_events(completion) if parsed.stream else []
            return _Prepared(completion, events, None if parsed.stream else whole_message(completion))
        if parsed.stream:
            events = stream(chat_api, parsed, completion, self._options)
            return _Prepared(completion, apis.from_chat_events(api, body, events), None)
        plain = whole(chat_api, parsed, completion, self._options)
        events = stream(chat_api, replace(parsed, stream_options=_WITH_USAGE), completion, self._options)
        return _Prepared(completion, [], apis.from_chat_document(api, body, events, plain))

    def _ttft(self, number: int) -> float:
        profile = self._profile
        stall = profile.stall
        if stall is not None and self._rng.random() < stall.share:
            return stall.ttft.draw(self._rng, number)
        return profile.ttft.draw(self._rng, number)

    def _slowness(self, now_s: float) -> float:
        """Return the product of the factors of the active episodes."""
        if self._epoch_s is None:
            self._epoch_s = now_s
        factor = 1.0
        for episode in self._profile.episodes:
            if episode.covers(now_s - self._epoch_s):
                factor *= episode.factor
        return factor

    def _streamed(self, events: list[Event], ttft_s: float, factor: float) -> Script:
        """Return the script of a stream, with a time for each event."""
        profile = self._profile
        at_once = profile.headers == "at_once"
        prelude = []
        steps = []
        if profile.first_comment:
            prelude.append(Frame(FrameKind.COMMENT, f": {profile.first_comment}\n\n".encode()))
        at_s, reached = ttft_s, 0
        for tick, frame in events:
            if tick < 0:
                prelude.append(frame)
                continue
            while reached < tick:
                at_s += factor * profile.gap.draw(self._rng, reached)
                reached += 1
            steps.append(Step(at_s, frame))
        if at_once:
            head_s = profile.headers_delay.draw(self._rng, 0)
            return Script(200, EVENT_STREAM, head_s, tuple(prelude), tuple(steps))
        early = (Step(ttft_s, frame) for frame in prelude)
        return Script(200, EVENT_STREAM, steps=(*early, *steps))

    def _whole(self, document: Frame, completion: Completion, ttft_s: float, factor: float) -> Script:
        """Return the script of a JSON response, due at the time at which its stream would have ended."""
        ticks = max(len(choice.reasoning) + len(choice.pieces) for choice in completion.choices)
        gaps_s = sum(self._profile.gap.draw(self._rng, tick) for tick in range(ticks - 1))
        step = Step(ttft_s + factor * gaps_s, document)
        return Script(200, JSON, steps=(step,), framing=Framing.LENGTH, length=len(document.raw))


def served_models(profile: Profile) -> list[dict[str, object]]:
    """Return the entries of `GET /v1/models`."""
    return [{"id": name, "object": "model", "created": 0, "owned_by": "simulated"} for name in profile.models]
