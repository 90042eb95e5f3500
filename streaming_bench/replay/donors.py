"""Times that each request would have taken at each replica, drawn from the log. Pure but for a seed.

A request takes its logged time at its own replica. At another replica it takes the time of a request that this replica
got at nearly the same moment, scaled by the usual times of both prompt lengths: a slow minute of one replica, or of
all, is in the draw. A log has no pairs, so two cases bound what it leaves open. Independent: any of these neighbours.
Fully correlated: the same multiple of the neighbours' median, so that a slow request is as slow everywhere.

Units: seconds, tokens.
"""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np
from numpy.typing import NDArray

from streaming_bench.replay.logged import LoggedRequest
from ttft_gateway.estimation.predictor import Predictor

Values = NDArray[np.float64]
Indices = NDArray[np.int64]

NEIGHBOURS: Final = 50  # requests of a replica nearest in time: enough for a tail, and few enough for a slow minute
REPLICAS_MAX: Final = 32  # further ones are treated as one
OTHERS: Final = "(other replicas)"

_USUAL_MIN_S: Final = 1e-4
_AS_LONG_AGAIN: Final = 2.0  # a wait that is cut where none is longer: as in the gateway's curve


@dataclass(frozen=True)
class LogColumns:
    """Requests of one model as columns, by arrival.

    Attributes:
        arrived_s: arrivals since the first one.
        ttft_s: logged TTFTs; lower bounds where `cancelled`.
        usual_s: TTFT that is usual for the length of the prompt.
        rest_s: times from the first token to the end.
        tokens: lengths of the prompts.
        replica: number of each request's replica.
        cancelled: True where the first token was not seen.
        hedgeable: True where a hedge is allowed.
        names: names of the replicas.
        alike: True if the log does not distinguish replicas, and they are assumed to be alike.
    """

    arrived_s: Values
    ttft_s: Values
    usual_s: Values
    rest_s: Values
    tokens: Values
    replica: Indices
    cancelled: NDArray[np.bool_]
    hedgeable: NDArray[np.bool_]
    names: Sequence[str]
    alike: bool


def columns_of(requests: Sequence[LoggedRequest], replicas: int) -> LogColumns:
    """Return requests as columns.

    Args:
        requests: at least one, by arrival.
        replicas: number of replicas that are assumed if the log has fewer than two.
    """
    by_replica = Counter(request.replica for request in requests)
    names = [name for name, _ in by_replica.most_common(REPLICAS_MAX)]
    if len(by_replica) > REPLICAS_MAX:
        names[-1] = OTHERS
    names.sort()
    alike = len(names) < 2
    if alike:
        names = [f"replica-{number + 1}" for number in range(replicas)]
        which = np.arange(len(requests)) % replicas
    else:
        number_of = {name: number for number, name in enumerate(names)}
        which = np.array([number_of.get(request.replica, number_of.get(OTHERS, 0)) for request in requests])
    tokens, ttft_s, rest_s, cancelled, hedgeable = zip(
        *((each.tokens, each.ttft_s, each.rest_s, each.cancelled, each.hedgeable) for each in requests), strict=True
    )
    arrived_s = np.array([request.arrived_s for request in requests])
    return LogColumns(
        arrived_s=arrived_s - arrived_s[0],
        ttft_s=np.array(ttft_s, dtype=float),
        usual_s=_usual_s(requests),
        rest_s=np.array(rest_s, dtype=float),
        tokens=np.array(tokens, dtype=float),
        replica=which,
        cancelled=np.array(cancelled, dtype=bool),
        hedgeable=np.array(hedgeable, dtype=bool),
        names=names,
        alike=alike,
    )


def _usual_s(requests: Sequence[LoggedRequest]) -> Values:
    """Return the TTFT that is usual for each prompt's length, by the gateway's own fit."""
    predictor = Predictor()
    start_s = requests[0].arrived_s
    for request in requests:
        add = predictor.add_late if request.cancelled else predictor.add
        add(request.replica, request.ttft_s, request.tokens, 0.0, request.arrived_s - start_s)
    end_s = requests[-1].arrived_s - start_s
    predictor.fold(end_s)
    law = predictor.law(end_s)
    base, slope, _ = (1.0, 0.0, 0.0) if law is None else law[0]
    usual: Values = np.maximum(_USUAL_MIN_S, base + slope * np.array([request.tokens for request in requests]))
    return usual


