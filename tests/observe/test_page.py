"""The bounded scrape: short, with right sums and rates, and with everything that is in trouble by its name."""

import asyncio
import contextlib
import re
from collections import defaultdict
from collections.abc import Mapping, Sequence
from typing import Final

from msgspec.structs import replace

from gateway.observe.metrics import Metrics, Scrape
from gateway.observe.page import Page
from gateway.observe.process import ProcessValue
from gateway.observe.state import AdmissionState, DiscoveryState, ModelAdmission, PoolState, ReplicaState
from hot_path import counted
from running import run_virtual
from sample_events import EVENTS, PRIMARY, REQUEST
from scrapes import rendered

MODELS, REPLICAS = 20, "abc"
BYTES_MAX = 120_000
_MODEL, _REPLICA = "gen_ai_request_model", "replica"

Series = Mapping[str, float]
"""Values by name and labels as they are on the page."""


def _name(number: int) -> str:
    return f"model-{number:03}"


class _Fleet:
    """Metrics of a fleet, and its page.

    Attributes:
        troubled: changed states of replicas.
        metrics: counters and histograms.
        page: the page.
    """

    def __init__(self, bytes_max: int = BYTES_MAX, models: int = MODELS) -> None:
        self.troubled: dict[tuple[str, str], ReplicaState] = {}
        self._names = [_name(number) for number in range(models)]
        self.metrics = Metrics(lambda: map(self._pool, self._names))
        self.page = Page(bytes_max)

    def _pool(self, model: str) -> PoolState:
        usual = ReplicaState("", 2, "closed")
        states = (self.troubled.get((model, name), usual) for name in REPLICAS)
        replicas = tuple(replace(state, replica=name) for state, name in zip(states, REPLICAS, strict=True))
        return PoolState(model, model, "adaptive", True, 1.0, 4.0, replicas)

    def use(self, model: str, replica: str = "a", count: int = 1) -> None:
        """Count requests."""
        self.metrics.on_events([replace(REQUEST, model=model, attempts=(replace(PRIMARY, replica=replica),))] * count)

    async def scrapes(self) -> tuple[Series, Series]:
        """Return a scrape with the page's bound, and one of the same moment without."""
        scrape = await self.metrics.scrape()
        bounded = await self.page.bounded(scrape)
        return await _series(bounded), await _series(scrape)


async def _series(scrape: Scrape) -> Series:
    lines = (line for line in (await rendered(scrape)).decode().splitlines() if not line.startswith("#"))
    return {name: float(value) for name, _, value in (line.rpartition(" ") for line in lines)}


def _label(series: str, name: str) -> str:
    found = re.search(rf'[{{,]{name}="([^"]*)"', series)
    return found[1] if found else ""


def _of(series: Series, name: str) -> list[str]:
    return [each for each in series if each.partition("{")[0] == name]


def _sums(series: Series) -> dict[tuple[str, str], float]:
    """Return the sum of each counter, and of each bucket of a histogram, over models and replicas."""
    sums: defaultdict[tuple[str, str], float] = defaultdict(float)
    for key, value in series.items():
        name = key.partition("{")[0]
        if name.endswith(("_total", "_bucket", "_count", "_sum", "_in_flight")) and not name.startswith("process_"):
            sums[name, _label(key, "le")] += value
    return {key: round(value, 6) for key, value in sums.items()}


def _named(series: Series) -> set[tuple[str, str]]:
    """Return the replicas that are named in the counts of attempts."""
    return {(_label(each, _MODEL), _label(each, _REPLICA)) for each in _of(series, "ttft_gateway_attempts_total")}


def _increases(before: Series, after: Series) -> float:
    """Return what Prometheus would count: no increase by a first sample, and a smaller sample is a new beginning."""
    total = 0.0
    for key, value in after.items():
        if key.startswith("ttft_gateway_attempts_total{") and key in before:
            total += value - before[key] if value >= before[key] else value
    return total


def test_a_short_page_stays_as_it_is() -> None:
    """Nothing is added up while every name has its place."""
    fleet = _Fleet(2_000_000)
    for number in range(MODELS):
        fleet.use(_name(number))
    bounded, full = run_virtual(fleet.scrapes())
    assert bounded == full


