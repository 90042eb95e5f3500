"""Reading logs for a replay: each format, bad lines with their numbers, and bounded memory."""

import gzip
import json
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from streaming_bench.errors import BenchError
from streaming_bench.replay import reader
from streaming_bench.replay.logged import LoggedRequest
from streaming_bench.replay.reader import STRETCH, Stretches, read_log

AT_S = 1_770_000_000.25
GATEWAY: dict[str, Any] = {
    "time": "2026-02-02T02:40:01.250000Z",
    "level": "info",
    "event": "request",
    "model": "llama",
    "api": "chat/completions",
    "total_ms": 1000.0,
    "gateway_ms": 0.0,
    "attempts": [
        {
            "replica": "a",
            "outcome": "finished",
            "start_ms": 0.0,
            "end_ms": 1000.0,
            "ttft_ms": 250.0,
            "usage": {"prompt_tokens": 90, "completion_tokens": 12},
        }
    ],
}
LOST = {"replica": "a", "outcome": "lost", "start_ms": 0.0, "end_ms": 400.0, "charge": {"prompt_tokens": 90}}
LITELLM: dict[str, Any] = {
    "call_type": "acompletion",
    "status": "success",
    "stream": True,
    "startTime": AT_S,
    "completionStartTime": AT_S + 0.25,
    "endTime": AT_S + 1.0,
    "model": "gpt-4o",
    "model_group": "llama",
    "model_id": "a",
    "api_base": "https://a.example",
    "prompt_tokens": 90,
    "completion_tokens": 12,
    "messages": [{"role": "user", "content": "a secret"}],
}
PLAIN: dict[str, Any] = {
    "created_at": "2026-02-02T02:40:00.25Z",
    "request": {"model": "llama", "stream": True},
    "response": {"usage": {"prompt_tokens": 90, "completion_tokens": 12}},
    "base_url": "a",
    "ttft_ms": 250,
    "duration_ms": 1000,
}
CSV = "arrival,model,prompt_tokens,replica,ttft_ms,total_ms,completion_tokens\n"
EXPECTED = LoggedRequest(AT_S, "llama", "a", 90.0, 0.25, 0.75, answer_tokens=12.0)


def file_of(folder: Path, *lines: object) -> Path:
    """A log with these lines; objects are written as JSON."""
    path = folder / "log"
    path.write_text("".join(f"{line if isinstance(line, str) else json.dumps(line)}\n" for line in lines))
    return path


def only(path: Path) -> LoggedRequest:
    """The only request of a log."""
    ((request,),) = read_log(path, 100).requests.values()
    return request


@pytest.mark.parametrize(
    ("lines", "kind"),
    [
        ((GATEWAY,), reader.GATEWAY),
        ((LITELLM,), reader.LITELLM),
        (({"level": "INFO", "standard_logging_object": LITELLM},), reader.LITELLM),
        (
            (LITELLM | {"startTime": "2026-02-02 02:40:00.25", "completionStartTime": "2026-02-02 02:40:00.50+00:00"},),
            reader.LITELLM,
        ),
        ((PLAIN,), reader.PLAIN_JSON),
        ((PLAIN | {"ttft_ms": None, "first_token_at": AT_S + 0.25},), reader.PLAIN_JSON),
        (
            (PLAIN | {"created_at": int(1000 * AT_S), "ttft_ms": "", "time_to_first_token": "0.25 s"},),
            reader.PLAIN_JSON,
        ),
        ((CSV.strip(), f"{AT_S},llama,90,a,250,1000,12"), reader.CSV),
        (
            (
                "\ufeffTimestamp;Model;Tokens;Host;TTFT_s;total_s;output_tokens",
                f"{1000 * AT_S:.0f};llama;90;a;0.25;1;12",
            ),
            reader.CSV,
        ),
    ],
)
def test_every_format_gives_the_same_request(tmp_path: Path, lines: tuple[object, ...], kind: str) -> None:
    """A request has the same values whatever the format of its line."""
    path = file_of(tmp_path, *lines)
    assert only(path)[:-1] == pytest.approx(EXPECTED[:-1])
    assert read_log(path, 100).kind == kind


