"""The one-step way of primaries against the general way: after any history both choose, predict and count alike."""

import math

import msgspec
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from pool_histories import Fleet, Step, answered, both
from pooled import Seen
from ttft_gateway.apis.base import Api, Resource
from ttft_gateway.hedging.budget import BudgetUnit
from ttft_gateway.hedging.contract import RequestFacts
from ttft_gateway.hedging.outcomes import Denial, Outcome
from ttft_gateway.hedging.plan import Policy
from ttft_gateway.limits.bucket import Limit
from ttft_gateway.routing.strategies import Routing

_MANY = tuple(f"r{number}" for number in range(20))
_rand = st.one_of(st.sampled_from([0.0, 0.5]), st.floats(0.0, 1.0, exclude_max=True))
_index = st.integers(0, 7)
_facts = st.builds(
    RequestFacts,
    prompt_tokens=st.sampled_from([0.0, 3.0, 1_000.0, 50_000.0]),
    prompt_bytes=st.just(4_000),
    prefixes=st.sampled_from([(), (), (1,), (1, 2), (3,)]),
    answer_tokens=st.sampled_from([None, 10]),
    hedge_off=st.sampled_from([None, None, None, Denial.KEY, Denial.OFF]),
    timed=st.sampled_from([True, True, True, False]),
    api=st.sampled_from([None, Api.CHAT, Api.MESSAGES]),
    coin=_rand,
    ttft_target_s=st.sampled_from([None, None, None, 0.1, 3.0]),
)
_requests = st.tuples(st.just("request"), st.tuples(st.sampled_from([0.0, 0.01, 0.3, 6.0]), _facts, _rand))
_contents = st.tuples(st.just("content"), st.tuples(_index, st.sampled_from([0.0, 0.05, 0.2, 1.5])))
_ends = st.tuples(
    st.just("end"),
    st.tuples(
        _index,
        st.one_of(st.just(Outcome.FINISHED), st.just(Outcome.LOST), st.sampled_from(Outcome)),
        st.sampled_from([None, None, 2.0, 30.0]),
        st.sampled_from([False, False, True]),
    ),
)
_steps = st.lists(
    st.one_of(
        _requests,
        _requests,
        st.tuples(st.just("pinned"), st.tuples(st.just(0.1), _facts, _rand)),
        _contents,
        _contents,
        _ends,
        st.tuples(st.just("hedge"), st.tuples(_index, _rand)),
        st.tuples(st.just("work"), _index),
        st.tuples(st.just("stated"), st.tuples(_index, st.sampled_from([0.0, 5.0, 90.0]))),
        st.tuples(st.just("wait"), st.sampled_from([0.4, 1.0, 4.0, 11.0, 40.0, 700.0])),
        st.tuples(st.just("switch"), st.tuples(_index, st.sampled_from([False, True]))),
        st.tuples(st.just("reload"), st.none()),
    ),
    min_size=1,
    max_size=60,
)
_fleets = st.builds(
    Fleet,
    names=st.sampled_from(["a", "ab", "abc", "abc", "abcde", _MANY]),
    odd=st.sampled_from([None] * 5 + ["weight", "backup_only", "api", "billed", "boundary"]),
    batches=st.booleans(),
    limits=st.sampled_from(
        [None, None, (), (Limit(Resource.REQUESTS, 9.0, 60.0),), (Limit(Resource.TOKENS, 1e5, 60.0, enforce=True),)]
    ),
    routing=st.sampled_from([Routing.PREDICTED] * 5 + list(Routing)),
    policy=st.sampled_from([Policy.ADAPTIVE] * 5 + list(Policy)),
    unit=st.sampled_from(BudgetUnit),
    is_crowded=st.booleans(),
)


_USUAL = RequestFacts(prompt_tokens=100.0)
_SENT: Step = ("request", (0.0, _USUAL, 0.0))  # to the quickest one
_ANSWERED_LATE: list[Step] = [_SENT, ("wait", 11.0), ("content", (0, 0.0)), _SENT]  # its replica is doubted
_NONE_USABLE: list[Step] = [("switch", (0, True)), _SENT, ("pinned", (0.1, _USUAL, 0.0))]


@given(fleet=_fleets, steps=_steps, warm=st.sampled_from([0, 1, 30, 30]))
@example(fleet=Fleet(names="a"), steps=_NONE_USABLE, warm=0)
@example(fleet=Fleet(names="ab"), steps=_ANSWERED_LATE, warm=30)
def test_both_ways_agree_after_any_history(fleet: Fleet, steps: list[Step], warm: int) -> None:
    """Replica, forecast, delay, decisions and every counter are the same, whatever happened before."""
    both(fleet, steps, warm)


