"""The cost bench: its loads, counters and other proxies work with real processes."""

import asyncio
import math
import os
import sys
from contextlib import AbstractContextManager
from pathlib import Path

import pytest

from streaming_bench.errors import BenchError
from streaming_bench.research.overhead import instructions, peers, processes, proxies, rows, standard
from streaming_bench.research.overhead.backend import STEPPED
from streaming_bench.research.overhead.client import StreamLoad, send
from streaming_bench.research.overhead.counters import CounterReader, hardware_counter
from streaming_bench.research.overhead.processes import KEY, Machine, ProxyProcess, backend, gateway, limited_settings
from streaming_bench.research.overhead.rows import measure

_TASK_CLOCK = (1, 1)  # PERF_TYPE_SOFTWARE, PERF_COUNT_SW_TASK_CLOCK: exists in virtual machines, too
_SMALL = StreamLoad(4, 3, key=KEY)

# Relays each connection to the first replica of its configuration, as the proxy with the same arguments does.
STAND_IN = """#!{python}
import asyncio, json, re, sys

argv = dict(zip(sys.argv[1::2], sys.argv[2::2]))
text = open(argv.get("--config") or argv["-c"]).read()
found = json.loads(text)
if "model_list" in found:
    port = int(argv["--port"])
    target = int(re.search(r"127[.]0[.]0[.]1:([0-9]+)/v1", found["model_list"][0]["litellm_params"]["api_base"])[1])
else:
    ports = [int(each) for each in re.findall(r'"port_value": ([0-9]+)', text)]
    port, target = ports[:2]

async def copy(reader, writer):
    while data := await reader.read(65536):
        writer.write(data)
    writer.close()

async def relay(reader, writer):
    back, front = await asyncio.open_connection("127.0.0.1", target)
    await asyncio.gather(copy(reader, front), copy(back, writer))

async def main():
    async with await asyncio.start_server(relay, "127.0.0.1", port) as server:
        await server.serve_forever()

asyncio.run(main())
"""


@pytest.fixture(autouse=True)
def _short(monkeypatch: pytest.MonkeyPatch) -> None:
    """Shorten loads and waits; leave this process on its cores, because it runs other tests, too."""
    if not Path("/proc/self/schedstat").exists():
        pytest.skip("CPU times are read from /proc")
    monkeypatch.setattr("os.sched_setaffinity", lambda *_: None)
    monkeypatch.setattr(rows, "_WARM_S", 0.0)
    monkeypatch.setattr(rows, "_ALONE", StreamLoad(1, 1, requests=5))
    monkeypatch.setattr(peers, "SHORT", _SMALL)
    monkeypatch.setattr(peers, "_PACED", StreamLoad(4, 3, 2))
    for name, load in (("_WARM", _SMALL), ("_SHORT", _SMALL), ("_LARGE", _SMALL)):
        monkeypatch.setattr(instructions, name, load)
    monkeypatch.setattr(instructions, "_LONE", StreamLoad(1, 2, STEPPED, key=KEY))
    monkeypatch.setattr(instructions, "_LONG", StreamLoad(1, 42, STEPPED, key=KEY))
    monkeypatch.setattr(instructions, "_IDLE_S", 0.1)


def test_every_answer_is_complete() -> None:
    """Each answer through a gateway is complete, paced or not; the gateway uses CPU time; a wrong key fails."""
    machine = Machine()
    with backend(2) as back, gateway(machine, limited_settings(back.ports)) as target:
        for gap_ms in (0, 3):
            found = measure(StreamLoad(8, 5, gap_ms, key=KEY), target, back)
            seen = found.seen
            assert (seen.requests, seen.errors, seen.tokens, found.upstream) == (8, 0, 40, 8)
            assert len(seen.ttfts_s) == 8
            assert found.cpu_s > 0
            assert 0 <= found.user_share <= 1
            assert found.rss_mb > 1
            assert 0 <= found.foreign <= 1
        with pytest.raises(BenchError, match="8 of 8 answers failed"):
            measure(StreamLoad(8, 5, key="another"), target, back)


def test_all_requests_of_a_load_are_sent() -> None:
    """A load with a number of requests ends after these, which its streams share."""
    with backend(1) as back:
        target = ProxyProcess(back.ports[0], 0)
        assert asyncio.run(send(StreamLoad(3, 2, requests=8), target.port)).requests == 8


