"""Admission over real sockets: what the replicas see of a bound, what waiting and refused callers get."""

import asyncio
import contextlib
import json
from collections.abc import Mapping

import pytest

from gateway.admission.body_memory import BodyMemory
from gateway.events import RequestEnded, RequestRejected
from gateway_fixture import Site, serving, until
from raw_http import ASK, Answer, answer, asking, connect, head, request_bytes
from running import run_real

_KEYS = [{"name": "a", "key": "sk-a"}, {"name": "b", "key": "sk-b"}]
_SILENT: Mapping[str, object] = {"ttft": "10m"}
_BODY = 100_000


def _asking(key: str = "sk-a", **fields: object) -> bytes:
    """A request with a key."""
    body = json.dumps({**ASK, **fields}).encode()
    return request_bytes(body, headers={"authorization": f"Bearer {key}"})


def _getting(path: str, key: str) -> bytes:
    return request_bytes(b"", path, "GET", {"authorization": f"Bearer {key}"})


async def _json(got: Answer) -> dict[str, object]:
    return dict(json.loads(await got.body()))


def _gate(site: Site) -> tuple[int, int]:
    """Requests inside and waiting."""
    assert site.gateway is not None
    [model] = site.gateway.view._queues().models
    return model.in_flight, model.waiting


async def _until_inside(site: Site, expected: tuple[int, int]) -> None:
    await until(lambda: _gate(site) == expected)


async def _until_arriving(held: BodyMemory, count: int) -> None:
    await until(lambda: held.arriving == count)


def test_replicas_never_have_more_than_the_bound() -> None:
    """Each of thirty simultaneous callers with two keys gets a whole answer, and never more than three at a time."""

    async def main() -> None:
        profile = {"ttft": "5ms", "gap": "1ms", "tokens": 5}
        model = {"concurrency": 3, "queue": {"timeout": "2m"}}
        async with serving({"a": profile, "b": profile}, model=model, keys=_KEYS, hedge={"policy": "off"}) as site:

            async def one(number: int) -> None:
                async with answer(site.port, _asking(f"sk-{'ab'[number % 2]}", stream=number % 3 > 0)) as got:
                    assert got.status == 200
                    body = await got.body()
                    assert b"[DONE]" in body or b'"usage"' in body

            async with asyncio.TaskGroup() as tasks:
                for number in range(30):
                    tasks.create_task(one(number))
            await site.until_idle()
            changes = sorted(
                change for record in site.records() for change in ((record.received_s, 1), (record.ended_s or 0.0, -1))
            )
            inside = most = 0
            for _, change in changes:
                inside += change
                most = max(most, inside)
            assert (most, inside, len(site.records())) == (3, 0, 30)
            ended = [event for event in site.events if isinstance(event, RequestEnded)]
            assert any(event.queued_s > event.total_s / 2 for event in ended)
            assert all(event.gateway_s + event.queued_s <= event.total_s for event in ended)  # no wait counts twice
            assert _gate(site) == (0, 0)

    run_real(main())


def test_who_leaves_while_waiting_reaches_no_replica() -> None:
    """A caller that disconnects frees its place immediately, and is recorded as one that left."""

    async def main() -> None:
        async with serving({"a": _SILENT}, model={"concurrency": 1, "queue": {"timeout": "1m"}}) as site:
            async with contextlib.AsyncExitStack() as opened:
                _, inside = await connect(site.port)
                opened.callback(inside.transport.abort)
                inside.write(asking())
                await until(lambda: _gate(site) == (1, 0))
                for abruptly in (True, False):
                    reader, writer = await connect(site.port)
                    writer.write(asking())
                    await until(lambda: _gate(site) == (1, 1))
                    if abruptly:
                        writer.transport.abort()
                    else:
                        writer.close()
                    await until(lambda: _gate(site) == (1, 0))
                    assert reader.at_eof() or await reader.read() == b""
                await until(lambda: site.reached == 1)
            await until(lambda: _gate(site) == (0, 0))
            assert site.reached == 1
            refused = [event for event in site.events if isinstance(event, RequestRejected)]
            assert [(event.status, event.code, event.model) for event in refused] == [(499, "client_gone", "m")] * 2

    run_real(main())


