"""examples/rsyslog.conf ships a log unchanged, also after its collector was away; with a real rsyslog."""

import asyncio
import os
import re
import shutil
import subprocess
from itertools import groupby
from pathlib import Path

import pytest

from checkout import ROOT
from gateway_fixture import until
from log_lines import log_lines
from running import run_real
from sample_events import EVENTS
from unused_ports import unused_port

TEXT = (ROOT / "examples" / "rsyslog.conf").read_text(encoding="utf-8")
PROGRAM = shutil.which("rsyslogd", path=f"{os.environ.get('PATH', '')}:/usr/sbin:/sbin")


def config(folder: Path, port: int) -> Path:
    """The example with a file and a collector of this machine, and without waits of seconds."""
    changes = {
        "/var/spool/rsyslog": str(folder),
        "/var/log/ttft-gateway/gateway.log": str(folder / "gateway.log"),
        'target="logs.internal" port="6514"': f'target="127.0.0.1" port="{port}"',
        'resumeInterval="10"': 'resumeInterval="1"',
    }
    text = TEXT
    for old, new in changes.items():
        assert old in text
        text = text.replace(old, new)
    file = folder / "rsyslog.conf"
    file.write_text(text, encoding="utf-8")
    return file


def test_a_log_arrives_unchanged(tmp_path: Path) -> None:
    """Every line arrives byte by byte and in order, those written before the collector listens included."""
    if PROGRAM is None:
        pytest.skip("rsyslog is missing; apt install rsyslog")
    port = unused_port()
    file = config(tmp_path, port)
    checked = subprocess.run([PROGRAM, "-N1", "-f", file], capture_output=True, text=True, check=False, timeout=60)
    if "Permission denied" in checked.stderr or "could not open config file" in checked.stderr:
        pytest.skip("rsyslog may not read files of tests (AppArmor)")
    assert checked.returncode == 0, checked.stderr
    assert not re.search("error|warn", checked.stderr), checked.stderr
    long = b'{"time":"t","level":"info","event":"x","text":"%b\\u001b"}\n' % (b"e" * 100_000)
    lines = dict.fromkeys((*log_lines(*EVENTS), long))  # each once, since rsyslog may repeat a line after an outage
    log, sent, got = tmp_path / "gateway.log", b"".join(lines), bytearray()
    log.write_bytes(sent)

    async def collect(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while piece := await reader.read(65_536):
            got.extend(piece)
        writer.close()

    async def main() -> None:
        assert PROGRAM is not None
        command = (PROGRAM, "-n", "-f", str(file), "-i", str(tmp_path / "pid"))
        process = await asyncio.create_subprocess_exec(*command)
        try:
            await asyncio.sleep(0.2)  # without a collector
            server = await asyncio.start_server(collect, "127.0.0.1", port)
            await until(lambda: got.count(long) == 1)
            await asyncio.to_thread(_append, log, sent)
            await until(lambda: got.count(long) == 2)
            server.close()
        finally:
            process.kill()
            await process.wait()

    run_real(main())
    once = [line for line, _ in groupby(got.splitlines(keepends=True))]
    assert b"".join(once) == 2 * sent


def _append(log: Path, content: bytes) -> None:
    with log.open("ab") as file:
        file.write(content)
