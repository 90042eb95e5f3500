"""Streams that are followed while they generate, and the choices that follow from their speeds."""

from collections.abc import Sequence
from typing import Any

import pytest
from msgspec.structs import replace

from defaults import default_hedging
from pooled import Seen
from scripted import Scripted
from ttft_gateway.apis.base import Usage
from ttft_gateway.estimation.decode import DecodeLaw
from ttft_gateway.hedging.contract import Denied, RequestFacts
from ttft_gateway.hedging.outcomes import Denial, Outcome
from ttft_gateway.hedging.parameters import Prefer
from ttft_gateway.pool.pool import Pool
from ttft_gateway.routing.replicas import Replica
from ttft_gateway.routing.strategies import Routing

FACTS = RequestFacts(prompt_tokens=600.0)
SLOW = DecodeLaw(3.0, 200.0, 4.0, 0.0, {"a": 3.0}, {})


def pool_of(names: str = "ab", prefer: Prefer = Prefer.BALANCED, **settings: Any) -> Pool:
    """A pool of these replicas."""
    return Pool("m", [Replica(name, Scripted()) for name in names], default_hedging(prefer=prefer, **settings))


class Traffic:
    """Requests to the replicas of a pool, in turn or by name."""

    def __init__(self, pool: Pool, ttft_s: dict[str, float] | None = None) -> None:
        self.pool = pool
        self.now_s = 100.0
        self.ttft_s = ttft_s or {}

    def begin(self, name: str) -> Seen:
        """Send a request to a replica, which begins its answer."""
        pool = self.pool
        attempt = Seen(next(each for each in pool.replicas if each.name == name), self.now_s, last_s=self.now_s)
        pool.on_sent(attempt, FACTS, None, is_first=True)
        self.now_s += self.ttft_s.get(name, 0.2)
        attempt.events = 1
        pool.on_content(attempt, self.now_s)
        attempt.content_s = attempt.first_token_s = attempt.generated_s = self.now_s
        return attempt

    def generate(self, attempts: Sequence[Seen], events: int, gap_s: float) -> None:
        """Send events of answers that are generated at the same time."""
        self.now_s += events * gap_s
        for attempt in attempts:
            attempt.events += events
            attempt.generated_s = self.now_s

    def two_running(self) -> Sequence[Seen]:
        """Return two answers of replica a under way, which have been looked at."""
        first = self.begin("a")
        self.generate([first], 60, 0.02)
        both = [first, self.begin("a")]
        self.generate(both, 30, 0.02)
        self.look()
        assert slowness(self.pool) == 1.0
        return both

    def end(self, attempt: Seen, usage: Usage | None = None) -> None:
        """End an answer."""
        attempt.usage = usage
        self.pool.on_end(attempt, Outcome.FINISHED, self.now_s, None)

    def answer(self, name: str, gap_s: float, events: int = 50, usage: Usage | None = None) -> None:
        """Send a request and its complete answer."""
        attempt = self.begin(name)
        self.generate([attempt], events, gap_s)
        self.end(attempt, usage)

    def answers(self, gaps_s: dict[str, float], rounds: int = 20) -> None:
        """Send requests to all replicas in turn."""
        for _ in range(rounds):
            for name, gap_s in gaps_s.items():
                self.answer(name, gap_s)

    def look(self) -> None:
        """Look at the streams under way, as the next choice would."""
        self.now_s += 0.5
        self.pool.streams.look(self.now_s)

    def pick(self, facts: RequestFacts = FACTS) -> str:
        """Return the replica of the next primary; both ways choose the same one."""
        self.now_s += 0.01
        general = self.pool.picker.pick(facts, (), self.now_s, 0.3)
        usual = self.pool.picker.pick_usual(facts, self.now_s, 0.3)
        assert general is not None
        assert usual is None or usual[3] is general
        return general.name


def slowness(pool: Pool) -> float:
    """The slowness of replica a."""
    return pool.streams.slowness("a")


def test_the_first_choice_avoids_a_slow_answer() -> None:
    """With equal TTFTs the replica that generates four times slower gets no primary, except those that look again."""
    traffic = Traffic(pool_of())
    traffic.answers({"a": 0.08, "b": 0.02})
    traffic.look()
    assert traffic.pick() == "b"
    traffic.now_s += 60.0  # a has had no request for long
    traffic.answer("b", 0.02)
    assert traffic.pick() == "a"


@pytest.mark.parametrize(("gateways", "unseen_s", "name"), [(1, 38.0, "b"), (8, 38.0, "b"), (8, 42.0, "a")])
def test_each_gateway_looks_again_at_slow_answers(gateways: int, unseen_s: float, name: str) -> None:
    """By requests of other gateways none learns the end of a spell: each of eight sends one of its own every 40 s."""
    traffic = Traffic(pool_of())
    traffic.answers({"a": 0.08, "b": 0.02})
    traffic.look()
    loads = traffic.pool.loads
    loads.processes, loads.unseen_s = gateways, 5.0
    of = {replica.name: load for replica, load in loads.of.items()}
    traffic.now_s += unseen_s - (traffic.now_s - of["a"].own_s)
    for load in of.values():
        load.used_s = traffic.now_s  # by others
    assert traffic.pick() == name


