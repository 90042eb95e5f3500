"""A workload as described by its TOML file: arrivals, prompts, replicas, quotas and the spans to report.

Owns the form of the file. It must not depend on how a workload is simulated. A scenario may set only hedge_delay_min
and limits of the gateway, so that all workloads use the same defaults; budget and max_hedges come from the command
line.

Units: seconds, tokens, shares as fractions of 1; in the file every quantity carries its unit ("5ms", "4%").
"""

import enum
import hashlib
import math
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final, Literal, NamedTuple, Self

from msgspec.structs import replace

from gateway.simulated.quantities import UnitError, duration
from streaming_bench.report.stats import Estimate, mean, ratio_of_sums
from streaming_bench.simulation.engine_scenario import Serving
from streaming_bench.simulation.law_scenario import Clients, Day, Pulse, TtftLaw
from streaming_bench.simulation.tier_scenario import Tiers
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
    parse,
)

FOLDER: Final = Path(__file__).parents[1] / "scenarios"
_FORM: Final = re.compile(r"(?:(?P<part>[\w -]+): )?(?P<figure>\w+) <= (?P<value>\d+(?:\.\d+)?)(?P<unit>x|%|ms)")
_DIGITS: Final = {"x": 3, "%": 2, "ms": 0}


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
    """Replicas with a TTFT that is drawn independently of their load.

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
        pulse: bursts at fixed times; None for none.
        day: traffic that rises and falls; None for none. Then `per_second` is the geometric mean of minimum and peak.
    """

    concurrency: Count | None = None
    per_second: Positive | None = None
    quiet: TrafficState | None = None
    burst: TrafficState | None = None
    pulse: Pulse | None = None
    day: Day | None = None

    def __post_init__(self) -> None:
        if (self.concurrency is None) == (self.per_second is None):
            raise ValueError("write exactly one of concurrency and per_second")

    @property
    def states(self) -> list[TrafficState]:
        return [state for state in (self.quiet, self.burst) if state is not None]

    @property
    def factor_max(self) -> float:
        """Largest value of `factor`."""
        pulse = 1.0 if self.pulse is None else max(1.0, self.pulse.factor)
        return pulse * (1.0 if self.day is None else math.sqrt(self.day.ratio))

    def factor(self, now_s: float) -> float:
        """Return the rate at a time as a multiple of `per_second`, by `pulse` and `day`."""
        pulse = 1.0 if self.pulse is None else self.pulse.at(now_s)
        return pulse * (1.0 if self.day is None else self.day.factor(now_s))


class BoundState(enum.Enum):
    """Outcome of a bound; the value is for display."""

    HOLDS = "holds"  # the 95 % interval is within it
    FAILS = "fails"  # the interval is above it
    OPEN = "open"  # the interval contains it


class Check(NamedTuple):
    """Outcome of one bound.

    Attributes:
        bound: text of the bound.
        measured: the figure with its unit and its interval.
    """

    bound: str
    measured: str
    verdict: BoundState


class Wanted:
    """One bound.

    Args:
        text: a figure and its bound, such as "p99 <= 0.30x", "mean <= 650ms" or "short prompts: p99 <= 0.30x". `x` is
            the ratio to hedging off on the same samples: of latencies the geometric mean of the seeds, of counts the
            ratio of the sums.
    """

    def __init__(self, text: str) -> None:
        match = _FORM.fullmatch(text)
        if match is None:
            raise UnitError(f"{text!r} is not a bound; write a figure and a value, such as 'hedges <= 3%'")
        self._part, self._figure, value, self._unit = match.group("part", "figure", "value", "unit")
        self._max = float(value)
        self._text = text

    def check(self, row: Mapping[str, Any], off: Mapping[str, Any]) -> Check:
        """Compare a policy's row with the bound."""
        if self._part is not None:
            row, off = row["parts"][self._part], off["parts"][self._part]
        found = self._estimate(row, off)
        verdict = BoundState.HOLDS if found.high <= self._max else BoundState.OPEN
        if found.low > self._max:
            verdict = BoundState.FAILS
        value, low, high = (f"{each:,.{_DIGITS[self._unit]}f}" for each in found)
        return Check(self._text, f"{value}{self._unit} [{low}, {high}]", verdict)

    def _estimate(self, row: Mapping[str, Any], off: Mapping[str, Any]) -> Estimate:
        figure = self._figure
        if self._unit != "x":
            return mean([each[figure] * (100.0 if self._unit == "%" else 1.0) for each in row["seeds"]])
        if figure in row["to_off"]:
            return Estimate(**row["to_off"][figure])
        return ratio_of_sums(*([each[figure] for each in seeds["seeds"]] for seeds in (row, off)))


class Bounds(Quantity, tuple[Wanted, ...]):
    """Bounds, written as ["p99 <= 0.30x", "hedges <= 3%"]."""

    __slots__ = ()

    @classmethod
    def parse(cls, value: object) -> Self:
        if not isinstance(value, list):
            raise UnitError(f"{value!r} is not a list of bounds; write one such as ['hedges <= 3%']")
        return cls(Wanted(str(text)) for text in value)


