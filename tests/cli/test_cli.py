"""The command line in process: parsing, suggestions, exit codes, the light commands. Whole processes: tests/wire."""

import io
import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from checkout import ROOT
from gateway.__main__ import foreign_providers, main
from gateway.cli.parser import ExitCode, options, parse, parsers
from gateway.cli.terminal import coloured
from gateway.version import VERSION
from sentences import Sentences

DOCS = (ROOT / "docs" / "cli.md").read_text(encoding="utf-8")
CONFIG = """
keys: [{name: team-a, key: "sk-very-secret"}]
models:
  - name: llama
    replicas:
      - {name: a, kind: vllm, base_url: "http://10.0.0.1:8000/v1"}
      - {name: b, kind: vllm, base_url: "http://10.0.0.2:8000/v1"}
"""


@pytest.fixture
def config(tmp_path: Path) -> Path:
    """A good configuration file."""
    file = tmp_path / "gateway.yaml"
    file.write_text(CONFIG)
    return file


def refusal(capsys: pytest.CaptureFixture[str], *argv: str) -> str:
    """Return the error message of an invalid command line."""
    with pytest.raises(SystemExit) as ended:
        parse(argv)
    assert ended.value.code == ExitCode.USAGE
    return capsys.readouterr().err


MISTAKES: dict[str, tuple[str, ...]] = {  # command line -> names that its message must contain
    "srve": ("srve", "serve"),
    "zzz": ("zzz", "serve", "demo", "check-config"),
    "serve --modle x": ("--modle", "--model"),
    "serve --modle=x": ("--modle", "--model"),
    "demo --trafic": ("--trafic", "--traffic"),
    "demo --zzz": ("--zzz", "--help", "--traffic"),
    "check-config a.yaml b.yaml": ("b.yaml",),
    "serve a.yaml": ("--config a.yaml",),
    "probe a.yaml": ("--config a.yaml",),
    "serve --config a.yaml b.yaml": ("b.yaml; remove it",),
    "demo --port 80800": ("--port", "80800", "0"),
    "demo --port -1": ("--port",),
    "demo --seconds 0": ("--seconds", "0"),
    "demo --seconds inf": ("--seconds", "inf"),
    "serve --model llama": ("--model", "--replica http://"),
    "serve --replica http://a": ("--replica", "--model NAME"),
    "serve --config a.yaml --listen 127.0.0.1:1": ("--listen", "--model NAME"),
    "serve --config a.yaml --model m --replica http://a": ("--config", "--model"),
    "": ("serve", "demo"),
    "--verson": ("--verson", "--version"),
    "-x": ("-x", "--help", "--version"),
    "--config a.yaml": ("--config", "ttft-gateway serve --config"),
}


@pytest.mark.parametrize("line", MISTAKES)
def test_a_mistake_on_the_command_line_ends_with_code_2(capsys: pytest.CaptureFixture[str], line: str) -> None:
    """A mistake on the command line ends with code 2, names what was found and what fits, and where help is."""
    text = refusal(capsys, *line.split())
    assert [word for word in (*MISTAKES[line], "--help") if word not in text] == []


def test_sentences(capsys: pytest.CaptureFixture[str], sentences: Sentences) -> None:
    """The message of each mistake is the one in the snapshot."""
    sentences.check(
        "command_line", {f"ttft-gateway {line}".strip(): refusal(capsys, *line.split()).strip() for line in MISTAKES}
    )


@pytest.mark.parametrize("name", list(parsers()[1]))
def test_help_has_examples_that_can_be_typed(capsys: pytest.CaptureFixture[str], name: str) -> None:
    """Each command's help shows examples, and the parser understands all of them."""
    with pytest.raises(SystemExit) as ended:
        parse([name, "--help"])
    assert ended.value.code == 0
    examples = re.findall(rf"^  ttft-gateway ({name}.*)$", capsys.readouterr().out, re.MULTILINE)
    assert examples
    for example in examples:
        assert parse(example.partition(" >")[0].split()).command == name


def test_docs_have_every_command_option_and_exit_code() -> None:
    """docs/cli.md has a heading for each command, each option in that section, and each exit code."""
    for name, command in parsers()[1].items():
        section = DOCS.partition(f"\n## {name}\n")[2].partition("\n## ")[0]
        assert section, name
        for option in set(options(command)) - {"--help"}:
            described = option in section or (name == "print-config" and "`check-config` takes" in section)
            assert described, (name, option)
    codes = re.findall(r"^\| ([0-9]+) \|", DOCS, re.MULTILINE)
    assert codes == [str(int(code)) for code in ExitCode]
    with_help = parsers()[0].format_help()
    assert all(re.search(rf"^  {int(code)}\s", with_help, re.MULTILINE) for code in ExitCode)


