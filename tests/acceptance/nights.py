"""Plays things that go wrong at night: sees each in verdict, metrics, log and alert, and mends it by the runbook alone.

    scripts/acceptance nights

Each night has a gateway process with simulated replicas and traffic; one Prometheus server with the rules of
docker/monitoring scrapes all. The commands come from docs/runbook.md. Arguments of this file itself: a divisor of all
durations of the rules, and parts of the headings of the nights to play. Units: seconds.
"""

import asyncio
import contextlib
import http.client
import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final
from urllib.parse import urlsplit

from checkout import DOCS
from gateway.cli.admin_client import ask_admin
from monitored import RULES, ask
from night_table import NIGHTS, SECRETS, Home, Night, Settings
from prometheus_server import PROMETHEUS, PrometheusServer, Setup, prometheus
from redis_server import redis_server
from running import run_real
from served import Served, gateway, replicas

_SCRAPE_S: Final = 15.0
_USUAL_S: Final = 120.0  # of usual traffic before the trouble
_HISTORY_S: Final = 780.0  # the same for alerts that compare with the time before
_FIRES_S_MAX: Final = 900.0
_ENDS_S_MAX: Final = 900.0
_VERDICT_S_MAX: Final = 60.0
_WELL_S_MAX: Final = 120.0
_POLL_S: Final = 1.0
_COMMAND_S_MAX: Final = 30.0
_SECONDS: Final = {"s": 1.0, "m": 60.0, "h": 3600.0, "d": 86400.0}


_Send = Callable[[asyncio.TaskGroup, str], float]
"""Sends one request, if the rate of the moment is not 0, and returns the rate."""


@dataclass(slots=True)
class Played:
    """One night as it went; times after the begin of the trouble, None for what was not seen.

    Attributes:
        log_s, alert_s: first line of the log, and alert.
        verdict_s: the first sentence of the verdict names the cause.
        agreed: True if verdict, metric, log and alert had the same name while the alert fired.
        looked: True if the commands to look show the trouble.
        mended_s: time from the commands to the success of the command that shows the end.
        ended_s: time from the commands to the end of the alert.
        well_s: time from the commands to a verdict that is well.
        failed, asked: requests of team-a without a 200, and all, between the begin and the commands.
        failed_after, asked_after: the same after the end.
        fired: alerts of this gateway that fired.
    """

    section: str
    alert: str
    log_s: float | None = None
    alert_s: float | None = None
    verdict_s: float | None = None
    agreed: bool = False
    looked: bool = False
    mended_s: float | None = None
    ended_s: float | None = None
    well_s: float | None = None
    failed: int = 0
    asked: int = 0
    failed_after: int = 0
    asked_after: int = 0
    fired: set[str] = field(default_factory=set)

    @property
    def holds(self) -> bool:
        """True if all was seen and mended."""
        times = (self.log_s, self.alert_s, self.mended_s, self.ended_s)
        if not (self.looked and self.agreed) or None in times or self.verdict_s is None or self.well_s is None:
            return False
        return self.verdict_s <= _VERDICT_S_MAX and self.well_s <= _WELL_S_MAX


def sections(page: str) -> dict[str, dict[str, str]]:
    """Return the shell commands of each section of the runbook, by "Look", "Do" and "Over"."""
    found: dict[str, dict[str, str]] = {}
    for title, body in re.findall(r"^## (.+)\n((?:(?!## ).*\n?)*)", page, re.MULTILINE):
        steps, step = dict.fromkeys(("Look", "Do", "Over"), ""), ""
        for text, block in re.findall(r"^(Look|Do|Over):|^```sh\n(.*?)^```$", body, re.MULTILINE | re.DOTALL):
            step = text or step
            if block and step:
                steps[step] += block
        found[title] = steps
    return found


def scaled(rules: str, speed: float) -> str:
    """Return the rules with all durations divided by `speed`."""

    def shorter(found: re.Match[str]) -> str:
        return f"{found[1]}{max(1, round(1000 * int(found[2]) * _SECONDS[found[3]] / speed))}ms"

    return re.sub(r"(\[|offset |for: )(\d+)([smhd])\b", shorter, rules)


