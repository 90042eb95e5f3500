"""Speed of each replica over time: episodes, stalls, brown-outs. All drawn beforehand.

Units: seconds; a speed is a multiple of the usual one; work is seconds at the usual speed.
"""

import random
from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

from streaming_bench.simulation.engine_scenario import Episodes, Serving


@dataclass(frozen=True, slots=True)
class Slowdown:
    """A span with a lower speed."""

    start_s: float
    end_s: float
    speed: float


class SpeedTimeline:
    """One replica's speed over time.

    Args:
        slowdowns: slowdowns; the speeds of overlapping ones multiply.
    """

    def __init__(self, slowdowns: Sequence[Slowdown]) -> None:
        self._starts_s = sorted({0.0, *(t for slowdown in slowdowns for t in (slowdown.start_s, slowdown.end_s))})
        self._speeds = []
        for start_s in self._starts_s:
            speed = 1.0
            for slowdown in slowdowns:
                if slowdown.start_s <= start_s < slowdown.end_s:
                    speed *= slowdown.speed
            self._speeds.append(speed)
        self._work = [0.0]  # work done from time 0 until each start
        for (a, b), speed in zip(pairwise(self._starts_s), self._speeds, strict=False):
            self._work.append(self._work[-1] + (b - a) * speed)

    def speed(self, now_s: float) -> float:
        """Return the speed at a time."""
        return self._speeds[bisect_right(self._starts_s, now_s) - 1]

    def done(self, now_s: float) -> float:
        """Return the work done from time 0 until now_s."""
        i = bisect_right(self._starts_s, now_s) - 1
        return self._work[i] + (now_s - self._starts_s[i]) * self._speeds[i]

    def finish_s(self, start_s: float, work_s: float) -> float:
        """Return the end of work that begins at start_s."""
        goal = self.done(start_s) + work_s
        j = bisect_right(self._work, goal) - 1
        return max(start_s, self._starts_s[j] + (goal - self._work[j]) / self._speeds[j])


def draw_timelines(serving: Serving, replicas: int, length_s: float, seed: int) -> list[SpeedTimeline]:
    """Draw the timeline of every replica for `length_s`."""
    rng = random.Random(f"{seed}/weather")  # a label of the golden rows
    slowdowns: list[list[Slowdown]] = [[] for _ in range(replicas)]
    for episodes in (serving.slow, serving.stalls):
        if episodes is None:
            continue
        if episodes.at == "each replica":
            for own in slowdowns:
                own.extend(draw_slowdowns(episodes, length_s, rng))
        else:
            for slowdown in draw_slowdowns(episodes, length_s, rng):
                slowdowns[int(rng.random() * replicas)].append(slowdown)
    out = serving.brown_out
    return [SpeedTimeline([*own, Slowdown(out.start_s, out.end_s, out.speed)]) for own in slowdowns]


def draw_slowdowns(episodes: Episodes, length_s: float, rng: random.Random) -> list[Slowdown]:
    """Draw the slowdowns of one replica for `length_s`."""
    slowdowns: list[Slowdown] = []
    now_s = episodes.every_s * rng.random()
    while now_s < length_s:
        speed = _draw_speed(episodes, rng)
        lasts_s = episodes.lasts.draw(rng, len(slowdowns))
        slowdowns.append(Slowdown(now_s, now_s + lasts_s, speed))
        now_s += lasts_s + rng.expovariate(1 / max(1e-9, episodes.every_s - lasts_s))
    return slowdowns


def _draw_speed(episodes: Episodes, rng: random.Random) -> float:
    share = rng.random()
    if episodes.speed is not None:
        return episodes.speed.min + share * (episodes.speed.max - episodes.speed.min)
    assert episodes.factor is not None
    slow, fast = 1 / episodes.factor.max, 1 / episodes.factor.min
    return 1 / (1 / fast + share * (1 / slow - 1 / fast))
