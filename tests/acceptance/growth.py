"""Measures gateways with many models, keys and streams: start, memory, scrapes, verdicts, reloads, holds of a loop.

    scripts/acceptance growth_models growth_workers growth_keys growth_streams growth_large

runs the parts of this file; each takes at most three minutes on an idle machine. A gateway is a real process
(ticked.py), and one simulated replica answers for all of its replicas. If a process of it ends, the part ends with the
last lines of its standard error. CPU times do not contain other processes. A hold is the smallest of three
measurements, each the longest hold of its time: the system adds some milliseconds to a measurement on a busy machine.
Linux. Units: seconds, megabytes of 10^6 bytes.
"""

import asyncio
import contextlib
import hashlib
import http.client
import json
import os
import re
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, Final, NamedTuple

from checkout import ROOT
from floods import open_files
from raw_http import CHAT, request_bytes
from served import replicas

_WAIT_S_MAX: Final = 120.0
_SETTLE_S_MAX: Final = 8  # workers exchange loads for a minute after a request
_REPLICAS: Final = 3
_CONNECTIONS: Final = 8
_TICKED: Final = ROOT / "tests/acceptance/ticked.py"
_ADDRESSES: Final = {"listen": "127.0.0.1:0", "admin_listen": "127.0.0.1:0"}
_ROUNDS: Final = 6  # of streams, in 100 s; idle connections to replicas are closed after 60
_VERDICT_S: Final = 11.0  # two verdicts
_SHOWN: Final = 1000  # last characters of the standard error of a gateway


_HOLD_MS_MAX: Final = 5.0  # of an event loop


class GatewayEnded(Exception):
    """A process of the gateway has ended; the message contains the last lines of its standard error."""


class Line(NamedTuple):
    """One line of the table."""

    what: str
    must_be: str
    measured: str
    holds: bool


class Grown(NamedTuple):
    """A running gateway.

    Attributes:
        folder: folder of its files.
        port, admin_port: its addresses.
        processes: ids of its processes: the only one, or the top process, the supervisor and the workers.
        start_cpu_s: CPU time of all processes until /readyz was answered with 200.
    """

    folder: Path
    port: int
    admin_port: int
    processes: Sequence[int]
    start_cpu_s: float

    @property
    def looping(self) -> Sequence[int]:
        """The processes with an event loop: all but the top process of several."""
        return self.processes if len(self.processes) == 1 else self.processes[1:]

    def cpu_s(self) -> float:
        """Return the CPU time of all processes."""
        return cpu_s(self.processes)

    def pss_mb(self) -> float:
        """Return the memory of all processes; a page that several share counts once."""
        return sum(map(_pss_mb, self.processes))

    def settle(self) -> None:
        """Wait until the gateway is idle, some seconds at most."""
        before_s = -1.0
        for _ in range(_SETTLE_S_MAX):
            if self.cpu_s() - before_s <= 0.05:
                return
            before_s = self.cpu_s()
            time.sleep(1.0)  # noqa: TID251 # the same

    def held(self, act: Callable[[], object]) -> list[float]:
        """Return the longest hold of each process's loop, while something is done three times."""
        holds = []
        for _ in range(3):
            self._measured()
            act()
            holds.append([float(each["longest_s"]) for each in self._measured()])
        return list(map(min, zip(*holds, strict=True)))

    def _measured(self) -> list[Any]:
        files = {process: self.folder / str(process) for process in self.looping}
        for process, file in files.items():
            file.unlink(missing_ok=True)
            os.kill(process, signal.SIGUSR1)
        self.until(lambda: all(file.exists() for file in files.values()))
        return [json.loads(file.read_text(encoding="ascii")) for file in files.values()]

    def until(self, holds: Callable[[], object]) -> None:
        """Wait for something that the gateway does.

        Raises:
            GatewayEnded: a process of the gateway has ended.
            TimeoutError: it took too long.
        """
        _until(holds, self.check)

    def check(self) -> None:
        """Check that all processes run.

        Raises:
            GatewayEnded: one has ended.
        """
        for process in self.processes:
            if _has_ended(process):
                raise GatewayEnded(f"process {process} of the gateway has ended; {_last_lines(self.folder)}")

    def write(self, settings: Mapping[str, object]) -> None:
        """Replace the configuration."""
        (self.folder / "gateway.yaml").write_text(_yaml({**_ADDRESSES, **settings}), encoding="utf-8")

    def reload(self) -> None:
        """Read the configuration again."""
        status, body = ask(self.admin_port, "POST", "/admin/reload")
        assert status == 200, body


