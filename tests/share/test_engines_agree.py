"""The hub and the functions in a server answer every ask equally."""

import math
from collections.abc import Sequence

from hypothesis import given
from hypothesis import strategies as st

import shared_fixtures
from gateway.share.messages import (
    Ask,
    BucketAsk,
    GaugeAnswer,
    GaugeAsk,
    Reply,
    SliceAsk,
    SlotsAsk,
    SwitchesAsk,
    SwitchState,
)
from share_engines import ServerEngine
from switching_hub import SwitchingHub

server = shared_fixtures.server


def _sorted(segments: list[tuple[float, float, float]]) -> list[float]:
    """Return segments as a report has them: sorted, and without overlaps."""
    ages = sorted((age for from_s, to_s, _ in segments for age in (from_s, to_s)), reverse=True)
    return [
        value
        for place, (_, _, amount) in enumerate(segments)
        for value in (ages[2 * place], ages[2 * place + 1], amount)
    ]


EIGHTHS = st.integers(-40, 800).map(lambda number: number / 8)  # exact in every order of additions
KEYS = st.sampled_from(["k1", "k2"])
NAMES = st.sampled_from(["r1", "r2", "ä \n", "7"])
AGES = st.integers(0, 1000).map(lambda number: number / 8)
EPOCHS = st.sampled_from([0, 1_000_000])
ASKS: st.SearchStrategy[Ask] = st.one_of(
    st.builds(
        BucketAsk,
        key=KEYS,
        amount=st.sampled_from([64.0, 32.0, 16]),
        window_s=st.sampled_from([64.0, 1.0, math.inf]),
        want=EIGHTHS.map(abs),
        least=EIGHTHS.map(abs),
        beyond=EIGHTHS,
        hint=st.none() | EIGHTHS,
        epoch=EPOCHS,
        drained=st.booleans(),
        hint_age_s=st.sampled_from([0.0, 0.125, 3.0, 70.0, 700.0]),
        spent=st.lists(st.tuples(AGES, AGES, EIGHTHS), max_size=4).map(_sorted),
        report=st.integers(0, 2),
    ),
    st.builds(
        SlotsAsk,
        key=KEYS,
        limit=st.integers(1, 6),
        held=st.integers(0, 4),
        want=st.integers(0, 4),
        others=st.none() | st.integers(0, 4),
    ),
    st.builds(
        GaugeAsk,
        key=st.just("k1"),
        rows=st.dictionaries(NAMES, st.lists(st.integers(-3, 2**40), max_size=4), max_size=4),
    ),
    st.builds(
        SliceAsk,
        key=KEYS,
        added=st.dictionaries(NAMES, st.integers(-(2**45), 2**45), max_size=3),
        since=st.sampled_from([0, 500, 501, 502, 9_999]),
    ),
    st.builds(
        SwitchesAsk,
        switches=st.lists(
            st.builds(SwitchState, name=NAMES, value=NAMES, left_s=st.sampled_from([0.5, 4.0, 3600.0])), max_size=3
        ),
        after=st.sampled_from([0, 999_999, 1_000_000, 1_000_002, 2_000_000]),
    ),
)
STEPS = st.lists(
    st.tuples(
        # the server notes a process each 0.5 s: a pause between 1.5 s and 2 s may count as one of the engine, or not
        st.sampled_from([0.0, 0.125, 0.5, 1.5, 4.5, 130.0]),
        st.sampled_from("abc"),
        st.lists(
            ASKS, max_size=4, unique_by=lambda ask: type(ask) if isinstance(ask, GaugeAsk | SliceAsk) else id(ask)
        ),
        st.sampled_from([math.inf, 0.0, -0.125]),
    ),
    max_size=12,
)


@given(STEPS)
def test_the_hub_and_the_server_agree(
    server: ServerEngine, steps: list[tuple[float, str, Sequence[Ask], float]]
) -> None:
    """The same batches at the same times have the same replies, and every key has a TTL."""
    hub, now_s = SwitchingHub(), 1_000.0
    own = [GaugeAsk("k1", {})]  # a process that has a slice has a gauge
    server.lose()
    for wait_s, process, some, life_s in steps:
        now_s += wait_s
        kinds = {type(ask) for ask in some}
        asks = [*some, *own] if SliceAsk in kinds and GaugeAsk not in kinds else some
        expected = hub.answer(now_s, process, asks, now_s + life_s)
        assert _trimmed(server.answer(now_s, process, asks, now_s + life_s)) == _trimmed(expected)
    assert all(ttl > 0 for ttl in server.keys().values()), server.keys()


def _trimmed(reply: Reply) -> Reply:
    """Return a reply without the zeros at the end of sums: zeros of an own row may be left over.

    Versions differ where rows are the same in another order; only a server's batches have a size.
    """
    for place, answer in enumerate(reply.answers):
        if isinstance(answer, GaugeAnswer):
            assert answer.others is not None
            for sums in answer.others.values():
                while not sums[-1]:
                    sums.pop()
            reply.answers[place] = GaugeAnswer(answer.processes, answer.others)
    return Reply(reply.answers, reply.processes, reply.now_s)
