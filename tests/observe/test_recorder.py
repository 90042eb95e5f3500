"""A bug of the recorder costs the events with the same labels, not the other events of the batch."""

from typing import cast

import pytest
from msgspec.structs import replace

from gateway.events import PreviousKeyUsed
from gateway.observe.instruments import Instruments
from gateway.observe.recorder import Recorder
from gateway.observe.usage import UsageTable
from sample_events import REQUEST
from ttft_gateway.apis.base import Api

BUG = replace(REQUEST, api=cast("Api", "unknown"), model="another")


@pytest.mark.parametrize("count", [10, 300])
def test_a_bug_costs_no_other_event_and_no_reader(count: int) -> None:
    """Usage and metrics have every other request; the exception is raised to the hub, which reports it."""
    instruments, usage = Instruments(), UsageTable()
    recorder = Recorder(instruments, usage)
    try:
        recorder.on_events([BUG, *[REQUEST] * count])
        usage.report()
        recorder.on_events([])
    except KeyError:
        pass
    else:
        pytest.fail("the bug was not reported")
    assert [row[-1] for row in usage.dump().requests] == [count]
    assert sum(series.value for series in instruments.requests.all()) == count


def test_unlike_events_are_counted_soon() -> None:
    """Requests of many models, each of which takes the time of many alike ones, do not wait for a full batch."""
    instruments = Instruments()
    recorder = Recorder(instruments, UsageTable())
    instruments.before_read = bool  # a reader would count what waits
    for number in range(100):
        recorder.on_events([REQUEST, replace(REQUEST, model=f"m{number}")])
    counted = sum(series.value for series in instruments.requests.all())
    assert 190 < counted < 200


def test_previous_keys_have_a_bounded_number_of_series() -> None:
    """While the secrets of a very long list of keys are replaced, further keys are counted together."""
    instruments = Instruments()
    recorder = Recorder(instruments, UsageTable())
    recorder.on_events([PreviousKeyUsed(0.0, f"key-{number % 5_000}") for number in range(10_000)])
    instruments.before_read()
    series = {values: each.value for values, each in instruments.previous_keys.items()}
    assert len(series) == 1_001
    assert series["_OTHER",] == 8_000
    assert series["key-0",] == 2


def test_to_forget_a_replica_costs_the_same_among_many() -> None:
    """The series of other replicas are not visited."""

    class Name(str):
        """A name that counts how often it is looked up."""

        __slots__ = ()
        looked_up = 0

        def __hash__(self) -> int:
            Name.looked_up += 1
            return super().__hash__()

    def cost(models: int) -> int:
        recorder = Recorder(Instruments(), UsageTable())
        for number in range(models):
            recorder.on_events([replace(REQUEST, model=Name(f"m{number}"))])
        recorder.forget("m0", "not here")
        Name.looked_up = 0
        recorder.forget("m0", REQUEST.attempts[0].replica)
        return Name.looked_up

    assert cost(100) <= 2 * cost(1)