def test_the_drain_gives_who_waits_a_status() -> None:
    """When the drain is over a waiting stream, that had got nothing yet, gets a 503 of its own."""

    async def main() -> None:
        async with serving({"a": _SILENT}, model={"concurrency": 1, "queue": {"timeout": "1m"}}) as site:
            pairs = [await connect(site.port) for _ in range(2)]
            for place, (_, writer) in enumerate(pairs):
                writer.write(asking())
                await _until_inside(site, (1, place))
            await until(lambda: site.reached == 1)
            assert site.gateway is not None
            site.gateway.public.end_streams()
            for reader, writer in pairs:
                got = await head(reader, writer, 0.0)
                assert (got.status, got.error(await got.body())["code"]) == (503, "gateway_shutting_down")
                writer.close()
            assert site.reached == 1
            assert _gate(site) == (0, 0)

    run_real(main())


@pytest.mark.parametrize("full", [True, False])
def test_a_full_queue_and_a_wait_in_vain_are_503(*, full: bool) -> None:
    """A request without a place is rejected immediately, one that waited too long then; both get a Retry-After."""

    async def main() -> None:
        queue = {"max": 1, "timeout": "1m"} if full else {"max": 1, "timeout": "50ms"}
        async with serving({"a": _SILENT}, model={"concurrency": 1, "queue": queue}) as site:
            pairs = [await connect(site.port) for _ in range(2 if full else 1)]
            for place, (_, writer) in enumerate(pairs):
                writer.write(asking())
                await _until_inside(site, (1, place))
            async with answer(site.port, asking()) as got:
                told = (got.status, got.headers["retry-after-ms"], got.error(await got.body())["code"])
            assert told == (503, "5000", "overloaded")
            assert "x-should-retry" not in got.headers
            for _, writer in pairs:
                writer.transport.abort()
            await until(lambda: _gate(site) == (0, 0))

    run_real(main())


def test_a_keys_limits_are_its_own() -> None:
    """A key at its limit gets a 429 with its own numbers; another key is served, and unlimited keys see no headers."""

    async def main() -> None:
        keys = [{**_KEYS[0], "requests_per_min": 1, "tokens_per_min": 6_000}, _KEYS[1]]
        async with serving({"a": {"ttft": "1ms", "tokens": 3}}, keys=keys) as site:
            async with answer(site.port, _asking(max_tokens=100)) as got:
                assert (got.status, got.headers["x-ratelimit-limit-requests"]) == (200, "1")
                assert got.headers["x-ratelimit-remaining-requests"] == "0"
                assert 5_000 < int(got.headers["x-ratelimit-remaining-tokens"]) < 6_000
                await got.body()
            async with answer(site.port, _asking()) as got:
                assert (got.status, got.headers["x-ratelimit-remaining-requests"]) == (429, "0")
                assert 0 < int(got.headers["retry-after"]) <= 60
                error = got.error(await got.body())
                assert (error["type"], error["code"]) == ("rate_limit_error", "rate_limit_exceeded")
            async with answer(site.port, _asking("sk-b")) as got:
                assert got.status == 200
                assert not [name for name in got.headers if name.startswith("x-ratelimit")]
                await got.body()
            assert site.reached == 2

    run_real(main())


def test_a_key_sees_its_models_only() -> None:
    """A key with a list of models is shown these, and gets a 403 that names them for any other there is."""

    async def main() -> None:
        keys = [{**_KEYS[0], "models": ["m1", "m0"]}, _KEYS[1]]
        async with serving({"a": {"ttft": "1ms", "tokens": 3}}, keys=keys, models=3) as site:
            for key, names in (("sk-a", ["m0", "m1"]), ("sk-b", ["m0", "m1", "m2"])):
                async with answer(site.port, _getting("/v1/models", key)) as got:
                    listed = await _json(got)
                assert isinstance(listed["data"], list)
                assert [model["id"] for model in listed["data"]] == names
            async with answer(site.port, _getting("/v1/models/m2", "sk-a")) as got:
                assert (got.status, got.error(await got.body())["code"]) == (404, "model_not_found")
            async with answer(site.port, _asking(model="m2")) as got:
                error = got.error(await got.body())
                assert (got.status, error["code"], error["param"]) == (403, "model_not_found", "model")
                assert error["message"].endswith("use one of: m0, m1")
            async with answer(site.port, _asking(model="nowhere")) as got:
                error = got.error(await got.body())
                assert (got.status, "m2" in error["message"]) == (404, False)
            assert site.reached == 0
            async with answer(site.port, _asking(model="m1")) as got:
                assert got.status == 200
                await got.body()

    run_real(main())


