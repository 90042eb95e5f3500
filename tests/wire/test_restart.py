"""A restart of a real process: what was learned is there before the first request."""

import json
import signal
from pathlib import Path

import simulated_sockets
from raw_http import answer, asking
from running import run_real
from spawned import started


def test_a_restart_keeps_what_was_learned(tmp_path: Path) -> None:
    """The end writes the file, and the next process logs its age."""

    async def main() -> None:
        async with simulated_sockets.serving(ttft="1ms") as replica:
            file, config = tmp_path / "learned.json", tmp_path / "gateway.yaml"
            rows = [{"name": name, "kind": "simulated", "base_url": replica.url} for name in "ab"]
            settings = {"listen": "127.0.0.1:0", "admin_listen": "off", "learned_file": file.name}
            config.write_text(json.dumps({**settings, "models": [{"name": "m", "replicas": rows}]}))
            said = []
            for _ in range(2):
                async with started("serve", "--config", str(config)) as gateway:
                    await gateway.ready(gateway.process.stderr)
                    async with answer(gateway.port, asking()) as asked:
                        await asked.body()
                    gateway.process.send_signal(signal.SIGINT)
                    code, text = await gateway.ended()
                    assert code == 0
                    said.append(text)
            assert b"learned" not in said[0]
            assert b'"event":"learned_restored"' in said[1]
            assert b'"pools":1,"cold":0' in said[1]
            assert b"127.0.0.1" in file.read_bytes()

    run_real(main())
