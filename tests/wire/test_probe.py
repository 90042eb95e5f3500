"""`probe` against replicas with defined behaviour: results, costs, exit codes. Real sockets."""

import asyncio
import contextlib
import json
import socket
from collections.abc import AsyncIterator, Callable, Mapping
from pathlib import Path
from typing import Any

import pytest

from gateway.__main__ import main
from gateway.cli.parser import ExitCode
from gateway.cli.probe.cancel import CancelResult
from gateway.cli.probe.command import probe_all
from gateway.cli.probe.plan import targets
from gateway.cli.probe.report import ProbeReport
from gateway.config.settings import Settings
from running import run_real
from served import replicas
from simulated_sockets import chat, connected, serving
from ttft_gateway.apis.base import Api

KEY = "sk-quite-secret"
TEXT = b'data: {"choices":[{"delta":{"content":"1"}}]}\n\n'
END = b'data: {"choices":[{"delta":{},"finish_reason":"stop"}]}\n\ndata: [DONE]\n\n'


async def probed(url: str, row: Mapping[str, Any], requests: int = 3, max_tokens: int = 8) -> ProbeReport:
    """Probe one replica with these settings."""
    replica = {"name": "a", "kind": "simulated", "base_url": url, **row}
    settings = Settings.model_validate({"models": [{"name": "m", "replicas": [replica]}]})
    [report] = await probe_all(settings, targets(settings, None, None), requests, max_tokens)
    return report


def simulated(
    requests: int = 3, max_tokens: int = 8, row: Mapping[str, Any] | None = None, **profile: Any
) -> ProbeReport:
    """Probe a simulated replica."""

    async def run() -> ProbeReport:
        async with serving(**profile) as server:
            report = await probed(server.url, row or {}, requests, max_tokens)
            sent = requests + 1 + len(report.signs) if report.error is None else report.streams + 1
            assert sent <= server.stats.requests <= sent + 1  # a cancel that seems obeyed takes two requests
            return report

    return run_real(run())


def names(report: ProbeReport) -> list[str]:
    """Of its quirks, but those that nearly every replica has, or a busy machine."""
    return [quirk.name for quirk in report.quirks if quirk.name not in ("role_first", "ttfb_trap", "one_piece")]


def test_a_replica_that_flushes_headers_early() -> None:
    """Times are in order; early headers are a trap; a cancel that is obeyed is seen to be."""
    report = simulated(1, 3, ttft="1s", gap="100ms")
    times = report.times
    assert times.connect_s is not None
    assert times.headers_s is not None
    assert times.byte_s is not None
    assert times.content_s is not None
    assert times.gap_s is not None
    assert 0 < times.headers_s <= times.byte_s < times.content_s
    assert times.content_s >= 1.0
    assert (report.error, report.streams, report.times.trap) == (None, 1, True)
    assert [quirk.name for quirk in report.quirks] == ["ttfb_trap", "role_first"]
    assert report.cancel is not None
    assert report.cancel.outcome is CancelResult.OBEYED, report.cancel


def test_a_replica_that_holds_headers() -> None:
    """Headers that arrive with the content are no trap."""
    report = simulated(ttft="150ms", gap="2ms", headers="with_first_content")
    assert (report.times.trap, names(report)) == (False, [])


@pytest.mark.parametrize(
    ("profile", "expected"),
    [
        ({"faults": ["crlf"]}, ["crlf"]),
        ({"faults": ["no_done"]}, ["no_done"]),
        ({"faults": ["fields"]}, ["no_data", "id_or_retry"]),
        ({"faults": ["malformed"]}, ["malformed"]),
        ({"faults": ["close"]}, ["no_keep_alive"]),
        ({"faults": ["json_answer"]}, ["json_body"]),
        ({"faults": ["pings"]}, ["comments"]),
        ({"faults": ["split:7", "utf8", "chunk_extensions", "informational"]}, []),
        ({"first_comment": "OPENROUTER PROCESSING"}, ["comments"]),
        ({"provider": "azure"}, ["no_choices"]),
        ({"reasoning_tokens": 2, "reasoning_key": "reasoning"}, ["reasoning"]),
    ],
)
def test_quirks_are_found_and_no_errors(profile: dict[str, Any], expected: list[str]) -> None:
    """Unusual but readable streams have quirks, not failures."""
    report = simulated(gap="1ms", **profile)
    assert (report.error, names(report)) == (None, expected)


