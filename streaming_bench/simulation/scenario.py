"""A workload as its TOML file describes it: arrivals, prompts, how replicas answer, limits, what is reported.

Owns the file's form and its checks. It must not know how anything is simulated: the models take their part of a
`Scenario`. Of the gateway it may set hedge_delay_min and limits only, so that one set of defaults meets all workloads;
budget and max_hedges come from the command line.

Units: seconds, tokens, shares as fractions of 1; in the file every quantity carries its unit ("5ms", "4%").
"""

import hashlib
import tomllib
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final

from providers.simulated.quantities import Distribution, UnitError, distribution, duration, share
from streaming_bench.simulation.engine_scenario import Serving, serving
from streaming_bench.simulation.toml_table import ScenarioError, Table, count, number, text

FOLDER: Final = Path(__file__).parents[1] / "scenarios"


@dataclass(frozen=True, slots=True)
class Span:
    """A stretch of the run's time, for reports."""

    name: str
    start_s: float
    end_s: float


@dataclass(frozen=True, slots=True)
class RareEvent:
    """What happens to a share of the answers; exactly one of factor, extra and ttft is set.

    Attributes:
        share: of the answers.
        factor: so many times the usual TTFT.
        extra: added to it.
        ttft: instead of it.
        replicas: only the first so many replicas do it; None: all.
        correlation: between two replicas asked for the same request; at 1, a backup is slow whenever the primary is.
    """

    share: float
    factor: float | None
    extra: Distribution | None
    ttft: Distribution | None
    replicas: int | None
    correlation: float


@dataclass(frozen=True, slots=True)
class LevelStep:
    """From start_s on, everything takes `factor` times as long."""

    start_s: float
    factor: float


@dataclass(frozen=True, slots=True)
class SampledModel:
    """Replicas whose TTFT is drawn, whatever they are busy with.

    Attributes:
        ttft: as usual.
        overhead_s: added to all.
        rare: what happens sometimes, None: nothing does.
        round_s: TTFTs are whole multiples of this; 0: they are not.
        steps: how the level changes in time.
    """

    ttft: Distribution
    overhead_s: float
    rare: RareEvent | None
    round_s: float
    steps: tuple[LevelStep, ...]


@dataclass(frozen=True, slots=True)
class TrafficState:
    """One of the states of bursty traffic.

    Attributes:
        rate: times the mean.
        lasts_s: in the mean, exponential.
    """

    rate: float
    lasts_s: float


@dataclass(frozen=True, slots=True)
class Arrivals:
    """How requests come; exactly one of the first two is not 0.

    Attributes:
        concurrency: closed loop: so many clients, each asks again when it has its answer.
        per_second: open loop: Poisson, in the mean.
        states: of bursty traffic, in turn.
    """

    concurrency: int
    per_second: float
    states: tuple[TrafficState, ...] = ()


@dataclass(frozen=True, slots=True)
class ReferenceSettings:
    """What policies are told that need telling.

    Attributes:
        static_delay_s: of static and fan_out.
        library_rps: what the reference library is told to expect.
    """

    static_delay_s: float
    library_rps: float


@dataclass(frozen=True, slots=True)
class Scenario:
    """One workload.

    Attributes:
        name, about: for people.
        requests: how many.
        arrivals: how they come.
        replicas: how many.
        headers: when they are sent if they are flushed; None: they always come with the first token.
        drawn: how replicas answer, if they are not language-model servers,
        serving: and if they are.
        hedge_delay_min_s: of the gateway; None: its default.
        spans: stretches of time that are reported by themselves.
        late_s: answers later than this are counted; None: they are not.
        reference: for the policies that do not learn.
        sha256: of the file.
    """

    name: str
    about: str
    requests: int
    arrivals: Arrivals
    replicas: int
    headers: Distribution | None
    drawn: SampledModel | None
    serving: Serving | None
    hedge_delay_min_s: float | None
    spans: tuple[Span, ...]
    late_s: float | None
    reference: ReferenceSettings
    sha256: str = ""


