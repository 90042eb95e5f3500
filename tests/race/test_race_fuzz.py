"""Random races in virtual time: for any replicas, clients and clocks, one end, nothing remains, no texts are mixed."""

import random
from dataclasses import dataclass

from hypothesis import given
from hypothesis import strategies as st

from defaults import default_hedging, default_timeouts
from gateway.events import Role
from gateway.race.race import Race
from scripted import BROKEN, DONE, FINISH, ROLE, Outcome, RecordingClient, Scripted, Step, run_race, text
from ttft_gateway.apis.base import Frame, FrameKind, Resource, Usage
from ttft_gateway.apis.errors import (
    BadStatus,
    ConnectError,
    ConnectionCut,
    ErrorFrame,
    OutOfResources,
    RequestModeRejected,
    Unsupported,
    UpstreamError,
)
from ttft_gateway.hedging.contract import RequestFacts
from ttft_gateway.hedging.measure import MeasureShares
from ttft_gateway.hedging.parameters import HedgeParameters
from ttft_gateway.hedging.plan import Policy
from ttft_gateway.limits.bucket import Limit
from ttft_gateway.limits.ledger import Ledger
from ttft_gateway.pool.pool import Pool
from ttft_gateway.pool.quotas import Quotas
from ttft_gateway.routing.replicas import BreakerState

TIMEOUTS = default_timeouts(ttft_failover_s=2.0, ttft_max_s=20.0, stall_s=4.0, total_s=60.0, commit_status_after_s=3.0)
GAPS_S = (0.0, 0.001, 0.05, 0.3, 1.0, 2.5, 5.0, 30.0)
USAGE = Frame(FrameKind.USAGE, b"", Usage(10, 5))
REFUSAL = Frame(FrameKind.REFUSAL, b"<no>")
ERROR = Frame(FrameKind.ERROR, b"", None, ErrorFrame("broken", status=500))
MEASURES = (MeasureShares(), MeasureShares(losers=1.0), MeasureShares(losers=1.0), MeasureShares(holdout=1.0))
OTHERS = (ROLE, FINISH, DONE, BROKEN, USAGE, ERROR, REFUSAL)
STATUSES = (400, 401, 404, 408, 429, 429, 500, 501, 503)
FAILURES = (
    ConnectError("no"),
    OutOfResources("none left"),
    ConnectionCut("cut"),
    Unsupported("no words"),
    BadStatus("no", status=400, code="content_policy_violation"),
    BadStatus("too long", status=400, code="context_length_exceeded"),
    RequestModeRejected(BadStatus("no stream", status=400, param="stream")),
)


def failure(chance: random.Random) -> UpstreamError:
    """An error status, with or without a Retry-After for a 429 or 503, or another failure."""
    if chance.random() < 0.5:
        return chance.choice(FAILURES)
    code, wait_s = chance.choice(STATUSES), chance.choice([None, 0.0, 1.0, 9.0])
    return BadStatus(f"status {code}", status=code, retry_after_s=wait_s if code in (429, 503) else None)


def script(chance: random.Random, letter: str) -> list[Step]:
    """The behaviour of one replica for one request; each has its own words."""
    at_s, steps = chance.choice(GAPS_S), list[Step]()
    ends = chance.choice(["silence", "end", "whole", "whole", "failure"])
    events = chance.randrange(6)
    if events or ends != "failure":
        steps.append((at_s, "headers"))
    for n in range(events):
        at_s += chance.choice(GAPS_S[:-1])
        steps.append((at_s, text(f"{letter}{n}") if chance.random() < 0.5 else chance.choice(OTHERS)))
    if ends == "whole":
        steps += [(at_s, text(letter)), (at_s, FINISH), (at_s, DONE)]
    if ends != "silence":
        steps.append((at_s + chance.choice(GAPS_S), failure(chance) if ends == "failure" else None))
    return steps


@dataclass(frozen=True)
class Conduct:
    """Actions of the client and the operator, in seconds from the start; None for never."""

    leaves_s: float | None
    drained_s: float | None
    pauses_s: float | None
    paused_for_s: float

    def follow(self, race: Race, _client: RecordingClient, _pools: list[Pool]) -> None:
        """Do it."""
        resumes_s = None if self.pauses_s is None else self.pauses_s + self.paused_for_s
        for at_s, act in (
            (self.leaves_s, race.client_gone),
            (self.drained_s, race.shut_down),
            (self.pauses_s, race.pause),
            (resumes_s, race.resume),
        ):
            if at_s is not None:
                race._runtime.loop.call_later(at_s, act)


