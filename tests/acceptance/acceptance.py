"""Measures in full what the tests of this folder show in small; scripts/acceptance runs it.

Over real sockets, with the gateway in a process of its own; replicas and clients share this one. Only `accounts`,
`quotas`, `ledgers` and `outage_table` run in virtual time. Each line has what was measured, what it must be, and
whether it is. Units in the table: milliseconds and megabytes. The parts of ON_REQUEST run only when they are named:
they take minutes, and `silence` installs SDKs. `hosts`, `one_provider`, `outages`, `redis` and `redis_crowd` start
redis-server, `nights` prometheus, and `rolling` haproxy (Debian: apt install redis-server prometheus haproxy).
"""

import contextlib
import os
import signal
import sys
import tempfile
from collections import Counter
from collections.abc import Callable, Iterator
from itertools import starmap
from pathlib import Path
from typing import NamedTuple

from accounted import SHARE, disagreements, traffic
from blamed import blamed
from cut_scenarios import cuts, differing
from deadline_scenarios import SILENT, TIMEOUT_S, blips, silences
from discovery_scenarios import blocked
from error_forms import DEAD
from exchange_cost import CROWDS, KB_PER_S_MAX, exchange_cost
from fault_judge import WRONG
from fault_requests import FAULTS
from fault_scenarios import Results, faulty
from floods import open_files
from growth import growth_keys, growth_large, growth_models, growth_streams, growth_workers
from host_scenarios import HOST_LIMIT, HOST_TROUBLES, busy_hosts, two_hosts
from hot_path import Fleet, cost, longest_slice
from kubernetes_scenarios import changed_pods
from nights import played_nights
from outage_scenarios import OUTAGE_LIMIT, SLOTS, seen_outages
from outages import MOVED_LIMIT, keeps_to, moves_of, outages_of, over_max, run, run_move
from process_scenarios import SCENARIOS, hit
from provider_scenarios import one_quota
from quota_scenarios import SEEDS, books, refused
from race_scenarios import REFUSALS, SURFACING, departures, losers, overridden, percentile, surfaced, tail
from recovery_table import rows, tally
from redis_scenarios import REDIS_LIMIT, TROUBLES, shared
from rolling_scenarios import rolled
from running import run_real
from share_scenarios import EVEN, LIMIT, SKEWED
from share_scenarios import run as run_fleet
from silence_scenarios import nginx_program, silent
from stopping_scenarios import demo_ended, ended_by_the_second
from stream_scenarios import BROKEN, ODD_BYTES, broken, compared, slowed
from streaming_bench.simulation.provider_quota import LimitHeaders
from supervisor_limits import LIMIT as LIMIT_OF_KEY
from supervisor_limits import WORKERS, limited
from tier_scenarios import tiered
from token_scenarios import PER_S, tokens
from ttft_gateway.hedging.charges import Disposition
from unread_scenarios import READERS, UNREAD_BYTES_MAX, unread
from worker_scenarios import broken_by, killed, spread, usage

_SILENCE_S = 240.0
_CALLS = 20
_LATE_S = 1.2
_GAP_S_MAX = 25.0  # a keep-alive is sent after 15 s, and a missing one makes 30 s; a busy machine is some seconds late


class Line(NamedTuple):
    """One line of the table."""

    what: str
    must_be: str
    measured: str
    holds: bool


def tails() -> Iterator[Line]:
    """p99 of the TTFT with a second's stall in 4 % of the answers, and what hedging has cost."""
    bounds: dict[str, tuple[str, Callable[[float], bool]]] = {
        "quantile": ("p99 <= 150", lambda p99_s: p99_s <= 0.150),
        "adaptive": ("p99 <= 150", lambda p99_s: p99_s <= 0.150),
        "off": ("p99 >= 900", lambda p99_s: p99_s >= 0.9),
    }
    for policy, (must_be, holds) in bounds.items():
        seen = run_real(tail(policy, warm=100, count=1000, process=True))
        p50, p95, p99 = (f"{1000 * percentile(seen.ttfts_s, share):.1f}" for share in (0.5, 0.95, 0.99))
        hedges = sum(seen.hedged)
        fine = holds(percentile(seen.ttfts_s, 0.99)) and bool(hedges) == (policy in ("quantile", "adaptive"))
        yield Line(f"TTFT, policy {policy}", must_be, f"p50 {p50}, p95 {p95}, p99 {p99}; {hedges} of 1100 hedged", fine)
        if hedges:
            within = f"{seen.overspent:.1f} over 10 % in the worst stretch of requests"
            yield Line("hedges", f"<= {seen.cap:.1f} over 10 %", within, seen.overspent <= seen.cap)