class Player:
    """Plays one night.

    Args:
        night: the night.
        home: its files, replicas and traffic.
        served: its gateway.
        server: the Prometheus server.
        speed: divisor of all waits.
    """

    def __init__(self, night: Night, home: Home, served: Served, server: PrometheusServer, speed: float) -> None:
        self._night, self._home, self._served, self._server, self._speed = night, home, served, server, speed
        self._steps = sections((DOCS / "runbook.md").read_text(encoding="utf-8"))[night.section]
        self._instance = urlsplit(served.admin_url).netloc
        self._played = Played(night.name, night.alert)
        self._phase = ""
        self._ended = False

    async def play(self) -> Played:
        """Play it."""
        async with asyncio.TaskGroup() as tasks:
            for name in SECRETS:
                tasks.create_task(self._traffic(tasks, self._own, name))
            for replica in self._home.urls:
                tasks.create_task(self._traffic(tasks, self._beside, replica))
            tasks.create_task(self._traffic(tasks, self._stolen, SECRETS["team-a"]))
            await self._night_through()
            self._ended = True
        sys.stderr.write(f"{self._played}\n")
        return self._played

    async def _night_through(self) -> None:
        night, played, loop = self._night, self._played, asyncio.get_running_loop()
        await asyncio.sleep((_HISTORY_S if night.history else _USUAL_S) / self._speed)
        begun_s, seen_from = loop.time(), len(self._log())
        self._phase = "trouble"
        await asyncio.to_thread(night.trouble, self._home)
        if night.reloads:
            await self._run('curl -s -X POST "$ADMIN/admin/reload"')
        while loop.time() < begun_s + _FIRES_S_MAX / self._speed and None in (
            played.log_s,
            played.alert_s,
            played.verdict_s,
        ):
            if played.verdict_s is None and re.search(night.verdict, str((await self._health()).get("sentence"))):
                played.verdict_s = loop.time() - begun_s
            if played.log_s is None and re.search(night.sign, self._log()[seen_from:] + "".join(self._served.stderr)):
                played.log_s = loop.time() - begun_s
            if played.alert_s is None and night.alert in await self._firing():
                played.alert_s = loop.time() - begun_s
            await asyncio.sleep(_POLL_S)
        played.agreed = await self._agrees(seen_from)
        _, output = await self._run(self._steps["Look"])
        played.looked = bool(re.search(night.seen, output))
        if not played.looked:
            sys.stderr.write(f"{night.section}: the commands to look show\n{output}\n")
        acted_s = loop.time()
        self._phase = ""
        await asyncio.to_thread(night.edit, self._home)
        _, output = await self._run(self._steps["Do"])
        if "error" in output:
            sys.stderr.write(f"{night.section}: {output}\n")
        while loop.time() < acted_s + _ENDS_S_MAX / self._speed and None in (
            played.mended_s,
            played.ended_s,
            played.well_s,
        ):
            if played.well_s is None and (await self._health()).get("state") == "well":
                played.well_s = loop.time() - acted_s
            if played.mended_s is None and (await self._run(self._steps["Over"]))[0] == 0:
                played.mended_s, self._phase = loop.time() - acted_s, "over"
            if played.ended_s is None and night.alert not in await self._firing():
                played.ended_s = loop.time() - acted_s
            await asyncio.sleep(_POLL_S)
        await asyncio.sleep(10.0)  # in which the callers show that it is over

    async def _health(self) -> dict[str, Any]:
        """Return the verdict; empty while the admin address does not answer."""
        try:
            text = await asyncio.to_thread(ask_admin, self._served.admin_url, "/admin/health")
        except (OSError, ValueError, http.client.HTTPException):
            return {}
        found: dict[str, Any] = json.loads(text)
        return found

    async def _agrees(self, seen_from: int) -> bool:
        """Return True if verdict, metric, log and alert have the alert's name."""
        alert, health = self._night.alert, await self._health()
        metrics = (await asyncio.to_thread(ask_admin, self._served.admin_url, "/metrics")).decode()
        has_line = "health_changed" in self._log()[seen_from:] or self._night.small  # its disk is full
        named = {
            "verdict": alert in [each["alert"] for each in health.get("findings", [])],
            "metric": f'ttft_gateway_trouble{{alert="{alert}"' in metrics,
            "log": has_line and (self._night.small or f'"{alert}"' in self._log()[seen_from:]),
            "alert": alert in await self._firing(),
        }
        if not all(named.values()):
            sys.stderr.write(f"{self._night.name}: {named}, {health.get('sentence')}\n")
        return all(named.values())

    async def _firing(self) -> set[str]:
        """Return the alerts of this gateway that fire, by its instance or its own label."""
        alerts = await asyncio.to_thread(self._server.alerts)
        own = {
            alert["labels"]["alertname"]
            for alert in alerts
            if alert["state"] == "firing" and alert["labels"].get("job") == self._home.folder.name
        }
        self._played.fired |= own
        return own

    async def _run(self, commands: str) -> tuple[int, str]:
        """Run commands of the runbook in a shell; return the exit code and the output."""
        names = {"MODEL": "m", "REPLICA": "a", "KEY": "team-a", **self._night.names}
        program = f'ttft-gateway() {{ "{sys.executable}" -m gateway "$@"; }}\nset -e\ncd "$FOLDER"\n{commands}'
        environment = {
            **os.environ,
            "PYTHONPATH": str(DOCS.parent),
            "ADMIN": self._served.admin_url,
            "CONFIG": str(self._home.config),
            "FOLDER": str(self._home.folder),
            **names,
        }
        process = await asyncio.create_subprocess_exec(
            "bash", "-c", program, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, env=environment
        )
        try:
            async with asyncio.timeout(_COMMAND_S_MAX):
                output, _ = await process.communicate()
        except TimeoutError:
            process.kill()
            await process.wait()
            return 1, "the command did not end"
        return process.returncode or 0, output.decode(errors="replace")

    def _log(self) -> str:
        return (self._home.folder / "gateway.log").read_text(encoding="utf-8", errors="replace")

    # traffic

    async def _traffic(self, tasks: asyncio.TaskGroup, send: _Send, name: str) -> None:
        """Send requests at the rate of the moment until the night is over."""
        while not self._ended:
            per_s = send(tasks, name)
            await asyncio.sleep(1 / per_s if per_s else _POLL_S)

    def _own(self, tasks: asyncio.TaskGroup, name: str) -> float:
        per_s = self._home.rates.get(name, 0.0)
        if per_s:
            tasks.create_task(self._count(name))
        return per_s

    def _beside(self, tasks: asyncio.TaskGroup, replica: str) -> float:
        per_s = self._home.beside.get(replica, 0.0)
        if per_s:
            tasks.create_task(ask(urlsplit(self._home.urls[replica]).port or 0, "m", "another client's"))
        return per_s

    def _stolen(self, tasks: asyncio.TaskGroup, secret: str) -> float:
        per_s = self._home.stolen.get(secret, 0.0)
        if per_s:
            tasks.create_task(ask(urlsplit(self._served.url).port or 0, "m", secret))
        return per_s

    async def _count(self, name: str) -> None:
        phase = self._phase
        failed = await ask(urlsplit(self._served.url).port or 0, "m", self._home.secrets[name]) != 200
        if name != "team-a":  # the cause of the trouble
            return
        if phase == "trouble":
            self._played.asked += 1
            self._played.failed += failed
        elif phase == "over":
            self._played.asked_after += 1
            self._played.failed_after += failed


