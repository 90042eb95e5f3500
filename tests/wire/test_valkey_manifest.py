"""docker/kubernetes-valkey.yaml and its guide: the server that they make accepts the gateway that they make."""

import asyncio
import re
import shlex
import subprocess
from pathlib import Path

import yaml

from checkout import ROOT
from gateway.config.loader import load
from gateway.server.redis_share import open_redis
from gateway.share.redis import RedisEngine  # before the loop runs: the import reads a file
from redis_server import redis_server
from running import run_real
from spawned import until
from unused_ports import unused_port

_ROWS = list(yaml.safe_load_all((ROOT / "docker" / "kubernetes-valkey.yaml").read_text(encoding="utf-8")))
_MAPS = {row["metadata"]["name"]: row["data"] for row in _ROWS if row["kind"] == "ConfigMap"}
_GUIDE = (ROOT / "docs" / "guides" / "three-pods-with-valkey.md").read_text(encoding="utf-8")
_SECRETS = {"TEAM_A_KEY": "a-secret", "VALKEY_PASSWORD": "p-of-the-gateway"}


def _certify(folder: Path) -> None:
    """Run the guide's command, for a name of this machine."""
    [command] = re.findall(r"^    (openssl req .+\\\n.+)$", _GUIDE, re.MULTILINE)
    words = [word.replace("ttft-gateway-valkey", "localhost") for word in shlex.split(command.replace("\\\n", " "))]
    subprocess.run(words, cwd=folder, check=True, capture_output=True, timeout=60)


def _options(folder: Path, port: int) -> list[str]:
    """Return the server's configuration with the files of this test."""
    text = _MAPS["ttft-gateway-valkey"]["valkey.conf"].replace("/tls/", f"{folder}/").replace("/acl/", f"{folder}/")
    lines = [shlex.split(line) for line in text.replace("tls-port 6379", f"tls-port {port}").splitlines()]
    return [word for name, *values in lines if name != "port" for word in (f"--{name}", *values)]


def _open_files() -> int:
    return len(list(Path("/dev/fd").iterdir()))


def test_the_server_accepts_the_gateway(tmp_path: Path) -> None:
    """With TLS, the user, its password and its rights, as the guide creates them."""
    _certify(tmp_path)
    [users] = re.findall(r'users\.acl="(user default off\n    user .+)"$', _GUIDE, re.MULTILINE)
    users = users.replace("$PASSWORD", _SECRETS["VALKEY_PASSWORD"]).replace("\n    ", "\n")
    (tmp_path / "users.acl").write_text(users + "\n", encoding="utf-8")
    file = tmp_path / "gateway.yaml"
    file.write_text(_MAPS["ttft-gateway"]["gateway.yaml"].replace("/etc/ttft-gateway-valkey", str(tmp_path)))
    share, port = load(file, _SECRETS).share, unused_port()
    assert share is not None
    assert share.url == "rediss://ttft-gateway-valkey:6379/0"
    share = share.model_copy(update={"url": f"rediss://localhost:{port}/0"})

    async def main() -> None:
        async with asyncio.TaskGroup() as tasks:
            engine: RedisEngine = open_redis(share, tasks)

            async def is_connected() -> bool:
                return not engine.fault

            await until(is_connected)
            files = _open_files()
            engine.close()

        async def is_closed() -> bool:  # the server has to end TLS first
            return _open_files() < files

        await until(is_closed)

    with redis_server(tmp_path, *_options(tmp_path, port)):
        run_real(main())