@pytest.mark.parametrize(
    ("fault", "message"),
    [
        ("401", "status 401: Incorrect API key provided.; check api_key"),
        ("404", "status 404: The model does not exist.; the replica lists simulated; write one of them"),
        ("500", "status 500: The server had an error"),
        ("429:openai,2s", "status 429: Rate limit reached"),
        ("reset", "without an answer; if the server needs TLS, write https:// in base_url"),
        ("error_frame:1", "The server had an error"),
        ("cut_fin:2", "ended before the answer was complete"),
        ("empty", "ended before the answer was complete"),
        ("json_error", "The engine is dead"),
    ],
)
def test_a_failure_ends_the_probe_after_one_request(fault: str, message: str) -> None:
    """A failed replica gets no further request, and its error includes the correction if one is known."""
    report = simulated(faults=[fault], row={"api_key": KEY})
    assert message in (report.error or "")
    assert (report.streams, report.cancel, report.times.content_s) == (0, None, None)
    assert report.times.connect_s is not None


def test_a_failure_in_between_keeps_what_was_measured() -> None:
    """Answers before the failure count, and the probe fails all the same."""

    async def run() -> ProbeReport:
        async with serving(gap="1ms", faults=["500 20%"], seed=4) as server:  # this seed fails neither first nor last
            return await probed(server.url, {}, 20)

    report = run_real(run())
    assert "status 500" in (report.error or "")
    assert 0 < report.streams < 20
    assert report.times.content_s is not None


@pytest.mark.parametrize("row", [{"kind": "anthropic"}, {"kind": "vllm", "apis": ["messages"]}])
def test_a_replica_of_another_api(row: dict[str, Any]) -> None:
    """A replica with Anthropic's API is probed through that API, with its times and without quirks of translation."""
    report = simulated(row=row, gap="1ms")
    assert (report.error, report.streams, names(report)) == (None, 3, [])
    assert report.times.content_s is not None
    assert [sign.api for sign in report.signs] == [Api.MESSAGES]


@pytest.mark.parametrize(("headers", "informative"), [("at_once", True), ("with_first_content", False)])
def test_signs_of_work(headers: str, *, informative: bool) -> None:
    """Whether a sign comes after the headers is measured, in each API that has signs."""
    report = simulated(1, headers=headers, ttft="60ms")
    assert [(sign.api, sign.informative, sign.error) for sign in report.signs] == [(Api.RESPONSES, informative, None)]


def test_an_unreachable_replica() -> None:
    """The error of an unreachable replica names its address."""
    with socket.create_server(("127.0.0.1", 0)) as unused:
        url = f"http://127.0.0.1:{unused.getsockname()[1]}/v1"
    report = run_real(probed(url, {}))
    assert report.error is not None
    assert report.error.startswith("cannot connect to the upstream: ")
    assert report.error.endswith(f"; check that the replica is running at {url}")


def test_a_scheme_that_does_not_fit_is_named() -> None:
    """https:// for a server without TLS: it runs, and the scheme is what to correct."""

    async def run() -> ProbeReport:
        async with serving() as server:
            return await probed(server.url.replace("http:", "https:"), {})

    error = run_real(run()).error or ""
    assert error.endswith("WRONG_VERSION_NUMBER; the server answers without TLS: write http:// in base_url")


def test_rate_limit_headers_are_reported() -> None:
    """Rate-limit headers are shown with their names and values; others are not."""
    report = simulated(gap="1ms", provider="openai", extra_headers=["x-other: 1", "retry-after: 3"])
    assert report.limits["x-ratelimit-limit-requests"] == "1000"
    assert report.limits["retry-after"] == "3"
    assert not {"x-other", "content-type"} & set(report.limits)


