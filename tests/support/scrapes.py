"""The text of a scrape, and its values by name and labels."""

from collections.abc import Sequence

from prometheus_client.parser import text_string_to_metric_families

from gateway.events import Event
from gateway.observe import metrics as observed
from gateway.observe.exposition import parts
from gateway.observe.metrics import Metrics
from running import run_virtual
from sample_events import pool


class Scrape:
    """The parsed scrape after these events."""

    def __init__(self, *events: Event, models: Sequence[str] = ()) -> None:
        metrics = Metrics(lambda: map(pool, models))
        metrics.on_events(events)
        self.text = text_of(metrics)
        families = text_string_to_metric_families(self.text)
        self.samples = {
            (sample.name, frozenset(sample.labels.items())): sample.value
            for family in families
            for sample in family.samples
        }

    def __getitem__(self, key: tuple[str, dict[str, str]]) -> float | None:
        name, labels = key
        return self.samples.get((name, frozenset(labels.items())))

    def named(self, name: str) -> dict[str, float]:
        """The samples of one name, by their last label in alphabetical order."""
        return {max(labels)[1]: value for (found, labels), value in self.samples.items() if found == name}


async def rendered(scrape: observed.Scrape) -> bytes:
    """Return the text of a scrape in one piece."""
    return b"".join([part async for part in parts(scrape)])


def text_of(metrics: Metrics) -> str:
    """Return the text of a scrape now."""

    async def text() -> bytes:
        return await rendered(await metrics.scrape())

    return run_virtual(text()).decode()
