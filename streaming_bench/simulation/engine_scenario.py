"""The part of a scenario that describes language-model servers: prompts, engines or providers, bad times, quotas.

Owns the form of these tables and their checks. Units: seconds, tokens, shares as fractions of 1; speeds are multiples
of the usual one.
"""

from dataclasses import dataclass

from providers.simulated.quantities import Distribution, distribution, duration, share
from streaming_bench.simulation.toml_table import ScenarioError, Table, count, number


@dataclass(frozen=True, slots=True)
class LogNormal:
    """A number of tokens: lognormal, cut off.

    Attributes:
        median, sigma: of it.
        most: and never more.
    """

    median: float
    sigma: float
    most: float


@dataclass(frozen=True, slots=True)
class Prompts:
    """What is asked.

    Attributes:
        groups: of prompts that begin alike.
        zipf: exponent of their popularity.
        prefix: what a group shares.
        suffix: what is each request's own.
        documents: share of requests whose own part is a document
        document_tokens: of so many tokens, uniform.
        answer: tokens generated.
    """

    groups: int
    zipf: float
    prefix: LogNormal
    suffix: LogNormal
    documents: float
    document_tokens: tuple[float, float]
    answer: LogNormal


@dataclass(frozen=True, slots=True)
class EngineModel:
    """An engine with iteration batching and a prefix cache.

    Attributes:
        chunk_tokens: prefill tokens in an iteration, first come first served.
        prefill_per_s: tokens per second.
        iteration_s: an iteration takes at least this, and
        per_decode_s: this much more for each answer being generated.
        gap_s: between the tokens of an answer.
        cache_tokens: of the prefix cache.
    """

    chunk_tokens: float
    prefill_per_s: float
    iteration_s: float
    per_decode_s: float
    gap_s: float
    cache_tokens: float


@dataclass(frozen=True, slots=True)
class ProviderModel:
    """A provider of whom only the TTFT is seen: level * (base + uncached / per_s) * noise + a rare stall.

    Attributes:
        base_s, prefill_per_s: of the law.
        noise: a factor around 1, written as a duration around 1 s.
        stalls: share of the answers that stall,
        brown_out_stalls: during a brown-out.
        stall: how long.
        hit: a group's prefix is cached with this probability where it was asked for within
        remembered_s: this time, else
        hit_else: with this one.
        gap_s: between the tokens of an answer.
    """

    base_s: float
    prefill_per_s: float
    noise: Distribution
    stalls: float
    brown_out_stalls: float
    stall: Distribution
    hit: float
    remembered_s: float
    hit_else: float
    gap_s: float


@dataclass(frozen=True, slots=True)
class Episodes:
    """Bad times that come again and again.

    Attributes:
        every_s: mean time from one's start to the next one's.
        lasts: how long.
        speed: slowest and fastest; an episode has one of them, uniform in its inverse if `in_factor`.
        each: every replica has its own; else they come to one replica at a time.
    """

    every_s: float
    lasts: Distribution
    speed: tuple[float, float]
    in_factor: bool
    each: bool


@dataclass(frozen=True, slots=True)
class BrownOut:
    """All replicas are slow at once."""

    start_s: float
    end_s: float
    speed: float


@dataclass(frozen=True, slots=True)
class Quotas:
    """Limits on requests and on tokens, counted by the provider.

    Attributes:
        quotas: so many, each for as many replicas.
        headroom: a limit is so many times what the mean traffic needs.
        window_s: a bucket holds this much time's worth.
        answer_tokens: counted for each request besides its prompt.
    """

    quotas: int
    headroom: float
    window_s: float
    answer_tokens: int


@dataclass(frozen=True, slots=True)
class Serving:
    """All of it; exactly one of engine and opaque is set.

    Attributes:
        short_tokens: prompts below are also reported by themselves.
        settle_s: the brown-out and so long after it are reported by themselves, and nowhere else.
    """

    prompts: Prompts
    engine: EngineModel | None
    opaque: ProviderModel | None
    episodes: tuple[Episodes, ...]
    brown_out: BrownOut
    quotas: Quotas
    short_tokens: float
    settle_s: float


def serving(table: Table) -> Serving:
    """Read a scenario's [serving] table."""
    engine, opaque = table.optional_table("engine", _engine), table.optional_table("opaque", _opaque)
    if (engine is None) == (opaque is None):
        raise ScenarioError("[serving]: write exactly one of [serving.engine] and [serving.opaque]")
    slow, stalls = table.table("slow", _episodes), table.optional_table("stalls", _episodes)
    return Serving(
        prompts=table.table("prompts", _prompts),
        engine=engine,
        opaque=opaque,
        episodes=(slow,) if stalls is None else (slow, stalls),
        brown_out=table.table("brown_out", _brown_out),
        quotas=table.table("quotas", _quotas),
        short_tokens=table.take("short_tokens", number),
        settle_s=table.take("settle", duration),
    )


def _prompts(table: Table) -> Prompts:
    return Prompts(
        groups=table.take("groups", count),
        zipf=table.take("zipf", number),
        prefix=table.table("prefix_tokens", _lognormal),
        suffix=table.table("suffix_tokens", _lognormal),
        documents=table.take("documents", share),
        document_tokens=table.table("document_tokens", _range),
        answer=table.table("answer_tokens", _lognormal),
    )


def _lognormal(table: Table) -> LogNormal:
    return LogNormal(table.take("median", number), table.take("sigma", number), table.take("max", number))


def _range(table: Table) -> tuple[float, float]:
    return table.take("min", number), table.take("max", number)


def _engine(table: Table) -> EngineModel:
    return EngineModel(
        chunk_tokens=table.take("chunk_tokens", number),
        prefill_per_s=table.take("prefill_tokens_per_second", number),
        iteration_s=table.take("iteration", duration),
        per_decode_s=table.take("iteration_per_decode", duration),
        gap_s=table.take("gap", duration),
        cache_tokens=table.take("cache_tokens", number),
    )


def _opaque(table: Table) -> ProviderModel:
    return ProviderModel(
        base_s=table.take("base", duration),
        prefill_per_s=table.take("prefill_tokens_per_second", number),
        noise=table.take("noise", distribution),
        stalls=table.take("stalls", share),
        brown_out_stalls=table.take("brown_out_stalls", share),
        stall=table.take("stall", distribution),
        hit=table.take("hit", share),
        remembered_s=table.take("remembered", duration),
        hit_else=table.take("hit_else", share),
        gap_s=table.take("gap", duration),
    )


def _episodes(table: Table) -> Episodes:
    factor = table.optional_table("factor", _range)
    speed = table.table("speed", _range) if factor is None else (1 / factor[1], 1 / factor[0])
    return Episodes(
        every_s=table.take("every", duration),
        lasts=table.take("lasts", distribution),
        speed=speed,
        in_factor=factor is not None,
        each=table.take("at", _at),
    )


def _at(value: object) -> bool:
    if value not in ("each replica", "one replica"):
        raise ScenarioError(f"found {value!r}; write 'each replica' or 'one replica'")
    return value == "each replica"


def _brown_out(table: Table) -> BrownOut:
    start_s = table.take("start", duration)
    return BrownOut(start_s, start_s + table.take("lasts", duration), table.take("speed", number))


def _quotas(table: Table) -> Quotas:
    return Quotas(
        quotas=table.take("count", count),
        headroom=table.take("headroom", number),
        window_s=table.take("window", duration),
        answer_tokens=table.take("answer_tokens", count),
    )
