"""Planned traffic: lengths, times, traces, and the maximum cost before the first request."""

import importlib.util
import random
from pathlib import Path

import pytest

from gateway.simulated.quantities import UnitError
from streaming_bench.__main__ import COMMANDS, RESEARCH, main
from streaming_bench.errors import BenchError
from streaming_bench.load.plan import TraceEntry, TrafficPlan, estimate_cost, in_blocks, plan_requests, read_trace
from streaming_bench.load.token_distribution import prompt_text, shared_text, token_distribution


def draws(text: str, count: int = 400) -> list[int]:
    """Token counts of a distribution."""
    rng = random.Random(1)
    return [token_distribution(text).draw(rng, number) for number in range(count)]


def test_distributions_draw_their_values() -> None:
    """Each form of a distribution draws its values, at least one token."""
    assert set(draws("200")) == {200}
    assert draws("trace:1,2,3", 4) == [1, 2, 3, 1]
    assert min(draws("uniform:10,20")) == 10
    assert max(draws("uniform:10,20")) == 20
    lognormal = draws("lognormal:500,200", 4000)
    assert 490 < sum(lognormal) / len(lognormal) < 510
    assert min(draws("lognormal:1,1")) == 1


@pytest.mark.parametrize("text", ["", "0", "-1", "1.5", "200000", "uniform:5", "uniform:9,5", "normal:1,2", "trace:"])
def test_a_wrong_length_is_explained(text: str) -> None:
    """The error about a wrong distribution contains the correction."""
    with pytest.raises(UnitError, match=r"write|whole numbers"):
        token_distribution(text)


def test_prompts_have_their_length_and_their_own_beginning() -> None:
    """A prompt has about the requested length, begins with the shared text, and continues with its own."""
    shared = shared_text(50, 1)
    texts = [prompt_text(number, 200, random.Random(number), shared) for number in range(2)]
    assert [len(text.split()) for text in texts] == [194, 194]  # a chat template adds the rest
    assert all(text.startswith(shared) for text in texts)
    assert texts[0] != texts[1]


def test_a_plan_is_its_seed() -> None:
    """The same seed plans the same requests, another seed different ones; times begin at 0 and rise."""
    traffic = TrafficPlan(
        100, 20.0, token_distribution("lognormal:200,50"), token_distribution("uniform:10,60"), shared_tokens=10, seed=3
    )
    requests = plan_requests(traffic)
    times = [each.at_s for each in requests if each.at_s is not None]
    assert requests == plan_requests(traffic)
    assert requests != plan_requests(
        TrafficPlan(100, 20.0, token_distribution("200"), token_distribution("20"), seed=4)
    )
    assert len(times) == 100
    assert times == sorted(times)
    assert times[0] == 0.0
    assert 3 < times[-1] < 8


def test_blocks_begin_at_zero() -> None:
    """Blocks contain every request, and times count from each block's first request."""
    blocks = in_blocks(
        plan_requests(TrafficPlan(25, 20.0, token_distribution("20"), token_distribution("20"), block=10))
    )
    assert [len(block) for block in blocks] == [10, 10, 5]
    assert [block[0].at_s for block in blocks] == [0.0, 0.0, 0.0]
    closed = in_blocks(plan_requests(TrafficPlan(3, None, token_distribution("20"), token_distribution("20"), block=2)))
    assert [each.at_s for block in closed for each in block] == [None, None, None]


def test_a_trace_is_followed(tmp_path: Path) -> None:
    """A trace sets the times and, where present, the lengths."""
    file = tmp_path / "trace.csv"
    file.write_text("at_s,prompt_tokens,max_tokens\n0,100,5\n0.5,,\n")
    trace = read_trace(file)
    assert trace == [TraceEntry(0.0, 100, 5), TraceEntry(0.5, None, None)]
    requests = plan_requests(TrafficPlan(10, None, token_distribution("20"), token_distribution("30")), trace)
    assert [(each.at_s, each.prompt_tokens, each.max_tokens) for each in requests] == [(0.0, 100, 5), (0.5, 20, 30)]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("when\n1\n", "has no column `at_s`"),
        ("at_s\n", "has 0 arrivals"),
        ("at_s\nsoon\n", "line 2: a value is not a number"),
        ("at_s\n-1\n", "write seconds from 0 on"),
        ("at_s,max_tokens\n1,0\n", "token counts from 1"),
        ("at_s\n2\n1\n", "sort the arrivals"),
    ],
)
def test_a_wrong_trace_is_explained(tmp_path: Path, text: str, message: str) -> None:
    """The error about an unreadable value names its line."""
    file = tmp_path / "trace.csv"
    file.write_text(text)
    with pytest.raises(BenchError, match=message):
        read_trace(file)
    with pytest.raises(BenchError, match="cannot read the trace"):
        read_trace(tmp_path / "none.csv")


