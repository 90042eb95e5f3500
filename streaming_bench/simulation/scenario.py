"""A workload as described by its TOML file: arrivals, prompts, replicas, quotas and the spans to report.

Owns the form of the file. It must not depend on how a workload is simulated. A scenario may set only hedge_delay_min
and limits of the gateway, so that all workloads use the same defaults; budget and max_hedges come from the command
line.

Units: seconds, tokens, shares as fractions of 1; in the file every quantity carries its unit ("5ms", "4%").
"""

import hashlib
from pathlib import Path
from typing import Final, Literal, NamedTuple, Self

from msgspec.structs import replace

from providers.simulated.quantities import UnitError, duration
from streaming_bench.simulation.engine_scenario import Serving
from streaming_bench.simulation.toml_section import (
    Count,
    Duration,
    Positive,
    Quantity,
    RandomDuration,
    ScenarioError,
    Section,
    Share,
    decode,
)

FOLDER: Final = Path(__file__).parents[1] / "scenarios"


class Span(NamedTuple):
    """Part of a run that is reported on its own."""

    name: str
    start_s: float
    end_s: float


class Spans(Quantity, tuple[Span, ...]):
    """Spans by name, written as { start = "0s..20s" }."""

    __slots__ = ()

    @classmethod
    def parse(cls, value: object) -> Self:
        if not isinstance(value, dict):
            raise UnitError(f'{value!r} is not a table; write one such as {{ start = "0s..20s" }}')
        spans = []
        for name, text in value.items():
            start, dots, end = text.partition("..") if isinstance(text, str) else ("", "", "")
            if not dots:
                raise UnitError(f"{name}: {text!r} is not a span; write start and end, such as '20s..200s'")
            spans.append(Span(name, duration(start), duration(end)))
        return cls(spans)


class LevelStep(NamedTuple):
    """Change of the level: from start_s on, every TTFT is multiplied by factor."""

    start_s: float
    factor: float


class LevelSteps(Quantity, tuple[LevelStep, ...]):
    """Changes of the level, written as { "200s" = 13.3 }."""

    __slots__ = ()

    @classmethod
    def parse(cls, value: object) -> Self:
        if not isinstance(value, dict):
            raise UnitError(f'{value!r} is not a table; write one such as {{ "200s" = 2.5 }}')
        steps = []
        for start, factor in value.items():
            if isinstance(factor, bool) or not isinstance(factor, (int, float)) or not factor > 0:
                raise UnitError(f"{start}: {factor!r} is not valid; write a number above 0")
            steps.append(LevelStep(duration(start), float(factor)))
        return cls(steps)


class RareEvent(Section, frozen=True):
    """Event that happens to a share of the answers; exactly one of factor, extra and ttft is set.

    Attributes:
        share: share of the answers.
        factor: multiple of the usual TTFT.
        extra: time added to the usual TTFT.
        ttft: TTFT instead of the usual one.
        replicas: number of replicas, from the first one on, that have such events; None for all.
        correlation: correlation between two replicas that get the same request; at 1, a backup is slow whenever the
            primary is.
    """

    share: Share
    factor: Positive | None = None
    extra: RandomDuration | None = None
    ttft: RandomDuration | None = None
    replicas: Count | None = None
    correlation: Share = Share(0.0)

    def __post_init__(self) -> None:
        if sum(effect is not None for effect in (self.factor, self.extra, self.ttft)) != 1:
            raise ValueError("write exactly one of factor, extra, ttft")


class Thinking(Section, frozen=True):
    """Hidden reasoning of each answer, which begins at the drawn TTFT. Results count until its begin.

    Attributes:
        lasts_s: length of the reasoning.
        sign: time of the sign of work: with the begin of the reasoning, or with the headers, where it shows nothing.
    """

    lasts_s: Duration
    sign: Literal["begin", "headers"]