@contextlib.contextmanager
def _folder(parent: Path, night: Night) -> Iterator[Path]:
    """Give the folder of a night; for one that needs a small disk, a file system in memory."""
    folder = parent / re.sub(r"\W+", "-", night.name.lower())
    folder.mkdir()
    if not night.small:
        yield folder
        return
    mount, umount = shutil.which("mount") or "", shutil.which("umount") or ""
    subprocess.run([mount, "-t", "tmpfs", "-o", "size=16m", "tmpfs", folder], check=True)
    try:
        yield folder
    finally:
        subprocess.run([umount, "-l", folder], check=True)


@contextlib.contextmanager
def _gateway(parent: Path, night: Night) -> Iterator[tuple[Home, Served]]:
    """Run the replicas and the gateway of a night."""
    with contextlib.ExitStack() as stack:
        folder = stack.enter_context(_folder(parent, night))
        urls = stack.enter_context(replicas(**night.replicas))
        redis = stack.enter_context(redis_server(folder / "redis")) if night.redis else None
        rows: dict[str, Settings] = {
            name: {"name": name, "kind": "vllm", "base_url": url, "model": "m"} for name, url in urls.items()
        }
        keys = [{"name": name, "key": secret} for name, secret in SECRETS.items()]
        with gateway({"keys": keys, **night.settings(rows, folder)}, folder) as served:
            yield Home(folder, urls, dict(night.rates), pid=served.pid, redis=redis), served