def closing() -> Iterator[Line]:
    """When a loser's socket is closed."""
    delays_s = run_real(losers(200, process=True))
    measured = f"p50 {1000 * percentile(delays_s, 0.5):.1f}, max {1000 * max(delays_s):.1f} of {len(delays_s)}"
    yield Line("loser closed after the winner's first content", "<= 50", measured, max(delays_s) <= 0.050)


def failures() -> Iterator[Line]:
    """What a client sees of failing backups, and of answers that came instead of a refusal."""
    for fault in SURFACING:
        result = run_real(surfaced(fault, 200, process=True))
        fine = result.seen == 0 and result.backups >= 200
        yield Line(f"a backup's {fault} seen by a client", "0", f"{result.seen} of {result.backups}", fine)
    for fault in REFUSALS:
        result = run_real(overridden(fault, 200, process=True))
        fine = result.seen == 0 and result.backups >= 200
        yield Line(f"a refusal ({fault}) overridden", "0", f"{result.seen} of {result.backups}", fine)


def leaving() -> Iterator[Line]:
    """When attempts are closed after their client has left."""
    for waiting in (True, False):
        for streaming in (True, False):
            seen = run_real(departures(1000, waiting=waiting, streaming=streaming, process=True))
            soon = sum(delay_s <= 0.1 for delay_s in seen.delays_s)
            p50_ms, max_ms = 1000 * percentile(seen.delays_s, 0.5), 1000 * max(seen.delays_s)
            when = "while waiting" if waiting else "in the middle"
            kind = "streaming" if streaming else "not streaming"
            measured = f"{soon} of {len(seen.delays_s)} attempts, p50 {p50_ms:.1f}, max {max_ms:.1f}"
            what = f"{seen.clients} clients gone {when}, {kind}"
            yield Line(what, "all closed in 100", measured, soon == len(seen.delays_s) >= 1000)


def streams() -> Iterator[Line]:
    """Bytes at both ends, and the memory that slow readers cost."""
    result = run_real(compared(200, process=True))
    ways = f"{len(result.manners)} of {len(ODD_BYTES)} ways to write, {result.raced} raced"
    fine = result.equal == 200 and len(result.manners) == len(ODD_BYTES)
    yield Line("equal hashes of 200 parallel streams", "200", f"{result.equal}; {ways}", fine)
    slow = run_real(slowed(16, stall_s=6.0, process=True))
    whole, taken = slow.whole_bytes / 1e6, slow.taken_bytes_max / 1e6
    measured = f"{slow.rss_bytes / 1e6:.1f}; each took {taken:.1f} of {whole:.1f}, the kernel's buffers included"
    yield Line("memory for 16 slow readers", "<= 16", measured, slow.rss_bytes <= 16e6 and taken < whole)
    yield Line("their hashes equal in the end", "16", str(slow.equal), slow.equal == 16)


def stopping() -> Iterator[Line]:
    """How long Ctrl-C takes."""
    for what, took in (
        ("Ctrl-C until the demo with its traffic is gone", demo_ended),
        ("the second Ctrl-C, with a stream of minutes", ended_by_the_second),
    ):
        took_s = max(run_real(took()) for _ in range(5))
        yield Line(what, "<= 2000", f"at most {1000 * took_s:.0f} of 5", took_s <= 2)