def load(name: str) -> Scenario:
    """Read a scenario.

    Args:
        name: of one in the package, as W1, or a file's path ending in `.toml`.

    Raises:
        ScenarioError: There is none, or it cannot be read.
    """
    path = Path(name) if name.endswith(".toml") else FOLDER / f"{name.lower()}.toml"
    try:
        raw = path.read_bytes()
    except FileNotFoundError:
        known = ", ".join(sorted(found.stem.upper() for found in FOLDER.glob("*.toml")))
        raise ScenarioError(
            f"there is no workload {name!r}; write one of {known} or the path of a .toml file"
        ) from None
    try:
        values = tomllib.loads(raw.decode())
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise ScenarioError(f"{path.name}: not a TOML file: {error}") from error
    table = Table(path.name, values)
    scenario = _scenario(table)
    table.close()
    return replace(scenario, sha256=hashlib.sha256(raw).hexdigest())


def with_load(scenario: Scenario, factor: float) -> Scenario:
    """The same workload at another rate; closed loops have more clients."""
    arrivals = scenario.arrivals
    if arrivals.concurrency:
        return replace(scenario, arrivals=replace(arrivals, concurrency=max(1, round(factor * arrivals.concurrency))))
    return replace(scenario, arrivals=replace(arrivals, per_second=factor * arrivals.per_second))


def _scenario(table: Table) -> Scenario:
    drawn, servers = table.optional_table("drawn", _drawn), table.optional_table("serving", serving)
    if (drawn is None) == (servers is None):
        raise ScenarioError("write exactly one of [drawn] and [serving]")
    return Scenario(
        name=table.take("name", text),
        about=table.take("about", text),
        requests=table.take("requests", count),
        arrivals=table.table("arrivals", _arrivals),
        replicas=table.take("replicas", count),
        headers=table.optional("headers", distribution),
        drawn=drawn,
        serving=servers,
        hedge_delay_min_s=table.optional("hedge_delay_min", duration),
        spans=table.take("spans", _spans, ()),
        late_s=table.optional("late", duration),
        reference=table.table("reference", _reference),
    )


def _arrivals(table: Table) -> Arrivals:
    concurrency = table.optional("concurrency", count)
    if concurrency:
        return Arrivals(concurrency, 0.0)
    quiet, burst = table.optional_table("quiet", _state), table.optional_table("burst", _state)
    states = tuple(state for state in (quiet, burst) if state is not None)
    return Arrivals(0, table.take("per_second", number), states)


def _state(table: Table) -> TrafficState:
    return TrafficState(table.take("rate", number), table.take("lasts", duration))


def _reference(table: Table) -> ReferenceSettings:
    return ReferenceSettings(table.take("static_delay", duration), table.take("library_rps", number, 100.0))


def _drawn(table: Table) -> SampledModel:
    return SampledModel(
        ttft=table.take("ttft", distribution),
        overhead_s=table.take("overhead", duration, 0.0),
        rare=table.optional_table("rare", _rare),
        round_s=table.take("round", duration, 0.0),
        steps=table.take("steps", _steps, ()),
    )


def _rare(table: Table) -> RareEvent:
    rare = RareEvent(
        share=table.take("share", share),
        factor=table.optional("factor", number),
        extra=table.optional("extra", distribution),
        ttft=table.optional("ttft", distribution),
        replicas=table.optional("replicas", count),
        correlation=table.take("correlation", share, 0.0),
    )
    if sum(effect is not None for effect in (rare.factor, rare.extra, rare.ttft)) != 1:
        raise ScenarioError("[drawn.rare]: write exactly one of factor, extra, ttft")
    return rare


def _spans(value: object) -> tuple[Span, ...]:
    """Read { name = "20s..200s" }."""
    if not isinstance(value, dict):
        raise UnitError(f'found {value!r}; write a table such as {{ start = "0s..20s" }}')
    return tuple(_span(name, words) for name, words in value.items())


def _span(name: str, value: object) -> Span:
    start, dots, end = value.partition("..") if isinstance(value, str) else ("", "", "")
    if not dots:
        raise UnitError(f"found {value!r} for {name}; write start and end, such as '20s..200s'")
    return Span(name, duration(start), duration(end))


def _steps(value: object) -> tuple[LevelStep, ...]:
    """Read { "200s" = 13.3 }."""
    if not isinstance(value, dict):
        raise UnitError(f'found {value!r}; write a table such as {{ "200s" = 2.5 }}')
    return tuple(LevelStep(duration(start), number(factor)) for start, factor in value.items())