def test_a_long_page_is_short_and_its_sums_are_right() -> None:
    """Every counter, bucket and number under way has the same sum; the busiest are named, with their models."""
    fleet = _Fleet()
    for number in range(MODELS):
        for replica in REPLICAS:
            fleet.use(_name(number), replica, 1 + number)
    bounded, full = run_virtual(fleet.scrapes())
    assert _sums(bounded) == _sums(full)
    assert len(bounded) < len(full) / 4
    named = _named(bounded) - {("_OTHER", "_OTHER")}
    assert (_name(MODELS - 1), "a") in named
    assert (_name(0), "a") not in named
    gauges = {_label(each, _MODEL) for each in _of(bounded, "ttft_gateway_breaker_state")}
    assert gauges == {model for model, _ in named}


def test_requests_keep_the_names_of_more_models() -> None:
    """The counts of requests, of which the shares of failures are made, name more models than other counts."""
    fleet = _Fleet()
    for number in range(MODELS):
        fleet.use(_name(number))
    bounded, _ = run_virtual(fleet.scrapes())
    by_requests, by_times = (
        {_label(each, _MODEL) for each in _of(bounded, wanted)}
        for wanted in ("ttft_gateway_requests_total", "gen_ai_server_time_to_first_token_seconds_count")
    )
    assert len(by_requests) > 2 * len(by_times)


_TROUBLES: Final = (
    ReplicaState("", 0, "open"),
    ReplicaState("", 0, "closed", suspect=True),
    ReplicaState("", 0, "closed", out=True),
    ReplicaState("", 0, "closed", locked="misconfigured"),
    ReplicaState("", 0, "closed", level=3.0),
)


def test_a_replica_in_trouble_is_named() -> None:
    """It is named at once, with its gauges, and no increment is counted twice or lost."""
    fleet = _Fleet()
    troubled = [(_name(MODELS - 7 + number), "c") for number in range(len(_TROUBLES))]

    async def played() -> None:
        for number in range(MODELS):
            fleet.use(_name(number), "c")
        before, _ = await fleet.scrapes()
        assert _named(before).isdisjoint(troubled)
        fleet.troubled = dict(zip(troubled, _TROUBLES, strict=True))
        fleet.use(*troubled[0], 5)
        middle, full = await fleet.scrapes()
        gauges = {(_label(each, _MODEL), _label(each, _REPLICA)) for each in _of(middle, "ttft_gateway_breaker_state")}
        assert gauges >= {*troubled}
        assert _increases(before, middle) == 5
        assert _sums(middle) == _sums(full)
        fleet.use(*troubled[0], 3)
        fleet.use(_name(0), "c", 2)
        after, full = await fleet.scrapes()
        assert _named(after) >= {*troubled}
        assert _increases(middle, after) == 5
        assert _sums(after) == _sums(full)

    run_virtual(played())


def test_more_troubles_than_places() -> None:
    """If every replica is in trouble, the page is as short as ever; places go to those that are in trouble now."""
    fleet = _Fleet()

    async def named() -> set[tuple[str, str]]:
        return _named((await fleet.scrapes())[0])

    async def played() -> None:
        for number in range(MODELS):
            for replica in REPLICAS:
                fleet.use(_name(number), replica)
        without = await named()
        for number in range(MODELS):
            fleet.troubled |= {(_name(number), name): ReplicaState("", 0, "open") for name in REPLICAS}
        assert len(await named()) <= len(without) + 51
        fleet.troubled = {(_name(MODELS - 1), "c"): ReplicaState("", 0, "open")}
        assert (_name(MODELS - 1), "c") in await named()

    run_virtual(played())


def test_names_are_chosen_again() -> None:
    """After an hour the replicas that are busy now are named; rates stay right."""
    fleet = _Fleet()

    async def played() -> None:
        for number in range(MODELS):
            fleet.use(_name(number), count=2 * MODELS - number)
        before, _ = await fleet.scrapes()
        busy = _name(MODELS - 1), "a"
        assert busy not in _named(before)
        fleet.use(*busy, 500)
        middle, _ = await fleet.scrapes()
        assert busy not in _named(middle)
        assert _increases(before, middle) == 500
        await asyncio.sleep(3601.0)
        fleet.use(*busy, 7)
        chosen, _ = await fleet.scrapes()
        assert busy in _named(chosen)
        assert _increases(middle, chosen) == 7
        fleet.use(*busy, 9)
        after, _ = await fleet.scrapes()
        assert _increases(chosen, after) == 9

    run_virtual(played())