@pytest.mark.parametrize("expects", [True, False])
def test_no_more_bodies_than_there_is_room(*, expects: bool) -> None:
    """Announced bodies take no room; received ones keep further bodies out until a request ends."""

    async def main() -> None:
        limits = {"request_body_max": f"{_BODY}B", "buffered_bodies_max": f"{2 * _BODY}B"}
        async with serving({"a": _SILENT}, limits=limits) as site:
            assert site.gateway is not None
            held = site.gateway.in_force.topology.memory
            body = json.dumps({**ASK, "user": "x" * (_BODY - 100)}).encode()
            body += b" " * (_BODY - len(body))
            start = request_bytes(b"", headers={"content-length": str(_BODY)})
            pairs = [await connect(site.port) for _ in range(2)]
            for number, (_, writer) in enumerate(pairs, 1):
                writer.write(start)
                await _until_arriving(held, number)
            assert held.held == 0
            for _, writer in pairs:
                writer.write(body)
            await until(lambda: (held.held, held.arriving) == (2 * _BODY, 0))
            payload = request_bytes(
                b"", headers={"content-length": "9", **({"expect": "100-continue"} if expects else {})}
            )
            async with answer(site.port, payload) as got:
                assert (got.status, got.headers["connection"]) == (503, "close")
                assert got.error(await got.body())["code"] == "overloaded"
            for _, writer in pairs:
                writer.transport.abort()
            await until(lambda: held.held == 0)

    run_real(main())


def test_bodies_of_one_key_refuse_no_other_key() -> None:
    """Announced, half-sent and silent bodies of one key: a key with limits gets a 429 unread, the next key a 200."""

    async def main() -> None:
        keys = [{**_KEYS[0], "concurrency": 1, "requests_per_min": 1}, _KEYS[1], {"name": "c", "key": "sk-c"}]
        limits = {"request_body_max": f"{_BODY}B", "buffered_bodies_max": f"{2 * _BODY}B"}
        async with serving({"a": {"ttft": "1ms", "tokens": 3}}, limits=limits, keys=keys) as site:
            assert site.gateway is not None
            held = site.gateway.in_force.topology.memory
            pairs = [await connect(site.port) for _ in range(40)]
            for number, (_, writer) in enumerate(pairs):
                key = "sk-a" if number % 2 else "sk-b"
                headers = {"content-length": str(_BODY), "authorization": f"Bearer {key}"}
                writer.write(request_bytes(b"", headers=headers) + b" " * (_BODY // 2))
            statuses = [(await head(*pair, 0.0)).status for pair in pairs[3::2]]
            assert statuses == [429] * 19
            await until(lambda: held.arriving == 2)  # one of each
            for _ in range(20):
                async with answer(site.port, _asking("sk-c", user="x" * 40_000)) as got:
                    assert got.status == 200
                    await got.body()
            for _, writer in pairs:
                writer.transport.abort()
            await until(lambda: (held.held, held.arriving) == (0, 0))

    run_real(main())


def test_requests_that_are_wrong_count() -> None:
    """A 400 takes one of a key's requests; the token count of a prompt has limits of its own."""

    async def main() -> None:
        keys = [{**_KEYS[0], "requests_per_min": 2}]
        async with serving({"a": {"ttft": "1ms", "tokens": 3}}, keys=keys) as site:
            for expected in (400, 400, 429):
                async with answer(site.port, _asking(n="x")) as got:
                    assert got.status == expected
                    await got.body()
            count = json.dumps(ASK).encode()
            for expected in (200, 200, 429):
                asked = request_bytes(count, "/v1/messages/count_tokens", headers={"authorization": "Bearer sk-a"})
                async with answer(site.port, asked) as got:
                    assert got.status == expected
                    await got.body()
            assert site.reached == 0

    run_real(main())
