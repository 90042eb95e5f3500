"""The [serving] table of a scenario: prompts, engines or providers, slow episodes and quotas.

Owns the form of these tables. Units: seconds, tokens, shares as fractions of 1; speeds are multiples of the usual one.
"""

from typing import Literal

from streaming_bench.simulation.toml_section import Count, Duration, Positive, RandomDuration, Section, Share


class LogNormal(Section, frozen=True):
    """Lognormal number of tokens; `max` is the upper bound."""

    median: Positive
    sigma: Positive
    max: Positive


class Range(Section, frozen=True):
    """Lowest and highest value."""

    min: Positive
    max: Positive


class Prompts(Section, frozen=True):
    """Distribution of prompts.

    Attributes:
        groups: number of groups; the prompts of a group share a prefix.
        zipf: exponent of the groups' popularity.
        prefix_tokens: length of a group's prefix.
        suffix_tokens: length of a request's own part.
        documents: share of requests with a document as their own part.
        document_tokens: length of a document, uniform.
        answer_tokens: tokens generated.
    """

    groups: Count
    zipf: Positive
    prefix_tokens: LogNormal
    suffix_tokens: LogNormal
    documents: Share
    document_tokens: Range
    answer_tokens: LogNormal


class EngineModel(Section, frozen=True):
    """Engine with iteration batching and a prefix cache.

    Attributes:
        chunk_tokens: prefill tokens in an iteration, first come first served.
        prefill_tokens_per_s: speed of prefill.
        iteration_s: minimum length of an iteration.
        iteration_per_decode_s: extra length of an iteration for each answer being generated.
        gap_s: time between the tokens of an answer.
        gap_per_decode_s: additional time between them for each other answer that is generated.
        cache_tokens: capacity of the prefix cache.
    """

    chunk_tokens: Positive
    prefill_tokens_per_s: Positive
    iteration_s: Duration
    iteration_per_decode_s: Duration
    gap_s: Duration
    cache_tokens: Positive
    gap_per_decode_s: Duration = Duration(0.0)


class ProviderModel(Section, frozen=True):
    """Provider known by its TTFT only: (base + uncached tokens / speed) * noise / speed of the time + a rare stall.

    Attributes:
        base_s: TTFT of an empty prompt.
        prefill_tokens_per_s: speed of prefill.
        noise: factor around 1, written as a duration around 1 s.
        stalls: share of answers that stall.
        stalls_again: probability that a second answer to the same request stalls after the first one did, as a multiple
            of `stalls`; 1 if they are independent.
        brown_out_stalls: share of answers that stall during a brown-out.
        stall: length of a stall.
        hit: probability that a group's prefix is cached within `remembered_s` of its last request.
        remembered_s: time for which a prefix counts as recent.
        hit_else: probability that the prefix is cached after that time.
        gap_s: time between the tokens of an answer.
    """

    base_s: Duration
    prefill_tokens_per_s: Positive
    noise: RandomDuration
    stalls: Share
    brown_out_stalls: Share
    stall: RandomDuration
    hit: Share
    remembered_s: Duration
    hit_else: Share
    gap_s: Duration
    stalls_again: Positive = 1.0


class Episodes(Section, frozen=True):
    """Slow episodes that recur; exactly one of speed and factor is set.

    Attributes:
        at: "each replica" has its own episodes, or they hit "one replica" at a time.
        every_s: mean time from one start to the next.
        lasts: length of an episode.
        speed: range of speeds, uniform.
        factor: range of slowdown factors, uniform.
    """

    at: Literal["each replica", "one replica"]
    every_s: Duration
    lasts: RandomDuration
    speed: Range | None = None
    factor: Range | None = None

    def __post_init__(self) -> None:
        if (self.speed is None) == (self.factor is None):
            raise ValueError("write exactly one of speed and factor")


class BrownOut(Section, frozen=True):
    """Period in which all replicas are slow."""

    start_s: Duration
    lasts_s: Duration
    speed: Positive

    @property
    def end_s(self) -> float:
        return self.start_s + self.lasts_s


class Quotas(Section, frozen=True):
    """Limits on requests and on tokens, counted by the provider.

    Attributes:
        count: number of quotas, each shared by an equal number of replicas.
        headroom: limit as a multiple of the mean traffic.
        window_s: capacity of a bucket, as a time of refill.
        answer_tokens: tokens counted for each request besides its prompt.
    """

    count: Count
    headroom: Positive
    window_s: Duration
    answer_tokens: Count


class Serving(Section, frozen=True):
    """Language-model servers; exactly one of engine and opaque is set.

    Attributes:
        slow: recurring slow episodes; None for none.
        stalls: recurring stalls; None for none.
        short_tokens: bound below which prompts also have a table of their own.
        settle_s: time after the brown-out that is reported with it, and excluded elsewhere.
    """

    prompts: Prompts
    brown_out: BrownOut
    quotas: Quotas
    short_tokens: Positive
    settle_s: Duration
    engine: EngineModel | None = None
    opaque: ProviderModel | None = None
    slow: Episodes | None = None
    stalls: Episodes | None = None

    def __post_init__(self) -> None:
        if (self.engine is None) == (self.opaque is None):
            raise ValueError("write exactly one of [serving.engine] and [serving.opaque]")