def unreading() -> Iterator[Line]:
    """What clients cost that stop reading for 20 s, and what those get who read meanwhile."""
    open_files(8192)  # two sockets a stream at this end
    count, leaving = 1000, 100
    seen = run_real(unread(count, leaving=leaving, stall_s=10.0, stop_s=20.0, process=True))
    stopped = count + leaving
    yield Line(f"of {stopped} streams that nobody reads, upstreams going on", "0", str(seen.moving), seen.moving == 0)
    median, most = percentile(seen.taken_bytes, 0.5), seen.taken_bytes[-1]
    taken = f"median {median / 1e6:.2f}, max {most / 1e6:.2f}"
    bound = f"<= {UNREAD_BYTES_MAX / 1e6:g}"
    yield Line("what an upstream could write, kernels included", bound, taken, most <= UNREAD_BYTES_MAX)
    before, peak, after = (rss / 1e6 for rss in seen.rss_bytes)
    each = (peak - before) / stopped
    memory = f"{each:.2f}; in all {before:.0f} before, {peak:.0f} at the peak, {after:.0f} after"
    yield Line("memory of the gateway for each", "<= 0.5", memory, each <= 0.5)
    p50, p99 = (f"{1000 * percentile(seen.delays_s, share):.1f}" for share in (0.5, 0.99))
    got = f"{seen.missing} of {seen.missing + len(seen.delays_s)}; delay p50 {p50}, p99 {p99}"
    yield Line(f"tokens that {READERS} reading clients missed meanwhile", "0", got, seen.missing == 0)
    yield Line("answers whole, once they are read", str(count), str(seen.whole), seen.whole == count)
    yield Line("cancelled when their clients left", str(leaving), str(seen.cancelled), seen.cancelled == leaving)


def breaking() -> Iterator[Line]:
    """Broken streams that the SDK took for whole ones."""
    for fault in BROKEN:
        raised = run_real(broken(fault, 50, process=True))
        yield Line(f"a stream broken by {fault}: the SDK raises", "50", str(raised), raised == 50)


def accounts() -> Iterator[Line]:
    """What 10,000 requests in virtual time have cost, as everyone tells it, and what hedging has."""
    for seed in range(1, 6):
        seen = traffic(2_000, seed)
        what = f"{seen.hedged} hedged, {seen.left} left, {seen.sent} upstream requests"
        fine = seen.attempts == seen.sent and not disagreements(seen.told) and not seen.totals.under_way
        yield Line(f"accounts, seed {seed}", "each once, all agree", what, fine)
        answers = seen.cost(Disposition.WINNER) + seen.cost(Disposition.FAILED)
        share = seen.cost(Disposition.LOSER) / answers
        yield Line("price of hedging", f"<= {SHARE:.0%} of the spend", f"{share:.1%}", share <= SHARE)


def growth() -> Iterator[Line]:
    """What a request costs among many replicas and models, in calls and in CPU time; and how long a scrape holds on."""
    few = Fleet()
    for what, many, most in (
        ("200 replicas, against 3", Fleet(replicas=200), 1.3),
        ("500 models, against 1", Fleet(models=500), 1.1),
    ):
        calls = cost(many, 1000).calls / cost(few, 1000).calls
        pairs = [(cost(many, 1000, timed=True).cpu_s, cost(few, 1000, timed=True).cpu_s) for _ in range(5)]
        cpu = min(of_many for of_many, _ in pairs) / min(of_few for _, of_few in pairs)
        yield Line(what, f"<= {most:g}x", f"{calls:.2f}x the calls, {cpu:.2f}x the CPU", calls <= most and cpu <= most)
    slice_s = longest_slice(Fleet(models=50), 1500, timed=True).cpu_s
    yield Line("longest slice of a scrape, 50 models of 3", "<= 5 of CPU", f"{1000 * slice_s:.1f}", slice_s <= 0.005)


def recovery() -> Iterator[Line]:
    """Streams that broke at random, and what their clients got."""
    for kind, way in (("compatible", "asked again"), ("simulated", "continued")):
        result = run_real(cuts(1000, kind=kind, process=True))
        measured = f"{result.equal}; {result.by_sdk} of them as the SDK reads them"
        yield Line(f"broken streams equal to whole ones, {way}", "1000", measured, result.equal == 1000)
    result = run_real(differing(1000, process=True))
    measured = f"{result.honest}; {len(result.unequal)} others"
    yield Line("honest errors where replicas differ", "1000", measured, result.honest == 1000)


def discovery() -> Iterator[Line]:
    """CPU time of the loop for one replica more or less, of 50 models with 20 replicas."""
    seen = blocked(models=50, replicas=20, changes=50)
    look_up_ms, change_ms = 1000 * seen.look_up_s, 1000 * seen.change_s
    longest = f"change {change_ms:.1f}, look-up {look_up_ms:.1f} in {seen.changes} changes"
    yield Line("loop blocked by a change of replicas", "<= 5", longest, max(look_up_ms, change_ms) <= 5)


