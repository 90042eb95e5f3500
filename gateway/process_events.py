"""The events of the process as frozen values: configuration, switches, sources of replicas, workers, shared limits.

Part of the events of the core (events.py). Units: seconds (`at_s` on the loop's clock), tokens.
"""

import msgspec


class HedgingSwitched(msgspec.Struct, frozen=True):
    """A use of the on-call switch; `model` is None for all models."""

    at_s: float
    model: str | None
    on: bool


class ReplicaSwitched(msgspec.Struct, frozen=True):
    """A replica was taken out, or in again."""

    at_s: float
    model: str
    replica: str
    out: bool


class ReplicasFound(msgspec.Struct, frozen=True):
    """A source (`discover`) added replicas to a pool, or removed some.

    Attributes:
        source: name of the source.
        added: names of new replicas, at most 20.
        removed: names of removed replicas, at most 20.
        replicas: number of the source's replicas from now on.
    """

    at_s: float
    model: str
    pool: str
    source: str
    added: tuple[str, ...]
    removed: tuple[str, ...]
    replicas: int


class DiscoveryChanged(msgspec.Struct, frozen=True):
    """Answers of a source (`discover`) began to be unusable, or are used again.

    Attributes:
        source: name of the source.
        replicas: number of its replicas, which stay in use.
        error: state of the answer; None if answers are used again.
    """

    at_s: float
    model: str
    pool: str
    source: str
    replicas: int
    error: str | None = None


class KeysChanged(msgspec.Struct, frozen=True):
    """The list of keys (`keys_from`) has changed, or began to be unusable.

    Attributes:
        path: the file or directory.
        keys: number of keys in force.
        changed: number of new and changed keys.
        removed: number of removed keys, which are rejected from now on.
        error: why the list is not in force, and the keys before are; None if it is.
    """

    at_s: float
    path: str
    keys: int
    changed: int
    removed: int
    error: str | None = None


class CredentialChanged(msgspec.Struct, frozen=True):
    """The renewal of a token began to fail, works again, or the token has ended.

    Attributes:
        source: name of the source of the token.
        left_s: time until the end of the token in use; 0 after it: its replicas are out.
        error: reason of the failure; None if a token was fetched. Contains no token.
    """

    at_s: float
    source: str
    left_s: float
    error: str | None = None


class ConfigReloaded(msgspec.Struct, frozen=True):
    """A reload of the configuration; with an error nothing has changed.

    Attributes:
        models: number of models served now.
        kept: number of unchanged replicas, of which the learned state remains.
        new: number of other replicas.
        rekeyed: number of unchanged replicas that got another key.
        error: reason for the rejection; None if the reload succeeded. Contains no secret.
    """

    at_s: float
    models: int
    kept: int
    new: int
    error: str | None = None
    rekeyed: int = 0


class LearnedRestored(msgspec.Struct, frozen=True):
    """The start with the state of an earlier run.

    Attributes:
        file: path of the file.
        age_s: time since it was written.
        pools: number of pools with restored state.
        cold: number of other pools.
    """

    at_s: float
    file: str
    age_s: float
    pools: int
    cold: int


class LearnedFileFailed(msgspec.Struct, frozen=True):
    """A failure to read the file of learned state, or the first of consecutive failures to write it.

    Attributes:
        file: path of the file.
        error: state of the file and the action to take.
    """

    at_s: float
    file: str
    error: str


class StateDropped(msgspec.Struct, frozen=True):
    """Something that the process has received, read or described is damaged, and is not used; the first of its name.

    Attributes:
        source: "share" for other gateways, "learned_file", "worker" or "pool" for the description of a pool.
        name: name of the part.
        reason: damage.
    """

    at_s: float
    source: str
    name: str
    reason: str


class AcceptingChanged(msgspec.Struct, frozen=True):
    """Accepting client connections began to fail, or works again.

    Attributes:
        address: address that the gateway listens on.
        accepting: False while accepting fails.
        error: reason of the failure; None if accepting works again.
    """

    at_s: float
    address: str
    accepting: bool
    error: str | None = None


class WorkerChanged(msgspec.Struct, frozen=True):
    """A worker began or ended to serve requests.

    Attributes:
        worker: number of the worker, from 1.
        process: id of its process.
        ready: True if it serves requests.
        reason: reason of its end; None if it serves.
    """

    at_s: float
    worker: int
    process: int
    ready: bool
    reason: str | None = None


class HealthChanged(msgspec.Struct, frozen=True):
    """The verdict on the gateway has other troubles than before.

    Attributes:
        state: "well", "degraded" or "failing".
        sentence: the most harmful trouble; "well" if there is none.
        alerts: names of the alerts of all troubles.
    """

    at_s: float
    state: str
    sentence: str
    alerts: tuple[str, ...]


class ShareAway(msgspec.Struct, frozen=True):
    """The engine of shared limits does not answer any more.

    Attributes:
        processes: number of processes that shared the limits.
        when_away: part of each limit that this process uses now: "share", "alone" or "refuse".
        part: that part as a number, from 0 to 1.
        reason: cause.
    """

    at_s: float
    processes: int
    when_away: str
    part: float
    reason: str


class ShareBack(msgspec.Struct, frozen=True):
    """The engine of shared limits answers again.

    Attributes:
        processes: number of processes that share the limits.
        away_s: time for which it was away.
    """

    at_s: float
    processes: int
    away_s: float


class HedgingMeasured(msgspec.Struct, frozen=True):
    """The direct effect of hedging on one model since the counting began; emitted once an hour while it is measured.

    Attributes:
        hours: length of the counted time.
        measured: requests for which the TTFT without hedging was measured.
        saved_misses, saved_p95_ms, saved_p99_ms, saved_mean_ms: value, low and high end of the 95 % interval; None
            while there is too little data.
        tokens, cost: bill of the attempts that lost; the cost is None without prices.
        missing: sentence on the data that is missing; None if there is enough.
    """

    at_s: float
    model: str
    hours: float
    requests: int
    hedges: int
    measured: int
    saved_misses: tuple[float, float, float] | None
    saved_p95_ms: tuple[float, float, float] | None
    saved_p99_ms: tuple[float, float, float] | None
    saved_mean_ms: tuple[float, float, float] | None
    tokens: int
    cost: float | None
    missing: str | None