def settings_of(models: int, url: str, **others: object) -> dict[str, object]:
    """Return settings with a number of models."""
    rows = [{"name": f"r{number}", "kind": "vllm", "base_url": url, "model": "m"} for number in range(_REPLICAS)]
    return {"models": [{"name": name, "replicas": rows} for name in names_of(models)], **others}


def names_of(models: int) -> list[str]:
    """Return the names of models."""
    return [f"model-{number:05}" for number in range(models)]


def _yaml(settings: Mapping[str, Any]) -> str:
    """Return settings as YAML with one setting in a line, as people write it."""
    lines = [*(f"{name}: {json.dumps(value)}" for name, value in settings.items() if name != "models"), "models:"]
    for model in settings["models"]:
        lines += [f"  - name: {model['name']}", "    replicas:"]
        for row in model["replicas"]:
            first, *rest = (f"{name}: {value}" for name, value in row.items())
            lines += [f"      - {first}", *(f"        {each}" for each in rest)]
    return "\n".join(lines) + "\n"


@contextlib.contextmanager
def grown(settings: Mapping[str, object], keys: str = "") -> Iterator[Grown]:
    """Run a gateway; `keys` is the content of the file `keys.jsonl`."""
    with tempfile.TemporaryDirectory(prefix="growth") as name:
        folder = Path(name)
        (folder / "keys.jsonl").write_text(keys, encoding="utf-8")
        file = folder / "gateway.yaml"
        file.write_text(_yaml({**_ADDRESSES, **settings}), encoding="utf-8")
        environment = {**os.environ, "NO_COLOR": "1", "TICKS_FOLDER": name, "PYTHONPATH": str(ROOT)}
        command = [sys.executable, str(_TICKED), "serve", "--config", str(file)]
        with (
            (folder / "log").open("wb") as log,
            (folder / "stderr").open("wb") as stderr,
            subprocess.Popen(command, env=environment, stdout=log, stderr=stderr, start_new_session=True) as top,
        ):
            try:
                running = _ready(folder, top.pid)
                try:
                    yield running
                except Exception:
                    running.check()  # its end is the cause
                    raise
            finally:
                _end(top)


def _end(top: "subprocess.Popen[bytes]") -> None:
    """End a gateway with all of its processes."""
    for number in (signal.SIGTERM, signal.SIGKILL):
        with contextlib.suppress(ProcessLookupError):
            os.killpg(top.pid, number)
        with contextlib.suppress(subprocess.TimeoutExpired):
            top.wait(30)
            return


def _ready(folder: Path, top: int) -> Grown:
    def ports() -> list[int]:
        text = (folder / "stderr").read_text(encoding="utf-8")
        return list(map(int, re.findall(r"http://127.0.0.1:(\d+)", text)))

    def check() -> None:
        if _has_ended(top):
            raise GatewayEnded(f"the gateway has ended at its start; {_last_lines(folder)}")

    _until(lambda: len(ports()) >= 2, check)
    port, admin_port = ports()[:2]
    _until(lambda: ask(port, "GET", "/readyz")[0] == 200, check)
    children = Path(f"/proc/{top}/task/{top}/children").read_text(encoding="ascii").split()
    processes = [top, *map(int, children)]
    return Grown(folder, port, admin_port, processes, cpu_s(processes))


def cpu_s(processes: Sequence[int]) -> float:
    """Return the CPU time of processes."""
    ticks = 0
    for each in processes:
        fields = Path(f"/proc/{each}/stat").read_text(encoding="ascii").rpartition(")")[2].split()
        ticks += int(fields[11]) + int(fields[12])
    return ticks / os.sysconf("SC_CLK_TCK")


