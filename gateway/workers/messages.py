"""Messages between the processes of a gateway: the top process, the supervisor and the workers.

Units: seconds.
"""

import msgspec

from gateway.config.settings import LimitSettings, Settings
from gateway.observe.instruments import Dump
from gateway.observe.process import ProcessValue
from gateway.observe.state import AdmissionState, PoolState
from gateway.observe.usage import UsageDump
from gateway.process_events import ConfigReloaded, ReplicaSwitched
from gateway.proof.tally import Tally
from gateway.server.credentials.keepers import TokenState
from gateway.server.learned_state import Restored
from gateway.workers.packing import PackedSettings
from ttft_gateway.credentials.sources import Source
from ttft_gateway.pool.learned import LearnedModel


def share_of(settings: Settings, workers: int) -> Settings:
    """Return the settings of one worker: its part of the memory for request bodies, at least one body."""
    limits = settings.limits
    part_bytes = max(limits.request_body_max_bytes, limits.buffered_bodies_max_bytes // workers)
    own: dict[str, LimitSettings] = {"limits": limits.model_copy(update={"buffered_bodies_max_bytes": part_bytes})}
    return settings.model_copy(update={**own, "learned_file": None})


class TokenChange(msgspec.Struct):
    """Another state of a token."""

    source: Source
    state: TokenState


class TokenRejected(msgspec.Struct):
    """An upstream has rejected a token, in a request that was sent `ago_s` before."""

    source: Source
    ago_s: float


class Begin(msgspec.Struct):
    """State with which a worker begins.

    Attributes:
        settings: settings of the gateway, with the replicas found at run time last.
        off: models with hedging switched off.
        out: models and names of replicas that are taken out.
        learned: learned state to begin with.
        learned_age_s: time since the state was recorded.
        feed: True if events are sent to the supervisor.
        tokens: tokens in use.
    """

    settings: PackedSettings
    off: list[str]
    out: list[tuple[str, str]]
    learned: dict[str, LearnedModel]
    learned_age_s: float
    feed: bool
    tokens: list[TokenChange] = []


class Ready(msgspec.Struct):
    """A worker serves from now on.

    Attributes:
        restored: result of restoring the learned state; None without a state.
    """

    restored: Restored | None


class Counts(msgspec.Struct):
    """Everything that a worker has counted, or a part; `proof` has the savings of hedging by model."""

    instruments: Dump
    usage: UsageDump
    proof: dict[str, Tally] = {}


class WorkerScrape(msgspec.Struct, omit_defaults=True):
    """The values of a worker for one scrape, besides its counts, or a part of them."""

    pools: list[PoolState] = []
    admission: AdmissionState = AdmissionState()
    process: list[ProcessValue] = []


class Describe(msgspec.Struct):
    """Question for the state of a model, with estimates at these quantiles."""

    model: str
    quantiles: list[float]


class SwitchHedging(msgspec.Struct):
    """Hedging of a model, or of every model if None, is on or off.

    Attributes:
        publisher: number of the worker that passes the switch on to the other hosts; 0 for none.
    """

    model: str | None
    on: bool
    publisher: int = 0


class SwitchReplica(msgspec.Struct):
    """A replica of a model, or of every model if None, is out or in."""

    replica: str
    model: str | None
    out: bool


class SwitchReplicaDone(msgspec.Struct):
    """The result of switching a replica.

    Attributes:
        switched: changes.
        error: name of the error class; "" if there was none.
        message: message of the error.
    """

    switched: list[ReplicaSwitched] = []
    error: str = ""
    message: str = ""


class Prepared(msgspec.Struct):
    """The result of preparing a reload; `fault` is None if it can be used."""

    fault: str | None = None


class Committed(msgspec.Struct):
    """The result of a reload: its event, and replicas that were taken in again."""

    reloaded: ConfigReloaded
    switched: list[ReplicaSwitched]


class WorkerEnded(msgspec.Struct):
    """The last message of a worker.

    Attributes:
        cut: number of requests that were ended with an error.
        counts: everything that it has counted: parts, encoded.
        learned: its learned state: a dictionary of `LearnedModel`, encoded.
    """

    cut: int
    counts: list[bytes]
    learned: bytes


class GroupState(msgspec.Struct):
    """State with which a new supervisor carries on; the top process keeps it in memory.

    Attributes:
        settings: settings without replicas found at run time, and settings in force.
        hedging: switches of hedging, by model.
        out: models and names of replicas that are taken out.
        tokens: tokens in use.
        dead: counts of workers that have ended: parts, encoded.
        restarts: number of workers that were replaced.
    """

    settings: PackedSettings
    hedging: dict[str, bool]
    out: list[tuple[str, str]]
    tokens: list[TokenChange]
    dead: list[bytes]
    restarts: int


class ToSupervisor(msgspec.Struct, omit_defaults=True):
    """A message of the top process; exactly one of the groups is set.

    Attributes:
        worker, process: number and process id of a worker; the socket of its channel comes with the message.
        ended, reason: process id of a worker that has ended, and the reason.
        hung: process id of a worker that does not answer.
        answers: process id of a worker that answers again.
        signal: number of a received signal.
        is_replaced: True once a new process has the addresses.
    """

    worker: int = 0
    process: int = 0
    ended: int = 0
    reason: str = ""
    hung: int = 0
    answers: int = 0
    signal: int = 0
    is_replaced: bool = False


class ToWorker(msgspec.Struct, omit_defaults=True):
    """A message of the top process: the socket that comes with it is the channel to a supervisor.

    Attributes:
        is_stopping: True, without a socket, if the gateway stops without a supervisor.
    """

    is_stopping: bool = False


class ToTop(msgspec.Struct, omit_defaults=True):
    """A message of the supervisor to the top process.

    Attributes:
        ready: process id of a worker that serves.
        is_state: True if a descriptor of the present `GroupState` comes with the message.
        notify: state for the service manager.
        stopping_s: maximum time until all processes have ended; None unless the gateway stops.
        is_closed: True if no connection is accepted any more.
    """

    ready: int = 0
    is_state: bool = False
    notify: str = ""
    stopping_s: float | None = None
    is_closed: bool = False