def workers() -> Iterator[Line]:
    """Connections, failures and signals with several workers; their memory and CPU compared with one process."""
    for count, pause_s in ((8, 0.05), (32, 0.0), (256, 0.0), (256, 0.005)):
        seen = run_real(spread(8, count, pause_s=pause_s))
        measured = f"{seen.ratio:.2f}x: {seen.most} of {seen.mean:g}"
        how = "one by one" if pause_s else "at once"
        yield Line(f"busiest of 8 workers, {count} connections {how}", "<= 1.1x the mean", measured, seen.ratio <= 1.1)
    loss = run_real(killed(4, 32))
    measured = f"{loss.broken} of {loss.streams} streams; {loss.refused} of {loss.tried} requests failed"
    fine = loss.broken == loss.own and loss.refused == 0
    yield Line(f"a killed worker with {loss.own} streams", f"{loss.own} broken, 0", measured, fine)
    yield Line("until it was replaced", "<= 2000", f"{1000 * loss.back_s:.0f}", loss.back_s <= 2)
    for number in (signal.SIGHUP, signal.SIGTERM):
        broken_streams = run_real(broken_by(number, 2, 100))
        yield Line(f"100 streams broken by {number.name}", "0", str(broken_streams), broken_streams == 0)
    one, two = run_real(usage(1, 3.0, 8)), run_real(usage(2, 3.0, 16))  # a loop with more clients works in larger turns
    most = max(two.pss_bytes) / 1e6
    yield Line("memory of a worker after load", "<= 35", f"{most:.1f}", most <= 35)
    ratio = two.cpu_s / one.cpu_s
    measured = f"{ratio:.2f}x: {1e6 * two.cpu_s:.0f} and {1e6 * one.cpu_s:.0f} us"
    yield Line("CPU of a request, 8 clients a process, 2 workers, 1", "<= 1.1x", measured, ratio <= 1.1)
    measured = f"{two.per_s:.0f} and {one.per_s:.0f}, client and replica on the same cores"
    yield Line("requests a second, 2 workers and 1 process", "no bound", measured, True)


def quotas() -> Iterator[Line]:
    """429s with quotas at 1.12 times the traffic, hedged against not hedged on the same requests, in virtual time."""
    for others in (0.0, 0.5):
        for headers in LimitHeaders:
            for seed in SEEDS:
                seen = refused(headers, others=others, requests=10_000, seed=seed)
                hedged, off = seen["adaptive"], seen["off"]
                ours, theirs = (100 * (one.primaries + one.failed) / one.requests for one in (hedged, off))
                fine = hedged.hedges == 0 and (ours <= theirs + 0.1 or theirs >= 1)
                what = f"429s, headers {headers.value}, others {others:g}, seed {seed}"
                measured = (
                    f"{hedged.hedges:.0f} of hedges; primaries {ours:.2f} %, off {theirs:.2f} %; "
                    f"{100 * hedged.hedged:.1f} % hedged, p99 {1000 * hedged.p99_s:.0f}, off {1000 * off.p99_s:.0f}"
                )
                yield Line(what, "0; <= off + 0.1 %", measured, fine)


def ledgers() -> Iterator[Line]:
    """Tokens of 10,000 requests with hedges, cuts, errors and clients that leave, in the books of their quota."""
    for seed in SEEDS:
        seen = books(10_000, seed)
        reserved, settled, released = seen.totals
        measured = f"{reserved:,} = {settled:,} + {released:,}; {seen.hedges} hedges"
        yield Line(f"reserved = settled + released, seed {seed}", "to the token", measured, seen.totals.under_way == 0)


def nights() -> Iterator[Line]:
    """Ten things that go wrong at night, seen and mended by the runbook (docs/evaluation/runbook.md)."""
    for night in played_nights():
        measured = f"alert {night.alert_s}, mended {night.mended_s}, alert ended {night.ended_s}"
        yield Line(night.section, "seen and mended", measured, night.holds)


