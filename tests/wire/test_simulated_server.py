"""The simulated server on real sockets: HTTP, control API, statistics, and immediate detection of a disconnect."""

import asyncio
import contextlib
import json

import pytest

from gateway.simulated.server import SimulatedServer
from gateway.simulated.server_connection import BODY_BYTES_MAX, HEADERS_BYTES_MAX
from gateway.simulated.stats import RECORDS_MAX, RequestResult, Stats
from running import run_real
from simulated_sockets import Response, chat, connected, read_head, read_response, request_of, send, serving, until


def test_streams_and_json_share_a_connection() -> None:
    """One connection carries several responses, and the JSON response has the text of the stream."""

    async def main() -> tuple[Response, Response, SimulatedServer]:
        async with serving(ttft="1ms") as server, connected(server.port) as (reader, writer):
            writer.write(chat())
            streamed = await read_response(reader)
            writer.write(chat({"stream": False}))
            return streamed, await read_response(reader), server

    streamed, whole, server = run_real(main())
    events = [json.loads(event[6:]) for event in streamed.body.split(b"\n\n")[:-2]]
    text = "".join(event["choices"][0]["delta"].get("content", "") for event in events)
    assert streamed.body.endswith(b"\n\ndata: [DONE]\n\n")
    assert whole.json["choices"][0]["message"]["content"] == text
    assert streamed.headers["content-type"].startswith("text/event-stream")
    assert whole.headers["content-type"] == "application/json"
    assert (server.stats.connections_opened, server.stats.connections_open) == (1, 0)


def test_headers_are_flushed() -> None:
    """Flushed headers come although the first content will not for minutes."""

    async def main() -> None:
        async with serving(ttft="10m", role="none") as server, connected(server.port) as (reader, writer):
            writer.write(chat())
            assert (await read_head(reader))[0] == 200
            (record,) = server.stats.records.values()
            assert record.first_content_s is None

    run_real(main())


def test_headers_are_held() -> None:
    """Held headers come with the first content."""

    async def main() -> None:
        async with serving(ttft="60ms", headers="with_first_content", role="none") as server:
            await send(server.port, chat({"max_tokens": 1}))
            (record,) = server.stats.records.values()
            assert record.headers_s is not None
            assert record.headers_s - record.received_s > 0.05

    run_real(main())


def test_hashes_are_those_of_the_bytes_on_the_wire() -> None:
    """The hash stored for a request id belongs to the body that its client received, whatever the framing."""

    async def main() -> None:
        async with serving(ttft="0") as server:
            for fault in ("split:5", "crlf", "utf8", "big", "fields", "chunk_extensions", "close", "length", "pings"):
                response = await send(server.port, chat(x_request_id=fault, x_sim_fault=fault))
                assert response.headers["x-request-id"] == fault
                assert server.stats.records[fault].sha256 == response.sha256

    run_real(main())


def test_repeated_and_missing_ids_get_a_number() -> None:
    """Every request has a record of its own, found by the id in its answer."""

    async def main() -> list[str]:
        async with serving(ttft="0") as server:
            requests = (chat(x_request_id="a"), chat(x_request_id="a"), chat())
            return [(await send(server.port, request)).headers["x-request-id"] for request in requests]

    assert run_real(main()) == ["a", "a#2", "sim-3"]


@pytest.mark.parametrize("when", ["waiting", "silent", "queued", "streaming"])
def test_disconnect_is_detected(when: str) -> None:
    """A close ends an answer that would take minutes, before the first content, in a queue or in mid-stream."""

    async def main() -> None:
        ttft = "0" if when == "streaming" else "10m"
        async with serving(slots=1, ttft=ttft, gap="10m") as server:
            loop, stats = asyncio.get_running_loop(), server.stats
            async with connected(server.port) as (_, first):
                if when == "queued":
                    first.write(chat())
                    await until(lambda: stats.in_flight == 1)
                async with connected(server.port) as (_, writer):
                    writer.write(chat(x_request_id="x", x_sim_fault="silence" if when == "silent" else "pings"))
                    await until(lambda: "x" in stats.records)
                    record = stats.records["x"]
                    if when == "streaming":
                        await until(lambda: record.first_content_s is not None)
                    left_s = loop.time()
                await until(lambda: record.ended is not None)
                assert record.ended is RequestResult.CANCELLED
                assert record.ended_s is not None
                assert record.ended_s >= left_s
                assert (record.first_content_s is None) is (when != "streaming")
                assert stats.cancelled == 1

    run_real(main())