@pytest.mark.parametrize(
    "fleet",
    [
        Fleet(),
        Fleet(names="a"),
        Fleet(batches=False),
        Fleet(limits=()),
        Fleet(unit=BudgetUnit.COST),
        Fleet(odd="billed"),
        Fleet(names=_MANY),
        Fleet(batches=False, is_crowded=True),
    ],
    ids=str,
)
def test_usual_requests_take_one_step(fleet: Fleet) -> None:
    """After the first sample, all primaries of a healthy pool are sent in one step, also with many at the same time."""
    burst: list[Step] = [("request", (0.001, RequestFacts(prompt_tokens=50.0 * n), n / 64)) for n in range(64)]
    world = both(fleet, [*burst, *[("content", (n, 0.001)) for n in range(64)], *burst], 40)
    assert world.begun == 40 + 2 * 64 - 1
    is_shared = len(fleet.names) > 1 and (fleet.batches or fleet.is_crowded)  # else streams are not counted
    assert not is_shared or max(each.in_flight for each in world.pool.replicas) < 70


def _end(outcome: Outcome) -> Step:
    return ("end", (0, outcome, None, False))


@pytest.mark.parametrize(
    ("fleet", "steps"),
    [
        (Fleet(odd="api"), [("request", (0.01, msgspec.structs.replace(_USUAL, api=Api.MESSAGES), 0.0))]),
        (Fleet(odd="weight"), [_SENT] * 20),
        (Fleet(limits=(Limit(Resource.REQUESTS, 40.0, 60.0),)), [_SENT] * 40),
        (Fleet(limits=(Limit(Resource.REQUESTS, 40.0, 60.0, enforce=True),)), [_SENT] * 40),
        (Fleet(), [_SENT, ("content", (0, 0.1)), _end(Outcome.CUT)] * 2 + [("wait", 0.1), *answered(4)] * 5),
        (Fleet(), [_SENT, ("wait", 0.15), _SENT, ("wait", 0.05), _SENT]),
        (Fleet(), [*[_SENT] * 3, ("wait", 5.0), *[_end(Outcome.LOST)] * 9, _SENT]),
        (Fleet(names="ab", spread_s=0.1), [*answered(60), _SENT, ("wait", 0.1), *[("wait", 0.01), _SENT] * 9]),
        (Fleet(), [_SENT, ("wait", 3.0)] * 9),
        (Fleet(), [("request", (0.01, msgspec.structs.replace(_USUAL, prefixes=(1,), prompt_bytes=512), 0.0))] * 9),
    ],
    ids=[
        *("api", "weight", "headroom", "enforced limit", "breaking", "overdue", "given up late", "unseen"),
        *("low traffic", "prefixes"),
    ],
)
def test_both_ways_agree_in_each_state(fleet: Fleet, steps: list[Step]) -> None:
    """States that random histories seldom reach; requests before, within and after each."""
    both(fleet, [*steps, *answered(10)], 40)


@pytest.mark.parametrize(
    ("fleet", "steps", "ends_after_s"),
    [
        (Fleet(), [("switch", (0, True))], math.inf),
        (Fleet(), [("switch", (0, True)), ("switch", (0, False))], 10.0),
        (Fleet(), [_SENT, ("end", (0, Outcome.RATE_LIMITED, 30.0, False))], 30.0),
        (Fleet(names="ab", limits=()), [_SENT, ("end", (0, Outcome.RATE_LIMITED, 30.0, False))], 30.0),
        (Fleet(names="ab", limits=()), [_SENT, ("stated", (0, 5.0))], 9.9),
        (Fleet(), [_SENT, ("end", (0, Outcome.MISCONFIGURED, 1.0, False))], math.inf),
        (Fleet(), [*[_SENT] * 12, ("wait", 2.0)], math.inf),
    ],
    ids=["taken out", "slow start", "cooling", "cooling quota", "used quota", "open breaker", "suspect"],
)
def test_unusual_states_take_the_general_way(fleet: Fleet, steps: list[Step], ends_after_s: float) -> None:
    """A state ends the one-step way immediately, and its end by elapsed time begins it again."""
    world = both(fleet, steps, 40)
    start_s = world.now_s
    for after_s in (0.0, 9.9, 10.0, 29.9, 30.0):
        world.now_s, before = start_s + after_s, world.begun
        world.do("request", (0.0, _USUAL, 0.5))
        assert (world.begun > before) == (after_s >= ends_after_s)


def test_a_reload_counts_on() -> None:
    """An attempt that is sent after a reload does not replace one in the books that was sent before."""
    make = Fleet().build()
    old = make(None)
    old.on_sent(Seen(old.replicas[0], 1.0), _USUAL, None, is_first=True)
    new = make(old)
    new.on_sent(Seen(new.replicas[0], 2.0), _USUAL, None, is_first=True)
    assert len(new.loads.of[new.replicas[0]].stalls._waiting) == 2


@pytest.mark.parametrize(
    ("owner", "name"),
    [("loads", "on_request"), ("budget", "earn_sent"), ("quotas", "reserve"), ("learning", "plan")],
)
def test_a_bug_counts_no_attempt(owner: str, name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """If `begin` raises, no replica has an attempt that would never end; the general way then counts it once."""
    world = both(Fleet(limits=()), [], 40)

    def broken(*_args: object, **_named: object) -> None:
        raise ZeroDivisionError

    monkeypatch.setattr(type(getattr(world.pool, owner)), name, broken)
    with pytest.raises(ZeroDivisionError):
        world.do("request", (0.0, _USUAL, 0.0))
    for replica, load in world.pool.loads.of.items():
        assert (replica.in_flight, load.pending, load.stalls._waiting) == (0, 0.0, {})
