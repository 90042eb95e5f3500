"""`load`: traffic to any OpenAI-compatible endpoint, measured at the client; with --against, to two in turn.

Owns options, the cost limits and the printed text. The key comes from an environment variable and is never printed.
Units: as in arguments.py; tokens.
"""

import argparse
import asyncio
import json
import os
import sys
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Final
from urllib.parse import urlsplit

from gateway.simulated.quantities import UnitError
from streaming_bench import arguments, progress
from streaming_bench.errors import BenchError
from streaming_bench.load.client import PlannedRequest, Target
from streaming_bench.load.plan import TrafficPlan, estimate_cost, plan_requests, read_trace
from streaming_bench.load.rendering import render
from streaming_bench.load.session import Session, measure
from streaming_bench.load.token_distribution import TOKENS_MAX, token_distribution
from streaming_bench.report.records import Run, write_runs
from streaming_bench.report.results import Results
from ttft_gateway.apis.catalog import CATALOG

_REQUESTS: Final = 200


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the options of the command."""
    parser.usage = "%(prog)s --url URL --model MODEL (--rps R | --concurrency N | --trace FILE) [options]"
    _add_target(parser.add_argument_group("target").add_argument)
    _add_traffic(parser.add_argument_group("traffic"))
    add = parser.add_argument_group("cost limits").add_argument
    add("--requests-max", type=arguments.count, default=1_000, metavar="N", help="reject a plan with more requests")
    add("--tokens-max", type=arguments.count, default=500_000, metavar="N", help="same for tokens, prompts included")
    add("--dry-run", action="store_true", help="print the maximum cost and send nothing")
    parser.add_argument("--out", type=Path, metavar="DIR", help="folder for requests, tables, plots and a manifest")


def _add_target(add: Callable[..., argparse.Action]) -> None:
    url, header = arguments.checked(_url), arguments.checked(_header)
    add("--url", type=url, required=True, help="base URL of the API, such as http://10.0.0.1:8000/v1")
    add("--model", required=True, help="name of the model")
    add("--key-env", metavar="NAME", help="environment variable with the API key")
    add("--kind", choices=sorted(CATALOG), default="openai", help="kind of the endpoint")
    add("--header", action="append", type=header, default=[], metavar="'NAME: VALUE'", help="extra header; repeatable")
    add("--against", type=url, metavar="URL", help="second endpoint, which gets the same requests in turn")
    add("--against-model", metavar="NAME", help="name of the model there, if different")
    add("--against-key-env", metavar="NAME", help="environment variable with its key, if different")
    add("--against-kind", choices=sorted(CATALOG), help="kind of the second endpoint, if different")
    add("--timeout", type=arguments.duration, default="120s", metavar="TIME", help="time limit of an answer")


def _add_traffic(group: argparse._ArgumentGroup) -> None:
    count, tokens = arguments.count, arguments.checked(token_distribution)
    add = group.add_mutually_exclusive_group(required=True).add_argument
    add("--rps", type=arguments.positive, metavar="R", help="open loop: R requests per second, a Poisson process")
    add("--concurrency", type=count, metavar="N", help="closed loop: N requests in flight")
    add("--trace", type=Path, metavar="FILE", help="open loop: CSV with at_s[,prompt_tokens,max_tokens]")
    add = group.add_argument
    add("--requests", type=count, metavar="N", help=f"requests to each endpoint; default {_REQUESTS} or the trace")
    size = "tokens of each prompt: 200, uniform:A,B, lognormal:MEAN,SD or trace:A,B,..."
    add("--prompt-tokens", type=tokens, default="200", metavar="SIZE", help=size)
    add("--max-tokens", type=tokens, default="64", metavar="SIZE", help="maximum tokens of each answer")
    shared = arguments.checked(_shared)
    add("--shared-tokens", type=shared, default=0, metavar="N", help="tokens of a prefix common to all prompts")
    fields = arguments.checked(_fields)
    add("--extra-body", type=fields, default={}, metavar="JSON", help="object of additional fields of each request")
    add("--block", type=count, default=50, metavar="N", help="requests per turn with --against")
    add("--seed", type=int, default=1, metavar="N", help="seed of times, lengths and words")


def run(args: argparse.Namespace) -> None:
    """Estimate the cost, send the requests and print the results."""
    trace = read_trace(args.trace) if args.trace else ()
    traffic = TrafficPlan(
        requests=args.requests or len(trace) or _REQUESTS,
        rate_per_s=args.rps,
        prompt_tokens=args.prompt_tokens,
        max_tokens=args.max_tokens,
        shared_tokens=args.shared_tokens,
        block=args.block,
        seed=args.seed,
    )
    requests, targets = plan_requests(traffic, trace), _targets(args, os.environ)
    cost = estimate_cost(requests, len(targets))
    print(f"{cost} ({' and '.join(_shown(target) for target in targets.values())})", file=sys.stderr)
    objection = cost.objection(args.requests_max, args.tokens_max)
    if args.dry_run:
        print(objection or "nothing was sent: --dry-run", file=sys.stderr)
        return
    if objection is not None:
        raise BenchError(objection)
    results = Results(args.out, args.argv, args.seed) if args.out else None
    bar = progress.bar()
    session = Session(targets, requests, args.concurrency, args.extra_body, args.tokens_max, bar)
    with asyncio.Runner() as runner:
        outcome = runner.run(measure(session))
    if outcome.ended_early:
        print(f"\nended early ({outcome.ended_early}); the results so far:", file=sys.stderr)
    _check_answered(outcome.runs, targets)
    for found, target in zip(outcome.runs, targets.values(), strict=True):
        found.facts |= {"target": _shown(target), "model": target.model}
    small_print = _small_print(args, requests)
    runs = outcome.runs if results is None else write_runs(results, outcome.runs)
    print("\n".join(render(results, runs, small_print)))
    if results is not None:
        results.close(kind="load", small_print=small_print, ended_early=outcome.ended_early)
        print(f"\nwrote {results.folder}: see tables.md; manifest.json lists all files")


def _check_answered(runs: Sequence[Run], targets: Mapping[str, Target]) -> None:
    failed = {_shown(targets[run.name]): Counter(record.error for record in run.records) for run in runs}
    if any(failed.values()) and not any(errors[""] for errors in failed.values()):
        counts = (f"{url}: {count:,} x {error}" for url, errors in failed.items() for error, count in errors.items())
        raise BenchError(f"no request was answered ({'; '.join(counts)}); docs/bench.md explains the classes")


def _targets(args: argparse.Namespace, environment: Mapping[str, str]) -> dict[str, Target]:
    headers = tuple(args.header)
    key = _key(args.key_env, environment)
    targets = {"endpoint": Target(args.url, args.model, key, args.kind, headers, args.timeout)}
    if args.against:
        key = _key(args.against_key_env, environment) if args.against_key_env else key
        model, kind = args.against_model or args.model, args.against_kind or args.kind
        targets["against"] = Target(args.against, model, key, kind, headers, args.timeout)
    return targets


def _key(name: str | None, environment: Mapping[str, str]) -> str:
    if name is None:
        return ""
    key = environment.get(name, "")
    if not key.isascii() or not key.isprintable() or not key:
        raise BenchError(
            f"the environment variable {name} is unset, empty or not printable ASCII; set it, or omit --key-env"
        )
    return key


def _shown(target: Target) -> str:
    url = urlsplit(target.url)
    return f"{url.scheme}://{url.netloc.rpartition('@')[2]}{url.path}"


def _small_print(args: argparse.Namespace, requests: Sequence[PlannedRequest]) -> str:
    how = f"{args.concurrency} in flight" if args.concurrency else f"{args.rps:g} requests/s" if args.rps else "a trace"
    lengths = f"prompts of {args.prompt_tokens.text}, answers of at most {args.max_tokens.text} tokens"
    return f"{len(requests):,} requests, {how}, {lengths}, seed {args.seed}"


def _url(text: str) -> str:
    url = urlsplit(text)
    if url.scheme not in ("http", "https") or not url.hostname or url.query or url.fragment:
        raise UnitError(f"{text!r} is not a base URL; write the base URL of the API, such as http://10.0.0.1:8000/v1")
    if url.username is not None:
        raise UnitError("the URL contains a user name or password; pass the key with --key-env")
    return text.rstrip("/")


def _header(text: str) -> tuple[str, str]:
    name, colon, value = text.partition(":")
    if not colon or not name.isascii() or not text.isprintable() or not name.replace("-", "").isalnum():
        raise UnitError("write a header as 'name: value'")
    return name.lower(), value.strip()


def _shared(text: str) -> int:
    if not text.isascii() or not text.isdecimal() or int(text) > TOKENS_MAX:
        raise UnitError(f"{text!r} is not valid; write a whole number up to {TOKENS_MAX:,}")
    return int(text)


def _fields(text: str) -> dict[str, object]:
    try:
        found = json.loads(text)
    except ValueError as error:
        raise UnitError(f"{text!r} is not JSON: {error}") from error
    if not isinstance(found, dict):
        raise UnitError(f"""{text!r} is not an object; write a JSON object such as '{{"temperature": 0}}'""")
    return found