def test_a_provider_has_no_count_of_running_requests() -> None:
    """The effect of a close on a provider cannot be observed, and the public list does not count as proof."""
    report = simulated(gap="5ms", row={"kind": "groq"})
    assert report.cancel is not None
    assert report.cancel.outcome is CancelResult.UNKNOWN
    assert "cannot be observed" in report.cancel.text
    assert "billing continues after closing (not verified)" in report.cancel.text
    configured = simulated(gap="5ms", row={"kind": "groq", "cancel_stops_billing": True})
    assert configured.cancel is not None
    assert "`cancel_stops_billing: true` is configured" in configured.cancel.text


Answer = tuple[int, bytes, bytes]  # status, content type, body


@contextlib.asynccontextmanager
async def answering(answer: Callable[[str, dict[str, Any]], Answer]) -> AsyncIterator[str]:
    """A server that answers each path and JSON body so, while inside; gives its base URL."""

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(asyncio.IncompleteReadError, ConnectionError):
            while True:
                head = (await reader.readuntil(b"\r\n\r\n")).decode().lower()
                length = int(head.partition("content-length: ")[2].partition("\r\n")[0] or 0)
                body = json.loads(await reader.readexactly(length) or "{}")
                status, media, text = answer(head.split()[1], body)
                lines = b"HTTP/1.1 %d X\r\ncontent-type: %b\r\ncontent-length: %d\r\n\r\n" % (status, media, len(text))
                writer.write(lines + text)
        writer.close()

    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    try:
        yield f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}/v1"
    finally:
        server.close()
        await asyncio.sleep(0)


def answered(answer: Callable[[str, dict[str, Any]], Answer], **row: str) -> ProbeReport:
    """Probe a server with these answers."""

    async def run() -> ProbeReport:
        async with answering(answer) as url:
            return await probed(url, row)

    return run_real(run())


def test_a_rejected_field_is_changed_once() -> None:
    """A rejected `stream_options` or `max_tokens` is changed once, and reported."""
    bodies = []

    def answer(_path: str, body: dict[str, Any]) -> Answer:
        bodies.append(body)
        for key, param in (("stream_options", "stream_options"), ("max_tokens", "max_tokens")):
            if key in body:
                error = {"message": f"`{key}` is not supported, see max_completion_tokens", "param": param}
                return 400, b"application/json", json.dumps({"error": error}).encode()
        return 200, b"text/event-stream", TEXT + END

    report = answered(answer, kind="compatible")
    assert report.error is None
    assert names(report) == ["stream_options_refused", "max_tokens_refused"]
    assert [sorted(set(body) - {"messages", "model", "stream"}) for body in bodies[:3]] == [
        ["max_tokens", "stream_options"],
        ["max_tokens"],
        ["max_completion_tokens"],
    ]
    assert len(bodies) == 2 + 3 + 1


def test_a_server_that_rejects_everything_gets_three_requests() -> None:
    """A server that rejects every form of the request ends the probe."""
    asked = []

    def answer(_path: str, body: dict[str, Any]) -> Answer:
        asked.append(body)
        return 400, b"application/json", b'{"error": {"message": "no stream, no max_completion_tokens"}}'

    report = answered(answer, kind="compatible")
    assert "status 400: no stream" in (report.error or "")
    assert (len(asked), names(report)) == (3, [])


def test_missing_and_unrequested_token_counts() -> None:
    """Token counts are asked for in all streams but the last."""

    def never(_path: str, _body: dict[str, Any]) -> Answer:
        return 200, b"text/event-stream", TEXT + END

    def contrary(_path: str, body: dict[str, Any]) -> Answer:
        usage = b'data: {"choices":[],"usage":{"prompt_tokens":1}}\n\n'
        return 200, b"text/plain", TEXT + (END if "stream_options" in body else usage + END)

    assert names(answered(never, kind="compatible")) == ["usage_missing"]
    assert names(answered(contrary, kind="compatible")) == ["usage_missing", "usage_unasked", "content_type"]


def test_an_answer_without_content_fails_with_advice() -> None:
    """An answer without content cannot be measured; the error advises more tokens."""

    def answer(_path: str, _body: dict[str, Any]) -> Answer:
        return 200, b"text/event-stream", END

    assert "try --max-tokens 256 or more" in (answered(answer, kind="compatible").error or "")