class SampledModel(Section, frozen=True):
    """Replicas whose TTFT is drawn independently of their load.

    Attributes:
        ttft: usual TTFT.
        overhead_s: time added to every TTFT.
        rare: rare slow answers; None for none.
        round_s: unit to which TTFTs are rounded; 0 for no rounding.
        steps: changes of the level over time.
        thinking: hidden reasoning; None for none.
    """

    ttft: RandomDuration
    overhead_s: Duration = Duration(0.0)
    rare: RareEvent | None = None
    round_s: Duration = Duration(0.0)
    steps: LevelSteps = LevelSteps()
    thinking: Thinking | None = None


class TrafficState(Section, frozen=True):
    """State of bursty traffic.

    Attributes:
        rate: multiple of the mean rate.
        lasts_s: mean duration, exponential.
    """

    rate: Positive
    lasts_s: Duration


class Arrivals(Section, frozen=True):
    """Arrivals of requests; exactly one of the first two is set.

    Attributes:
        concurrency: number of clients of a closed loop; each sends its next request after its answer.
        per_second: mean rate of an open loop, a Poisson process.
        quiet, burst: states of bursty traffic, in turn; None for none.
    """

    concurrency: Count | None = None
    per_second: Positive | None = None
    quiet: TrafficState | None = None
    burst: TrafficState | None = None

    def __post_init__(self) -> None:
        if (self.concurrency is None) == (self.per_second is None):
            raise ValueError("write exactly one of concurrency and per_second")

    @property
    def states(self) -> list[TrafficState]:
        return [state for state in (self.quiet, self.burst) if state is not None]


class ReferenceSettings(Section, frozen=True):
    """Settings of the policies that do not learn.

    Attributes:
        static_delay_s: delay of static and fan_out.
        library_rps: request rate configured for the reference library.
    """

    static_delay_s: Duration
    library_rps: Positive = 100.0


class Scenario(Section, frozen=True):
    """One workload; exactly one of drawn and serving is set.

    Attributes:
        name, about: for people.
        requests: number of requests.
        replicas: number of replicas.
        headers: time of the response headers where they are flushed early; None: they come with the first token.
        drawn: replicas with drawn TTFTs.
        serving: language-model servers.
        hedge_delay_min_s: the gateway's setting; None for its default.
        spans: spans that are reported on their own.
        late_s: bound above which an answer counts as late; None for no such count.
        sha256: hash of the file.
    """

    name: str
    about: str
    requests: Count
    replicas: Count
    arrivals: Arrivals
    reference: ReferenceSettings
    headers: RandomDuration | None = None
    drawn: SampledModel | None = None
    serving: Serving | None = None
    hedge_delay_min_s: Duration | None = None
    spans: Spans = Spans()
    late_s: Duration | None = None
    sha256: str = ""

    def __post_init__(self) -> None:
        if (self.drawn is None) == (self.serving is None):
            raise ValueError("write exactly one of [drawn] and [serving]")
        if self.serving is not None and self.arrivals.per_second is None:
            raise ValueError("[serving] has no closed loop; write per_second in [arrivals]")


def load(name: str) -> Scenario:
    """Read a scenario.

    Args:
        name: name of a scenario of the package, such as W1, or the path of a `.toml` file.

    Raises:
        ScenarioError: The file does not exist or cannot be read.
    """
    path = Path(name) if name.endswith(".toml") else FOLDER / f"{name.lower()}.toml"
    try:
        raw = path.read_bytes()
    except OSError as error:
        known = ", ".join(sorted(found.stem.upper() for found in FOLDER.glob("*.toml")))
        raise ScenarioError(
            f"there is no workload {name!r}; write one of {known} or the path of a .toml file"
        ) from error
    return replace(decode(raw, path.name, Scenario), sha256=hashlib.sha256(raw).hexdigest())


def with_requests(scenario: Scenario, requests: int) -> Scenario:
    """Change the number of requests."""
    return replace(scenario, requests=requests)


def with_load(scenario: Scenario, factor: float) -> Scenario:
    """Multiply the rate of an open loop, or the number of clients of a closed loop."""
    arrivals = scenario.arrivals
    if arrivals.per_second is not None:
        scaled = replace(arrivals, per_second=factor * arrivals.per_second)
    else:
        scaled = replace(arrivals, concurrency=max(1, round(factor * (arrivals.concurrency or 1))))
    return replace(scenario, arrivals=scaled)