def silence() -> Iterator[Line]:
    """What SDKs get of streams in which the model thinks for four minutes and sends nothing; seconds."""
    if nginx_program() is None:
        sys.stderr.write("NGINX IS NOT INSTALLED, so no stream runs through it: apt-get install nginx-light\n")
    for seen in run_real(silent(_SILENCE_S)):
        reader = seen.reader
        what = f"{reader.api} by {reader.client}, {reader.upstream}{', nginx' * seen.proxied}"
        whole = "whole" if seen.whole else seen.failure[-300:] or "not whole"
        measured = f"{whole}; calls {seen.calls}, connections {seen.connections}, longest gap {seen.gap_s:.2f}"
        fine = seen.whole and seen.calls == seen.connections == 1 and seen.gap_s <= _GAP_S_MAX
        yield Line(what, f"1 call, gap <= {_GAP_S_MAX:g}", measured, fine)


def redis() -> Iterator[Line]:
    """Results of four processes at twice a limit that they share, with a server that goes away."""
    for trouble in TROUBLES:
        with tempfile.TemporaryDirectory() as folder:
            seen = run_real(shared(Path(folder), trouble))
        over = f"over by {seen.over:.1f} of {REDIS_LIMIT}, {100 * seen.admitted:.0f} % of what is allowed"
        waited = f"longest wait {1000 * seen.wait_s:.0f}, {seen.errors} errors, back after {1000 * seen.back_s:.0f}"
        fine = seen.over <= 0.01 * REDIS_LIMIT and seen.errors == 0 and seen.wait_s <= 0.11 and seen.back_s <= 2.0
        must_be = "over <= 1 %, back <= 2000"
        yield Line(f"a shared limit, Redis {trouble}", must_be, f"{over}; {waited}", fine and seen.admitted >= 0.9)


def outages() -> Iterator[Line]:
    """Results of fleets over outages of a real server, of a tenth of a window to three windows."""
    for lengths, sizes in (((0.1, 1), (1, 8)), ((0.1, 1), (2, 4)), ((2, 3), (1, 8)), ((2, 3), (2, 4))):
        with tempfile.TemporaryDirectory() as folder:
            found = run_real(seen_outages(Path(folder), outages_of(lengths, sizes)))
        for seen in found:
            outage, outcome, kept = seen.outage, seen.outcome, "kept" if seen.outage.keeps else "lost"
            what = f"{outage.windows:g} windows, {kept}, {outage.gateways} gateways, load {outage.load:g}"
            refused = f"refused with room {outcome.refused_away} away, {outcome.refused_back} after"
            used = f"{seen.slots} of {SLOTS} slots; {seen.errors} errors"
            measured = f"over {outcome.over:.1f} of {OUTAGE_LIMIT}; {refused}; {used}"
            yield Line(what, "over <= 1 % + gateways", measured, seen.holds)


def outage_table() -> Iterator[Line]:
    """Results of fleets over outages of a tenth of a window to twenty windows, and of traffic that moves with one."""
    limit = 120
    for outage in outages_of((0.1, 0.3, 1, 2, 3, 7, 20), (1, 2, 4, 8)):
        found = run(outage, limit)
        kept = "kept" if outage.keeps else "lost"
        what = f"{outage.windows:g} windows, {kept}, {outage.gateways} gateways, load {outage.load:g}"
        measured = (
            f"over {found.over:.1f} of {limit}; refused with room {found.refused_away} away, {found.refused_back} after"
        )
        yield Line(what, "over <= 1 % + gateways", measured, keeps_to(limit, outage, found))
    for move in moves_of((2, 4, 8, 16)):
        found = run_move(move, MOVED_LIMIT)
        used = "never" if move.used_s is None else f"{move.used_s:g} s before"
        what = f"{move.load:g} x moves from {move.first} of {move.gateways} after {move.first_s:g} s, used {used}"
        measured = f"over {found.over:.1f} of {MOVED_LIMIT}; refused with room {found.refused_back} after"
        fine = max(found.over, found.refused_back) <= over_max(MOVED_LIMIT, move.gateways)
        yield Line(what, "over <= 1 % + gateways", measured, fine)