def test_reset_by_the_peer_is_a_cancel() -> None:
    """An aborted connection counts like a closed one."""

    async def main() -> int:
        async with serving(ttft="10m") as server:
            async with connected(server.port) as (_, writer):
                writer.write(chat())
                await until(lambda: server.stats.in_flight == 1)
                writer.transport.abort()
            await until(lambda: server.stats.in_flight == 0)
            return server.stats.cancelled

    assert run_real(main()) == 1


def test_slow_reader_pauses_the_server() -> None:
    """A client that does not read stops the server from writing; when it reads on it gets everything."""

    async def main() -> None:
        async with serving(ttft="0") as server, connected(server.port) as (reader, writer):
            writer.write(chat(x_request_id="slow", x_sim_fault="big:16000000"))  # more than the kernel takes
            await until(lambda: server.stats.paused == 1)
            record = server.stats.records["slow"]
            await asyncio.sleep(0.05)
            assert (record.content_events, record.ended) == (1, None)
            assert (await read_response(reader)).sha256 == record.sha256
            assert record.content_events == 20

    run_real(main())


def test_slots_queue_requests() -> None:
    """With one slot three requests of 40 ms take 120 ms."""

    async def main() -> None:
        async with serving(ttft="40ms", slots=1) as server:
            await asyncio.gather(*(send(server.port, chat({"max_tokens": 1})) for _ in range(3)))
            records = list(server.stats.records.values())
            last_s = max(record.first_content_s or 0 for record in records)
            assert last_s - min(record.received_s for record in records) > 0.11

    run_real(main())


def test_heads_come_while_requests_queue() -> None:
    """A request that waits for a slot has its head."""

    async def main() -> None:
        async with serving(ttft="10m", slots=1) as server, connected(server.port) as (_, first):
            first.write(chat())
            await until(lambda: server.stats.in_flight == 1)
            async with connected(server.port) as (reader, writer):
                writer.write(chat())
                assert (await read_head(reader))[0] == 200

    run_real(main())


# control


async def _control(server: SimulatedServer, method: str, path: str, value: object = None, port: int = 0) -> Response:
    body = b"" if value is None else json.dumps(value).encode()
    return await send(port or server.port, request_of(method, path, body))


def test_profile_is_changed_over_http() -> None:
    """POST /sim/profile changes the given keys, GET shows all; a mistake gets a 400 and changes nothing."""

    async def main() -> None:
        async with serving(ttft="1ms") as server:
            changed = await _control(server, "POST", "/sim/profile", {"tokens": 2, "faults": ["500 once"]})
            assert (changed.json["tokens"], changed.json["ttft"]) == (2, "1ms")
            assert [(await send(server.port, chat())).status for _ in range(2)] == [500, 200]
            wrong = await _control(server, "POST", "/sim/profile", {"tokens": 3, "ttft": "soon"})
            assert wrong.status == 400
            assert "write a duration" in wrong.json["error"]["message"]
            assert (await _control(server, "POST", "/sim/profile", [])).status == 400
            assert (await _control(server, "GET", "/sim/profile")).json == changed.json
            assert (await _control(server, "GET", "/sim/nothing")).status == 404

    run_real(main())