def test_a_good_file_is_fine(capsys: pytest.CaptureFixture[str], config: Path) -> None:
    """check-config prints a summary of a valid file, named by argument or option."""
    assert main(["check-config", str(config)]) == ExitCode.OK
    assert main(["check-config", "--config", str(config)]) == ExitCode.OK
    out, err = capsys.readouterr()
    assert out == f"{config}: valid (1 model, 2 replicas)\n  llama: hedging adaptive, budget 10%\n" * 2
    assert err == ""


def test_each_problem_has_a_line(capsys: pytest.CaptureFixture[str], config: Path) -> None:
    """check-config, print-config and serve report each problem of an invalid file with its position; exit code 3."""
    config.write_text(CONFIG.replace("vllm", "vlm"))
    for command in (["check-config", str(config)], ["print-config", str(config)], ["serve", "--config", str(config)]):
        assert main(command) == ExitCode.BAD_CONFIG
        out, err = capsys.readouterr()
        assert out == ""
        assert [line.partition(": ")[2].startswith(f"{config}:") for line in err.splitlines()] == [True, True]


def test_cautions(capsys: pytest.CaptureFixture[str], config: Path) -> None:
    """Valid settings that may be unintended cause a warning, not an error."""
    config.write_text(
        "admin_listen: 0.0.0.0:8081\n"
        "models: [{name: m, queue: {max: 9}, replicas: [{name: a, kind: vllm, base_url: 'http://10.0.0.1:8000/v1'}]}]\n"
    )
    assert main(["check-config", str(config)]) == ExitCode.OK
    out, err = capsys.readouterr()
    assert err.count("warning: ") == 3
    assert "no keys are configured; every client on this machine has access" in err
    assert "admin_listen 0.0.0.0:8081 is public" in err
    assert "m: hedging cannot happen: a is the only replica" in out
    assert "model m has a queue but no concurrency" in err


def test_secrets_are_masked(capsys: pytest.CaptureFixture[str], config: Path) -> None:
    """print-config shows the settings in force and no secret."""
    assert main(["print-config", str(config)]) == ExitCode.OK
    out = capsys.readouterr().out
    assert "drain_timeout: 30s" in out
    assert "****" in out
    assert "sk-very-secret" not in out


@pytest.mark.parametrize("command", ["serve", "check-config"])
def test_sharing_without_its_client(
    command: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, config: Path
) -> None:
    """The start and the check of the configuration end with the name of the package, before anything is opened."""
    monkeypatch.setitem(sys.modules, "redis", None)
    config.write_text(CONFIG + 'share: {url: "redis://127.0.0.1:1", password: s3cret}')
    assert main([command, "--config", str(config)]) == ExitCode.BAD_CONFIG
    err = capsys.readouterr().err
    assert "`share` needs redis-py, which is not installed; run `pip install 'redis>=8.1'`" in err
    assert "s3cret" not in err


@pytest.mark.parametrize("command", ["serve", "check-config"])
def test_tracing_without_its_exporter(
    command: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, config: Path
) -> None:
    """The start and the check of the configuration end with the name of the extra."""
    monkeypatch.setitem(sys.modules, "opentelemetry.proto.trace", None)
    config.write_text(CONFIG + 'tracing: {endpoint: "http://127.0.0.1:1"}')
    assert main([command, "--config", str(config)]) == ExitCode.BAD_CONFIG
    fault = "`tracing` needs opentelemetry-proto, which is not installed; install the project with its extra `otel`"
    assert fault in capsys.readouterr().err


def test_the_headers_of_traces_are_masked(capsys: pytest.CaptureFixture[str], config: Path) -> None:
    """print-config shows the receiver of traces and no value of a header."""
    config.write_text(CONFIG + 'tracing: {endpoint: "https://h/otlp/", headers: {Authorization: Bearer s3cret}}')
    assert main(["print-config", str(config)]) == ExitCode.OK
    out = capsys.readouterr().out
    assert "tracing:\n  endpoint: https://h/otlp\n  sample: 10%\n  headers:\n    authorization: '****'\n" in out
    assert "s3cret" not in out


def test_schema_is_json(capsys: pytest.CaptureFixture[str]) -> None:
    """config-schema prints a JSON schema."""
    assert main(["config-schema"]) == ExitCode.OK
    assert "models" in json.loads(capsys.readouterr().out)["properties"]