def redis_crowd() -> Iterator[Line]:
    """Costs of fleets for one server; for a quiet machine."""
    for fleet, most_s in CROWDS:
        with tempfile.TemporaryDirectory() as folder:
            cost = exchange_cost(Path(folder), fleet)
        server, kb_per_s = 1e6 * cost.server_s, cost.bytes_per_s / 1000
        size = f"{cost.batch_bytes / 1000:.1f} kB, {cost.batches_per_s:.1f} a second, {kb_per_s:.1f} kB/s"
        measured = f"{server:.0f} us of the server, {1e6 * cost.gateway_s:.0f} us of the gateway, {size}"
        is_fine = cost.server_s <= most_s and kb_per_s <= KB_PER_S_MAX
        yield Line(f"a batch of {fleet}", f"<= {1e6 * most_s:.0f} us, {KB_PER_S_MAX} kB/s", measured, is_fine)


def hosts() -> Iterator[Line]:
    """Results of two hosts with two workers at twice a limit and a quota, with a server that goes away."""
    for trouble in HOST_TROUBLES:
        with tempfile.TemporaryDirectory() as folder:
            seen = run_real(two_hosts(Path(folder), trouble))
        over = f"over by {seen.over:.1f} of {HOST_LIMIT}, {100 * seen.admitted:.0f} % of what is allowed"
        provider = f"{seen.provider_429s} 429s of the provider at {100 * seen.quota_used:.0f} % of its quota"
        waited = f"slowest answer {1000 * seen.wait_s:.0f}, {seen.errors} errors, back after {1000 * seen.back_s:.0f}"
        most = 0.01 * HOST_LIMIT
        fine = seen.over <= most and seen.provider_429s <= most and seen.errors == 0
        yield Line(f"two hosts, Redis {trouble}", "over <= 1 %, 0 errors", f"{over}; {provider}; {waited}", fine)
    with tempfile.TemporaryDirectory() as folder:
        busy = run_real(busy_hosts(Path(folder), 8, 30))
    measured = f"{busy.aways:.0f}; {busy.refused} of it 429, {busy.errors} errors; load {busy.load:.0f}"
    fine = not busy.aways and not busy.refused and not busy.errors
    yield Line("8 hosts beside 30 spinning processes: Redis found away", "0", measured, fine)


def faults() -> Iterator[Line]:
    """Results of some 29,000 answers under 24 kinds of faults together; fault_run.py asks for 20,000 of each kind."""
    seen = Results()
    for seed in range(1, 4):
        seen.add(run_real(faulty(list(FAULTS), 400, seed=seed)))
        for name, raw in seen.examples.items():  # the log is all that a nightly run keeps
            sys.stderr.write(f"{name}, seed {seed}: {raw!r}\n")
        seen.examples.clear()
    for name, counts in (seen.by(0) | seen.by(1)).items():
        yield _judged(name, counts)
    yield _judged("all answers", sum(seen.by(0).values(), Counter[str]()))
    yield Line("bugs reported by the gateway", "0", "; ".join(seen.troubles) or "0", not seen.troubles)


def _judged(what: str, results: Counter[str]) -> Line:
    shown = ", ".join(f"{number} {result}" for result, number in results.most_common())
    return Line(what, "none is wrong", shown, not any(results[result] for result in WRONG))


def outcomes() -> Iterator[Line]:
    """Results of streams that break at a primary, with the fallback's help; recovery_table.py plays more of them."""
    for api in dict.fromkeys(row.api for row in rows()):
        for form in dict.fromkeys(row.form for row in rows()):
            seen = tally([row for row in rows([form]) if row.api is api], [1])
            measured = f"{seen.right} right, {len(seen.wrong)} wrong, at most {1000 * seen.later_s:.0f} after the break"
            if seen.right or seen.wrong:
                yield Line(f"{api.value}, {form}", "none is wrong", measured, not seen.wrong)


def blame() -> Iterator[Line]:
    """Two mistakes a second of one caller next to 200 requests of another one, and dead accounts of all forms."""
    with tempfile.TemporaryDirectory() as folder:
        seen = run_real(blamed(Path(folder), mistakes=50, careful=4, every_s=0.12))
    for name, replicas in seen.careful.items():
        moved = replicas.total() - replicas["a"] - replicas["b"]
        changes = seen.changes[f"mistake.{name}"]
        measured = f"{moved} of {replicas.total()} moved, {changes} changes; {dict(seen.mistaken[name])}"
        yield Line(f"mistakes: {name}", "0 moved, 0 changes", measured, not moved and not changes)
    for name in DEAD:
        errors, asked, is_named = seen.dead[name], seen.asked[name], name in seen.named
        measured = f"{errors} errors, {asked} requests, {'' if is_named else 'not '}named"
        yield Line(f"dead: {name}", "0 errors, <= 3, named", measured, not errors and asked <= 3 and is_named)


