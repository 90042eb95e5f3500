"""The requests of a run and the bound on their cost, made before any request is sent. Pure.

Units: seconds, tokens.
"""

import csv
import random
from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from pathlib import Path
from typing import Final

from streaming_bench.errors import BenchError
from streaming_bench.load.client import PlannedRequest
from streaming_bench.load.pacing import poisson
from streaming_bench.load.token_distribution import TOKENS_MAX, TokenDistribution, prompt_text, shared_text

REQUESTS_CAP: Final = 1_000_000


@dataclass(frozen=True, slots=True)
class TrafficPlan:
    """Description of the traffic.

    Attributes:
        requests: number of requests.
        rate_per_s: mean rate of a Poisson process; None for a closed loop or the times of a trace.
        prompt_tokens, max_tokens: lengths of prompts and maximum lengths of answers.
        shared_tokens: length of the common prefix of all prompts.
        block: requests in a block; two targets take turns by blocks.
        seed: seed of times, lengths and words.
    """

    requests: int
    rate_per_s: float | None
    prompt_tokens: TokenDistribution
    max_tokens: TokenDistribution
    shared_tokens: int = 0
    block: int = 50
    seed: int = 1


def plan_requests(traffic: TrafficPlan, trace: Sequence["TraceEntry"] = ()) -> list[PlannedRequest]:
    """Return the requests.

    Args:
        trace: arrivals with lengths; empty for the arrivals and lengths of `traffic`.
    """
    rng = random.Random(f"{traffic.seed}/times")
    lengths = random.Random(f"{traffic.seed}/lengths")
    shared = shared_text(traffic.shared_tokens, traffic.seed)
    count = min(len(trace), traffic.requests) if trace else traffic.requests
    times: Sequence[float | None] = [arrival.at_s for arrival in trace[:count]]
    if not trace:
        times = [None] * count if traffic.rate_per_s is None else poisson(count, traffic.rate_per_s, rng)
    found = []
    for number, at_s in enumerate(times):
        tokens, most = traffic.prompt_tokens.draw(lengths, number), traffic.max_tokens.draw(lengths, number)
        if trace:
            tokens, most = trace[number].prompt_tokens or tokens, trace[number].max_tokens or most
        words = random.Random(f"{traffic.seed}/words/{number}")
        text = prompt_text(number, tokens, words, shared)
        found.append(PlannedRequest(number, number // traffic.block, at_s, text, tokens, most))
    return found


def in_blocks(requests: Sequence[PlannedRequest]) -> list[list[PlannedRequest]]:
    """Split requests into blocks; times count from the beginning of each block."""
    blocks: list[list[PlannedRequest]] = []
    for each in requests:
        if not blocks or blocks[-1][0].block != each.block:
            blocks.append([])
        blocks[-1].append(each)
    starts_s = (block[0].at_s or 0.0 for block in blocks)
    return [
        [each if each.at_s is None else replace(each, at_s=each.at_s - start_s) for each in block]
        for block, start_s in zip(blocks, starts_s, strict=True)
    ]


@dataclass(frozen=True, slots=True)
class CostEstimate:
    """Upper bound of a run's cost.

    Attributes:
        requests: number of requests.
        prompt_tokens: tokens of all prompts, about.
        tokens: generated tokens if every answer has its maximum length.
    """

    requests: int
    prompt_tokens: int
    tokens: int

    def __str__(self) -> str:
        return (
            f"{self.requests:,} requests: about {self.prompt_tokens:,} prompt tokens and at most "
            f"{self.tokens:,} generated tokens, {self.prompt_tokens + self.tokens:,} in all"
        )

    def objection(self, requests_max: int, tokens_max: int) -> str | None:
        """Return why the run exceeds a limit; None if it does not."""
        if self.requests > requests_max:
            return f"{self.requests:,} requests exceed --requests-max {requests_max:,}; nothing was sent"
        tokens = self.prompt_tokens + self.tokens
        if tokens > tokens_max:
            return f"{tokens:,} tokens exceed --tokens-max {tokens_max:,}; nothing was sent"
        return None


def estimate_cost(requests: Sequence[PlannedRequest], targets: int) -> CostEstimate:
    """Return the upper bound of the cost of sending all requests to each target."""
    return CostEstimate(
        targets * len(requests),
        targets * sum(each.prompt_tokens for each in requests),
        targets * sum(each.max_tokens for each in requests),
    )


@dataclass(frozen=True, slots=True)
class TraceEntry:
    """One line of a trace; None for a length that the line does not contain."""

    at_s: float
    prompt_tokens: int | None
    max_tokens: int | None


def read_trace(path: Path) -> list[TraceEntry]:
    """Read arrivals from a CSV file with the column `at_s` and, optionally, `prompt_tokens` and `max_tokens`.

    Raises:
        BenchError: The file cannot be read.
    """
    try:
        with path.open(encoding="utf-8", newline="") as file:
            rows = csv.DictReader(file)
            if "at_s" not in (rows.fieldnames or ()):
                raise BenchError(f"{path}: the first line has no column `at_s`; name the columns there")
            found = [_entry(row, f"{path}, line {line}") for line, row in enumerate(rows, start=2)]
    except (OSError, UnicodeDecodeError) as error:
        raise BenchError(f"cannot read the trace {path}: {error}") from error
    if not found or len(found) > REQUESTS_CAP:
        raise BenchError(f"{path} has {len(found):,} arrivals; write 1 to {REQUESTS_CAP:,}")
    for before, after in pairwise(found):
        if after.at_s < before.at_s:
            raise BenchError(f"{path}: {after.at_s:g} s follows {before.at_s:g} s; sort the arrivals by time")
    return found


def _entry(row: dict[str, str], where: str) -> TraceEntry:
    try:
        at_s = float(row["at_s"])
        counts = [int(row[name]) if row.get(name) else None for name in ("prompt_tokens", "max_tokens")]
    except (ValueError, TypeError) as error:
        raise BenchError(f"{where}: a value is not a number: {error}") from error
    if not 0 <= at_s < 1e7 or any(count is not None and not 1 <= count <= TOKENS_MAX for count in counts):
        raise BenchError(
            f"{where}: a value is out of range; write seconds from 0 on and token counts from 1 to {TOKENS_MAX:,}"
        )
    return TraceEntry(at_s, *counts)