def test_the_cost_is_estimated() -> None:
    """The estimate counts all prompts and the longest answers to every target, and is compared with the limits."""
    cost = estimate_cost(plan_requests(TrafficPlan(10, None, token_distribution("100"), token_distribution("20"))), 2)
    assert (cost.requests, cost.prompt_tokens, cost.tokens) == (20, 2000, 400)
    assert cost.objection(20, 2400) is None
    assert "exceed --requests-max 19" in (cost.objection(19, 2400) or "")
    assert "2,400 tokens exceed --tokens-max 2,399" in (cost.objection(20, 2399) or "")


LOAD = ["load", "--url", "http://127.0.0.1:9/v1", "--model", "m", "--concurrency", "1"]


def test_a_dry_run_sends_nothing(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A dry run prints the maximum cost and writes nothing; the URL has no server."""
    assert main([*LOAD, "--requests", "10", "--dry-run", "--out", str(tmp_path / "o")]) == 0
    message = capsys.readouterr().err
    assert "10 requests: about 2,000 prompt tokens and at most 640 generated tokens" in message
    assert "nothing was sent" in message
    assert not (tmp_path / "o").exists()


def test_a_plan_over_the_limit_is_rejected(capsys: pytest.CaptureFixture[str]) -> None:
    """A plan over a limit ends with status 1 before the first request."""
    assert main([*LOAD, "--requests", "2000"]) == 1
    assert "2,000 requests exceed --requests-max 1,000; nothing was sent" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--url", "ftp://x"], "write the base URL of the API"),
        (["--url", "http://user:pw@x/v1"], "--key-env"),
        (["--header", "nonsense"], "write a header as 'name: value'"),
        (["--extra-body", "[1]"], "write a JSON object"),
        (["--extra-body", "{"], "is not JSON"),
        (["--shared-tokens", "x"], "write a whole number"),
        (["--rps", "2"], "not allowed with argument"),
    ],
)
def test_a_wrong_option_is_explained(options: list[str], message: str, capsys: pytest.CaptureFixture[str]) -> None:
    """A wrong value ends the command with an error that does not repeat a password."""
    with pytest.raises(SystemExit):
        main([*LOAD, *options])
    shown = " ".join(capsys.readouterr().err.split())
    assert message in shown
    assert "user:pw" not in shown


def test_a_missing_key_is_named(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    """The error names the variable without a key, before the first request."""
    monkeypatch.delenv("NO_SUCH_KEY", raising=False)
    assert main([*LOAD, "--key-env", "NO_SUCH_KEY"]) == 1
    assert "NO_SUCH_KEY is unset, empty" in capsys.readouterr().err


def test_an_unknown_command_lists_the_known_ones(capsys: pytest.CaptureFixture[str]) -> None:
    """The error lists the commands."""
    with pytest.raises(SystemExit):
        main(["bogus"])
    assert "compare" in capsys.readouterr().err


@pytest.mark.parametrize("name", [*COMMANDS, *RESEARCH])
def test_every_command_has_help(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    """Each command of the list exists and describes itself."""
    with pytest.raises(SystemExit, match=r"^0$"):
        main([name, "--help"])
    assert f"ttft-bench {name}" in capsys.readouterr().out


@pytest.mark.parametrize("name", RESEARCH)
def test_an_installed_bench_names_the_checkout(
    name: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without the folder of research, its commands are not listed, and each ends with status 2 and where to run it."""
    monkeypatch.setattr(importlib.util, "find_spec", lambda _: None)
    with pytest.raises(SystemExit, match=r"^2$"):
        main([name])
    assert f"{name} repeats measurements of the documentation; run it in a checkout" in capsys.readouterr().err
    with pytest.raises(SystemExit, match=r"^0$"):
        main(["--help"])
    assert name not in capsys.readouterr().out


def test_a_run_without_answers_has_no_tables(capsys: pytest.CaptureFixture[str]) -> None:
    """Without any answer there are no tables, only the cause and the exit status of a failure."""
    assert main([*LOAD, "--requests", "3"]) == 1
    message = capsys.readouterr()
    assert message.out == ""
    assert "no request was answered (http://127.0.0.1:9/v1: 3 x connect)" in message.err


def test_a_dead_port_ends_a_run_early(capsys: pytest.CaptureFixture[str]) -> None:
    """If the first 20 requests find nothing at the address, the others are not sent."""
    assert main([*LOAD, "--requests", "400"]) == 1
    message = capsys.readouterr().err
    assert "ended early (the first 20 requests to the endpoint ended with connect)" in message
    assert "(http://127.0.0.1:9/v1: 20 x connect" in message