def test_a_stepped_token_waits_for_the_one_before() -> None:
    """With the gap STEPPED, each token arrives in a read of its own, after the one before was read."""
    with backend(1) as back:
        back.pace(STEPPED)
        reads = []

        def on_token() -> None:
            reads.append(1)
            back.step()

        seen = asyncio.run(send(StreamLoad(1, 30, STEPPED), back.ports[0], on_token))
        assert (seen.requests, seen.tokens) == (1, 30)
        assert len(reads) in (29, 30)  # the end may come with the last token


def test_other_proxies_are_measured_beside_the_gateway(tmp_path: Path) -> None:
    """The table has a line for the gateway and each proxy, which relays to the replicas of its configuration."""
    program = tmp_path / "proxy"
    program.write_text(STAND_IN.replace("{python}", sys.executable), encoding="utf-8")
    program.chmod(0o755)
    figures = list(peers.measure(Machine(), {"envoy": str(program), "litellm": str(program)}, 1))
    assert [each.name for each in figures] == ["gateway", "envoy", "litellm"]
    assert all(each.request.cpu_us > 0 and each.token.cpu_us > 0 and each.idle_mb > 1 for each in figures)
    assert [row[0] for row in peers.table(figures).rows] == ["gateway", "envoy", "litellm"]


def test_a_proxy_that_ends_is_reported_with_its_last_line(tmp_path: Path) -> None:
    """A proxy that does not start fails with the end of its output; a missing one with the way to install it."""
    program = tmp_path / "proxy"
    program.write_text("#!/bin/sh\necho first\necho no licence >&2\n", encoding="utf-8")
    program.chmod(0o755)
    with (
        pytest.raises(BenchError, match=r"envoy did not start on port \d+: no licence"),
        proxies.run(Machine(), "envoy", [1], program=str(program)),
    ):
        pass


def test_nginx_relays(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nginx answers as one process and as two, and with the replicas' TLS; it is omitted if it is not installed."""
    if proxies.find(proxies.NGINX) is None:
        pytest.skip("nginx is not installed")
    machine = Machine()
    with backend(1) as back:
        for ports, tls, wrapper in ((back.ports, False, ()), (back.tls_ports, True, ("env",))):
            with proxies.run(machine, proxies.NGINX, ports, tls=tls, wrapper=wrapper) as target:
                assert measure(_SMALL, target, back).seen.requests == 4
        monkeypatch.setattr(proxies, "find", lambda _: None)
        with proxies.nginx(machine, back.ports) as missing:
            assert missing is None
        with pytest.raises(BenchError, match="nginx is not installed; install it"), proxies.run(machine, "nginx", [1]):
            pass


def test_instructions_are_counted_on_both_event_loops(monkeypatch: pytest.MonkeyPatch) -> None:
    """A gateway on uvloop has a count for each configuration, and is started once more without uvloop."""

    def counter(pid: int) -> AbstractContextManager[CounterReader | None]:
        return hardware_counter(pid, _TASK_CLOCK)

    with counter(os.getpid()) as read:
        if read is None:
            pytest.skip("perf_event_open is not permitted")
    loops = ["uvloop", "asyncio"]
    monkeypatch.setattr(instructions, "event_loop", lambda _: loops.pop(0))
    monkeypatch.setattr(instructions, "has_hardware_counter", lambda: True)
    monkeypatch.setattr(instructions, "hardware_counter", counter)
    monkeypatch.setattr(proxies, "find", lambda _: None)
    monkeypatch.setattr(processes, "_certificate", lambda _: None)  # a fourth start
    found = list(instructions.rows(Machine(), 1))
    both = ["request of 20 tokens", "paced token", "request of 100 kB"]
    assert [each.name for each in found] == [
        *(f"{name}, uvloop" for name in (*both, "request with keys, limits, prices, quotas")),
        *(f"{name}, asyncio" for name in both),
    ]
    assert all(math.isfinite(each.ours) for each in found)  # the CPU time of one token is within the noise
    assert all(each.ours > 0 for each in found if each.name.startswith("request of 100 kB"))


def test_a_gateway_without_keys_answers_from_a_copy_without_bytecode(tmp_path: Path) -> None:
    """The copy has all that a gateway needs, its host is permitted, and a start without bytecode leaves none there."""
    folder = tmp_path / "copy"
    standard.copy_packages(folder)
    with backend(1) as back:
        assert standard.first_answer_s(Machine(), back, folder, standard.WITHOUT_BYTECODE) > 0
    assert not list(folder.rglob("*.pyc"))