def test_queues_and_sources() -> None:
    """Queues of models without a name are added up, the longest named; a source is shown if it fails."""
    fleet = _Fleet()

    async def shown() -> Scrape:
        for number in range(MODELS):
            for replica in REPLICAS:
                fleet.use(_name(number), replica, 1 + number)
        scrape = await fleet.metrics.scrape()
        queues = [ModelAdmission(_name(number), 4, 1, 3 if number == 5 else 0, 9, {}) for number in range(MODELS)]
        sources = [DiscoveryState(_name(n), _name(n), "dns x", 1, 0.1, "empty" if n == 6 else None) for n in range(10)]
        return await fleet.page.bounded(
            scrape._replace(admission=AdmissionState(tuple(queues)), discovery=sources, process=_PROCESS)
        )

    scrape = run_virtual(shown())
    models = {each.model: each for each in scrape.admission.models}
    assert sum(each.in_flight for each in models.values()) == MODELS
    assert (models[_name(5)].waiting, models["_OTHER"].waiting) == (3, 0)
    assert [each.model for each in scrape.discovery] == [_name(6)]
    assert [(each.value, dict(each.labels)) for each in scrape.process] == [
        (3.0, {}),
        (7.0, {_MODEL: "_OTHER", "group": "same"}),
        (1.0, {_MODEL: _name(3), "alert": "TtftModelDown"}),
    ]


_PROCESS: Sequence[ProcessValue] = [
    ProcessValue("process_cpu_seconds", "", "counter", 3.0),
    *(
        ProcessValue("proof", "", "counter", value, {_MODEL: _name(number), "group": "same"})
        for number, value in enumerate((3.0, 4.0))
    ),
    ProcessValue("ttft_gateway_trouble", "", "gauge", 1.0, {_MODEL: _name(3), "alert": "TtftModelDown"}),
]


def test_every_metric_has_its_sum() -> None:
    """No kind of event has a counter or a histogram that is lost on a bounded page."""
    fleet = _Fleet()
    fleet.metrics.on_events(EVENTS)
    for number in range(MODELS):
        fleet.use(_name(number), "a")
        fleet.use(_name(number), "b")
    bounded, full = run_virtual(fleet.scrapes())
    assert _sums(bounded) == _sums(full)


def test_names_are_chosen_once_the_pools_are_known() -> None:
    """A scrape in which no worker has answered in time leaves no page without names."""
    fleet = _Fleet()
    for number in range(MODELS):
        fleet.use(_name(number), count=number + 1)

    async def main() -> set[tuple[str, str]]:
        await fleet.page.bounded((await fleet.metrics.scrape())._replace(pools=[]))
        return _named((await fleet.scrapes())[0])

    assert (_name(MODELS - 1), "a") in run_virtual(main())


def test_a_page_is_made_in_slices() -> None:
    """Between two turns of the loop it makes a bounded number of calls, also after another choice of names."""
    fleet = _Fleet(models=200)
    for number in range(200):
        for replica in REPLICAS:
            fleet.use(_name(number), replica)

    async def main() -> list[int]:
        scrape = await fleet.metrics.scrape()
        await fleet.page.bounded(scrape._replace(pools=[]))
        page, calls = fleet.page.bounded(scrape), []
        with contextlib.suppress(StopIteration):
            while True:
                with counted() as counts:
                    page.send(None)
                calls.append(counts.calls)
        return calls

    assert max(run_virtual(main())) < 3000


def test_a_sum_of_processes_is_discarded_once_it_is_written() -> None:
    """Its series would otherwise be freed all at once; the counters of a process stay."""
    fleet = _Fleet()
    fleet.use(_name(0))

    async def main() -> list[tuple[int, int]]:
        scrape = await fleet.metrics.scrape()
        attempts, left = scrape.instruments.attempts, []
        for is_sum in (False, True):
            text = await rendered(scrape._replace(is_sum=is_sum))
            left.append((text.count(b"\nttft_gateway_attempts_total{"), attempts.count))
        return left

    assert run_virtual(main()) == [(1, 1), (1, 0)]
