"""Faults of the simulated server that are visible only in the bytes and the connection."""

import asyncio
import contextlib
import json

import pytest

from gateway.simulated.stats import RequestResult
from running import run_real
from simulated_sockets import chat, connected, read_head, read_response, request_of, send, serving, until


@pytest.mark.parametrize(
    ("fault", "how"),
    [
        ("reset", ConnectionResetError),
        ("cut_rst:2", ConnectionResetError),
        ("cut_chunked:2", asyncio.IncompleteReadError),
        ("cut_mid:2", asyncio.IncompleteReadError),
        ("cut_fin:2", None),
        ("short:2", None),
    ],
)
def test_connection_ends_as_the_fault_requires(fault: str, how: type[Exception] | None) -> None:
    """A cut is visible to the client unless the body has no framing or a proper end."""

    async def main() -> None:
        async with serving(ttft="0", gap="2ms") as server:
            request = chat(x_sim_fault=fault, x_request_id="x")
            if how is not None:
                with pytest.raises(how):
                    await send(server.port, request)
            else:
                assert b"[DONE]" not in (await send(server.port, request)).body
            record = server.stats.records["x"]
            assert record.ended is (RequestResult.COMPLETE if fault == "short:2" else RequestResult.BROKEN)
            assert record.content_events == (0 if fault == "reset" else 2)

    run_real(main())


def test_cut_in_the_middle_of_an_event_sends_half_of_it() -> None:
    """The last bytes before the cut are the beginning of an event."""

    async def main() -> bytes:
        async with serving(ttft="0") as server, connected(server.port) as (reader, writer):
            writer.write(chat(x_sim_fault="cut_mid:1"))
            return await reader.read()

    last = run_real(main()).split(b"\n\n")[-1].removesuffix(b"\r\n").split(b"\r\n")[-1]
    assert last.startswith(b"data: {")
    with pytest.raises(json.JSONDecodeError):
        json.loads(last[6:])


def test_accepting_can_be_reset_and_control_stays_reachable() -> None:
    """With `reset_accept` connections are reset before anything is read; the control port is not disturbed."""

    async def main() -> None:
        async with serving(ttft="0", control_port=0, faults=["reset_accept"]) as server:
            with pytest.raises((ConnectionError, asyncio.IncompleteReadError)):
                await send(server.port, chat())
            change = request_of("POST", "/sim/profile", b'{"faults": []}')
            assert (await send(server.control_port, change)).status == 200
            assert (await send(server.port, chat())).status == 200

    run_real(main())


def test_connections_are_refused_for_a_while() -> None:
    """`refuse` resets its own connection and refuses others, then the server listens again on the same port."""

    async def main() -> None:
        async with serving(ttft="0", faults=["refuse:2s once"]) as server:
            with pytest.raises((ConnectionError, asyncio.IncompleteReadError)):
                await send(server.port, chat())
            with pytest.raises(ConnectionRefusedError):
                await send(server.port, chat())
            answers: list[int] = []

            async def again() -> None:
                while not answers:
                    with contextlib.suppress(ConnectionRefusedError):
                        answers.append((await send(server.port, chat())).status)
                    await asyncio.sleep(0.02)

            await asyncio.wait_for(again(), 60)
            assert answers == [200]

    run_real(main())


def test_server_can_be_closed_and_opened_from_python() -> None:
    """`stop_listening` refuses new connections and keeps open ones; `listen` accepts again."""

    async def main() -> None:
        async with serving(ttft="0") as server, connected(server.port) as (reader, writer):
            writer.write(chat())
            await read_response(reader)
            server.stop_listening()
            with pytest.raises(ConnectionRefusedError):
                await send(server.port, chat())
            writer.write(chat())
            assert (await read_response(reader)).status == 200
            await server.listen()
            assert (await send(server.port, chat())).status == 200

    run_real(main())