def _pss_mb(process: int) -> float:
    text = Path(f"/proc/{process}/smaps_rollup").read_text(encoding="ascii")
    found = re.search(r"^Pss: +(\d+) kB", text, re.MULTILINE)
    return int(found[1]) / 1e3 if found else 0.0


def _has_ended(process: int) -> bool:
    """Return True if a process has ended, also if nothing has waited for its end."""
    try:
        return Path(f"/proc/{process}/stat").read_text(encoding="ascii").rpartition(")")[2].split()[0] == "Z"
    except OSError:
        return True


def _last_lines(folder: Path) -> str:
    lines = (folder / "stderr").read_text(encoding="utf-8")[-_SHOWN:]
    return f"its standard error ends with:\n{lines}" if lines else "its standard error is empty"


def _until(holds: Callable[[], object], check: Callable[[], object]) -> None:
    """Wait for something; `check` raises an error if it cannot come.

    Raises:
        TimeoutError: it took too long.
    """
    for _ in range(int(_WAIT_S_MAX / 0.02)):
        with contextlib.suppress(OSError):
            if holds():
                return
        check()
        time.sleep(0.02)  # noqa: TID251 # it looks at another process
    raise TimeoutError(f"the gateway has not done within {_WAIT_S_MAX:g} s what was awaited")


def ask(port: int, method: str, path: str, body: object = None, key: str = "none") -> tuple[int, bytes]:
    """Send a request; return the status and the body of the answer."""
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=60)
    try:
        return _answer(connection, method, path, body, key)
    finally:
        connection.close()


def _answer(
    connection: http.client.HTTPConnection, method: str, path: str, body: object, key: str
) -> tuple[int, bytes]:
    headers = {"content-type": "application/json", "authorization": f"Bearer {key}"}
    connection.request(method, path, None if body is None else json.dumps(body), headers)
    answer = connection.getresponse()
    return answer.status, answer.read()


def chats(port: int, models: Sequence[str], key: str = "none", connections: int = _CONNECTIONS) -> None:
    """Send a short request for each model, over a few connections."""

    def work(asked: Sequence[str]) -> None:
        with contextlib.closing(http.client.HTTPConnection("127.0.0.1", port, timeout=60)) as connection:
            for model in asked:
                body = {"model": model, "messages": [{"role": "user", "content": "hello"}], "max_tokens": 2}
                status, text = _answer(connection, "POST", "/v1/chat/completions", body, key)
                assert status == 200, (status, text)

    with ThreadPoolExecutor(connections) as threads:
        list(threads.map(work, (models[begin::connections] for begin in range(connections))))


def _line(what: str, value: float, most: float, unit: str, more: str = "") -> Line:
    return Line(what, f"<= {most:g} {unit}", f"{value:.3g} {unit}{more}", value <= most)


def _hold(what: str, running: Grown, act: Callable[[], object]) -> Line:
    """Measure the holds of all loops while something is done; the longest counts."""
    holds_ms = [1000 * each for each in running.held(act)]
    first, *others = (f"{each:.1f}" for each in holds_ms)
    more = f"; supervisor {first}, workers {', '.join(others)}" if others else ""
    return _line(f"longest hold: {what}", max(holds_ms), _HOLD_MS_MAX, "CPU ms", more)


def _two_verdicts() -> None:
    time.sleep(_VERDICT_S)  # noqa: TID251 # they come by themselves


