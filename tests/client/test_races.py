"""The races of all transports, through the OpenAI SDK, aiohttp and sockets: the gateway's own acceptance cases."""

import pytest

import client_fixtures
from aiohttp_client import SessionKit
from client_kits import KITS, Kit
from client_replicas import SILENT, Replicas
from ttft_gateway.client.config import HedgeConfig

site = client_fixtures.site

NO_ANSWERS = ("empty", "only_done", "error_event", "error_500", "error_400", "limited", "reset", "dies")

RACED: dict[str, Kit | SessionKit] = {**KITS, "aiohttp": SessionKit()}

pytestmark = pytest.mark.parametrize("kit", RACED.values(), ids=RACED)


@pytest.mark.parametrize("behaviour", SILENT)
def test_a_silent_primary_loses_and_is_closed(kit: Kit | SessionKit, site: Replicas, behaviour: str) -> None:
    """The first content wins, whatever came before it, and the loser's connection is closed immediately."""
    replica = site.add(behaviour, "quick")
    text, counts = kit.chat(replica)
    assert text == "Hello"
    assert replica.seen[0].closed.wait()
    assert (counts.requests, counts.hedges, counts.hedge_wins) == (1, 1, 1)
    assert (counts.targets[f"127.0.0.1:{replica.port}"].lost, counts.hedge_rate) == (1, 1.0)


@pytest.mark.parametrize("behaviour", SILENT)
def test_a_silent_backup_loses_and_is_closed(kit: Kit | SessionKit, site: Replicas, behaviour: str) -> None:
    """A primary that answers after its backup was sent wins, and the backup's connection is closed immediately."""
    replica = site.add("late:quick", behaviour)
    text, counts = kit.chat(replica)
    assert text == "Hello"
    assert replica.seen[1].closed.wait()
    assert (counts.hedges, counts.hedge_wins, counts.primary_wins) == (1, 0, 1)


@pytest.mark.parametrize("behaviour", NO_ANSWERS)
def test_an_error_of_the_backup_never_wins(kit: Kit | SessionKit, site: Replicas, behaviour: str) -> None:
    """A backup with an error, an empty stream or a reset leaves the race to the primary."""
    replica = site.add("patient:quick", behaviour)
    text, counts = kit.chat(replica)
    assert text == "Hello"
    assert (counts.primary_wins, counts.hedge_wins) == (1, 0)


@pytest.mark.parametrize("behaviour", NO_ANSWERS)
def test_an_error_of_the_primary_never_wins(kit: Kit | SessionKit, site: Replicas, behaviour: str) -> None:
    """A primary that fails while its backup is under way leaves the race to the backup."""
    replica = site.add(f"late:{behaviour}", "patient:quick")
    text, counts = kit.chat(replica)
    assert text == "Hello"
    assert counts.hedge_wins == 1


def test_the_primarys_error_is_reported_if_all_fail(kit: Kit | SessionKit, site: Replicas) -> None:
    """After every attempt has failed, the caller gets the primary's error."""
    replica = site.add("late:error_500", "patient:error_400")
    with pytest.raises(kit.error, match="500"):
        kit.chat(replica)


def test_an_error_without_a_backup_is_passed_on(kit: Kit | SessionKit, site: Replicas) -> None:
    """Before a backup was sent, errors reach the caller unchanged: retries are the SDK's."""
    replica = site.add("error_400")
    with pytest.raises(kit.error, match="400"):
        kit.chat(replica, HedgeConfig(warmup_delay=3600.0))
    assert len(replica.seen) == 1
