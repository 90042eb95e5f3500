"""docs/upgrade.md: what it states about files and settings of other versions."""

import json
import signal
from pathlib import Path

import pytest

import simulated_sockets
from checkout import ROOT
from gateway.__main__ import main
from gateway.cli.parser import ExitCode
from raw_http import answer, asking
from running import run_real
from spawned import started
from ttft_gateway.pool.learned import VERSION

PAGE = (ROOT / "docs" / "upgrade.md").read_text(encoding="utf-8")
FAULT = f"the file has version {VERSION - 1} instead of {VERSION}"


def written(folder: Path, url: str, **more: object) -> Path:
    """A configuration with a learned file of another version."""
    row = {"name": "a", "kind": "simulated", "base_url": url}
    config = {"listen": "127.0.0.1:0", "admin_listen": "off", "learned_file": "learned.json", **more}
    file = folder / "gateway.yaml"
    file.write_text(json.dumps({**config, "models": [{"name": "m", "replicas": [row]}]}), encoding="utf-8")
    old = {"format": "ttft-gateway learned state", "version": VERSION - 1, "saved_s": 1.0, "models": {}}
    (folder / "learned.json").write_text(json.dumps(old, separators=(",", ":")), encoding="utf-8")
    return file


def test_a_learned_file_of_another_version(tmp_path: Path) -> None:
    """It costs the line that the page shows; the gateway starts cold, and writes its own version."""
    assert f"has a format version, now {VERSION}." in PAGE
    assert f"`{FAULT}`" in PAGE

    async def restarted() -> None:
        async with (
            simulated_sockets.serving(ttft="1ms") as replica,
            started("serve", "--config", str(written(tmp_path, replica.url))) as gateway,
        ):
            await gateway.ready(gateway.process.stderr)
            async with answer(gateway.port, asking()) as asked:
                await asked.body()
            gateway.process.send_signal(signal.SIGINT)
            code, said = await gateway.ended()
            assert code == ExitCode.OK
            assert f"{FAULT}; the gateway starts without it".encode() in said

    run_real(restarted())
    assert json.loads((tmp_path / "learned.json").read_bytes())["version"] == VERSION


def test_a_setting_of_a_newer_version(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """An older version rejects it, with the words and the exit code of the page."""
    file = written(tmp_path, "http://127.0.0.1:1/v1", setting_of_2030=True)
    assert main(["check-config", str(file)]) is ExitCode.BAD_CONFIG
    fault = "this setting does not exist"
    assert fault in capsys.readouterr().err
    assert f"`{fault}`, exit code {ExitCode.BAD_CONFIG.value}" in PAGE
