"""Follows the sources of replicas, and puts changed settings in force. Units: seconds of the loop's clock.

One task for each source asks it again and again, or after each change of a Service that is watched. Settings with the
replicas found are built here; a callable applies them, one changed model at a time and at most one in a turn of the
event loop. At a reload of the file `prepare` returns the settings to apply, and `commit` follows the new sources.

A source may fail, or answer with less than there is: a resolver that restarts, a file that is being written. An empty
answer changes nothing. An answer that would remove more than half of the list adds its new replicas immediately, and
removes only those that three such answers in a row lack. What a watch reports is used as it is.
"""

import asyncio
from collections.abc import Awaitable, Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Final, NamedTuple

from gateway.config.discovered import (
    PoolPlace,
    found_rows,
    identity_of,
    name_of,
    pool_name,
    sources,
    with_model,
    with_rows,
)
from gateway.config.settings import DiscoverSettings, Replicas, Settings
from gateway.observe.state import DiscoveryState
from gateway.process_events import DiscoveryChanged, ReplicasFound
from gateway.race.context import Runtime
from gateway.server.discovery.failure import SourceFailed
from gateway.server.discovery.sources import Source, WatchedSource, source_of

_FIRST_S_MAX: Final = 3.0  # a start or a reload waits no longer for an answer
_JITTER: Final = 0.1  # of the interval: the gateways of a fleet do not ask at the same time
_NAMES_MAX: Final = 20  # in an event
_ANSWERS: Final = 3  # in a row that lack a replica, before more than half of a list is removed


class Listing(NamedTuple):
    """The replicas of a source.

    Attributes:
        rows: the replicas in use.
        believed: names of the last answer that was believed.
        rejected: names of the later answers, each of which would remove more than half.
    """

    rows: Replicas = ()
    believed: frozenset[str] = frozenset()
    rejected: tuple[frozenset[str], ...] = ()


_EMPTY: Final = Listing()


@dataclass(eq=False, slots=True)
class _Followed:
    """A source that is asked.

    Attributes:
        listing: its replicas in use.
        fault: state of the last answer if it is not used; None if it is.
        answered_s: time of the last answer that was used; None if there was none.
        is_due: True if it must be asked immediately.
    """

    place: PoolPlace
    discover: DiscoverSettings
    source: Source
    listing: Listing = _EMPTY
    fault: str | None = None
    answered_s: float | None = None
    is_due: bool = True


class FoundSettings(NamedTuple):
    """The settings of a reload.

    Attributes:
        base: settings without replicas found at run time.
        settings: settings to apply.
        followed: their sources.
    """

    base: Settings
    settings: Settings
    followed: Mapping[PoolPlace, _Followed]


