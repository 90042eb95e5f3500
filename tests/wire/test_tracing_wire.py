"""Traces over real sockets: what replicas receive, what a receiver of OTLP gets, failures, reloads, workers."""

import asyncio
import contextlib
import json
import re
import signal
import sys
from collections.abc import AsyncIterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("opentelemetry.proto")

import simulated_sockets
import worker_site
from gateway.config.loader import load
from gateway.events import RequestEnded, RequestRejected
from gateway.observe import otlp, span_queue
from gateway.server import tracing
from gateway_fixture import Site, fronting, serving, until
from raw_http import ASK, answer, asking, request_bytes
from running import run_real
from scripted_http import read_request
from scripted_http import serving as scripted
from spawned import WAIT_S
from spawned import until as until_soon
from trace_receiver import TraceReceiver, attributes, receiving
from unused_ports import unused_port

_TRACE, _SPAN = "0af7651916cd43dd8448eb211c80319c", "b7ad6b7169203331"
_PARENT = f"00-{_TRACE}-{_SPAN}-01"
_DONE = b'data: {"choices":[{"index":0,"delta":{"content":"hi"},"finish_reason":"stop"}]}\n\ndata: [DONE]\n\n'
_ANSWER = b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ncontent-length: %d\r\n\r\n%b" % (len(_DONE), _DONE)


@pytest.fixture(autouse=True)
def soon(monkeypatch: pytest.MonkeyPatch) -> None:
    """Export immediately."""
    monkeypatch.setattr(span_queue, "_GATHER_S", 0.001)


def _is(counts: span_queue.SpanCounts, lost: int) -> bool:
    return counts.lost == lost


async def _ask(site: Site, **headers: str) -> dict[str, str]:
    """Send one request and read its answer; return the headers of the answer."""
    async with answer(site.port, request_bytes(json.dumps(ASK).encode(), headers=headers)) as got:
        await got.body()
        return got.headers


