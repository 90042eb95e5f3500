"""Defaults from environment variables. As processes: tests/wire/test_image_start.py."""

import os
import re
from pathlib import Path

import pytest

from gateway.__main__ import main
from gateway.cli.demo.command import demo_settings
from gateway.cli.environment import Environment, read_environment
from gateway.cli.parser import ExitCode
from gateway.config.loader import from_replicas, load, masked
from gateway.config.values import Address

MODELS = "models: [{name: m, replicas: [{name: a, kind: vllm, base_url: 'http://10.0.0.1:8000/v1'}]}]\n"
IMAGE = {
    "TTFT_GATEWAY_LISTEN": "0.0.0.0:8080",
    "TTFT_GATEWAY_ADMIN_LISTEN": "0.0.0.0:8081",
    "TTFT_GATEWAY_ONE_TIME_KEY": "true",
}
ONE_TIME = re.compile(r"ttft-[0-9a-f]{32}")


@pytest.fixture
def config(tmp_path: Path) -> Path:
    """A file without addresses and keys."""
    file = tmp_path / "gateway.yaml"
    file.write_text(MODELS)
    return file


def test_no_variables() -> None:
    """Without the variables, or with empty ones, nothing changes."""
    assert read_environment({}) == read_environment(dict.fromkeys(IMAGE, "")) == Environment()
    assert Environment().settings == {}


def test_a_file_without_addresses_and_keys(config: Path) -> None:
    """A file without addresses and keys gets addresses and keys of the environment; the key differs in each run."""
    environment = read_environment(IMAGE)
    settings = load(config, {}, environment.settings)
    assert (settings.listen, settings.admin_listen) == (Address("0.0.0.0", 8080), Address("0.0.0.0", 8081))
    key = environment.key_in(settings)
    assert key is not None
    assert ONE_TIME.fullmatch(key)
    assert [row.name for row in settings.keys] == ["one-time"]
    assert read_environment(IMAGE).key != environment.key


@pytest.mark.parametrize(
    ("directory", "line", "file"),
    [
        ("/var/lib/ttft-gateway", "", "/var/lib/ttft-gateway/learned.json"),
        ("/var/lib/one:/var/lib/two", "", "/var/lib/one/learned.json"),
        ("relative", "", None),  # nothing of systemd's
        ("/var/lib/ttft-gateway", "learned_file: off\n", None),
        ("/var/lib/ttft-gateway", "learned_file: /srv/learned\n", "/srv/learned"),
    ],
)
def test_the_state_directory(config: Path, directory: str, line: str, file: str | None) -> None:
    """Learned state is stored in systemd's state directory, unless the file names another place or none."""
    config.write_text(f"{MODELS}{line}")
    assert load(config, {}, read_environment({"STATE_DIRECTORY": directory}).settings).learned_file == file


def test_a_relative_file_is_beside_the_configuration(config: Path) -> None:
    """The folder in which the gateway was started does not matter."""
    config.write_text(f"{MODELS}learned_file: state/learned.json\n")
    assert load(config, {}).learned_file == str(config.parent / "state/learned.json")


def test_the_file_wins(config: Path) -> None:
    """Settings of the file win, and no key is added to its own keys or for anonymous callers."""
    config.write_text(f"{MODELS}listen: 127.0.0.1:1\nadmin_listen: off\nkeys: [{{name: a, key: abc}}]\n")
    environment = read_environment(IMAGE)
    settings = load(config, {}, environment.settings)
    assert (settings.listen, settings.admin_listen) == (Address("127.0.0.1", 1), None)
    assert environment.key_in(settings) is None
    config.write_text(f"{MODELS}allow_anonymous: true\n")
    assert load(config, {}, environment.settings).keys == ()


def test_options_win() -> None:
    """Options win over the environment, which applies to all other settings."""
    environment = read_environment({**IMAGE, "TTFT_GATEWAY_ADMIN_LISTEN": "off"})
    settings = from_replicas("m", ["http://a"], others={"listen": "0.0.0.0:1"}, defaults=environment.settings)
    assert (settings.listen, settings.admin_listen) == (Address("0.0.0.0", 1), None)
    assert environment.key_in(settings) is not None


@pytest.mark.parametrize(
    ("port", "admin_port", "listen", "admin_listen"),
    [
        (None, None, "0.0.0.0:8080", "0.0.0.0:8081"),
        (1, None, "0.0.0.0:1", "0.0.0.0:8081"),
        (0, None, "0.0.0.0:0", "0.0.0.0:0"),
        (1, 2, "0.0.0.0:1", "0.0.0.0:2"),
    ],
)
def test_demo(port: int | None, admin_port: int | None, listen: str, admin_listen: str) -> None:
    """The demo uses the hosts and the key of the environment, and the ports of the options."""
    environment = read_environment(IMAGE)
    settings = demo_settings([1001, 1002, 1003], port, admin_port, environment)
    assert (str(settings.listen), str(settings.admin_listen)) == (listen, admin_listen)
    assert environment.key_in(settings) is not None


def test_the_key_is_not_shown(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, config: Path
) -> None:
    """Neither print-config nor any repr shows the key."""
    environment = read_environment(IMAGE)
    settings = load(config, {}, environment.settings)
    for name, value in IMAGE.items():
        monkeypatch.setitem(os.environ, name, value)
    assert main(["print-config", str(config)]) == ExitCode.OK
    shown = f"{environment!r} {environment.settings!r} {settings!r} {masked(settings)} {capsys.readouterr().out}"
    assert "one-time" in shown
    assert not ONE_TIME.search(shown)


@pytest.mark.parametrize(
    ("variable", "value", "message"),
    [
        (
            "TTFT_GATEWAY_LISTEN",
            "8080",
            'found "8080", but an address must be host:port; write for example 0.0.0.0:8080',
        ),
        ("TTFT_GATEWAY_ADMIN_LISTEN", "on", 'found "on", but an address must be host:port'),
        ("TTFT_GATEWAY_ONE_TIME_KEY", "yes", 'found "yes", but a boolean is expected; write true or false'),
        (
            "TTFT_GATEWAY_LOOP",
            "epoll",
            'found "epoll", but asyncio is the only value; write asyncio, or remove the variable for uvloop',
        ),
    ],
)
def test_bad_values(
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
    config: Path,
    variable: str,
    value: str,
    message: str,
) -> None:
    """A variable that cannot be used ends the commands that read it, and is named."""
    monkeypatch.setitem(os.environ, variable, value)
    for command in (["check-config", str(config)], ["serve", "--config", str(config)], ["demo"]):
        assert main(command) == ExitCode.BAD_CONFIG
        assert f"{variable}: {message}" in capsys.readouterr().err


@pytest.mark.parametrize("listen", ["8080", "localhost:", ":8080", "localhost:http"])
def test_health_of_what_is_no_address(capsys: pytest.CaptureFixture[str], listen: str) -> None:
    """An invalid address causes an error with an example."""
    assert main(["health", "--listen", listen]) == ExitCode.USAGE
    assert "write for example 127.0.0.1:8080" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("address", "here"),
    [
        (Address("0.0.0.0", 1), Address("127.0.0.1", 1)),
        (Address("::", 1), Address("::1", 1)),
        (Address("10.0.0.5", 1), Address("10.0.0.5", 1)),
        (Address("localhost", 1), Address("localhost", 1)),
    ],
)
def test_here(address: Address, here: Address) -> None:
    """An address that means all interfaces is replaced with loopback; others are unchanged."""
    assert address.here == here