def deadlines() -> Iterator[Line]:
    """What the OpenAI SDK with a timeout of 0.8 s gets of a silent replica, and with its defaults of a blip."""
    for since, replica in SILENT.items():
        ends = run_real(silences(replica, _CALLS))
        times_s = [ended.silent_s for ended in ends]
        fine = sum(ended.error is not None and TIMEOUT_S <= ended.silent_s <= _LATE_S for ended in ends)
        errors = ", ".join(f"{number} {error}" for error, number in Counter(ended.error for ended in ends).items())
        measured = f"{fine} of {_CALLS}: {1000 * min(times_s):.0f} to {1000 * max(times_s):.0f}; {errors}"
        yield Line(f"exception of a replica silent {since}", "800 to 1200", measured, fine == _CALLS)
    answered = sum(ended.error is None for ended in run_real(blips(_CALLS, process=True)))
    yield Line("answered while both replicas fail for 200", f"{_CALLS}", f"{answered}", answered == _CALLS)


def kubernetes() -> Iterator[Line]:
    """Requests while the pods of a Service change sixty times, and the API server is in trouble."""
    seen = run_real(changed_pods())
    lost = seen.results.total() - seen.results["whole"]
    measured = f"{lost} lost of {seen.results.total()}, {seen.second_attempts} with a second attempt"
    yield Line(f"requests over {seen.changes} changes of a Service", "0 lost", measured, lost == 0)
    in_use = ", ".join(sorted(seen.in_use))
    yield Line("pods in use afterwards", ", ".join(sorted(seen.expected)), in_use, seen.in_use == seen.expected)


def rolling() -> Iterator[Line]:
    """Streams through HAProxy while two gateways restart one after the other."""
    yield from starmap(Line, run_real(rolled()).lines())


def processes() -> Iterator[Line]:
    """Results of processes that are killed, stopped, replaced and reloaded; restarts with one worker, too."""
    for workers, name in (*((2, name) for name in SCENARIOS), (1, "hot restart"), (1, "reload")):
        seen = run_real(hit(name, workers))
        yield Line(f"{name}, workers {workers}", "new: 0 failed, 0 late", str(seen), seen.holds)
    for load in (0.5, 2.0):
        kept = run_real(limited(load))
        what = f"limits at {load:g} x, supervisor SIGKILL 3 x"
        yield Line(what, f"over <= {0.01 * LIMIT_OF_KEY + WORKERS:g}, 0 refused", str(kept), kept.holds)


def sharing() -> Iterator[Line]:
    """Four processes with one limit of 3,000 requests a minute, while their engine works and while it does not."""
    for load, shares, trouble in ((2.0, EVEN, "works"), (4.0, SKEWED, "works")):
        seen = run_fleet(load, shares, trouble)
        what = f"{load:g} x the limit, traffic {max(shares):.0%} in one of 4 processes"
        measured = f"{seen.share:.1%} of what is allowed, over by {seen.over:.1f}"
        yield Line(what, "over <= 3, >= 98 %", measured, seen.over <= 3 and seen.share >= 0.98)
    for trouble in ("killed", "hung", "slow"):
        seen = run_fleet(4.0, EVEN, trouble)
        assert seen.back_s is not None
        measured = f"over by {seen.over:.1f}, {seen.errors} errors, wait {1000 * seen.longest_wait_s:.0f} ms"
        fine = seen.over <= 0.01 * LIMIT and not seen.errors and seen.longest_wait_s <= 0.1 and seen.back_s <= 2
        yield Line(
            f"engine {trouble} for 8 s", "over <= 30, wait <= 100", f"{measured}, back after {seen.back_s:.2f} s", fine
        )