class Discovery:
    """The sources of a process.

    Args:
        tasks: owner of the tasks.
        apply: puts settings in force that differ from those in force in one model only, given its name.
        env: environment variables for files.
    """

    def __init__(
        self,
        tasks: asyncio.TaskGroup,
        runtime: Runtime,
        apply: Callable[[Settings, str], Awaitable[object]],
        env: Mapping[str, str],
    ) -> None:
        self._tasks = tasks
        self._runtime = runtime
        self._apply = apply
        self._env = env
        self._in_force: FoundSettings | None = None
        self._asking: list[asyncio.Task[None]] = []
        self._turn = asyncio.Lock()

    def carry_on(self, base: Settings, settings: Settings) -> FoundSettings:
        """Return settings in force, which another process has found; their sources are asked after `commit`."""
        found = self.keep(base)
        for place, followed in found.followed.items():
            followed.listing = Listing(found_rows(base, settings, place))  # the first answer replaces all
        return found._replace(settings=settings)

    def keep(self, base: Settings) -> FoundSettings:
        """Return settings with the replicas found until now; their sources are asked after `commit`."""
        return _prepared(base, {place: self._follow(base, place, each) for place, each in sources(base).items()})

    async def prepare(self, base: Settings) -> FoundSettings:
        """Return settings with the replicas that the sources have now; those without an answer keep the last ones."""
        followed = self.keep(base).followed
        asking = [self._tasks.create_task(self._ask(each)) for each in followed.values()]
        if asking:
            _, late = await asyncio.wait(asking, timeout=_FIRST_S_MAX)
            for task in late:
                task.cancel()
        return _prepared(base, followed)

    def commit(self, prepared: FoundSettings) -> None:
        """Follow the sources of settings that are now in force."""
        self.close()
        self._in_force = prepared
        self._asking = [self._tasks.create_task(self._keep_asking(each)) for each in prepared.followed.values()]

    def close(self) -> None:
        """Ask no more."""
        for task in self._asking:
            task.cancel()
        self._asking = []

    @property
    def base(self) -> Settings | None:
        """The settings in force without replicas found at run time; None before the first `commit`."""
        return None if self._in_force is None else self._in_force.base

    def states(self) -> Iterator[DiscoveryState]:
        """Yield a snapshot of each source."""
        now_s = self._runtime.loop.time()
        for place, each in () if self._in_force is None else self._in_force.followed.items():
            age_s = None if each.answered_s is None else now_s - each.answered_s
            rows = len(each.listing.rows)
            yield DiscoveryState(place.model, pool_name(*place), name_of(each.discover), rows, age_s, each.fault)

    def _follow(self, base: Settings, place: PoolPlace, discover: DiscoverSettings) -> _Followed:
        """Return the source of a pool, with the replicas that the pool has from its source until now."""
        followed = _Followed(place, discover, source_of(discover, base, place, self._env))
        old = None if self._in_force is None else self._in_force.followed.get(place)
        if old is not None:
            followed.fault, followed.answered_s = old.fault, old.answered_s
            is_same = identity_of(old.discover) == identity_of(discover)
            followed.listing = old.listing if is_same else Listing(old.listing.rows)  # the first answer replaces all
        return followed

    async def _keep_asking(self, followed: _Followed) -> None:
        """Use each answer of a source."""
        if followed.is_due:
            await self._use(followed)
        while True:
            try:
                if isinstance(followed.source, WatchedSource):
                    await followed.source.follow(lambda: self._use(followed), self._runtime.rand)
            except Exception as error:  # a bug must not stop the gateway
                self._runtime.report("discovery", error)
            spread = 1 + _JITTER * (2 * self._runtime.rand() - 1)
            await asyncio.sleep(followed.discover.every_s * spread)
            await self._use(followed)

    async def _use(self, followed: _Followed) -> bool:
        """Ask a source, and put its answer in force; return False if that has failed."""
        before = followed.listing
        await self._ask(followed)
        if _same(before.rows, followed.listing.rows):
            return True
        async with self._turn:
            await self._put_in_force(followed, before)
            await asyncio.sleep(0)
        return followed.listing is not before

    async def _ask(self, followed: _Followed) -> None:
        """Ask a source once; raises nothing."""
        fault: str | None
        try:
            answer = await followed.source.ask()
            rule = exactly if isinstance(followed.source, WatchedSource) else after
            listing, fault = rule(followed.listing, answer)
        except SourceFailed as error:
            listing, fault = followed.listing, str(error)
        except Exception as error:  # a bug must not stop the gateway
            self._runtime.report("discovery", error)
            listing, fault = followed.listing, "the look-up failed with an internal error"
        now_s = self._runtime.loop.time()
        followed.listing, followed.is_due = listing, False
        if fault is None:
            followed.answered_s = now_s
        if (fault is None) is not (followed.fault is None):
            place, source = followed.place, name_of(followed.discover)
            rows = len(listing.rows)
            self._runtime.emit(DiscoveryChanged(now_s, place.model, pool_name(*place), source, rows, fault))
        followed.fault = fault

    async def _put_in_force(self, followed: _Followed, before: Listing) -> None:
        old, place = self._in_force, followed.place
        if old is None or old.followed.get(place) is not followed:  # replaced by a reload
            return
        rows = {each: other.listing.rows for each, other in old.followed.items() if each.model == place.model}
        settings = with_model(old.settings, old.base, place.model, rows)
        try:
            await self._apply(settings, place.model)
        except Exception as error:  # a bug must not stop the gateway
            self._runtime.report("discovery", error)
            followed.listing = before
            return
        self._in_force = old._replace(settings=settings)
        self._runtime.emit(_change(self._runtime.loop.time(), followed, before.rows))


def _prepared(base: Settings, followed: Mapping[PoolPlace, _Followed]) -> FoundSettings:
    rows = {place: each.listing.rows for place, each in followed.items()}
    return FoundSettings(base, with_rows(base, rows), followed)


def _change(now_s: float, followed: _Followed, before: Replicas) -> ReplicasFound:
    was = {row.name for row in before}
    names = {row.name for row in followed.listing.rows}
    added, removed = (tuple(sorted(each)[:_NAMES_MAX]) for each in (names - was, was - names))
    place, source = followed.place, name_of(followed.discover)
    return ReplicasFound(now_s, place.model, pool_name(*place), source, added, removed, len(names))


def _same(rows: Replicas, others: Replicas) -> bool:
    return len(rows) == len(others) and all(row is other for row, other in zip(rows, others, strict=True))


def after(listing: Listing, answer: Replicas) -> tuple[Listing, str | None]:
    """Return the list after an answer, and the state of an answer that is not believed; None if it is."""
    if not answer:
        return listing, "the answer is empty"
    names = frozenset(row.name for row in answer)
    missing = listing.believed - names
    if 2 * len(missing) <= len(listing.believed):
        return Listing(answer, names), None
    rejected = (*listing.rejected, names)
    if len(rejected) >= _ANSWERS:
        rows = (*answer, *_missing(listing.rows, names, frozenset().union(*rejected)))
        return Listing(rows, frozenset(row.name for row in rows)), None
    rows = (*answer, *_missing(listing.rows, names, listing.believed.union(*rejected)))
    lack = f"the answer lacks {len(missing)} of {len(listing.believed)} replicas"
    return Listing(rows, listing.believed, rejected), lack


def exactly(_: Listing, answer: Replicas) -> tuple[Listing, str | None]:
    """Return the list of a source that is never incomplete, and its state without replicas."""
    return Listing(answer, frozenset(row.name for row in answer)), None if answer else "no pod is ready"


def _missing(rows: Replicas, names: frozenset[str], kept: frozenset[str]) -> Replicas:
    return tuple(row for row in rows if row.name not in names and row.name in kept)