def play(nights: Sequence[Night], speed: float) -> list[Played]:
    """Play nights at the same time."""
    with contextlib.ExitStack() as stack:
        parent = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        rules = parent / "rules.yaml"
        rules.write_text(scaled(RULES.read_text(encoding="utf-8"), speed), encoding="utf-8")
        running = [(night, *stack.enter_context(_gateway(parent, night))) for night in nights]
        # a job for each, so that alerts that add up instances do not add up nights
        targets: Mapping[str, Mapping[str, str]] = {
            urlsplit(served.admin_url).netloc: {"job": home.folder.name} for _, home, served in running
        }
        setup = Setup(targets, rules, _SCRAPE_S / speed)
        server = stack.enter_context(prometheus(parent / "prometheus", setup))

        async def main() -> list[Played]:
            async with asyncio.TaskGroup() as tasks:
                playing = [
                    tasks.create_task(Player(night, home, served, server, speed).play())
                    for night, home, served in running
                ]
            return [task.result() for task in playing]

        return run_real(main())


def played_nights(speed: float = 1.0, parts: Sequence[str] = ()) -> list[Played]:
    """Play all nights, or the nights with a part in their section; one needs the rights for a small disk."""
    if PROMETHEUS is None:
        sys.stderr.write("NOT PLAYED: prometheus is missing; apt install prometheus\n")
        return []
    nights = [night for night in NIGHTS if not parts or any(part in night.name for part in parts)]
    if shutil.which("mount") is None or os.geteuid() != 0:
        sys.stderr.write("NOT PLAYED, because a small disk needs root: The disk is full\n")
        nights = [night for night in nights if not night.small]
    return play(nights, speed)


def table(played: Sequence[Played]) -> str:
    """Return the results as a table in Markdown."""

    def time(value: float | None) -> str:
        return "never" if value is None else f"{value:.0f} s"

    times = "verdict after | log line after | alert after | mended after | well after | alert ended after"
    head = f"| | alert | {times} | failed before | failed after |"
    rows = [
        f"| {row.section} | `{row.alert}` | {time(row.verdict_s)} | {time(row.log_s)} | {time(row.alert_s)} | "
        f"{time(row.mended_s)} | {time(row.well_s)} | {time(row.ended_s)} | {row.failed} of {row.asked} | "
        f"{row.failed_after} of {row.asked_after} |"
        for row in played
    ]
    return "\n".join([head, "|---|---|---|---|---|---|---|---|---|---|", *rows])


def main(arguments: Sequence[str]) -> int:
    """Play all nights, or the nights with an argument in their section; print a table; return the exit code."""
    speed = float(arguments[0]) if arguments else 1.0
    played = played_nights(speed, arguments[1:])
    sys.stdout.write(table(played) + "\n")
    for row in played:
        agreed = "all agree" if row.agreed else "not all agree"
        alerts = ", ".join(sorted(row.fired))
        sys.stdout.write(f"{'ok  ' if row.holds else 'FAIL'} {row.section}: {agreed}; alerts {alerts}\n")
    return 0 if played and all(row.holds for row in played) else 1


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