def test_an_engine_that_is_in_use_proves_nothing() -> None:
    """With other running requests, the count is not conclusive."""

    async def run() -> ProbeReport:
        async with serving(gap="20ms") as server, connected(server.port) as (reader, writer):
            writer.write(chat({"max_tokens": 8000}))
            await reader.readuntil(b"\r\n\r\n")
            return await probed(server.url, {})

    report = run_real(run())
    assert report.cancel is not None
    assert report.cancel.outcome is CancelResult.UNKNOWN
    assert "has 1 other requests" in report.cancel.text


def test_a_wrong_base_url_is_suspected_where_nothing_is_known() -> None:
    """If neither the model nor a list of models is found, the error advises to check base_url."""
    report = answered(lambda _path, _body: (404, b"text/plain", b"no"), kind="compatible")
    assert "lists no models either; check base_url" in (report.error or "")


def test_texts_of_replicas_are_cleaned() -> None:
    """An error that quotes the key or steers the terminal does neither."""

    def answer(_path: str, _body: dict[str, Any]) -> Answer:
        return 401, b"application/json", json.dumps({"error": {"message": f"bad key {KEY}\x1b[2J"}}).encode()

    assert answered(answer, api_key=KEY).error == "status 401: bad key **** [2J; check api_key"


@pytest.fixture
def config(tmp_path: Path) -> Callable[..., str]:
    """Return a function that writes a configuration and returns its path."""

    def write(**urls: str) -> str:
        rows = [{"name": name, "kind": "simulated", "base_url": url} for name, url in urls.items()]
        file = tmp_path / "gateway.yaml"
        file.write_text(json.dumps({"models": [{"name": "m", "replicas": rows}]}))
        return str(file)

    return write


def test_the_command_prints_the_cost_and_then_the_results(
    config: Callable[..., str], capsys: pytest.CaptureFixture[str]
) -> None:
    """The cost is printed first, on stderr; exit code 0 means that no replica failed, 1 that one did."""
    with replicas(a={"gap": "1ms"}, b={"faults": ["500"]}) as urls:
        file = config(**urls)
        assert main(["probe", "--config", file, "--replica", "a", "--requests", "1"]) == ExitCode.OK
        out, err = capsys.readouterr()
        assert err == "4 requests to 1 replica: at most 536 generated tokens and about 160 prompt tokens\n"
        assert [line.split()[0] for line in out.splitlines()[:2]] == ["ms", "m/a"]
        assert main(["probe", "--config", file, "--json"]) == ExitCode.FAILED
    document = json.loads(capsys.readouterr().out)
    assert document["ok"] is False
    assert [(row["replica"], row["ok"]) for row in document["replicas"]] == [("a", True), ("b", False)]


def test_the_command_sends_nothing_without_agreement(
    config: Callable[..., str], capsys: pytest.CaptureFixture[str]
) -> None:
    """Too much for one probe, or a replica that is not there, ends with code 2, a bad file with 3; nothing is sent."""
    assert main(["probe", "--config", config(a="no URL")]) == ExitCode.BAD_CONFIG
    assert "base_url" in capsys.readouterr().err
    file = config(a="http://127.0.0.1:1/v1", b="http://127.0.0.1:1/v1")
    much = ["--requests", "20", "--max-tokens", "1000"]
    for options, message in (
        (much, "need --yes"),
        (["--replica", "z"], "has no such replica; choose from m/a, m/b"),
        (["--model", "z"], "has no such replica"),
    ):
        assert main(["probe", "--config", file, *options]) == ExitCode.USAGE
        out, err = capsys.readouterr()
        assert (out, message in err) == ("", True)


def test_the_command_names_a_source_without_replicas(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A model of which the source has found no replica is no mistake in an option."""
    (tmp_path / "replicas.yaml").write_text("[]")
    file = tmp_path / "gateway.yaml"
    file.write_text("models: [{name: m, discover: {file: replicas.yaml, kind: vllm}}]")
    for options in ([], ["--model", "m"]):
        assert main(["probe", "--config", str(file), *options]) == ExitCode.USAGE
        assert f"was found; check its `discover` in {file}" in capsys.readouterr().err