@pytest.mark.parametrize(
    ("prefer", "gap_s", "name"),
    [
        (Prefer.FIRST_TOKEN, 0.08, "a"),
        (Prefer.BALANCED, 0.08, "b"),
        (Prefer.ANSWER, 0.08, "b"),
        (Prefer.FIRST_TOKEN, 0.03, "a"),
        (Prefer.BALANCED, 0.03, "a"),
        (Prefer.ANSWER, 0.03, "b"),
    ],
)
def test_the_preference_weighs_the_answer(prefer: Prefer, gap_s: float, name: str) -> None:
    """The quick replica, 0.3 s ahead at the first token, is chosen where its answer of 50 tokens loses less."""
    traffic = Traffic(pool_of(prefer=prefer), {"a": 0.1, "b": 0.4})
    traffic.answers({"a": gap_s, "b": 0.02}, 100)
    traffic.look()
    assert traffic.pick() == name


def test_a_short_answer_has_little_to_lose() -> None:
    """A request with a small limit on its answer goes to the replica that is the first to begin."""
    traffic = Traffic(pool_of(), {"a": 0.1, "b": 0.4})
    traffic.answers({"a": 0.08, "b": 0.02}, 100)
    traffic.look()
    assert traffic.pick(replace(FACTS, answer_tokens=4)) == "a"


@pytest.mark.parametrize("settings", [{"routing": Routing.LEAST_IN_FLIGHT}, {"routing": Routing.ROUND_ROBIN}])
def test_other_routings_ignore_the_answer(settings: dict[str, Any]) -> None:
    """A routing that predicts nothing sends its share to a slow replica, too."""
    traffic = Traffic(pool_of(**settings))
    traffic.answers({"a": 0.08, "b": 0.02})
    traffic.look()
    picked = [traffic.pool.picker.pick(FACTS, (), traffic.now_s, rand) for rand in (0.1, 0.6, 0.3, 0.9)]
    assert {replica.name for replica in picked if replica is not None} == {"a", "b"}


def test_a_backup_avoids_a_slow_answer() -> None:
    """Of two replicas with equal predictions the backup goes to the one that generates faster."""
    traffic = Traffic(pool_of("abc"))
    traffic.answers({"a": 0.08, "b": 0.02, "c": 0.02})
    traffic.look()
    late = traffic.pool.replicas[2]
    chosen = [traffic.pool.picker.backup(FACTS, late, [late], traffic.now_s, rand) for rand in (0.0, 0.4, 0.8)]
    assert {replica.name for replica in chosen if replica is not None} == {"b"}


def test_a_backup_that_ends_later_has_to_save_more() -> None:
    """A late request is hedged to an equal replica, not to one with an answer that takes longer than is saved."""
    traffic = Traffic(pool_of())
    for number in range(200):
        traffic.ttft_s = dict.fromkeys("ab", 2.0 if number % 20 == 7 else 0.2)
        traffic.answer("ab"[number % 2], 0.02, 10)
    late = Seen(traffic.pool.replicas[1], traffic.now_s)
    traffic.pool.on_sent(late, FACTS, None, is_first=True)
    now_s = traffic.now_s + 0.5
    traffic.pool.streams.law = replace(SLOW, slowness={"b": 3.0})  # the late one would end later
    facts = replace(FACTS, coin=0.5)
    assert not isinstance(traffic.pool.decide(facts, late, [late], [late.replica], now_s, 0.5), Denied)
    traffic.pool.streams.law = SLOW
    denied = traffic.pool.decide(facts, late, [late], [late.replica], now_s, 0.5)
    assert isinstance(denied, Denied)
    assert denied.reason is Denial.LOW_GAIN


def test_answers_under_way_show_a_change() -> None:
    """When streams of a replica become six times slower, it is slow before any of them has ended."""
    traffic = Traffic(pool_of())
    traffic.answers({"a": 0.02, "b": 0.02})
    traffic.generate(traffic.two_running(), 10, 0.12)
    traffic.look()
    assert slowness(traffic.pool) > 2.0


def test_silent_streams_show_a_change() -> None:
    """Streams that stop in the middle are slow as soon as the next events are later than usual events ever were."""
    traffic = Traffic(pool_of())
    traffic.answers({"a": 0.02, "b": 0.02})
    traffic.two_running()
    traffic.now_s += 2.0
    traffic.look()
    assert slowness(traffic.pool) > 2.0