def test_a_missing_file(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Without a name, and with no gateway.yaml here, serve names the ways to go on."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("TTFT_GATEWAY_CONFIG", raising=False)
    assert main(["serve"]) == ExitCode.BAD_CONFIG
    err = capsys.readouterr().err
    for way in ("serve --config FILE", "serve --model llama --replica", "ttft-gateway demo"):
        assert way in err


def test_environment_names_the_file(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, config: Path
) -> None:
    """Without a name, the file is the one of TTFT_GATEWAY_CONFIG."""
    monkeypatch.setenv("TTFT_GATEWAY_CONFIG", str(config))
    assert main(["check-config"]) == ExitCode.OK
    assert str(config) in capsys.readouterr().out


@pytest.mark.parametrize(
    ("argv", "message"),
    [
        (["--replica", "10.0.0.1:8000"], "--replica 1: "),
        (["--replica", "http://a:1", "--kind", "zzz"], "--kind: "),
        (
            ["--replica", "http://a:1", "--api-key-env", "NO_SUCH_KEY"],
            "--api-key-env NO_SUCH_KEY: the environment variable is",
        ),
        (["--replica", "http://a:1", "--api-key-env", "BAD_KEY"], "--api-key-env BAD_KEY: the secret contains a space"),
        (["--replica", "http://a:1", "--listen", "0.0.0.0:8080"], "--allow-anonymous"),
    ],
)
def test_bad_option_values(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, argv: list[str], message: str
) -> None:
    """An option's value that cannot be used ends with code 3, names the option, and quotes no secret."""
    monkeypatch.setenv("BAD_KEY", "sk secret")
    monkeypatch.delenv("NO_SUCH_KEY", raising=False)
    assert main(["serve", "--model", "m", *argv]) == ExitCode.BAD_CONFIG
    err = capsys.readouterr().err
    assert message in err
    assert "sk secret" not in err


def test_colours_only_on_terminals(monkeypatch: pytest.MonkeyPatch) -> None:
    """Colours need a terminal, and NO_COLOR or a dumb terminal turns them off."""

    class Terminal(io.StringIO):
        def isatty(self) -> bool:
            return True

    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.delenv("NO_COLOR", raising=False)
    assert not coloured(sys.stderr)
    assert coloured(Terminal())
    monkeypatch.setenv("NO_COLOR", "1")
    assert not coloured(Terminal())
    monkeypatch.delenv("NO_COLOR")
    monkeypatch.setenv("TERM", "dumb")
    assert not coloured(Terminal())


def test_foreign_providers(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """A foreign module `providers` ends every command before it is imported; the error names its file."""
    assert foreign_providers() is None
    foreign = tmp_path / "providers" / "__init__.py"
    foreign.parent.mkdir()
    foreign.write_text("raise SystemExit('imported')")
    monkeypatch.delitem(sys.modules, "providers")
    monkeypatch.syspath_prepend(tmp_path)
    assert main(["version"]) == ExitCode.FAILED
    err = capsys.readouterr().err
    assert str(foreign) in err
    assert "pip uninstall providers" in err


def test_providers_overwritten_in_place(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """A foreign distribution in the same folder is seen by its __init__.py, for ours is empty."""
    ours = tmp_path / "providers" / "__init__.py"
    ours.parent.mkdir()
    ours.write_text("")
    monkeypatch.delitem(sys.modules, "providers")
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setattr("gateway.__main__.__file__", str(tmp_path / "gateway" / "__main__.py"))
    assert foreign_providers() is None
    ours.write_text("import something")
    assert str(ours) in (foreign_providers() or "")


@pytest.mark.parametrize("typed", ["version", "--version"])
def test_version(capsys: pytest.CaptureFixture[str], typed: str) -> None:
    """`version` prints the distribution's name and version, Python's, the loop and the system on one line."""
    assert main([typed]) == ExitCode.OK
    assert re.fullmatch(
        rf"ttft-gateway {re.escape(VERSION)} \(Python \S+, (uvloop|asyncio), \S+\)\n", capsys.readouterr().out
    )


@pytest.mark.parametrize(("given", "loaded"), [(None, False), ("", True)])
def test_plugins_of_pydantic_are_not_loaded(config: Path, tmp_path: Path, given: str | None, *, loaded: bool) -> None:
    """A plugin of pydantic, which would receive secrets, is not imported unless the environment allows it."""
    found = tmp_path / "spy-1.dist-info"
    found.mkdir()
    (found / "METADATA").write_text("Metadata-Version: 2.1\nName: spy\nVersion: 1\n", encoding="utf-8")
    (found / "entry_points.txt").write_text("[pydantic]\nspy = spy\n", encoding="utf-8")
    (tmp_path / "spy.py").write_text("print('spy')\n", encoding="utf-8")
    environment = {name: value for name, value in os.environ.items() if name != "PYDANTIC_DISABLE_PLUGINS"}
    environment["PYTHONPATH"] = str(tmp_path)
    if given is not None:
        environment["PYDANTIC_DISABLE_PLUGINS"] = given
    command = [sys.executable, "-m", "gateway", "check-config", str(config)]
    done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, check=False)
    assert ("spy" in done.stdout.splitlines()) is loaded, done


def test_version_prints_the_loop_of_the_environment(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """TTFT_GATEWAY_LOOP=asyncio, or a system without uvloop, runs on asyncio's loop."""
    monkeypatch.setenv("TTFT_GATEWAY_LOOP", "asyncio")
    main(["version"])
    assert ", asyncio, " in capsys.readouterr().out
    monkeypatch.delenv("TTFT_GATEWAY_LOOP")
    monkeypatch.setitem(sys.modules, "uvloop", None)
    monkeypatch.delitem(sys.modules, "gateway.cli.uv_loop", raising=False)
    main(["version"])
    assert ", asyncio, " in capsys.readouterr().out