def draw(log: LogColumns, seed: int, *, correlated: bool) -> tuple[Values, Values]:
    """Draw the times of all requests at all replicas.

    Returns:
        The times, one row for each request and one column for each replica; and those at its own replica.
    """
    rng = np.random.default_rng(seed)
    ratios = log.ttft_s / log.usual_s
    count = len(ratios)
    members = [np.arange(count) if log.alike else np.flatnonzero(log.replica == k) for k in range(len(log.names))]
    own_s = _completed(log, ratios, members, rng)
    own = own_s / log.usual_s
    times_s = np.empty((count, len(log.names)))
    medians = _medians(log, own, members) if correlated else times_s
    for number, at in enumerate(members):
        if correlated:
            drawn = own / medians[np.arange(count), log.replica] * medians[:, number]
        else:
            first, width = _window(log.arrived_s[at], log.arrived_s)
            picked = first + rng.integers(width, size=count)
            if log.alike and width > 1:  # not the request itself
                picked = np.where(picked == np.arange(count), first + (picked - first + 1) % width, picked)
            drawn = own[at][picked]
        times_s[:, number] = drawn * log.usual_s
    times_s[np.arange(count), log.replica] = own_s
    return times_s, own_s


def _window(at_s: Values, moments_s: Values) -> tuple[Indices, int]:
    """Return, for each moment, the first of the requests nearest to it, and their number."""
    width = min(NEIGHBOURS, len(at_s))
    first = np.clip(np.searchsorted(at_s, moments_s) - width // 2, 0, len(at_s) - width)
    return first.astype(np.int64), width


def _medians(log: LogColumns, ratios: Values, members: Sequence[Indices]) -> Values:
    """Return the median of the requests nearest to each request, one column for each replica."""
    found = []
    for at in members:
        first, width = _window(log.arrived_s[at], log.arrived_s)
        found.append(np.median(ratios[at][first[:, np.newaxis] + np.arange(width)], axis=1))
    return np.stack(found, axis=1)


def _completed(log: LogColumns, ratios: Values, members: Sequence[Indices], rng: np.random.Generator) -> Values:
    """Return the times at the own replicas; the times of cancelled requests are drawn beyond their bounds.

    Each bound is replaced by one of the longer waits near to it, or of all longer waits of the replica where none is
    near. If that wait was cancelled, too, the draw goes on from there, so that waits that were cut short are not taken
    for rare: their weight goes to longer waits (redistribution to the right, Efron 1967).
    """
    own_s = log.ttft_s.copy()
    for number, at in enumerate(members):
        cut = np.flatnonzero(log.cancelled & (log.replica == number))
        if not len(cut):
            continue
        order = at[np.argsort(ratios[at])]
        first, width = _window(log.arrived_s[at], log.arrived_s[cut])
        for place, request in enumerate(cut):
            near = at[first[place] : first[place] + width]
            own_s[request] = _longer(log, ratios, int(request), near, order, rng) * log.usual_s[request]
    return own_s


def _longer(
    log: LogColumns, ratios: Values, request: int, near: Indices, order: Indices, rng: np.random.Generator
) -> float:
    """Return a longer wait for a cancelled request.

    Args:
        near: requests of its replica that are nearest in time.
        order: all requests of its replica, by their waits.
    """
    near = near[np.argsort(ratios[near])]
    while log.cancelled[request]:
        for others in (near, order):
            start = int(np.searchsorted(ratios[others], ratios[request], side="right"))
            if start < len(others):
                request = int(others[start + rng.integers(len(others) - start)])
                break
        else:
            return _AS_LONG_AGAIN * float(ratios[request])
    return float(ratios[request])
