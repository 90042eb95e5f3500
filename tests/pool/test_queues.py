"""Replicas with slots that answers hold: routing by predictions does not send all requests to one of them in turn."""

import heapq
import random
import statistics
from collections import deque
from itertools import count

from defaults import default_hedging
from pooled import Seen, send
from scripted import Scripted
from ttft_gateway.hedging.contract import RequestFacts
from ttft_gateway.hedging.outcomes import Outcome
from ttft_gateway.hedging.plan import Policy
from ttft_gateway.pool.pool import Pool
from ttft_gateway.routing.replicas import Replica
from ttft_gateway.routing.strategies import Routing

_SLOTS, _PER_S, _ANSWER_S = 16, 10.0, 0.5  # 80 % of the slots are in use
_WARM_UP, _COUNTED = 500, 1_500  # requests


def mean_ttft_s(routing: Routing, rng: random.Random) -> float:
    """The mean TTFT of requests to equal replicas: the time of the request itself after the wait for a slot."""
    replicas = [Replica(name, Scripted()) for name in "ab"]
    pool = Pool("m", replicas, default_hedging(policy=Policy.OFF, routing=routing))
    free, waiting = dict.fromkeys(replicas, _SLOTS), {each: deque[Seen]() for each in replicas}
    due: list[tuple[float, int, Seen]] = []  # first contents and ends; a heap
    numbers, now_s, ttfts_s = count(), 0.0, []

    def begin(attempt: Seen) -> None:
        free[attempt.replica] -= 1
        heapq.heappush(due, (now_s + rng.lognormvariate(0.4, 0.8), next(numbers), attempt))

    for _ in range(_WARM_UP + _COUNTED):
        arrival_s = now_s + rng.expovariate(_PER_S)
        while due and due[0][0] <= arrival_s:
            now_s, _, attempt = heapq.heappop(due)
            if attempt.content_s is None:
                pool.on_content(attempt, now_s)
                attempt.content_s = attempt.first_token_s = now_s
                ttfts_s.append(now_s - attempt.start_s)
                heapq.heappush(due, (now_s + _ANSWER_S, next(numbers), attempt))
            else:
                pool.on_end(attempt, Outcome.FINISHED, now_s, None)
                free[attempt.replica] += 1
                if waiting[attempt.replica]:
                    begin(waiting[attempt.replica].popleft())
        now_s = arrival_s
        replica = pool.picker.pick(RequestFacts(), (), now_s, rng.random())
        assert replica is not None
        sent = send(pool, replicas.index(replica), now_s, RequestFacts())
        if free[replica]:
            begin(sent)
        else:
            waiting[replica].append(sent)
    return statistics.mean(ttfts_s[_WARM_UP:])


def test_requests_are_spread_over_replicas_with_slots() -> None:
    """A prediction shows a queue too late; the number in flight is counted, once it is known to matter."""
    least_s = mean_ttft_s(Routing.LEAST_IN_FLIGHT, random.Random(1))
    assert mean_ttft_s(Routing.PREDICTED, random.Random(1)) < 1.2 * least_s  # 2.7 times without the number
