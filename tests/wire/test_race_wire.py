"""The race on real sockets: the tail it cuts, the sockets it closes, the failures and refusals it must not confuse."""

import json
import math

import pytest

from gateway_fixture import serving
from race_scenarios import _AT_ONCE, REFUSALS, SURFACING, departures, losers, overridden, percentile, surfaced, tail
from raw_http import ASK, answer, request_bytes
from running import run_real

_SOON_S = 0.5  # of closing a socket; the exact bounds are scripts/acceptance's, where nothing else runs
_FEW = 12
_MANY = 12  # at a time; scripts/acceptance has four


@pytest.mark.parametrize("policy", ["quantile", "adaptive"])
def test_hedging_cuts_the_tail_within_its_budget(policy: str) -> None:
    """Replicas that flush headers and role at once and are sometimes a second late answer in time when raced."""
    seen = run_real(tail(policy, warm=100, count=200, at_a_time=_MANY))
    assert any(seen.hedged)
    assert percentile(seen.ttfts_s, 0.97) < 0.5
    assert seen.overspent <= seen.cap


def test_without_hedging_the_tail_stays() -> None:
    """The same replicas without hedging: 4 % take a second."""
    seen = run_real(tail("off", warm=0, count=120, at_a_time=_MANY))
    assert not any(seen.hedged)
    assert percentile(seen.ttfts_s, 0.99) >= 0.9


def test_a_race_at_headers_hedges_nothing() -> None:
    """Who takes headers for an answer never sees a replica that flushes them be late."""
    seen = run_real(tail("headers", warm=60, count=60, at_a_time=_MANY))
    assert not any(seen.hedged)


def test_the_losers_socket_is_closed_when_the_winner_is_known() -> None:
    """A loser's replica sees its connection go right after the winner's first content, never before."""
    delays_s = run_real(losers(_FEW))
    assert len(delays_s) == _FEW
    assert all(0 < delay_s < _SOON_S for delay_s in delays_s)


@pytest.mark.parametrize("fault", SURFACING)
def test_a_backup_that_fails_never_reaches_the_client(fault: str) -> None:
    """While the primary lives, the client gets the primary's answer and nothing else."""
    result = run_real(surfaced(fault, _FEW))
    assert result.backups >= _FEW
    assert result.seen == 0


@pytest.mark.parametrize("refusal", REFUSALS)
def test_a_refusal_is_never_overridden(refusal: str) -> None:
    """A content-policy refusal ends the race, although another replica is about to answer."""
    result = run_real(overridden(refusal, _FEW))
    assert result.backups == _FEW
    assert result.seen == 0


@pytest.mark.parametrize("streaming", [True, False])
def test_a_client_that_leaves_while_waiting_cancels_every_attempt(*, streaming: bool) -> None:
    """Both attempts of a hedged request are closed upstream at once, before any content has come."""
    result = run_real(departures(20, waiting=True, streaming=streaming))
    assert len(result.delays_s) == 40
    assert max(result.delays_s, default=math.inf) < _SOON_S


@pytest.mark.parametrize("streaming", [True, False])
def test_a_client_that_leaves_in_mid_stream_cancels_the_winner(*, streaming: bool) -> None:
    """A stream that nobody reads any more is closed upstream at once."""
    result = run_real(departures(20, waiting=False, streaming=streaming))
    assert len(result.delays_s) == 20
    assert max(result.delays_s, default=math.inf) < _SOON_S


def test_a_request_marked_so_is_never_sent_twice() -> None:
    """With `x-ttft-hedge: off` a late request reaches one replica; without it, the same request reaches two."""

    async def main() -> list[int]:
        replica = {"ttft": "200ms", "tokens": 2}
        async with serving({"a": replica, "b": replica}, hedge=_AT_ONCE) as site:
            reached = []
            for value in ("on", "off", "OFF"):
                before = site.reached
                payload = request_bytes(json.dumps(ASK).encode(), headers={"x-ttft-hedge": value})
                async with answer(site.port, payload) as got:
                    assert got.status == 200
                    assert b"[DONE]" in await got.body()
                reached.append(site.reached - before)
            return reached

    assert run_real(main()) == [2, 1, 1]