def test_stats_and_reset_over_http() -> None:
    """GET /sim/stats shows counters and records; POST /sim/reset resets them and the draws."""

    async def main() -> None:
        async with serving(ttft="0", stall="50%:1ms") as server:
            first = await send(server.port, chat({"max_tokens": 3, "temperature": 1}, x_request_id="a"))
            stats = (await _control(server, "GET", "/sim/stats")).json
            assert (stats["requests"], stats["streams"], stats["complete"], stats["tokens"]) == (1, 1, 1, 3)
            (record,) = stats["records"]
            assert (record["request_id"], record["ended"], record["sha256"]) == ("a", "complete", first.sha256)
            assert "records" not in (await _control(server, "GET", "/sim/stats?records=0")).json
            assert (await _control(server, "POST", "/sim/reset")).json == {}
            assert server.stats.requests == 0
            again = await send(server.port, chat({"max_tokens": 3, "temperature": 1}))
            assert again.body == first.body

    run_real(main())


def test_records_are_bounded() -> None:
    """Only the latest records are stored."""
    stats = Stats()
    for number in range(RECORDS_MAX + 10):
        stats.begin(str(number), 0.0)
    assert len(stats.records) == RECORDS_MAX
    assert next(iter(stats.records)) == "10"


def test_models_and_unknown_paths() -> None:
    """The models of the profile are listed and found by name; an unknown path gets a 404 that lists all paths."""

    async def main() -> None:
        async with serving(models=["llama", "org/qwen"]) as server:
            assert (await _control(server, "GET", "/health")).status == 200
            listed = await _control(server, "GET", "/v1/models")
            assert [model["id"] for model in listed.json["data"]] == ["llama", "org/qwen"]
            assert (await _control(server, "GET", "/v1/models/org/qwen")).json["id"] == "org/qwen"
            missing = await _control(server, "GET", "/v1/nothing")
            assert (missing.status, missing.json["error"]["code"]) == (404, "unknown_url")

    run_real(main())


# bad requests


@pytest.mark.parametrize(
    ("request_bytes", "status"),
    [
        (chat({"n": 99}), 400),
        (request_of("POST", "/v1/chat/completions", b"{"), 400),
        (chat(x_sim_fault="sulk"), 400),
        (b"nonsense\r\n\r\n", 400),
        (chat(x="y" * HEADERS_BYTES_MAX), 431),
        (request_of("POST", "/v1/chat/completions").replace(b"length: 0", b"length: %d" % (BODY_BYTES_MAX * 2)), 413),
        (chat(upgrade="h2c", connection="upgrade"), 400),
    ],
    ids=["field", "json", "fault", "not http", "header bomb", "body", "upgrade"],
)
def test_bad_request_is_answered(request_bytes: bytes, status: int) -> None:
    """A bad request gets its status code and an error object, and the server continues."""

    async def main() -> Response:
        async with serving(ttft="0") as server, connected(server.port) as (reader, writer):
            writer.write(request_bytes)
            if status == 413:
                writer.write(bytes(BODY_BYTES_MAX + 1))
            response = await read_response(reader)
            assert (await send(server.port, chat())).status == 200
            return response

    response = run_real(main())
    assert (response.status, "message" in response.json["error"]) == (status, True)


def test_pipelined_request_ends_the_connection() -> None:
    """A second request before the first is answered is not queued."""

    async def main() -> None:
        async with serving(ttft="10m") as server, connected(server.port) as (reader, writer):
            writer.write(chat() + chat())
            with contextlib.suppress(ConnectionError):
                assert b"[DONE]" not in await reader.read()
            assert server.stats.requests == 1

    run_real(main())


def test_expectation_is_met_before_the_body() -> None:
    """`expect: 100-continue` gets its 100 before the body is sent."""

    async def main() -> int:
        async with serving(ttft="0") as server, connected(server.port) as (reader, writer):
            head, body = chat(expect="100-continue").split(b"\r\n\r\n", 1)
            writer.write(head + b"\r\n\r\n")
            assert (await read_head(reader))[0] == 100
            writer.write(body)
            return (await read_response(reader)).status

    assert run_real(main()) == 200


def test_connection_close_is_honoured() -> None:
    """A request with `connection: close` gets this header in return, and the connection is closed."""

    async def main() -> None:
        async with serving(ttft="0") as server, connected(server.port) as (reader, writer):
            writer.write(chat(connection="close"))
            assert (await read_response(reader)).headers["connection"] == "close"
            assert await reader.read() == b""

    run_real(main())
