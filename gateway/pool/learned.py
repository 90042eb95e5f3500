"""The learned state of models as plain values: what a gateway keeps over a restart. Pure.

Owns the document (`Learned`) and the rules by which a pool takes its part of it: the replica has the same name and
source, and the newest sample is at most a day old. The state of the parts belongs to their modules: windows, predictor,
token scale, learning. Budgets, breakers, quotas and cool-downs are not kept. The document contains no prompt, no key
and no header.

Units: seconds; `saved_s` is wall time, everything else is relative to it.
"""

from collections.abc import Iterator
from typing import Annotated, Final, Literal

import msgspec

from gateway.estimation.first_token import FirstTokenState
from gateway.estimation.tokens import TokenScaleState
from gateway.pool.learning import LearningState, ReplicaWindows
from gateway.pool.pool import Pool

VERSION: Final = 1  # of the document; another one is not read
AGE_S_MAX: Final = 86_400.0  # models, servers and load change within days; a cold start is then the better guess


class LearnedReplica(msgspec.Struct, frozen=True):
    """The state of one replica.

    Attributes:
        source: `Replica.source`.
        windows: its windows.
    """

    source: str
    windows: ReplicaWindows


class LearnedPool(msgspec.Struct, frozen=True):
    """The state of one pool; replicas by name."""

    first_token: FirstTokenState
    learning: LearningState
    replicas: dict[str, LearnedReplica]


class LearnedModel(msgspec.Struct, frozen=True):
    """The state of one model.

    Attributes:
        tokens: scale of its tokenizer.
        pools: pools by name.
    """

    tokens: TokenScaleState
    pools: dict[str, LearnedPool]


class Learned(msgspec.Struct, frozen=True):
    """The state of all models by name.

    Attributes:
        format: name of the document's format; the first field, so that a file shows it at its start.
        version: version of the format.
        saved_s: wall time of the state.
    """

    format: Literal["ttft-gateway learned state"]
    version: int
    saved_s: Annotated[float, msgspec.Meta(ge=0.0)]
    models: dict[str, LearnedModel]


def learned_pool(pool: Pool, now_s: float) -> Iterator[LearnedPool | None]:
    """Yield a pool's state, after a None for each replica so that the reader can pause between them."""
    replicas = {}
    for replica in pool.replicas:
        replicas[replica.name] = LearnedReplica(replica.source, pool.learning.windows(replica.name, now_s))
        yield None
    yield LearnedPool(pool.first_token.state, pool.learning.state(now_s), replicas)


def restore_pool(pool: Pool, learned: LearnedPool, elapsed_s: float, now_s: float) -> bool:
    """Give a pool the state of replicas with the same name and source; return False if it fits no replica or is old.

    Args:
        elapsed_s: time since the state was recorded.

    Raises:
        ValueError: the state contradicts itself; the pool is unchanged.
    """
    windows = {
        replica.name: recorded.windows
        for replica in pool.replicas
        if (recorded := learned.replicas.get(replica.name)) is not None and recorded.source == replica.source
    }
    ages_s = [window.age_s for each in windows.values() for window in (each.ttft, each.ttfb) if window is not None]
    if not ages_s or (age_s := elapsed_s + min(ages_s)) > AGE_S_MAX:
        return False
    pool.learning.restore(learned.learning, windows, elapsed_s, now_s)
    pool.learning.restored_age_s = age_s
    if pool.first_token.restore(learned.first_token, windows.keys()):
        pool.learning.restart()  # the recorded times are those of another event
    return True