@given(seed=st.integers(0, 2**32))
def test_any_race(seed: int) -> None:
    """One end per request, within its time and its bounds; all that was taken is given back; one replica's bytes."""
    check_race(seed)


def check_race(seed: int) -> None:
    """Run one random race and check its end."""
    chance = random.Random(seed)
    count, behind = chance.randint(1, 3), chance.randint(0, 2)
    replicas = [
        Scripted(*(script(chance, letter) for _ in range(chance.randint(1, 3)))) for letter in "abcde"[: count + behind]
    ]
    hedge = default_hedging(
        policy=chance.choice([Policy.STATIC, Policy.ADAPTIVE, Policy.OFF]),
        static_delay_s=chance.choice([0.01, 0.2, 1.5]),
        cold_start_delay_s=0.3,
        budget=1.0,
        max_hedges=chance.randint(1, 3),
        measure=random.Random(f"{seed}/measure").choice(MEASURES),
    )
    facts = RequestFacts(
        prompt_tokens=chance.choice([0.0, 7.3, 2000.0]),
        answer_tokens=chance.choice([None, 1, 400]),
        deadline_s=chance.choice([None, None, 0.001, 1.0, 8.0, 1e308]),
    )
    leaves_s, drained_s, pauses_s = (chance.choice([None, None, None, *GAPS_S]) for _ in range(3))
    conduct = Conduct(leaves_s, drained_s, pauses_s, chance.choice(GAPS_S))
    ledger = Ledger([Limit(Resource.TOKENS, 1e5), Limit(Resource.REQUESTS, 100)])

    def prepare(pools: list[Pool]) -> None:
        for pool in pools:
            for replica in pool.replicas:
                replica.quota = "q"
            pool.quotas = Quotas(pool.replicas, {"q": ledger}, pool.learning)

    told = run_race(
        *replicas[:count],
        fallbacks=replicas[count:],
        hedge=hedge,
        timeouts=TIMEOUTS,
        streaming=chance.random() < 0.7,
        facts=facts,
        during=conduct.follow,
        prepare=prepare,
    )
    check_end(told, left=conduct.leaves_s is not None)
    check_attempts(told, hedge)
    assert ledger.totals.under_way == 0
    for pool in told.pools:
        for replica in pool.replicas:
            assert pool.pending_tokens(replica) == 0
            assert replica.breaker.state is not BreakerState.HALF_OPEN


def check_end(told: Outcome, *, left: bool) -> None:
    """One end, in time, with the bytes of one attempt, all of them if it is reported as complete."""
    client, report = told.client, told.report
    gone = report.error == "client_gone"
    assert left or not gone
    assert client.ends == (0 if gone else 1)
    assert client.finished == (report.status == 200)
    assert told.report.total_s <= TIMEOUTS.total_s + 0.001
    assert told.end_s <= TIMEOUTS.total_s + TIMEOUTS.ttft_failover_s + 1.0  # and for a loser that is read on
    said = [said for replica in told.replicas for said in said_by(replica, whole=client.finished)]
    if client.finished:
        assert client.got in said
    else:
        assert not client.got or any(each.startswith(client.got) for each in said)


def said_by(replica: Scripted, *, whole: bool) -> list[bytes]:
    """The text of each possible attempt; whole: only of those that end well."""
    said = []
    for n in range(len(replica.streams)):
        steps = replica.scripts[min(n, len(replica.scripts) - 1)]
        frames = [action for _, action in steps if isinstance(action, Frame)]
        kinds = [frame.kind for frame in frames]
        is_cut = steps[-1][1] is not None or FrameKind.ERROR in kinds or kinds.count(FrameKind.MALFORMED) > 1
        if not (whole and is_cut):
            said.append(b"".join(frame.raw for frame in frames))
    return said


def check_attempts(told: Outcome, hedge: HedgeParameters) -> None:
    """No more than four, three within three seconds, and no more backups than allowed."""
    attempts = told.report.attempts
    sent = [each for each in attempts if each.error != Unsupported.label]
    assert len(sent) <= 4
    is_again = len(sent) == 4 and sent[3].replica in {attempt.replica for attempt in sent[:3]}  # after a pause
    assert len(sent) < 4 or is_again or sent[3].start_s - sent[0].start_s >= 3.0 - 1e-6
    assert [each.role for each in attempts].count(Role.BACKUP) <= (hedge.policy is not Policy.OFF) * hedge.max_hedges
    assert len(attempts) == sum(len(replica.streams) for replica in told.replicas)
