"""The race on real sockets: the tail it cuts, the sockets it closes, the failures and refusals it must not confuse."""

import asyncio
import json

import pytest

from cut_scenarios import break_once
from gateway_fixture import Site, serving
from race_scenarios import _AT_ONCE, REFUSALS, SURFACING, Settings, departures, losers, overridden, spread, surfaced
from raw_http import ASK, answer, asking, request_bytes
from running import run_real

_FEW = 12
_MANY = 12  # at a time
_BETWEEN = 50  # requests that are fine, for each that is late
_FLUSHING: Settings = {"ttft": "20ms", "headers": "at_once", "role": "early", "tokens": 4}
_PATIENT: Settings = {"ttft_failover": "5m", "ttft_max": "5m"}  # no failover ends a silence within the test


async def _result(site: Site) -> tuple[str, float]:
    """One request that is answered in full: how its race went, and how long it took."""
    async with answer(site.port, asking()) as got:
        assert got.status == 200
        assert (await got.body()).endswith(b"data: [DONE]\n\n")
        return got.headers["x-ttft-result"], asyncio.get_running_loop().time() - got.began_s


async def _late(site: Site, fault: str) -> tuple[str, float]:
    """The same where the first replica flushes headers and role immediately, and then shows this fault."""
    await site.until_idle()
    break_once(site, fault)
    return await _result(site)


@pytest.mark.parametrize("policy", ["quantile", "adaptive"])
def test_hedging_saves_the_late(policy: str) -> None:
    """A replica that flushes headers and role and then says nothing is raced; another one answers its request."""

    async def main() -> list[str]:
        hedge: Settings = {"policy": policy, "quantile": 0.9, "budget": "100%", "cold_start_delay": "1s"}
        async with serving(dict.fromkeys("abc", _FLUSHING), hedge=hedge, timeouts=_PATIENT) as site:

            async def fine(_number: int) -> None:
                await _result(site)

            results = []
            for _ in range(4):  # few of many: breakers stay closed
                await spread(_BETWEEN, 4, fine)
                results.append((await _late(site, "headers_silence"))[0])
            return results

    results = run_real(main())
    assert set(results) <= {"backup_won", "backup_lost"}  # lost where the backup was the first to arrive, and silent
    assert "backup_won" in results


def test_hedges_keep_to_their_budget() -> None:
    """Of requests that would all be hedged, only as many are as have been saved up and earned."""
    count = 200

    async def main() -> list[str]:
        hedge: Settings = {**_AT_ONCE, "delay": "1ms", "budget": "10%"}
        results: list[str] = []
        async with serving(dict.fromkeys("abc", _FLUSHING), hedge=hedge) as site:

            async def one(_number: int) -> None:
                results.append((await _result(site))[0])

            await spread(count, _MANY, one)
        return results

    hedged = sum(result.startswith("backup") for result in run_real(main()))
    assert 0 < hedged <= 3 + 0.1 * count + 0.1 * count  # docs/design/0005: the cap grows with the traffic


def test_without_hedging_the_late_stay_so() -> None:
    """The same replicas without hedging: who is late is waited for."""

    async def main() -> list[tuple[str, float]]:
        async with serving(dict.fromkeys("abc", _FLUSHING), hedge={"policy": "off"}, timeouts=_PATIENT) as site:
            late = [await _late(site, "stall:0,1s") for _ in range(3)]
            assert site.reached == len(late)
            return late

    for result, took_s in run_real(main()):
        assert result == "primary"
        assert took_s >= 1.0


def test_the_losers_socket_is_closed_when_the_winner_is_known() -> None:
    """A loser's replica sees its connection go while the winner goes on, and never before its first content."""
    delays_s = run_real(losers(_FEW))
    assert len(delays_s) == _FEW
    assert min(delays_s) > 0


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
    assert result.backups >= _FEW
    assert result.seen == 0


@pytest.mark.parametrize("streaming", [True, False])
def test_a_client_that_leaves_while_waiting_cancels_every_attempt(*, streaming: bool) -> None:
    """Both attempts of a hedged request, which would wait for minutes, are closed upstream before any content."""
    result = run_real(departures(20, waiting=True, streaming=streaming))
    assert len(result.delays_s) == 40
    assert min(result.delays_s) >= 0


@pytest.mark.parametrize("streaming", [True, False])
def test_a_client_that_leaves_in_mid_stream_cancels_the_winner(*, streaming: bool) -> None:
    """A stream that nobody reads any more, and that would take half an hour, is closed upstream."""
    result = run_real(departures(20, waiting=False, streaming=streaming, gap="1s"))
    assert len(result.delays_s) == 20
    assert min(result.delays_s) >= 0


def test_a_request_marked_so_is_never_sent_twice() -> None:
    """With `x-ttft-hedge: off` a late request reaches one replica; without it, the same request is sent to two."""

    async def main() -> list[int]:
        replica = {"ttft": "200ms", "tokens": 2}
        async with serving({"a": replica, "b": replica}, hedge=_AT_ONCE) as site:
            sent = []
            for value in ("off", "OFF", "on"):
                payload = request_bytes(json.dumps(ASK).encode(), headers={"x-ttft-hedge": value})
                async with answer(site.port, payload) as got:
                    assert got.status == 200
                    assert b"[DONE]" in await got.body()
                sent.append(int(got.headers["x-ttft-attempts"]))
                if value != "on":
                    assert site.reached == len(sent)
            return sent

    assert run_real(main()) == [1, 1, 2]


def test_a_key_may_forbid_a_second_attempt() -> None:
    """A late request of a key without hedges, or with one attempt, reaches one replica; one of another key two."""

    async def main() -> list[tuple[str, str | None]]:
        replica = {"ttft": "200ms", "tokens": 2}
        keys = [
            {"name": "free", "key": "sk-0"},
            {"name": "calm", "key": "sk-1", "hedge": False},
            {"name": "once", "key": "sk-2", "attempts_max": 1},
        ]
        async with serving({"a": replica, "b": replica}, hedge=_AT_ONCE, keys=keys) as site:
            sent = []
            for key in ("sk-0", "sk-1", "sk-2"):
                payload = request_bytes(json.dumps(ASK).encode(), headers={"authorization": f"Bearer {key}"})
                async with answer(site.port, payload) as got:
                    await got.body()
                sent.append((got.headers["x-ttft-attempts"], got.headers.get("x-ttft-denied")))
            return sent

    assert run_real(main()) == [("2", None), ("1", "key"), ("1", "key")]
