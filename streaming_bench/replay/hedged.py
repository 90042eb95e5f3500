"""Replays logged requests in virtual time: the gateway's race, pool and policy over replicas that answer as in the log.

A request is sent at its logged arrival, first to the replica that the log names or to one that the gateway chooses. The
gateway's code decides when a backup is sent, where, and whether the budget affords it.

Units: seconds of the loop's clock, tokens.
"""

import asyncio
import random
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from msgspec.structs import replace

from gateway.events import Event, RequestEnded, Role
from streaming_bench.replay.donors import LogColumns, Values
from streaming_bench.simulation.policies import PolicySettings
from streaming_bench.simulation.runner import ArrivalPlan, Conditions, run
from streaming_bench.simulation.world import TimedStream, World
from ttft_gateway.apis.base import Call, Sink, Stream
from ttft_gateway.hedging.contract import RequestFacts
from ttft_gateway.hedging.outcomes import Denial
from ttft_gateway.hedging.parameters import DEFAULTS, HedgeParameters


@dataclass(frozen=True)
class Hedged:
    """Result of a replay, in the order of the log.

    Attributes:
        ttft_s: time to the first token of each request.
        hedges: number of backups of each request.
    """

    ttft_s: Values
    hedges: Values


def settings_of(budget: float, delay_min_s: float) -> HedgeParameters:
    """Return the gateway's defaults with a budget and a shortest delay."""
    return replace(DEFAULTS, budget=budget, hedge_delay_min_s=delay_min_s)


def hedge(
    log: LogColumns, times_s: Values, settings: HedgeParameters, seed: int, *, engines: bool, routed: bool = False
) -> Hedged:
    """Run the requests through the gateway's policy.

    Args:
        times_s: TTFT of each request at each replica.
        settings: settings of the policy.
        engines: True if the replicas are engines of one's own, for which another gain is required.
        routed: True if the gateway routes; False if each request goes first to its logged replica.
    """
    rng = random.Random(f"{seed}/replay")
    facts = [
        RequestFacts(prompt_tokens=tokens, coin=rng.random(), hedge_off=None if hedgeable else Denial.KEY)
        for tokens, hedgeable in zip(log.tokens.tolist(), log.hedgeable.tolist(), strict=True)
    ]
    rest_s = log.rest_s.tolist()
    ttft_s, hedges = np.full(len(facts), np.inf), np.zeros(len(facts))

    def record(event: Event) -> None:
        if isinstance(event, RequestEnded):
            request = int(event.request_id)
            ttft_s[request] = np.inf if event.ttft_s is None else event.ttft_s
            hedges[request] = sum(attempt.role is Role.BACKUP for attempt in event.attempts)

    def world(loop: asyncio.AbstractEventLoop) -> World:
        return World(
            [_LoggedReplica(loop, column.tolist(), rest_s) for column in times_s.T],
            facts,
            [None] * len(log.names),
            batches=engines,
            pinned=None if routed else log.replica.tolist(),
        )

    run(
        settings.policy.value,
        PolicySettings(settings, library_rps=1.0),
        ArrivalPlan(log.arrived_s.tolist(), 0),
        world,
        seed,
        lambda _requests: None,
        Conditions(listener=record),
    )
    return Hedged(ttft_s, hedges)


class _LoggedReplica:
    """A replica with a given TTFT for each request; an `Endpoint`."""

    def __init__(self, loop: asyncio.AbstractEventLoop, ttft_s: Sequence[float], rest_s: Sequence[float]) -> None:
        self._loop = loop
        self._ttft_s = ttft_s
        self._rest_s = rest_s

    def open(self, call: Call, sink: Sink) -> Stream:
        request = int(call.body)
        stream = TimedStream(sink)
        first_s = self._loop.time() + self._ttft_s[request]
        stream.at(self._loop, first_s, stream.first_token)
        stream.at(self._loop, first_s + self._rest_s[request], stream.end)
        return stream
