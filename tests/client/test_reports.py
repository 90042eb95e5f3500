"""Every race can be explained: by its response, a log record, a hook, and spans of OpenTelemetry."""

import asyncio
import logging
import sys
from typing import Any

import httpx
import httpx2
import openai
import pytest
from opentelemetry import trace
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

import client_fixtures
from aiohttp_client import CALL, run
from client_replicas import Replicas
from grpc_clients import connected
from grpc_replicas import STREAM, UNARY
from ttft_gateway import (
    AsyncHedgingTransport,
    AsyncHedgingTransport2,
    HedgeConfig,
    HedgingSession,
    HedgingTransport,
    RaceReport,
    Stats,
    report_of,
)
from ttft_gateway.testing import AT_ONCE, Script, answer, chat, failure, late

site = client_fixtures.site


def _hedged(script: Script, config: HedgeConfig = AT_ONCE, stats: Stats | None = None) -> httpx.Response:
    transport = HedgingTransport(config, stats=stats, transport=script.transport(httpx))
    with httpx.Client(transport=transport) as client:
        return client.get("http://any/path/17")


def _hedged_async(script: Script, config: HedgeConfig = AT_ONCE, stats: Stats | None = None) -> httpx.Response:
    async def main() -> httpx.Response:
        transport = AsyncHedgingTransport(config, stats=stats, transport=script.transport(httpx))
        async with httpx.AsyncClient(transport=transport) as client:
            return await client.get("http://any/path/17")

    return asyncio.run(main())


BOTH = pytest.mark.parametrize("send", [_hedged, _hedged_async])


def _check_won(report: RaceReport | None) -> RaceReport:
    """Check the report of a race that a backup has won."""
    assert report is not None
    primary, backup = report.attempts
    assert (primary.result, backup.result, report.is_hedged) == ("lost", "won", True)
    assert (primary.why, primary.number, backup.number) == ("", 0, 1)
    assert "had no token after" in backup.why
    assert report.first_s is not None
    assert report.first_s >= backup.sent_s >= 0.0
    return report


@BOTH
def test_a_response_has_the_report_of_its_race(send: Any) -> None:
    """Attempts, targets, reasons and times are in the extension `ttft`."""
    response = send(Script(late(), answer(b"hello")))
    assert response.text == "hello"
    report = _check_won(response.extensions["ttft"])
    assert report is report_of(response)
    assert (report.population, report.target) == ("GET /path/{}", "any")
    assert report.attempts[1].status == 200
    assert str(report).startswith("GET /path/{}; first event after ")
    assert report.as_dict()["attempts"][1]["result"] == "won"


def test_a_late_attempt_of_a_script_never_wins() -> None:
    """A scripted attempt that is late waits until the race is decided, however the threads take turns."""
    interval_s = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    try:
        assert {_hedged(Script(late(), answer(b"hello"))).text for _ in range(50)} == {"hello"}
    finally:
        sys.setswitchinterval(interval_s)


def test_a_late_request_without_a_backup_has_its_reason() -> None:
    """A denial is reported with its reason and its numbers; a request that could get none has no delay."""

    async def soon(_request: httpx.Request) -> httpx.Response:
        await asyncio.sleep(0.02)
        return httpx.Response(200)

    async def main(config: HedgeConfig) -> RaceReport:
        transport = AsyncHedgingTransport(config, transport=httpx.MockTransport(soon))
        async with httpx.AsyncClient(transport=transport) as client:
            report = report_of(await client.get("http://any/"))
        assert report is not None
        return report

    report = asyncio.run(main(HedgeConfig(warmup_delay=0.0, min_delay=0.0, budget_percent=1e-9)))
    assert [each.reason for each in report.denials] == ["budget"]
    assert "the hedge budget is too low" in str(report)
    never = asyncio.run(main(HedgeConfig(policy="off")))
    assert (never.delay_s, never.denials, never.is_hedged) == (None, (), False)


@BOTH
def test_a_race_is_logged_and_passed_to_the_hook(send: Any, caplog: pytest.LogCaptureFixture) -> None:
    """One record at the level debug, and one call, for each race, also if all attempts fail."""
    reports: list[RaceReport] = []
    stats = Stats(on_race=reports.append)
    with caplog.at_level(logging.DEBUG, logger="ttft_gateway"):
        send(Script(late(), answer(b"hello")), stats=stats)
        with pytest.raises(httpx.ConnectError):
            send(Script(failure(httpx.ConnectError("refused"))), HedgeConfig(), stats=stats)
    _check_won(reports[0])
    assert [report.target for report in reports] == ["any", None]
    assert reports[1].attempts[0].result == "failed"
    records = [record for record in caplog.records if record.name == "ttft_gateway"]
    assert [record.levelname for record in records] == ["DEBUG", "DEBUG"]
    assert records[0].getMessage() == str(reports[0])
    assert "no answer" in records[1].getMessage()


