"""Speeds of replicas after the first token, learned from streams in which gaps have many causes."""

import math
import random
from collections.abc import Callable

import pytest

from ttft_gateway.estimation.decode import DecodeLaw, DecodeSpeeds, StreamSample

NAMES = ("a", "b", "c", "d")
Gap = Callable[[str, StreamSample], float]


def learned(
    gap_s: Gap,
    *,
    seed: int = 1,
    count: int = 400,
    noise: float = 0.15,
    load: Callable[[str, random.Random], float] = lambda _name, rng: rng.uniform(1.0, 6.0),
    prompt: Callable[[str, random.Random], float] = lambda _name, rng: rng.lognormvariate(6.4, 1.0),
) -> DecodeSpeeds:
    """Speeds after answers of four replicas, one in 100 ms, at random loads and with random lengths."""
    rng, speeds = random.Random(seed), DecodeSpeeds()
    for number in range(count):
        name = rng.choice(NAMES)
        tokens = max(8.0, rng.lognormvariate(5.0, 0.8))
        drawn = StreamSample(0.0, tokens, load(name, rng), prompt(name, rng))
        time_s = tokens * gap_s(name, drawn) * rng.lognormvariate(0.0, noise)
        answer = StreamSample(time_s, tokens, drawn.load, drawn.prompt_tokens)
        speeds.add_answer(name, answer)
        speeds.add(name, answer, 0.1 * number)
        speeds.law()  # as in use
    return speeds


def slownesses(speeds: DecodeSpeeds) -> dict[str, float]:
    """The slowness of each replica."""
    law = speeds.law()
    return dict.fromkeys(NAMES, 1.0) | ({} if law is None else dict(law.slowness))


def spread(speeds: DecodeSpeeds) -> float:
    """The slowest replica as a multiple of the quickest."""
    found = slownesses(speeds).values()
    return max(found) / min(found)


def mean_spread(gap_s: Gap, **conditions: object) -> float:
    """The geometric mean of `spread` over twelve seeds."""
    found = [spread(learned(gap_s, seed=seed, **conditions)) for seed in range(12)]  # type: ignore[arg-type]
    return math.exp(sum(map(math.log, found)) / len(found))


def test_a_slow_replica_is_found() -> None:
    """Of a factor of four most is known after a hundred answers of each replica, and the other replicas are equal."""
    found = slownesses(learned(lambda name, _: 0.06 if name == "a" else 0.015))
    others = [found[name] for name in "bcd"]
    assert 3.0 < found["a"] / max(others) <= found["a"] / min(others) < 4.2
    assert max(others) / min(others) < 1.1


@pytest.mark.parametrize("noise", [0.05, 0.3, 1.0])
def test_equal_replicas_are_equal(noise: float) -> None:
    """Noise alone makes no replica slower than another by more than a few per cent, however large it is."""
    assert mean_spread(lambda _name, _sample: 0.015, noise=noise) < 1.0 + 0.1 * noise


def test_a_loaded_replica_is_not_slow() -> None:
    """Where the load makes the gaps, the busiest replica has the speed of all, and the law has the load's exponent."""
    speeds = learned(
        lambda _name, sample: 0.01 * sample.load**0.5,
        load=lambda name, rng: rng.uniform(10.0, 40.0) if name == "a" else rng.uniform(1.0, 6.0),
    )
    assert spread(speeds) < 1.1
    law = speeds.law()
    assert law is not None
    assert law.exponent == pytest.approx(0.5, abs=0.1)


def test_a_constant_load_is_no_evidence() -> None:
    """While no replica is seen at two loads, a difference that the loads may explain does not count."""
    gaps_s = {"a": 0.024, "b": 0.01, "c": 0.01, "d": 0.01}
    speeds = learned(lambda name, _: gaps_s[name], load=lambda name, _rng: 12.0 if name == "a" else 2.0)
    assert spread(speeds) < 1.3  # 2.4 without that caution


def test_long_prompts_do_not_make_a_replica_slow() -> None:
    """A replica with the long prompts, for which gaps are longer at every replica, has the speed of all."""

    def prompt(name: str, rng: random.Random) -> float:
        return rng.lognormvariate(9.0 if name == "a" else 7.0, 1.0)

    assert mean_spread(lambda _name, sample: 0.01 * (1.0 + sample.prompt_tokens / 10_000), prompt=prompt) < 1.1


