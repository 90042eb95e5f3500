"""The learned state of models as plain values: the state that a restart preserves. Pure.

Owns the document (`Learned`) and the rules by which a pool takes its part of it: the replica has the same name and
source, and the newest sample is at most a day old. The state of the parts belongs to their modules: windows,
predictor, token scale, learning, waits after a 429. Budgets, breakers and counts of quotas are not stored. The document
contains no prompt, no key and no header.

Units: seconds; `saved_s` is wall time, everything else is relative to it.
"""

from collections.abc import Callable, Iterator
from typing import Annotated, Final, Literal, TypeAlias, TypeVar

import msgspec

from ttft_gateway.estimation.decode import DecodeSpeeds
from ttft_gateway.estimation.first_token import FirstTokenState
from ttft_gateway.estimation.slowness import SLOW_STATE_S_MAX
from ttft_gateway.estimation.stall_detector import LATE_MAX
from ttft_gateway.estimation.tokens import TokenScale, TokenScaleState
from ttft_gateway.estimation.waits import WaitsState
from ttft_gateway.pool.learning import LearningState, ReplicaWindows
from ttft_gateway.pool.pool import Pool
from ttft_gateway.pool.quotas import WaitState
from ttft_gateway.pool.streams import StreamsState

Drop: TypeAlias = Callable[[str, str], object]
"""Receives the name of something that was received and is not used, and the reason."""

FORMAT: Final = "ttft-gateway learned state"
VERSION: Final = 1  # of the document; another one is not read
AGE_S_MAX: Final = 86_400.0  # models, servers and load change within days; a cold start is then the better guess

_T = TypeVar("_T")

_encode = msgspec.json.Encoder().encode


class LearnedReplica(msgspec.Struct, frozen=True):
    """The state of one replica.

    Attributes:
        source: `Replica.source`.
        windows: its windows.
        way: its waits as a way to ask, in a pool that prefers a low bill; None in other pools.
        wait: time after a 429; None without an effect.
        late: consecutive late attempts, three of which make it suspect.
    """

    source: str
    windows: ReplicaWindows
    way: WaitsState | None = None
    wait: WaitState | None = None
    late: Annotated[int, msgspec.Meta(ge=0, le=LATE_MAX)] = 0


class LearnedPool(msgspec.Struct, frozen=True):
    """The state of one pool.

    Attributes:
        replicas: replicas by name.
        gap_s: mean time between two requests; with little traffic, what is learned is remembered for longer.
        streams: speeds after the first token; None before the first stream.
    """

    first_token: FirstTokenState
    learning: LearningState
    replicas: dict[str, LearnedReplica]
    gap_s: Annotated[float, msgspec.Meta(ge=0.0, le=AGE_S_MAX)] = 0.0
    streams: StreamsState | None = None

    @property
    def is_worth_keeping(self) -> bool:
        """True if there are samples, or a replica waits after a 429."""
        return self.learning.contents != 0 or any(each.wait is not None for each in self.replicas.values())


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


class _RawModel(msgspec.Struct):
    tokens: msgspec.Raw
    pools: dict[str, msgspec.Raw]


class _RawLearned(msgspec.Struct):
    saved_s: Annotated[float, msgspec.Meta(ge=0.0)]
    models: dict[str, msgspec.Raw]


def encoded(learned: Learned) -> bytes:
    """Return the document."""
    return _encode(learned)


def decoded(document: bytes, drop: Drop) -> Learned:
    """Return the state of a document, without its damaged parts.

    Args:
        drop: receives the name of each damaged model, pool or token scale, and the reason.

    Raises:
        ValueError: it is no such document.
        RecursionError: the same.
    """
    try:
        return msgspec.json.decode(document, type=Learned)
    except msgspec.ValidationError:
        raw = msgspec.json.decode(document, type=_RawLearned)
    models = {name: model for name, each in raw.models.items() if (model := _model(name, each, drop)) is not None}
    return Learned(FORMAT, VERSION, raw.saved_s, models)


def _model(name: str, raw: msgspec.Raw, drop: Drop) -> LearnedModel | None:
    parts = _part(f"the model {name}", raw, _RawModel, drop)
    if parts is None:
        return None
    tokens = _part(f"the tokens of {name}", parts.tokens, TokenScaleState, drop)
    named = {each: _part(each, pool, LearnedPool, drop) for each, pool in parts.pools.items()}
    pools = {each: pool for each, pool in named.items() if pool is not None}
    return LearnedModel(TokenScale().state if tokens is None else tokens, pools)


def _part(name: str, raw: bytes | msgspec.Raw, kind: type[_T], drop: Drop) -> _T | None:
    try:
        return msgspec.json.decode(raw, type=kind)
    except ValueError as error:
        drop(name, str(error))
        return None


def sound_pool(name: str, pool: LearnedPool, drop: Drop) -> LearnedPool | None:
    """Return a pool's state as a reader of the document gets it; None if it is out of range."""
    return _part(name, _encode(pool), LearnedPool, drop)


def learned_pool(pool: Pool, now_s: float) -> Iterator[LearnedPool | None]:
    """Yield None after each replica, so that the reader can return to the event loop; then yield the pool's state."""
    replicas = {}
    for replica in pool.replicas:
        way = None if pool.bills is None else pool.bills.state(replica.name)
        windows, wait = pool.learning.windows(replica.name, now_s), pool.quotas.state(replica, now_s)
        late = pool.loads.of[replica].stalls.state(now_s)
        replicas[replica.name] = LearnedReplica(replica.source, windows, way, wait, late)
        yield None
    gap_s = min(pool.loads.gap_s, AGE_S_MAX)
    streams = pool.streams.state(now_s)
    yield LearnedPool(pool.first_token.state, pool.learning.state(now_s), replicas, gap_s, streams)


def restore_pool(pool: Pool, learned: LearnedPool, elapsed_s: float, now_s: float) -> bool:
    """Give a pool the state of replicas with the same name and source; return False if it fits no replica or is old.

    Waits after a 429 are kept at any age of the newest sample: each has its own end.

    Args:
        elapsed_s: time since the state was recorded.

    Raises:
        ValueError: the state contradicts itself; the pool has learned nothing.
    """
    windows: dict[str, ReplicaWindows] = {}
    for replica in pool.replicas:
        recorded = learned.replicas.get(replica.name)
        if recorded is not None and recorded.source == replica.source:
            windows[replica.name] = recorded.windows
            if recorded.wait is not None:
                pool.quotas.restore(replica, recorded.wait, elapsed_s, now_s)
    ages_s = [window.age_s for each in windows.values() for window in (each.ttft, each.ttfb) if window is not None]
    if not ages_s or (age_s := elapsed_s + min(ages_s)) > AGE_S_MAX:
        return False
    streams = learned.streams
    speeds = None if streams is None else DecodeSpeeds.restored(streams.speeds, elapsed_s, now_s)
    pool.learning.restore(learned.learning, windows, elapsed_s, now_s)
    if speeds is not None and streams is not None:
        pool.streams.restore(speeds, streams.event_tokens, windows.keys())
    late = {name: learned.replicas[name].late for name in windows} if elapsed_s <= SLOW_STATE_S_MAX else {}
    pool.loads.restore(learned.gap_s, late)
    pool.learning.restored_age_s = age_s
    for name in windows:
        way = learned.replicas[name].way
        if pool.bills is not None and way is not None:
            pool.bills.restore(name, way)
    if pool.first_token.restore(learned.first_token, windows.keys()):
        pool.learning.restart()  # the recorded times belong to another event
    return True