def test_a_bug_in_the_hook_costs_no_answer(caplog: pytest.LogCaptureFixture) -> None:
    """It is logged."""

    def broken(_report: RaceReport) -> None:
        raise RuntimeError("broken")

    assert _hedged(Script(answer(b"hello")), stats=Stats(broken)).text == "hello"
    assert "the hook on_race failed" in caplog.text


def test_nothing_is_logged_by_default(caplog: pytest.LogCaptureFixture) -> None:
    """Above debug, a race leaves no record."""
    _hedged(Script(late(), answer(b"hello")))
    assert not caplog.records


def test_a_stream_of_an_sdk_has_the_report() -> None:
    """`report_of` finds the response in the SDK's stream."""
    script = Script(late(), chat("Hel", "lo"))

    async def main() -> tuple[str, RaceReport | None]:
        transport = AsyncHedgingTransport2(AT_ONCE, transport=script.transport(httpx2))
        http = httpx2.AsyncClient(transport=transport)
        async with openai.AsyncOpenAI(base_url="http://any/v1", api_key="k", http_client=http) as client:
            messages: Any = [{"role": "user", "content": "hello"}]
            stream = await client.chat.completions.create(model="m", messages=messages, stream=True)
            return "".join([chunk.choices[0].delta.content or "" async for chunk in stream]), report_of(stream)

    text, report = asyncio.run(main())
    assert text == "Hello"
    assert _check_won(report).population == "chat/completions m"


def test_a_response_of_aiohttp_has_the_report(site: Replicas) -> None:
    """`report_of` takes any response."""
    replica = site.add("late_headers", "quick")

    async def work(session: HedgingSession) -> RaceReport | None:
        async with session.post(f"{replica.url}/chat/completions", json=CALL) as response:
            await response.read()
            return report_of(response)

    _check_won(run(work, replica))


@pytest.mark.parametrize("method", [UNARY, STREAM])
def test_a_call_of_grpc_aio_has_the_report(method: str) -> None:
    """The call that the caller holds has it, although interceptors return another one."""
    with connected("aio", "silent", "quick") as client:

        async def work() -> RaceReport | None:
            call = client.open(method)
            assert report_of(call) is None
            found = await call if method == UNARY else b"".join([message async for message in call])
            assert found == b"Hello 2"
            return report_of(call)

        _check_won(client.run(work()))


@pytest.mark.parametrize("method", [UNARY, STREAM])
def test_a_call_of_grpc_has_the_report(method: str) -> None:
    """The call of a synchronous channel has it."""
    with connected("sync", "silent", "quick") as client:
        call = client.open(method)
        found = call.result() if method == UNARY else b"".join(call)
        assert found == b"Hello 2"
        _check_won(report_of(call))


def test_what_had_no_race_has_no_report() -> None:
    """Other objects, and responses without a race, give None."""
    assert report_of(httpx.Response(200)) is None
    assert report_of(object()) is None


@pytest.fixture
def spans(monkeypatch: pytest.MonkeyPatch) -> InMemorySpanExporter:
    """Collects the spans of the process."""
    exporter, provider = InMemorySpanExporter(), TracerProvider()
    provider.add_span_processor(SimpleSpanProcessor(exporter))
    monkeypatch.setattr(trace, "_TRACER_PROVIDER", provider)
    return exporter


@BOTH
def test_attempts_are_spans(spans: InMemorySpanExporter, send: Any) -> None:
    """They are named primary and backup, below the caller's span, and linked."""
    with trace.get_tracer("test").start_as_current_span("call") as call:
        assert send(Script(late(), answer(b"hello"))).text == "hello"
    found = {span.name: span for span in spans.get_finished_spans()}
    assert set(found) == {"primary", "backup", "call"}
    primary, backup = found["primary"], found["backup"]
    for each in (primary, backup):
        assert each.parent is not None
        assert each.parent.span_id == call.get_span_context().span_id
    [link] = backup.links
    own: Any = primary.get_span_context()
    assert link.context.span_id == own.span_id
    attributes = {name: dict(span.attributes or {}) for name, span in found.items()}
    assert attributes["backup"]["ttft.result"] == "won"
    assert attributes["primary"]["ttft.result"] == "lost"
    assert attributes["backup"]["ttft.target"] == "any"
    assert "had no token" in str(attributes["backup"]["ttft.why"])


def test_a_program_without_opentelemetry_does_not_import_it(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without the API in the process there are no spans, and an answer."""
    monkeypatch.delitem(sys.modules, "opentelemetry.trace")
    assert _hedged(Script(late(), answer(b"hello"))).text == "hello"
    assert "opentelemetry.trace" not in sys.modules
