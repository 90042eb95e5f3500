"""The [law] table of a scenario: replicas with a TTFT by a law of the prompt, the replica and the time (U1 to U25).

Owns the form of the table. Units: seconds, tokens; shares as fractions of 1; factors multiply the usual TTFT.
"""

import math
from typing import Annotated, Literal

import msgspec

from streaming_bench.simulation.engine_scenario import Episodes, LogNormal, Range
from streaming_bench.simulation.toml_section import Count, Duration, Positive, RandomDuration, Section, Share

Sigma = Annotated[float, msgspec.Meta(ge=0)]


class Pulse(Section, frozen=True):
    """A factor that holds for `lasts_s` at the start of every `every_s`."""

    every_s: Duration
    lasts_s: Duration
    factor: Positive

    def at(self, now_s: float) -> float:
        """Return the factor at a time."""
        return self.factor if now_s % self.every_s < self.lasts_s else 1.0


class Day(Section, frozen=True):
    """Traffic that rises and falls, in equal ratios.

    Attributes:
        lasts_s: time from one minimum to the next.
        ratio: traffic at the peak as a multiple of the traffic at the minimum.
    """

    lasts_s: Duration
    ratio: Positive

    def height(self, now_s: float) -> float:
        """Return the position between the minimum (0) and the peak (1)."""
        return (1.0 - math.cos(2.0 * math.pi * now_s / self.lasts_s)) / 2.0

    def factor(self, now_s: float) -> float:
        """Return the traffic as a multiple of the geometric mean of minimum and peak."""
        return float(self.ratio ** (self.height(now_s) - 0.5))


class LongPrompts(Section, frozen=True):
    """Prompts of one length, in addition to the usual ones."""

    share: Share
    tokens: Count


class Misses(Section, frozen=True):
    """Answers that take a multiple of their time.

    Attributes:
        correlation: correlation between two replicas that get the same request.
    """

    share: Share
    factor: Positive
    correlation: Share = Share(0.0)


class Decoding(Section, frozen=True):
    """Generation of answers after their first tokens.

    Attributes:
        gap_s: usual time between the tokens of an answer.
        tokens: length of answers.
        noise: sigma of the lognormal noise of the speed of each answer.
        factors: factors of `gap_s` at the first replicas; all further replicas have 1.
        per_stream_s: additional time between tokens for each other answer that the replica generates.
        prompt_tokens: length of a prompt that doubles `gap_s`; None if prompts do not matter.
        lasts: time of an answer at the usual speed instead of `gap_s` for each token; None for the tokens.
        slow: episodes of slow generation, which TTFT does not show; None for none.
    """

    gap_s: Duration = Duration(0.02)
    tokens: LogNormal = LogNormal(150.0, 0.8, 2_000.0)
    noise: Sigma = 0.1
    factors: tuple[Positive, ...] = ()
    per_stream_s: Duration = Duration(0.0)
    prompt_tokens: Count | None = None
    lasts: RandomDuration | None = None
    slow: Episodes | None = None


class SharedLimits(Section, frozen=True):
    """Provider quotas that other clients use, too.

    Attributes:
        count: number of quotas, each shared by an equal number of replicas.
        headroom: limit as a multiple of our mean traffic and the mean traffic of others.
        window_s: capacity of a bucket, as a time of refill.
        answer_tokens: tokens counted for each request besides its prompt.
        others: share of the limit that other clients use on average, outside bursts.
        bursts: bursts of the other clients.
        known: source of the gateway's knowledge: its configuration, the response headers, or none.
    """

    count: Count
    headroom: Positive
    window_s: Duration
    answer_tokens: Count
    others: Share
    bursts: Pulse
    known: Literal["configured", "headers", "nothing"]


class TtftLaw(Section, frozen=True):
    """TTFT = (base + tokens / speed) * noise * slowness of replica and time + a rare stall.

    Attributes:
        noise: sigma of the lognormal noise of each attempt.
        request_noise: sigma of the lognormal noise of a request, the same at every replica and unknown to the gateway.
        stalls: share of answers that stall.
        stall: length of a stall.
        ttft: TTFT before slowness and stalls instead of the law; None for the law.
        prompts: length of the usual prompts.
        long: prompts of another length; None for none.
        misses: answers that take much longer; None for none.
        factors: factors of the first replicas; all further replicas have 1.
        spread: factors of all replicas, from the lowest to the highest in equal ratios; None for none.
        slow: episodes of slowness; None for none.
        pulse: slowness of the first replica that comes and goes; None for none.
        drift_per_min: relative growth of the first replica's TTFT in a minute.
        busy: factor of all TTFTs at the peak of `[arrivals.day]`.
        dead: start and end of a span in which the first replica accepts requests and does not answer.
        failing: start and end of a span in which the first replica answers with an error.
        silent: share of the first replica's answers that stop after the first token.
        slots: requests that a replica computes at a time, in the order of arrival; None for no limit.
        one_queue: True if all replicas share the slots of one.
        answer: time after the first token for which an answer holds its slot.
        decode: generation of answers, in place of `answer`; None for `answer`.
        limits: provider quotas; None for none.
    """

    base_s: Duration = Duration(0.25)
    tokens_per_s: Positive = 16_000.0
    noise: Sigma = 0.3
    request_noise: Sigma = 0.0
    stalls: Share = Share(0.02)
    stall: RandomDuration = RandomDuration("pareto:1s,1.3")
    ttft: RandomDuration | None = None
    prompts: LogNormal = LogNormal(600.0, 1.0, 30_000.0)
    long: LongPrompts | None = None
    misses: Misses | None = None
    factors: tuple[Positive, ...] = ()
    spread: Range | None = None
    slow: Episodes | None = None
    pulse: Pulse | None = None
    drift_per_min: Sigma = 0.0
    busy: Positive = 1.0
    dead: tuple[Duration, Duration] | None = None
    failing: tuple[Duration, Duration] | None = None
    silent: Share = Share(0.0)
    slots: Count | None = None
    one_queue: bool = False
    answer: RandomDuration = RandomDuration("0")
    decode: Decoding | None = None
    limits: SharedLimits | None = None


class Clients(Section, frozen=True):
    """Impatient clients.

    Attributes:
        timeout_s: time without a first token after which a client disconnects.
        retries: requests that it sends afterwards, one after the other.
        pause_s: time between them.
    """

    timeout_s: Duration
    retries: int = 0
    pause_s: Duration = Duration(0.5)
