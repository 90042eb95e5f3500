"""Facts that the rules judge: counts of the last minute and states of one moment, of all processes of a gateway.

Plain values without behaviour, so that a rule is a pure function and a case is a table. Units: seconds of the Unix
clock unless noted.
"""

from collections.abc import Iterator, Mapping, Sequence
from typing import Final

import msgspec

from gateway.health.windows import CountSlot, LastAttempt, ModelSlot
from gateway.observe.process import ProcessValue
from gateway.observe.state import DiscoveryState, PoolState, ReplicaState, ShareState

RECENT_S = 60.0  # time that a share or a rate is about
_PART: Final = 16  # models that are judged in one iteration of the event loop, about 1 ms


class ProcessFacts(msgspec.Struct):
    """The part of one process.

    Attributes:
        slots: closed slots that were not collected before.
        last: last attempts of the replicas.
        pools: state of the pools.
        totals: numbers that only rise, by name and label.
        share: exchange with other processes; None without an exchange.
    """

    slots: list[CountSlot] = []
    last: list[LastAttempt] = []
    pools: list[PoolState] = []
    totals: list[tuple[str, str, float]] = []
    share: ShareState | None = None


class WorkersState(msgspec.Struct, frozen=True):
    """The worker processes.

    Attributes:
        configured, ready: numbers of workers.
        late: numbers of the workers that do not answer.
    """

    configured: int = 0
    ready: int = 0
    late: tuple[int, ...] = ()


class Collected(msgspec.Struct):
    """All parts, before they are judged.

    Attributes:
        processes: parts of the processes that serve requests.
        pools: state of the pools, merged.
        share: exchange with other processes, merged.
        values: values of the process that judges.
        discovery: sources of replicas.
        workers: worker processes; None without workers.
    """

    processes: list[ProcessFacts]
    pools: list[PoolState]
    share: ShareState | None = None
    values: Sequence[ProcessValue] = ()
    discovery: Sequence[DiscoveryState] = ()
    workers: WorkersState | None = None


class Note(msgspec.Struct, frozen=True):
    """A rare event that is still of interest: its time, subject and reason."""

    at_s: float
    subject: str
    reason: str


class Facts(msgspec.Struct):
    """Everything that the rules judge.

    Attributes:
        now_s: time of the judgement.
        minute: counts of the last `RECENT_S`.
        half_hour: billed tokens of answers and of lost hedges by model, in half an hour; empty before it is known.
        key_means: mean requests per second by key, before the last minute; empty before ten minutes are known.
        pools: state of the pools.
        last: last attempts by model and replica.
        gained: increase in the last `RECENT_S` of each number that only rises, by name and label.
        up: gauges of the process by name.
        share: exchange with other processes.
        discovery: sources of replicas.
        workers: worker processes; None without workers.
        ended: processes of the gateway that have ended in the last 75 s.
        reload: rejected reload; None after a successful one.
        keys: list of keys that cannot be used; None if it is in force.
        unaccepted: addresses at which connections cannot be accepted, now or in the last minute.
        lost_state: last damage of state, by source.
        file: fault of the learned file.
    """

    now_s: float
    minute: CountSlot = msgspec.field(default_factory=lambda: CountSlot(0))
    half_hour: Mapping[str, tuple[int, int]] = {}
    key_means: Mapping[str, float] = {}
    pools: Sequence[PoolState] = ()
    last: Mapping[tuple[str, str], LastAttempt] = {}
    gained: Mapping[tuple[str, str], float] = {}
    up: Mapping[str, float] = {}
    share: ShareState | None = None
    discovery: Sequence[DiscoveryState] = ()
    workers: WorkersState | None = None
    ended: Sequence[Note] = ()
    reload: Note | None = None
    keys: Note | None = None
    unaccepted: Sequence[Note] = ()
    lost_state: Mapping[str, Note] = {}
    file: Note | None = None

    def model(self, name: str) -> ModelSlot:
        """Return the counts of a model in the last minute."""
        return self.minute.models.get(name) or ModelSlot()

    def last_of(self, model: str, replica: str) -> LastAttempt:
        """Return the last attempts of a replica."""
        return self.last.get((model, replica)) or LastAttempt(model, replica)

    def late(self, model: str) -> dict[str, int]:
        """Return the number of late attempts in a row of each replica that had one."""
        return {replica: last.late for (name, replica), last in self.last.items() if name == model and last.late}

    def parts(self) -> Iterator["Facts"]:
        """Yield the facts about models, of a few models each, so that a reader can return to the event loop."""
        pools: dict[str, list[PoolState]] = {}
        for pool in self.pools:
            pools.setdefault(pool.model, []).append(pool)
        last: dict[str, list[LastAttempt]] = {}
        for each in self.last.values():
            last.setdefault(each.model, []).append(each)
        sources: dict[str, list[DiscoveryState]] = {}
        for source in self.discovery:
            sources.setdefault(source.model, []).append(source)
        models, half_hour = self.minute.models, self.half_hour
        names = list(dict.fromkeys((*pools, *models, *half_hour, *sources)))
        for begin in range(0, len(names), _PART):
            part = names[begin : begin + _PART]
            yield Facts(
                self.now_s,
                CountSlot(self.minute.number, models={name: models[name] for name in part if name in models}),
                {name: half_hour[name] for name in part if name in half_hour},
                pools=[pool for name in part for pool in pools.get(name, ())],
                last={(each.model, each.replica): each for name in part for each in last.get(name, ())},
                discovery=[source for name in part for source in sources.get(name, ())],
            )

    def models(self) -> dict[str, list[ReplicaState]]:
        """Return the replicas of each model, without removed ones."""
        found: dict[str, list[ReplicaState]] = {}
        for pool in self.pools:
            found.setdefault(pool.model, []).extend(each for each in pool.replicas if not each.draining)
        return found