def test_a_steady_stream_counts_once() -> None:
    """A slow answer that is looked at a hundred times is the evidence of one answer."""
    traffic = Traffic(pool_of())
    traffic.answers({"a": 0.02, "b": 0.02})
    slow = traffic.begin("a")
    for _ in range(100):
        traffic.generate([slow], 10, 0.12)
        traffic.look()
    assert slowness(traffic.pool) < 1.2


def test_a_slow_client_is_no_slow_replica() -> None:
    """A stream of which the reading was paused is not measured."""
    traffic = Traffic(pool_of())
    traffic.answers({"a": 0.02, "b": 0.02})
    for _ in range(4):
        traffic.now_s += 1.0
        paced = traffic.begin("a")
        paced.is_paced = True
        traffic.generate([paced], 50, 0.3)
        traffic.look()
        traffic.end(paced)
    traffic.look()
    assert slowness(traffic.pool) == 1.0


def test_usage_counts_the_tokens_of_an_event() -> None:
    """A replica that sends four tokens in each event is as quick as one with single tokens four times as often."""
    traffic = Traffic(pool_of())
    for _ in range(20):
        traffic.answer("a", 0.08, usage=Usage(600, 204))
        traffic.answer("b", 0.02, usage=Usage(600, 51))
    traffic.look()
    assert slowness(traffic.pool) == pytest.approx(1.0, abs=0.05)


def test_hidden_reasoning_is_no_part_of_the_answer() -> None:
    """Tokens that no event has shown do not make a replica quick."""
    traffic = Traffic(pool_of())
    for _ in range(20):
        usage = Usage(600, 1_051, reasoning_tokens=1_000, hidden_reasoning=True)
        traffic.answer("a", 0.02, usage=usage)
        traffic.answer("b", 0.02, usage=Usage(600, 51))
    traffic.look()
    assert slowness(traffic.pool) == pytest.approx(1.0, abs=0.05)


def test_events_are_not_compared_with_tokens() -> None:
    """A replica without usage in a pool with usage is neither quick nor slow."""
    traffic = Traffic(pool_of("abc"))
    for _ in range(20):
        traffic.answer("a", 0.08)
        traffic.answer("b", 0.02, usage=Usage(600, 51))
        traffic.answer("c", 0.02, usage=Usage(600, 51))
    traffic.look()
    assert slowness(traffic.pool) == 1.0
    assert traffic.pool.streams.speeds.gaps_s.keys() == {"b", "c"}


def test_few_of_many_streams_are_followed() -> None:
    """At most one stream of a replica in a second, sixteen at a time, and three of ten in a busy pool."""
    traffic = Traffic(pool_of(), {"a": 0.0, "b": 0.0})
    for number in range(1_000):
        traffic.begin("ab"[number % 2])
        traffic.now_s += 0.01
    assert len(traffic.pool.streams.followed) == 2 * 10
    for number in range(100):
        traffic.now_s += 1.0
        traffic.begin("ab"[number % 2])
    assert len(traffic.pool.streams.followed) == 2 * 16
    many = Traffic(pool_of("abcdefghijklmnopqrstuvwxyz"), dict.fromkeys("abcdefghijklmnopqrstuvwxyz", 0.0))
    for number in range(260):
        many.begin("abcdefghijklmnopqrstuvwxyz"[number % 26])
        many.now_s += 0.001
    assert len(many.pool.streams.followed) == 26


def test_a_single_replica_is_not_followed() -> None:
    """A pool without a choice does nothing for a stream."""
    traffic = Traffic(pool_of("a"))
    traffic.answers({"a": 0.02})
    assert traffic.pool.streams.followed == {}
    assert traffic.pool.streams.speeds.gaps_s == {}
    assert traffic.now_s < traffic.pool.streams.due_s


def test_a_reload_keeps_what_was_learned() -> None:
    """Replicas that stay keep their speeds, and streams under way still count; a removed replica is forgotten."""
    traffic = Traffic(pool_of("abc"))
    traffic.answers({"a": 0.08, "b": 0.02, "c": 0.02})
    under_way, removed = traffic.begin("b"), traffic.begin("c")
    old = traffic.pool
    traffic.pool = Pool("m", old.replicas[:2], old.settings, previous=old)
    traffic.look()
    assert slowness(traffic.pool) > 1.5
    assert traffic.pool.streams.speeds.gaps_s.keys() == {"a", "b"}
    for attempt in (under_way, removed):
        traffic.generate([attempt], 50, 0.02)
        old.on_end(attempt, Outcome.FINISHED, traffic.now_s, None)
    assert traffic.pool.streams.followed == {}


def test_answers_in_one_piece_are_no_streams() -> None:
    """A response that is not streamed is not followed."""
    pool = pool_of()
    attempt = Seen(pool.replicas[0], 0.0)
    pool.on_sent(attempt, replace(FACTS, timed=False), None, is_first=True)
    pool.on_content(attempt, 1.0)
    assert pool.streams.followed == {}