def test_a_compressed_log_is_read(tmp_path: Path) -> None:
    """A file compressed by gzip is read like the file itself."""
    path = tmp_path / "log.gz"
    path.write_bytes(gzip.compress(json.dumps(GATEWAY).encode()))
    assert only(path)[:-1] == pytest.approx(EXPECTED[:-1])


def test_a_cancelled_primary_is_a_lower_bound(tmp_path: Path) -> None:
    """A primary that lost its race gives the time at which it was cancelled."""
    line = GATEWAY | {"attempts": [LOST, GATEWAY["attempts"][0] | {"replica": "b"}]}
    expected = EXPECTED._replace(ttft_s=0.4, rest_s=0.0, cancelled=True)
    assert only(file_of(tmp_path, line))[:-1] == pytest.approx(expected[:-1])


def test_all_attempts_are_read_for_tiers(tmp_path: Path) -> None:
    """A refused first attempt is a request, too, and later attempts have their own waits and refusals."""
    answer = GATEWAY["attempts"][0] | {"replica": "b", "start_ms": 30.0}
    refused = {"replica": "a", "outcome": "rate_limited", "start_ms": 0.0, "end_ms": 20.0}
    path = file_of(tmp_path, GATEWAY | {"ttft_ms": 280.0, "attempts": [refused, LOST | {"start_ms": 20.0}, answer]})
    with pytest.raises(BenchError, match="1 the first replica failed or rejected the request"):
        read_log(path, 100)
    ((request,),) = read_log(path, 100, attempts=True).requests.values()
    lost, won = request.later
    assert (request.replica, request.refused, request.cancelled, request.answer_tokens) == ("a", True, True, 12.0)
    assert request.rest_s == pytest.approx(0.72)
    assert lost == pytest.approx((AT_S + 0.02, "a", 0.4, True, False))
    assert won == pytest.approx((AT_S + 0.03, "b", 0.25, False, False))


@pytest.mark.parametrize(
    ("line", "reason"),
    [
        (GATEWAY | {"event": "breaker_changed"}, "other events"),
        (GATEWAY | {"api": "embeddings"}, "answers in one piece, such as embeddings"),
        (GATEWAY | {"attempts": [LOST | {"outcome": "failed"}]}, "the first replica failed or rejected the request"),
        (LITELLM | {"status": "failure"}, "failed"),
        (LITELLM | {"stream": False}, "not streamed, so without a first token"),
        (LITELLM | {"completionStartTime": AT_S + 1.0}, "not streamed, so without a first token"),
        (LITELLM | {"cache_hit": True}, "answered from LiteLLM's cache"),
        (LITELLM | {"call_type": "aembedding"}, "calls without a first token, such as embeddings"),
        (PLAIN | {"status_code": 503}, "failed"),
        (PLAIN | {"stream": False}, "not streamed, so without a first token"),
    ],
)
def test_lines_without_a_first_token_are_counted(tmp_path: Path, line: dict[str, Any], reason: str) -> None:
    """A line that is no usable request is counted with its reason."""
    usable = next(each for each in (GATEWAY, LITELLM, PLAIN) if set(each) <= set(line))
    assert read_log(file_of(tmp_path, usable, line), 100).unused == {reason: 1}


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "is empty; name a log with one request a line"),
        ("[\n", "line 1: the file is one JSON array; write one object a line: jq -c '.[]' FILE > lines.jsonl"),
        ("{\n", "line 1: the line is no JSON object"),
        ("\0\1", "line 1: the file is binary"),
        ("2026-03-01 12:30:15.250 info 200 llama primary 9ms\n", "the gateway's log as text"),
        ("1770000000,llama,90,a,250\n", "line 1: the file has no head line; begin it with the names of the columns: "),
        ("time,model\n1,a\n", "the head line has no column ttft_ms or ttft_s, but time, model; name them so"),
        (CSV, "has 0 lines of CSV and none with a time to the first token"),
        (CSV + "soon,m,1,a,5,9,2\n", "line 2: arrival is 'soon', which is no time; write seconds or ISO 8601"),
        (CSV + "1,m,1,a,fast,9,2\n", "line 2: ttft_ms is 'fast', which is no duration; write a number above 0"),
        (
            CSV + "1,m,1,a,-5,9,2\n",
            "line 2: ttft_ms is -0.005 s; a time to the first token is above 0 and at most a day",
        ),
        (CSV + "1,m,many,a,5,9,2\n", "line 2: prompt_tokens is 'many', which is no number of tokens"),
        (CSV + "1,m,1,a,5\n", "line 2: the line has 5 cells, and the head line 7; write equally many"),
        (
            "arrival,ttft\n1,0.25\n",
            "line 2: ttft has no unit; name it ttft_s or ttft_ms, or write values such as 250ms",
        ),
        ('{"event":"request","level":"info"}\n', "line 1: the line has no time, total_ms or attempts"),
        ('{"model":"m","ttft_ms":5}\n', "line 1: the line has no time of arrival; add one of the fields arrived_at"),
        ('{"model":"m","created":5}\n', "line 1: the line has no time to the first token; add the field ttft_ms"),
    ],
)
def test_bad_input_is_explained(tmp_path: Path, text: str, message: str) -> None:
    """The message has the line number, the value found and the action."""
    path = tmp_path / "log"
    path.write_text(text)
    with pytest.raises(BenchError) as raised:
        read_log(path, 100)
    assert message in str(raised.value)