class ReferenceSettings(Section, frozen=True):
    """Settings of the policies that do not learn.

    Attributes:
        static_delay_s: delay of static and fan_out.
        library_rps: request rate configured for the reference library.
    """

    static_delay_s: Duration
    library_rps: Positive = 100.0


class Scenario(Section, frozen=True):
    """One workload; exactly one of drawn, serving, law and tiers is set.

    Attributes:
        name, about: for people.
        requests: number of requests.
        replicas: number of replicas.
        headers: time of the response headers where they are flushed early; None: they come with the first token.
        drawn: replicas with drawn TTFTs.
        serving: language-model servers.
        law: replicas with a TTFT by a law of prompt, replica and time.
        tiers: tiers of one provider, among which the gateway chooses by the bill.
        clients: impatient clients; None for clients that wait.
        restart_every_s: time after which the gateway restarts; None for never.
        restart_keeps: True if what was learned survives a restart, as with a `learned_file`.
        timeouts: True for the gateway's default timeouts; False for none, so that only hedging helps.
        judged_after_s: time from the start for which requests are not counted: hedging learns whether it works.
        short_tokens: bound below which prompts of `law` also have a table of their own; None for none.
        wanted: bounds that `judge` checks in addition to the bounds of every workload.
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
    law: TtftLaw | None = None
    tiers: Tiers | None = None
    clients: Clients | None = None
    restart_every_s: Duration | None = None
    restart_keeps: bool = False
    timeouts: bool = False
    judged_after_s: Duration = Duration(0.0)
    short_tokens: Positive | None = None
    wanted: Bounds = Bounds()
    hedge_delay_min_s: Duration | None = None
    spans: Spans = Spans()
    late_s: Duration | None = None
    sha256: str = ""

    def __post_init__(self) -> None:
        if sum(model is not None for model in (self.drawn, self.serving, self.law, self.tiers)) != 1:
            raise ValueError("write exactly one of [drawn], [serving], [law] and [tiers]")
        if self.drawn is None and self.arrivals.per_second is None:
            raise ValueError("[serving], [law] and [tiers] have no closed loop; write per_second in [arrivals]")


def load(name: str, requests: int | None = None) -> Scenario:
    """Read a scenario.

    Args:
        name: name of a scenario of the package, such as W1, or the path of a `.toml` file; a variant's name follows
            after a slash: U8/all.
        requests: number of requests; None for the number in the file.

    Raises:
        ScenarioError: The file or the variant does not exist, or cannot be read.
    """
    base, _, variant = (name, "", "") if name.endswith(".toml") else name.partition("/")
    path = Path(base) if base.endswith(".toml") else FOLDER / f"{base.lower()}.toml"
    try:
        raw = path.read_bytes()
    except OSError as error:
        known = ", ".join(sorted((found.stem.upper() for found in FOLDER.glob("*.toml")), key=_by_number))
        raise ScenarioError(
            f"there is no workload {name!r}; write one of {known} or the path of a .toml file"
        ) from error
    values = parse(raw, path.name)
    changes = values.pop("variants", {})
    if variant and variant not in changes:
        raise ScenarioError(f"{path.name} has no variant {variant!r}; write one of {', '.join(changes)}")
    if variant:
        values = _merged(values, {"name": f"{values['name']}/{variant}", **changes[variant]})
    scenario = replace(decode(values, path.name, Scenario), sha256=hashlib.sha256(raw).hexdigest())
    return scenario if requests is None else replace(scenario, requests=requests)


def names(prefix: str) -> list[str]:
    """Return the names of the package's scenarios with this first letter, each followed by its variants."""
    found = sorted((path for path in FOLDER.glob(f"{prefix.lower()}*.toml")), key=lambda path: _by_number(path.stem))
    return [
        name
        for path in found
        for name in (
            path.stem.upper(),
            *(f"{path.stem.upper()}/{variant}" for variant in parse(path.read_bytes(), path.name).get("variants", ())),
        )
    ]


def _by_number(name: str) -> tuple[str, int]:
    return name[0], int(name[1:])


def _merged(values: dict[str, Any], changes: dict[str, Any]) -> dict[str, Any]:
    """Return the values of a scenario and a variant of it; tables are merged, everything else is replaced."""
    return values | {
        key: _merged(values[key], value) if isinstance(value, dict) and isinstance(values.get(key), dict) else value
        for key, value in changes.items()
    }


def with_load(scenario: Scenario, factor: float) -> Scenario:
    """Multiply the rate of an open loop, or the number of clients of a closed loop."""
    arrivals = scenario.arrivals
    if arrivals.per_second is not None:
        scaled = replace(arrivals, per_second=factor * arrivals.per_second)
    else:
        scaled = replace(arrivals, concurrency=max(1, round(factor * (arrivals.concurrency or 1))))
    return replace(scenario, arrivals=scaled)