def _in_use(running: Grown, count: int, settings: Callable[[int], Mapping[str, object]]) -> Iterator[Line]:
    """Measure three requests for each model, and then scrapes, the verdict, a switch and a reload.

    The requests have one connection: while the process waits for a CPU, requests of several would arrive and be
    handled in one turn of the loop, with one model, too.
    """
    first = "a request for each model, one after the other"
    yield _hold(first, running, lambda: chats(running.port, names_of(count), connections=1))
    running.settle()
    before_s = running.cpu_s()
    page, every = (ask(running.admin_port, "GET", f"/metrics{query}")[1] for query in ("", "?all=1"))
    spent = f"; all=1: {len(every) / 1e6:.1f} MB, {running.cpu_s() - before_s:.1f} CPU s for both"
    yield _line("a scrape", len(page) / 1e6, 2.0, "MB", spent)
    yield Line("memory after three requests a model", "", f"{running.pss_mb():.0f} MB", holds=True)
    yield _hold("a scrape", running, lambda: ask(running.admin_port, "GET", "/metrics"))
    yield _hold("a scrape of everything", running, lambda: ask(running.admin_port, "GET", "/metrics?all=1"))
    yield _hold("two verdicts", running, _two_verdicts)
    yield _hold("a switch of hedging", running, lambda: ask(running.admin_port, "POST", "/admin/hedging", {"on": True}))
    added = iter(range(1, 100))

    def one_more() -> None:
        running.write(settings(count + next(added)))
        running.reload()

    yield _hold("a reload with one model more", running, one_more)
    chats(running.port, names_of(count + 3)[-3:])


def growth_models(count: int = 1000) -> Iterator[Line]:
    """Many models in one process."""
    with replicas(a={"ttft": "1ms", "gap": "1ms", "tokens": 2}) as urls:

        def settings(number: int) -> Mapping[str, object]:
            return settings_of(number, urls["a"], allow_anonymous=True)

        with grown(settings(count)) as running:
            more = f", memory {running.pss_mb():.0f} MB"
            yield _line(f"{count:,} models x {_REPLICAS}: start", running.start_cpu_s, 3.0, "CPU s", more)
            half = "the same with half a core, from the CPU time"
            yield _line(half, running.start_cpu_s / 0.5, 5.0, "s")
            yield from _in_use(running, count, settings)


def growth_workers(count: int = 1000) -> Iterator[Line]:
    """The same with two workers."""
    with replicas(a={"ttft": "1ms", "gap": "1ms", "tokens": 2}) as urls:

        def settings(number: int) -> Mapping[str, object]:
            return settings_of(number, urls["a"], allow_anonymous=True, workers=2)

        with grown(settings(count)) as running:
            yield Line(f"{count:,} models, two workers: start", "", f"{running.start_cpu_s:.1f} CPU s", holds=True)
            yield from _in_use(running, count, settings)


def growth_large() -> Iterator[Line]:
    """Ten thousand models: start, answers and reload."""
    count = 10_000
    with replicas(a={"ttft": "1ms", "gap": "1ms", "tokens": 2}) as urls:
        settings = settings_of(count, urls["a"], allow_anonymous=True)
        with grown(settings) as running:
            more = f", memory {running.pss_mb():.0f} MB"
            yield _line(f"{count:,} models x {_REPLICAS}: start", running.start_cpu_s, 40.0, "CPU s", more)
            chats(running.port, names_of(count))
            running.settle()
            page = ask(running.admin_port, "GET", "/metrics")[1]
            yield _line("a scrape after a request for each", len(page) / 1e6, 2.5, "MB")
            running.write(settings_of(count + 1, urls["a"], allow_anonymous=True))
            before_s = running.cpu_s()
            running.reload()
            yield _line("a reload with one model more", running.cpu_s() - before_s, 20.0, "CPU s")
            chats(running.port, names_of(count + 1)[-1:])
            yield Line("memory", "", f"{running.pss_mb():.0f} MB", holds=True)


def _keys(count: int, *, without: int = -1) -> str:
    rows = (number for number in range(count) if number != without)
    return "".join(
        json.dumps({"name": f"key-{number:06}", "key_sha256": hashlib.sha256(b"secret-%d" % number).hexdigest()}) + "\n"
        for number in rows
    )