class _Heads:
    """The heads of the requests that replicas have received."""

    def __init__(self, answers_from: int) -> None:
        self.heads: list[bytes] = []
        self._enough = asyncio.Event()
        self._answers_from = answers_from

    async def replica(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Answer each request once `answers_from` of them have arrived anywhere."""
        while True:
            self.heads.append((await read_request(reader))[0])
            if len(self.heads) >= self._answers_from:
                self._enough.set()
            await self._enough.wait()
            writer.write(_ANSWER)

    @property
    def parents(self) -> list[list[str]]:
        """The fields of every `traceparent`."""
        found = re.findall(rb"\r\ntraceparent: (\S+)\r\n", b"".join(self.heads))
        return [each.decode().split("-") for each in found]


@contextlib.asynccontextmanager
async def _before(heads: _Heads, count: int, **settings: Any) -> AsyncIterator[Site]:
    async with contextlib.AsyncExitStack() as opened:
        servers = [await opened.enter_async_context(scripted(heads.replica)) for _ in range(count)]
        urls = {name: f"http://127.0.0.1:{server.port}/v1" for name, server in zip("abc", servers, strict=False)}
        yield await opened.enter_async_context(fronting(urls, kind="vllm", **settings))


def test_a_race_is_one_trace() -> None:
    """The caller's trace goes on through the request's span to each attempt, and from there to the replica's spans."""
    hedge = {"policy": "static", "delay": "1ms", "budget": "100%"}

    async def main(receiver: TraceReceiver) -> None:
        heads = _Heads(answers_from=2)
        tracing = {"endpoint": receiver.url, "sample": "0%", "headers": {"Authorization": "Bearer a-secret"}}
        async with _before(heads, 2, hedge=hedge, tracing=tracing) as site:
            got = await _ask(site, traceparent=_PARENT, tracestate="a=1")
            await until(lambda: len(receiver.spans) == 3)
        (request,), attempts = receiver.servers, receiver.clients
        assert {span.trace_id.hex() for span in receiver.spans} == {_TRACE}
        assert request.parent_span_id.hex() == _SPAN
        assert {span.parent_span_id for span in attempts} == {request.span_id}
        assert sorted(heads.parents) == sorted(["00", _TRACE, span.span_id.hex(), "01"] for span in attempts)
        assert all(b"\r\ntracestate: a=1\r\n" in head for head in heads.heads)
        found = {each["ttft_gateway.role"]: each for each in map(attributes, attempts)}
        assert {each["ttft_gateway.disposition"] for each in found.values()} == {"winner", "loser"}
        assert found["backup"]["ttft_gateway.reason"]
        winner = attributes(request)["ttft_gateway.winner"]
        assert winner == got["x-ttft-replica"]
        assert [
            each["ttft_gateway.disposition"] for each in found.values() if each["ttft_gateway.replica"] == winner
        ] == ["winner"]
        assert {each["gen_ai.provider.name"] for each in found.values()} == {"vllm"}
        assert {each["server.address"] for each in found.values()} == {"127.0.0.1"}
        path, headers = receiver.requests[0]
        assert (path, headers["authorization"]) == ("/v1/traces", "Bearer a-secret")
        assert receiver.resources[0]["service.name"] == "ttft-gateway"

    with receiving() as receiver:
        run_real(main(receiver))


def test_an_unsampled_trace_goes_on_and_is_not_exported() -> None:
    """A caller's decision against a trace is respected, and passed on; a trace that begins here is decided by share."""

    async def main(receiver: TraceReceiver) -> None:
        heads = _Heads(answers_from=1)
        async with _before(heads, 1, tracing={"endpoint": receiver.url, "sample": "100%"}) as site:
            await _ask(site, traceparent=f"00-{_TRACE}-{_SPAN}-00")
            await _ask(site, traceparent="nonsense", tracestate="a=1")
            await until(lambda: len(receiver.spans) == 2)
            passed, begun = heads.parents
            assert (passed[1], passed[3]) == (_TRACE, "00")
            assert passed[2] != _SPAN
            assert [begun[1]] == [span.trace_id.hex() for span in receiver.servers]
            assert (begun[3], receiver.servers[0].parent_span_id) == ("01", b"")
            assert b"tracestate" not in heads.heads[1]
            ended = [event for event in site.events if isinstance(event, RequestEnded)]
            assert [event.trace_id for event in ended] == [_TRACE, begun[1]]

    with receiving() as receiver:
        run_real(main(receiver))


def test_without_tracing_the_header_is_passed_on() -> None:
    """Without the setting, replicas receive the caller's own header."""

    async def main() -> None:
        heads = _Heads(answers_from=1)
        async with _before(heads, 1) as site:
            await _ask(site, traceparent=_PARENT)
            assert heads.parents == [_PARENT.split("-")]
            await _ask(site)
            assert len(heads.parents) == 1

    run_real(main())


def test_a_rejected_request_has_a_span() -> None:
    """A request that reaches no replica has one span, with its status."""

    async def main(receiver: TraceReceiver) -> None:
        tracing = {"endpoint": receiver.url, "sample": "100%"}
        async with serving({"a": {}}, tracing=tracing) as site:
            async with answer(site.port, request_bytes(b"{", headers={"traceparent": _PARENT})) as got:
                assert got.status == 400
            assert [event.trace_id for event in site.events if isinstance(event, RequestRejected)] == [_TRACE]
            await until(lambda: len(receiver.spans) == 1)
            assert attributes(receiver.servers[0])["http.response.status_code"] == 400

    with receiving() as receiver:
        run_real(main(receiver))


def test_a_dead_receiver_costs_no_request(monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> None:
    """Requests are answered, their spans counted as lost, and the log has one line; after it, spans arrive again."""
    monkeypatch.setattr(otlp, "_RETRY_S", 0.001)

    async def main(receiver: TraceReceiver) -> None:
        async with serving({"a": {}}, tracing={"endpoint": receiver.url, "sample": "100%"}) as site:
            assert site.gateway is not None
            counts = site.gateway._tracing.counts
            for receiver.status, lost in ((503, 2), (404, 4)):
                await _ask(site)
                site.gateway.hub.flush()
                await until(partial(_is, counts, lost))
            receiver.status = 200
            await _ask(site)
            site.gateway.hub.flush()
            await until(lambda: counts.exported > 0)
            values = {value.name: value.value for value in counts.values()}
            assert values == {"ttft_gateway_spans_exported": 2, "ttft_gateway_spans_lost": 4}

    with receiving() as receiver:
        run_real(main(receiver))
    texts = [record.getMessage() for record in caplog.records if record.name.startswith(("gateway", "opentelemetry"))]
    assert texts == [
        "spans are lost, because the receiver at `tracing.endpoint` does not accept them: status 503",
        "spans are exported again; 4 were lost",
    ]
    assert len(receiver.requests) == 4  # a retry of the first


def test_a_receiver_that_is_not_there(monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> None:
    """A refused connection is reported with its reason, without a header of the export."""
    monkeypatch.setattr(otlp, "_RETRY_S", 0.001)
    endpoint, headers = f"http://127.0.0.1:{unused_port()}", {"authorization": "Bearer a-secret"}

    async def main() -> None:
        tracing = {"endpoint": endpoint, "sample": "100%", "headers": headers}
        async with serving({"a": {}}, tracing=tracing) as site:
            assert site.gateway is not None
            counts = site.gateway._tracing.counts
            await _ask(site)
            site.gateway.hub.flush()
            await until(lambda: counts.lost == 2)

    run_real(main())
    (text,) = [record.getMessage() for record in caplog.records if record.name.startswith(("gateway", "opentelemetry"))]
    assert text.startswith("spans are lost, because the receiver at `tracing.endpoint` does not accept them: ")
    assert text.endswith("Connection refused")
    assert "a-secret" not in text


_ENDLESS_HEAD = b"HTTP/1.1 200 OK\r\nx-endless: "
_ENDLESS_BODY = b"HTTP/1.1 200 OK\r\ncontent-length: 9999999999\r\n\r\n"


@pytest.mark.parametrize(
    ("head", "part", "reason"),
    [
        (_ENDLESS_BODY, bytes(65_536), "its answer is larger than 65536 bytes"),
        (_ENDLESS_BODY, b"x", "no whole answer within 0.2 s"),
        (_ENDLESS_HEAD, b"x", "no whole answer within 0.2 s"),
    ],
    ids=["large", "slow body", "slow head"],
)
def test_an_answer_without_end(
    head: bytes, part: bytes, reason: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Of an answer without end the gateway reads a little for a short time; the spans are counted as lost."""
    monkeypatch.setattr(otlp, "_RETRY_S", 0.001)
    monkeypatch.setattr(otlp, "_TIMEOUT_S", 0.2 if len(part) == 1 else WAIT_S)
    written = 0

    async def answer_without_end(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        nonlocal written
        await read_request(reader)
        writer.write(head)
        while not writer.is_closing():
            writer.write(part)
            written += len(part)
            await writer.drain()
            await asyncio.sleep(0.01 if len(part) == 1 else 0)

    async def main() -> None:
        async with scripted(answer_without_end) as receiver:
            endpoint = f"http://127.0.0.1:{receiver.port}"
            async with serving({"a": {}}, tracing={"endpoint": endpoint, "sample": "100%"}) as site:
                assert site.gateway is not None
                counts = site.gateway._tracing.counts
                await _ask(site)
                site.gateway.hub.flush()
                await until(partial(_is, counts, 2))

    run_real(main())
    (text,) = [record.getMessage() for record in caplog.records if record.name.startswith("gateway")]
    assert text == f"spans are lost, because the receiver at `tracing.endpoint` does not accept them: {reason}"
    assert written < 20_000_000  # what the buffers of two sockets hold


def test_a_reload_changes_the_receiver(tmp_path: Path) -> None:
    """After a reload spans go to the new receiver, with the new share; without the section nothing is traced."""
    file = tmp_path / "gateway.yaml"

    async def main(first: TraceReceiver, second: TraceReceiver) -> None:
        async with serving({"a": {}}, tracing={"endpoint": first.url, "sample": "100%"}) as site:
            gateway = site.gateway
            assert gateway is not None
            base = {"listen": str(gateway.in_force.topology.settings.listen), "admin_listen": "off"}
            rows = [{"name": "a", "kind": "simulated", "base_url": site.replicas["a"].url}]
            model = {"name": "m", "replicas": rows, "recovery": "off"}
            gateway.reloads._reread = lambda: load(file, {})

            async def reload(**tracing: str) -> None:
                config = {**base, "models": [model], **({"tracing": tracing} if tracing else {})}
                file.write_text(json.dumps(config), encoding="utf-8")
                await gateway.reloads.reload()

            listeners = len(gateway.hub.listeners)
            await _ask(site)
            await reload(endpoint=second.url, sample="100%")
            await until(lambda: len(first.spans) == 2)
            await _ask(site)
            await until(lambda: len(second.spans) == 2)
            await reload(endpoint=second.url, sample="0%")
            await _ask(site)
            await reload()
            await _ask(site, traceparent=_PARENT)
            assert len(gateway.hub.listeners) == listeners - 1
            assert [event.trace is None for event in site.events if isinstance(event, RequestEnded)] == [False] * 3 + [
                True
            ]
        assert (len(first.spans), len(second.spans)) == (2, 2)

    with receiving() as first, receiving() as second:
        run_real(main(first, second))


def test_the_last_spans_are_exported_at_the_end(monkeypatch: pytest.MonkeyPatch) -> None:
    """A gateway that stops exports what is queued."""
    monkeypatch.setattr(span_queue, "_GATHER_S", WAIT_S)
    monkeypatch.setattr(tracing, "_CLOSE_S_MAX", WAIT_S)

    async def main(receiver: TraceReceiver) -> None:
        async with serving({"a": {}}, tracing={"endpoint": receiver.url, "sample": "100%"}) as site:
            await _ask(site)
            await _ask(site)
            assert not receiver.spans

    with receiving() as receiver:
        run_real(main(receiver))
        assert len(receiver.spans) == 4


@pytest.mark.skipif(sys.platform != "linux", reason="several workers need Linux")
def test_workers_export(tmp_path: Path) -> None:
    """Each worker exports under its own name; log lines have the ids of the spans, and the metric adds the workers."""

    async def main(receiver: TraceReceiver) -> None:
        tracing = {"endpoint": receiver.url, "sample": "100%"}
        async with (
            simulated_sockets.serving(0) as replica,
            worker_site.site_before(replica.url, tmp_path, tracing=tracing) as home,
        ):

            async def asked(_number: int) -> None:
                async with answer(home.port, asking()) as got:
                    await got.body()

            await asyncio.gather(*map(asked, range(8)))

            async def all_exported() -> bool:
                return await home.metric("ttft_gateway_spans_exported_total") == 16

            await until_soon(all_exported)
            home.gateway.process.send_signal(signal.SIGTERM)
            _, output = await home.gateway.ended()
        lines = [json.loads(line) for line in output.splitlines() if line.startswith(b'{"time"')]
        logged = {(line["trace_id"], line["span_id"]) for line in lines if line["event"] == "request"}
        assert logged == {(span.trace_id.hex(), span.span_id.hex()) for span in receiver.servers}
        assert (len(receiver.servers), len(receiver.clients)) == (8, 8)
        assert {each["service.instance.id"].rpartition("-")[2] for each in receiver.resources} <= {"1", "2"}

    with receiving() as receiver:
        run_real(main(receiver))