def test_answers_of_their_own_time_do_not_make_a_replica_slow() -> None:
    """Time per token that is small where an answer is long has no part in the differences between replicas."""
    assert mean_spread(lambda _name, sample: 5.0 / sample.tokens, noise=0.7) < 1.1


def test_two_answers_show_a_change() -> None:
    """After two answers of six times the gap a replica is slow, and after two of the usual gap it is not."""
    speeds = learned(lambda _name, _sample: 0.015)
    for gap_s, is_slow in [(0.09, True), (0.015, False)]:
        for number in range(2):
            speeds.add("a", StreamSample(100 * gap_s, 100, 3.0, 600.0), 50.0 + number + 100 * (not is_slow))
        assert (slownesses(speeds)["a"] > 3.0) is is_slow


def test_one_usual_answer_ends_a_spell_of_a_replica_that_is_avoided() -> None:
    """A slow replica with an answer every five seconds is as quick as others after one answer of the usual gap."""
    speeds = learned(lambda _name, _sample: 0.015)
    for at_s in (50.0, 51.0, 56.0, 61.0):
        speeds.add("a", StreamSample(9.0, 100, 3.0, 600.0), at_s)
    assert slownesses(speeds)["a"] > 3.0
    speeds.add("a", StreamSample(1.5, 100, 3.0, 600.0), 66.0)
    assert slownesses(speeds)["a"] < 1.1


def test_one_late_answer_is_no_change() -> None:
    """A single answer of ten times the gap, between usual ones, moves its replica by a few per cent at most."""
    speeds = learned(lambda _name, _sample: 0.015)
    speeds.add("a", StreamSample(15.0, 100, 3.0, 600.0), 50.0)
    assert slownesses(speeds)["a"] < 1.1


def test_answers_of_one_moment_count_as_little_more_than_one() -> None:
    """Twenty slow answers that end together are no better evidence than a few."""
    speeds = learned(lambda _name, _sample: 0.015, count=100)
    for _ in range(20):
        speeds.add("e", StreamSample(3.0, 100, 3.0, 600.0), 10.0)
    assert 1.2 < slownesses(speeds)["e"] < 1.85  # 2 is the truth


def test_an_answer_in_one_piece_has_no_gaps() -> None:
    """Answers that arrive in one read are quick, not an error."""
    found = slownesses(learned(lambda name, _: 0.0 if name == "a" else 0.015))
    assert found["a"] < 0.2 * found["b"]


def test_one_replica_is_compared_with_none() -> None:
    """A pool with the answers of one replica only has no law; a replica that is gone is forgotten."""
    speeds = DecodeSpeeds()
    for number in range(40):
        speeds.add("a", StreamSample(1.5, 100, 3.0, 600.0), number)
    assert speeds.law() is None
    assert speeds.gaps_s == {"a": pytest.approx(0.015)}
    speeds.forget_others(["b"])
    assert speeds.gaps_s == {}


LAW = DecodeLaw(3.0, 200.0, 4.0, 0.5, {"a": 2.0, "b": 0.5}, {"a": 4.0, "b": 4.0, "c": 4.0})


@pytest.mark.parametrize(
    ("name", "load", "tokens_max", "expected_s"),
    [
        ("c", 4, None, 3.0),
        ("a", 4, None, 6.0),
        ("c", 16, None, 6.0),
        ("c", 4, 100, 1.5),
        ("c", 4, 1_000, 3.0),
        ("b", 4, None, 1.5),
        ("b", 6, None, 2.25 * 1.5**0.5),  # one and a half times the load at which it was seen quick
        ("b", 16, None, 6.0),  # four times that load: no quicker than the pool
        ("a", 10, None, 6.0 * 2.5**0.5),
    ],
)
def test_the_time_of_an_answer(name: str, load: int, tokens_max: int | None, expected_s: float) -> None:
    """The time grows with slowness and load, an advantage is lost beyond the loads seen, and a limit shortens it."""
    assert LAW.answer_s(name, load, tokens_max) == pytest.approx(expected_s)