def growth_keys(count: int = 100_000) -> Iterator[Line]:
    """A long list of keys."""
    with replicas(a={"ttft": "1ms", "gap": "1ms", "tokens": 2}) as urls:
        settings = settings_of(1, urls["a"], keys_from="keys.jsonl")
        with grown(settings, _keys(1)) as few, grown(settings, _keys(count)) as many:
            pss_mb, added_mb = many.pss_mb(), many.pss_mb() - few.pss_mb()
            more = f", memory {pss_mb:.0f} MB, {added_mb:.0f} MB more than with one"
            yield _line(f"{count:,} keys: start", many.start_cpu_s, 6.0, "CPU s", more)
            yield _cost(few, many)
            last = count - 1

            def status() -> int:
                return ask(many.port, "GET", "/v1/models", key=f"secret-{last}")[0]

            def write(without: int) -> None:
                new = many.folder / ".new"
                new.write_text(_keys(count, without=without), encoding="utf-8")
                new.rename(many.folder / "keys.jsonl")

            def revoked() -> None:
                nonlocal last
                write(last)
                many.until(lambda: status() == 401)
                last -= 1

            yield _hold("a key is removed", many, revoked)
            assert status() == 200
            (many.folder / "keys.jsonl").write_text("{", encoding="utf-8")
            many.until(lambda: b"\nttft_gateway_keys_up 0.0" in ask(many.admin_port, "GET", "/metrics")[1])
            yield Line("a key that is valid while the list is damaged", "200", str(status()), status() == 200)
            yield Line("an unknown one", "401", str(ask(many.port, "GET", "/v1/models")[0]), holds=True)


def growth_streams(count: int = 2000, few: int = 500) -> Iterator[Line]:
    """Many streams at the same time: the memory of each; then rounds of fewer streams, which use it again."""
    open_files(4 * count)
    profile = {"ttft": "500ms", "gap": "3s", "tokens": 6}  # longer than all take to begin
    with (
        replicas(a=profile) as urls,
        grown(settings_of(1, urls["a"], allow_anonymous=True)) as running,
    ):
        asyncio.run(_round(running, 10))
        running.settle()
        before_mb = running.pss_mb()
        peak_mb = asyncio.run(_round(running, count))
        rounds_mb = [asyncio.run(_round(running, few)) for _ in range(_ROUNDS)]
        after_mb = running.pss_mb()  # idle connections to replicas were closed meanwhile
        each = f"; {before_mb:.0f} MB before, {peak_mb:.0f} MB with them"
        yield _line(f"{count:,} streams: each", 1000 * (peak_mb - before_mb) / count, 35.0, "kB", each)
        shown = f"; {', '.join(f'{each:.1f}' for each in rounds_mb)} MB"
        what = f"{few} streams, {_ROUNDS} times: the last round over the first one"
        yield _line(what, rounds_mb[-1] / rounds_mb[0], 1.03, "x", shown)
        yield _line("memory afterwards over all streams", after_mb / peak_mb, 1.03, "x", f"; {after_mb:.0f} MB")


async def _round(running: Grown, count: int) -> float:
    """Read streams to their ends; return the largest memory meanwhile."""
    most_mb = 0.0
    async with asyncio.TaskGroup() as tasks:
        reading = []
        for number in range(count):
            reading.append(tasks.create_task(_read(running.port)))
            if number % 25 == 0:
                await asyncio.sleep(0.1)
        while not all(each.done() for each in reading):
            most_mb = max(most_mb, running.pss_mb())
            await asyncio.sleep(0.5)
    return most_mb


async def _read(port: int) -> None:
    body = {"model": names_of(1)[0], "stream": True, "messages": [{"role": "user", "content": "hello"}]}
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    writer.write(request_bytes(json.dumps(body).encode(), CHAT))
    try:
        await reader.readuntil(b"data: [DONE]")
    finally:
        writer.transport.abort()


def _cost(few: Grown, many: Grown) -> Line:
    """Compare the CPU time of a request with one key and with many, in turns."""
    spent: dict[str, list[float]] = {"few": [], "many": []}
    for _ in range(5):
        for name, running in (("few", few), ("many", many)):
            before_s = running.cpu_s()
            chats(running.port, names_of(1) * 1000, "secret-0")
            spent[name].append(running.cpu_s() - before_s)
    one, other = min(spent["few"]), min(spent["many"])
    measured = f"{other:.3f} ms, {one:.3f} ms with one key"
    return Line("CPU time of a request with many keys", "<= 1.1 x with one", measured, other <= 1.1 * one)
