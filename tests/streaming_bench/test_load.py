"""Traffic as it is planned: lengths, times, traces, and what all of it may cost before anything is sent."""

import random
from pathlib import Path

import pytest

from providers.simulated.quantities import UnitError
from streaming_bench.__main__ import COMMANDS, RENAMED, main
from streaming_bench.errors import BenchError
from streaming_bench.load.plan import TraceEntry, TrafficPlan, estimate_cost, in_blocks, plan_requests, read_trace
from streaming_bench.load.token_distribution import prompt_text, shared_text, token_distribution


def draws(text: str, count: int = 400) -> list[int]:
    """Token counts of a distribution."""
    rng = random.Random(1)
    return [token_distribution(text).draw(rng, number) for number in range(count)]


def test_lengths_are_what_they_say() -> None:
    """Each form of a length draws what it names, at least one token."""
    assert set(draws("200")) == {200}
    assert draws("trace:1,2,3", 4) == [1, 2, 3, 1]
    assert min(draws("uniform:10,20")) == 10
    assert max(draws("uniform:10,20")) == 20
    lognormal = draws("lognormal:500,200", 4000)
    assert 490 < sum(lognormal) / len(lognormal) < 510
    assert min(draws("lognormal:1,1")) == 1


@pytest.mark.parametrize("text", ["", "0", "-1", "1.5", "200000", "uniform:5", "uniform:9,5", "normal:1,2", "trace:"])
def test_a_wrong_length_is_explained(text: str) -> None:
    """What is no length says what to write instead."""
    with pytest.raises(UnitError, match=r"write|whole numbers"):
        token_distribution(text)


def test_prompts_have_their_length_and_their_own_beginning() -> None:
    """A prompt has about the words that were asked for, begins with what is shared, and no two are alike behind it."""
    shared = shared_text(50, 1)
    texts = [prompt_text(number, 200, random.Random(number), shared) for number in range(2)]
    assert [len(text.split()) for text in texts] == [194, 194]  # a chat template adds the rest
    assert all(text.startswith(shared) for text in texts)
    assert texts[0] != texts[1]


def test_a_plan_is_its_seed() -> None:
    """The same seed plans the same requests, another one others; times begin at 0 and rise."""
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
    """Cut into blocks, nothing is lost, and times count from each block's first request."""
    blocks = in_blocks(
        plan_requests(TrafficPlan(25, 20.0, token_distribution("20"), token_distribution("20"), block=10))
    )
    assert [len(block) for block in blocks] == [10, 10, 5]
    assert [block[0].at_s for block in blocks] == [0.0, 0.0, 0.0]
    closed = in_blocks(plan_requests(TrafficPlan(3, None, token_distribution("20"), token_distribution("20"), block=2)))
    assert [each.at_s for block in closed for each in block] == [None, None, None]


def test_a_trace_is_followed(tmp_path: Path) -> None:
    """A trace decides times and, where it says them, lengths."""
    file = tmp_path / "trace.csv"
    file.write_text("at_s,prompt_tokens,max_tokens\n0,100,5\n0.5,,\n")
    trace = read_trace(file)
    assert trace == [TraceEntry(0.0, 100, 5), TraceEntry(0.5, None, None)]
    requests = plan_requests(TrafficPlan(10, None, token_distribution("20"), token_distribution("30")), trace)
    assert [(each.at_s, each.prompt_tokens, each.max_tokens) for each in requests] == [(0.0, 100, 5), (0.5, 20, 30)]


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("when\n1\n", "has no column `at_s`"),
        ("at_s\n", "has 0 arrivals"),
        ("at_s\nsoon\n", "line 2: a value is not a number"),
        ("at_s\n-1\n", "write seconds from 0 on"),
        ("at_s,max_tokens\n1,0\n", "token counts from 1"),
        ("at_s\n2\n1\n", "sort the arrivals"),
    ],
)
def test_a_wrong_trace_is_explained(tmp_path: Path, text: str, said: str) -> None:
    """What cannot be read is named with its line."""
    file = tmp_path / "trace.csv"
    file.write_text(text)
    with pytest.raises(BenchError, match=said):
        read_trace(file)
    with pytest.raises(BenchError, match="cannot read the trace"):
        read_trace(tmp_path / "none.csv")


def test_what_it_costs_is_known_before() -> None:
    """All prompts and the longest answers, to every target, are counted and compared with what is allowed."""
    cost = estimate_cost(plan_requests(TrafficPlan(10, None, token_distribution("100"), token_distribution("20"))), 2)
    assert (cost.requests, cost.prompt_tokens, cost.tokens) == (20, 2000, 400)
    assert cost.objection(20, 2400) is None
    assert "exceed --requests-max 19" in (cost.objection(19, 2400) or "")
    assert "2,400 tokens exceed --tokens-max 2,399" in (cost.objection(20, 2399) or "")


LOAD = ["load", "--url", "http://127.0.0.1:9/v1", "--model", "m", "--concurrency", "1"]


def test_a_dry_run_sends_nothing(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A dry run says what it would cost at most and writes nothing; nobody listens at the URL it names."""
    assert main([*LOAD, "--requests", "10", "--dry-run", "--out", str(tmp_path / "o")]) == 0
    said = capsys.readouterr().err
    assert "10 requests: about 2,000 prompt tokens and at most 640 generated tokens" in said
    assert "nothing was sent" in said
    assert not (tmp_path / "o").exists()


def test_too_much_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    """A plan over a bound ends with status 1 before anything is sent."""
    assert main([*LOAD, "--requests", "2000"]) == 1
    assert "2,000 requests exceed --requests-max 1,000; nothing was sent" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("options", "said"),
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
def test_a_wrong_option_is_explained(options: list[str], said: str, capsys: pytest.CaptureFixture[str]) -> None:
    """A value that cannot be used ends the command with a sentence, which does not repeat a password."""
    with pytest.raises(SystemExit):
        main([*LOAD, *options])
    shown = " ".join(capsys.readouterr().err.split())
    assert said in shown
    assert "user:pw" not in shown


def test_a_missing_key_is_named(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    """The variable that should hold the key is named, before anything is sent."""
    monkeypatch.delenv("NO_SUCH_KEY", raising=False)
    assert main([*LOAD, "--key-env", "NO_SUCH_KEY"]) == 1
    assert "NO_SUCH_KEY is unset, empty" in capsys.readouterr().err


def test_a_command_that_does_not_exist_is_told(capsys: pytest.CaptureFixture[str]) -> None:
    """The commands there are stand in the answer."""
    with pytest.raises(SystemExit):
        main(["bogus"])
    assert "compare" in capsys.readouterr().err


@pytest.mark.parametrize(("old", "new"), RENAMED.items())
def test_an_old_command_names_its_successor(old: str, new: str, capsys: pytest.CaptureFixture[str]) -> None:
    """The former name of a command ends with status 2 and the new name."""
    with pytest.raises(SystemExit, match=r"^2$"):
        main([old, "--help"])
    assert f'"{old}" was renamed to "{new}"' in capsys.readouterr().err
    assert new in COMMANDS


def test_nobody_there_is_one_line(capsys: pytest.CaptureFixture[str]) -> None:
    """Where no request was answered there are no tables of nothing: only why, and the exit status of a failure."""
    assert main([*LOAD, "--requests", "3"]) == 1
    said = capsys.readouterr()
    assert said.out == ""
    assert "no request was answered (http://127.0.0.1:9/v1: 3 x connect)" in said.err
