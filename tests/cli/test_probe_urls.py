"""`probe` with URLs instead of a configuration file, and its judgement of its own machine."""

import asyncio
import contextlib
from pathlib import Path

import pytest

from gateway.__main__ import main
from gateway.cli.environment import read_environment
from gateway.cli.options import settings_of
from gateway.cli.parser import ExitCode, parse
from gateway.cli.probe.command import _timed
from gateway.cli.probe.report import ProbeReport, Times
from gateway.config.errors import ConfigError
from running import run_virtual

URL = "http://127.0.0.1:1/v1"
REPORT = ProbeReport("m", "a", "vllm", None, 1, Times(), {}, None, ())


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--replica", URL], "--replica URL needs --model NAME"),
        (["--model", "m", "--replica", URL, "--replica", "a"], "--replica has both names and URLs"),
        (["--model", "m", "--replica", URL, "--config", "x.yaml"], "--config and --replica URL cannot be combined"),
        (["--model", "m", "--kind", "vllm"], "--kind needs --replica URL"),
        (["--api-key-env", "KEY"], "--api-key-env needs --replica URL"),
    ],
)
def test_wrong_combinations(arguments: list[str], message: str, capsys: pytest.CaptureFixture[str]) -> None:
    """Names and URLs are not mixed, and options of URLs need URLs."""
    with pytest.raises(SystemExit) as exited:
        main(["probe", *arguments])
    assert exited.value.code is ExitCode.USAGE
    assert message in capsys.readouterr().err


def test_urls_need_no_file(capsys: pytest.CaptureFixture[str]) -> None:
    """Replicas at URLs are probed by themselves; a failed one is a result."""
    arguments = ["--model", "m", "--replica", URL, "--kind", "vllm", "--requests", "1"]
    assert main(["probe", *arguments]) is ExitCode.FAILED
    captured = capsys.readouterr()
    assert "4 requests to 1 replica" in captured.err
    assert "check that the replica is running at http://127.0.0.1:1/v1" in captured.out


def test_a_probed_server_may_have_the_default_port() -> None:
    """A probe listens nowhere, so a server at the gateway's default address is no mistake, as it is for `serve`."""
    for command in ("probe", "serve"):
        arguments = parse([command, "--model", "m", "--kind", "llamacpp", "--replica", "http://127.0.0.1:8080"])
        with contextlib.nullcontext() if command == "probe" else pytest.raises(ConfigError):
            [replica] = settings_of(arguments, {}, read_environment({})).models[0].replicas
            assert replica.base_url == "http://127.0.0.1:8080/v1"


@pytest.mark.parametrize(
    ("arguments", "way"),
    [
        (["probe", "--model", "m"], "probe --model llama --replica http://"),
        (["probe"], "probe --config FILE"),
        (["check-config"], "check-config FILE"),
        (["print-config"], "print-config FILE"),
        (["serve"], "serve --model llama --replica http://"),
    ],
)
def test_without_any_file(
    arguments: list[str], way: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Without a file, each command prints the commands that work."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("TTFT_GATEWAY_CONFIG", raising=False)
    assert main(arguments) is ExitCode.BAD_CONFIG
    shown = capsys.readouterr().err
    assert "the configuration file gateway.yaml does not exist; run" in shown
    assert f"\n  ttft-gateway {way}" in shown


def test_the_delay_of_the_own_loop_is_measured() -> None:
    """A loop on time has no delay, however long the probe takes."""

    async def probing() -> list[ProbeReport]:
        await asyncio.sleep(10.0)
        return [REPORT]

    reports, late_s = run_virtual(_timed(probing()))
    assert reports == [REPORT]
    assert late_s < 0.001