def one_provider() -> Iterator[Line]:
    """429s of a provider with one quota for two gateways, with and without sharing; ten runs of 40 s that share."""
    runs = [(True, seed, headers, part) for seed in range(1, 6) for headers, part in ((False, 0.5), (True, 0.9))]
    for shared_quota, seed, headers, part in (*runs, (False, 1, False, 0.5), (False, 1, True, 0.9)):
        with tempfile.TemporaryDirectory() as folder:
            seen = run_real(one_quota(Path(folder), shared=shared_quota, headers=headers, part=part, seed=seed))
        how = "shared" if shared_quota else "alone"
        what = f"two gateways {how}, {part:.0%} to one, limits {'' if headers else 'not '}stated"
        measured = f"{seen.limited} 429s, {seen.answered} answers of {seen.allowed:.0f} allowed"
        fine = seen.limited == 0 and seen.answered >= 0.98 * seen.allowed and set(seen.statuses) <= {200, 429}
        yield Line(what, "0, >= 98 %" if shared_quota else "no bound", measured, fine or not shared_quota)


PARTS = (
    tails,
    closing,
    failures,
    leaving,
    streams,
    stopping,
    unreading,
    breaking,
    accounts,
    growth,
    recovery,
    discovery,
    quotas,
    ledgers,
    workers,
    redis,
)


@contextlib.contextmanager
def _without_log() -> Iterator[None]:
    """Discard what a gateway in this process logs."""
    kept, nothing = os.dup(1), os.open(os.devnull, os.O_WRONLY)
    os.dup2(nothing, 1)
    try:
        yield
    finally:
        os.dup2(kept, 1)
        os.close(kept)
        os.close(nothing)


def credentials() -> Iterator[Line]:
    """Tokens that end every two seconds for a minute, and a source of tokens that is in trouble."""
    cases = (
        ("tokens of 2 s", 2, 60.0, ""),
        *((f"source is {each}", 30, 20.0, each) for each in ("down", "slow", "garbage")),
    )
    for name, lifetime_s, for_s, trouble in cases:
        with tempfile.TemporaryDirectory() as folder, _without_log():
            found = run_real(tokens(Path(folder), lifetime_s=lifetime_s, for_s=for_s, trouble=trouble))
        failed = round(for_s * PER_S) - found.statuses[200]
        yield Line(f"{name}: failed requests", "0", f"{failed}, {found.issued} tokens", failed == 0)
        yield Line(f"{name}: outputs with a token", "0", str(found.leaks), found.leaks == 0)


def tiers() -> Iterator[Line]:
    """The bill of a provider with three tiers against the usual one, and the requests above the target."""
    for law, bill_max in (("calm", 0.65), ("usual", 0.9), ("busy", 1.06)):  # 1,200 requests leave much noise
        with _without_log():
            found = run_real(tiered(law, 90.0))
        yield Line(f"tiers, {law} cheap tier: bill", f"<= {bill_max}", f"{found.bill:.2f}", found.bill <= bill_max)
        yield Line(f"tiers, {law} cheap tier: above the target", "<= 2%", f"{found.missed:.2%}", found.missed <= 0.02)
        yield Line(f"tiers, {law} cheap tier: failed", "0", str(found.failed), found.failed == 0)


ON_REQUEST = (
    blame,
    credentials,
    deadlines,
    faults,
    growth_keys,
    growth_large,
    growth_models,
    growth_streams,
    growth_workers,
    hosts,
    kubernetes,
    nights,
    one_provider,
    outage_table,
    outages,
    outcomes,
    processes,
    redis_crowd,
    rolling,
    sharing,
    silence,
    tiers,
)


def main() -> int:
    """Run the parts that are named on the command line, or all of PARTS; returns the exit code."""
    names = {part.__name__: part for part in (*PARTS, *ON_REQUEST)}
    wanted = sys.argv[1:] or [part.__name__ for part in PARTS]
    if unknown := [name for name in wanted if name not in names]:
        sys.stderr.write(f"there is no part {unknown[0]!r}; there are: {', '.join(names)}\n")
        return 2
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))  # processes that were started end, too
    held = True
    for name in wanted:
        for line in names[name]():
            held = held and line.holds
            verdict = "ok  " if line.holds else "FAIL"
            sys.stdout.write(f"{verdict}  {line.what:<52}  {line.must_be:<18}  {line.measured}\n")
            sys.stdout.flush()
    return 0 if held else 1


if __name__ == "__main__":
    raise SystemExit(main())