def test_missing_files_are_named(tmp_path: Path) -> None:
    """A file that does not exist, or is a folder, is named with the cause."""
    with pytest.raises(BenchError, match="No such file"):
        read_log(tmp_path / "none", 100)
    with pytest.raises(BenchError, match="Is a directory"):
        read_log(tmp_path, 100)


def test_a_few_bad_lines_are_skipped_and_shown(tmp_path: Path) -> None:
    """One bad line in forty is counted, with the message of the first; with one in ten the file is rejected."""
    good = [GATEWAY] * 39
    contents = read_log(file_of(tmp_path, *good, '{"cut'), 100)
    assert (contents.models["llama"], contents.unreadable) == (39, 1)
    assert contents.first_unreadable.startswith("line 40: the line is no line of the gateway's log")
    with pytest.raises(BenchError, match="1 of 10 lines cannot be read as ttft-gateway's log; line 10: "):
        read_log(file_of(tmp_path, *good[:9], '{"cut'), 100)


def test_too_long_lines_are_skipped(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A line beyond the bound is skipped without being read as a whole, and the next line is read."""
    monkeypatch.setattr(reader, "_LINE_BYTES_MAX", 1000)
    long = GATEWAY | {"denied_why": "x" * 5000}
    contents = read_log(file_of(tmp_path, *[GATEWAY] * 20, long, *[GATEWAY] * 20), 100)
    assert (contents.models["llama"], contents.unreadable, contents.lines) == (40, 1, 41)


def test_memory_is_bounded(tmp_path: Path) -> None:
    """At most 16 models and the requested number of requests of each are read; all are counted."""
    rows = [f"{second},m{model},1,a,250,1000," for model in range(20) for second in range(5)]
    contents = read_log(file_of(tmp_path, CSV.strip(), *rows), 2)
    assert contents.models[reader.OTHERS] == 20
    assert len(contents.requests) == 16
    assert all(len(each) <= 2 for each in contents.requests.values())


@pytest.mark.parametrize(
    ("count", "keep"), [(10, 100), (950, 10_000), (2_500, 4_000), (50_300, 10_000), (99_999, 3_000)]
)
def test_stretches_cover_the_whole_log(count: int, keep: int) -> None:
    """A short log is read whole; of a long one, whole stretches from its beginning to its end."""
    stretches = Stretches(keep)
    for number in range(count):
        stretches.add(EXPECTED._replace(arrived_s=float(number)))
    chosen = [int(request.arrived_s) for request in stretches.chosen()]
    assert chosen == sorted(set(chosen))
    if count <= keep:
        assert len(chosen) == count
        return
    assert len(chosen) == keep
    starts = chosen[::STRETCH]
    assert all(chosen[i * STRETCH + STRETCH - 1] == start + STRETCH - 1 for i, start in enumerate(starts))
    gaps = [after - before for before, after in pairwise(starts)]
    assert starts[0] == 0
    assert max(gaps) <= 2 * min(gaps)
    assert count - starts[-1] <= 2 * max(gaps)