def test_silence_sends_no_byte() -> None:
    """A silent request gets no byte, one with headers its head and role only."""

    async def main() -> None:
        async with serving(ttft="0") as server:
            for fault in ("silence", "headers_silence"):
                async with connected(server.port) as (reader, writer):
                    writer.write(chat(x_sim_fault=fault))
                    if fault == "headers_silence":
                        await read_head(reader)
                        assert b'"content":""' in await reader.readuntil(b"\n\n\r\n")
                    with pytest.raises(TimeoutError):
                        async with asyncio.timeout(0.05):
                            await reader.read(1)

    run_real(main())


def test_informational_answers_come_first() -> None:
    """A 100 and a 103 precede the answer."""

    async def main() -> list[int]:
        async with serving(ttft="0") as server, connected(server.port) as (reader, writer):
            writer.write(chat(x_sim_fault="informational"))
            return [(await read_head(reader))[0] for _ in range(3)]

    assert run_real(main()) == [100, 103, 200]


def test_chunks_have_extensions_and_trailers() -> None:
    """Chunk sizes carry extensions and the body has trailers."""

    async def main() -> None:
        async with serving(ttft="0") as server:
            response = await send(server.port, chat(x_sim_fault="chunk_extensions"))
            assert response.trailers == b"x-sim-trailer: yes\r\n"
            async with connected(server.port) as (reader, writer):
                writer.write(chat(x_sim_fault="chunk_extensions"))
                await read_head(reader)
                assert b";sim=" in await reader.readline()

    run_real(main())


@pytest.mark.parametrize(("fault", "header"), [("length", "content-length"), ("close", "connection")])
def test_other_framings(fault: str, header: str) -> None:
    """A stream can have a length, or end with its connection."""

    async def main() -> None:
        async with serving(ttft="0") as server:
            response = await send(server.port, chat(x_sim_fault=fault))
            assert response.body.endswith(b"data: [DONE]\n\n")
            assert header in response.headers
            assert "transfer-encoding" not in response.headers

    run_real(main())


def test_large_body_is_read_slowly() -> None:
    """A slow reader of the body delays the client, and responds after the whole body."""

    async def main() -> None:
        async with serving(ttft="0") as server, connected(server.port) as (reader, writer):
            loop = asyncio.get_running_loop()
            prompt = [{"role": "user", "content": "x" * 2_000_000}]
            begin_s = loop.time()
            writer.write(chat({"messages": prompt}, x_sim_fault="slow_read:10000000"))
            await writer.drain()
            assert (await read_response(reader)).status == 200
            assert loop.time() - begin_s > 0.1

    run_real(main())


def test_answer_comes_before_the_body_was_sent() -> None:
    """A client can read an early response before the end of its body; the remainder of the body is discarded."""

    async def main() -> None:
        async with serving(ttft="0") as server, connected(server.port) as (reader, writer):
            request = chat({"messages": [{"role": "user", "content": "x" * 500_000}]}, x_sim_fault="early_413")
            writer.write(request[:1000])
            response = await read_response(reader)
            assert (response.status, response.headers["connection"]) == (413, "close")
            writer.write(request[1000:])
            await writer.drain()
            await until(lambda: server.stats.in_flight == 0)

    run_real(main())


def test_writes_are_as_small_as_asked() -> None:
    """With `split` no chunk is larger than the size; with `coalesce` a chunk has several events."""

    async def main() -> list[list[bytes]]:
        chunks = []
        async with serving(ttft="0", role="none") as server:
            for fault in ("split:5", "coalesce:4"):
                async with connected(server.port) as (reader, writer):
                    writer.write(chat({"max_tokens": 8}, x_sim_fault=fault))
                    await read_head(reader)
                    seen = []
                    while size := int(await reader.readline(), 16):
                        seen.append(await reader.readexactly(size))
                        await reader.readexactly(2)
                    chunks.append(seen)
        return chunks

    split, coalesced = run_real(main())
    assert max(map(len, split)) <= 5
    assert [chunk.count(b"data: ") for chunk in coalesced] == [4, 4, 2]
