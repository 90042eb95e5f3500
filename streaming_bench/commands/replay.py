"""`replay`: the gateway's policy over a log of real requests: the savings that a hedge budget would have bought.

Owns options and files; replay/ owns reading, runs and texts. Units: as in arguments.py.
"""

import argparse
import json
from pathlib import Path
from typing import Final

from streaming_bench import arguments, progress
from streaming_bench.errors import BenchError
from streaming_bench.replay.donors import columns_of
from streaming_bench.replay.frontier import BUDGETS, REQUESTS_MIN, ReplayFrontier, ReplayPlan, replay
from streaming_bench.replay.logged import Contents
from streaming_bench.replay.page import Replayed, data, page
from streaming_bench.replay.reader import GATEWAY, OTHERS, read_log
from streaming_bench.replay.stripped import strip
from streaming_bench.report.optional_plots import INSTALL, drawing_module

_REQUESTS: Final = 20_000
_REPLICAS_MAX: Final = 32


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the options of the command."""
    parser.usage = "%(prog)s FILE [options]"
    add = parser.add_argument
    kinds = "log of ttft-gateway or LiteLLM, other JSON lines, or CSV; also with gzip; - for standard input"
    add("file", type=Path, metavar="FILE", help=kinds)
    add("--model", metavar="NAME", help="model to replay; default: the one with the most requests")
    add("--slo", type=arguments.duration, metavar="TIME", help="time above which a TTFT is slow; default: 5 medians")
    add("--budgets", type=_budgets, metavar="%,...", help="hedge budgets to try; default 1,2,5,10,20")
    add("--requests", type=arguments.count, default=_REQUESTS, metavar="N", help="maximum of requests to replay")
    add("--replicas", type=_replicas, default=2, metavar="N", help="replicas, if the log does not name them")
    add("--engines", action="store_true", help="the replicas are your own engines, such as vLLM")
    add("--delay-min", type=arguments.duration, metavar="TIME", help="hedge_delay_min; default: the gateway's, or less")
    add("--price", type=arguments.positive, metavar="X", help="price of a million prompt tokens")
    add("--seed", type=arguments.count, default=1, metavar="N", help="seed of all random numbers")
    add("--json", type=Path, metavar="FILE", help="file for the results as JSON")
    add("--plot", type=Path, metavar="FILE", help="file for the picture; written as .png and as .svg")
    add("--strip", type=Path, metavar="FILE", help="only write what a replay needs, as CSV without names and texts")


def run(args: argparse.Namespace) -> None:
    """Replay a log, or strip it."""
    bar = progress.bar()
    if args.strip is not None:
        contents = strip(args.file, args.strip, lambda lines: bar(f"{lines:,} lines", 0.0))
        print(f"wrote {sum(contents.models.values()):,} requests to {args.strip}; look at it before you share it")
        return
    contents = read_log(args.file, args.requests, progress=lambda lines: bar(f"{lines:,} lines", 0.0))
    model = _model(contents, args.model)
    requests = contents.requests[model]
    log = columns_of(requests, args.replicas)
    routes = contents.kind == GATEWAY
    budgets = args.budgets or BUDGETS
    plan = ReplayPlan(args.slo, budgets, args.delay_min, engines=args.engines, routes=routes, seed=args.seed)
    frontier = replay(log, plan, bar) if len(requests) >= REQUESTS_MIN else None
    found = Replayed(contents, model, requests, log, frontier, args.price)
    print("\n".join(page(found)))
    if args.json is not None:
        _write(args.json, json.dumps(data(found), indent=1, allow_nan=False) + "\n")
    if args.plot is not None and frontier is not None:
        print("\n".join(("", *_draw(args.plot, frontier, f"{args.file.name}, {model}: {len(requests):,} requests"))))


def _model(contents: Contents, wanted: str | None) -> str:
    names = [name for name, _ in contents.models.most_common() if name != OTHERS]
    if wanted is None:
        return names[0]
    if wanted not in names:
        raise BenchError(f"the log has no model {wanted!r}; name one of: {', '.join(names)}")
    return wanted


def _write(path: Path, text: str) -> None:
    try:
        path.write_text(text, encoding="utf-8", newline="\n")
    except OSError as error:
        raise BenchError(f"cannot write {path}: {error.strerror}; name another file") from error


def _draw(path: Path, frontier: ReplayFrontier, below: str) -> list[str]:
    pictures = drawing_module("streaming_bench.replay.picture")
    if pictures is None:
        return [f"The picture needs matplotlib, which is missing; install it ({INSTALL}) and replay again."]
    return [f"wrote {written}" for written in pictures.draw_replay(path, frontier, below)]


def _budgets(value: str) -> tuple[float, ...]:
    found = sorted({arguments.percent(each) for each in value.split(",")})
    if found[0] <= 0:
        raise argparse.ArgumentTypeError(f"{value!r} contains 0; write budgets above 0")
    return tuple(found)


def _replicas(value: str) -> int:
    count = arguments.count(value)
    if not 2 <= count <= _REPLICAS_MAX:
        raise argparse.ArgumentTypeError(f"{value!r} is not valid; write a number from 2 to {_REPLICAS_MAX}")
    return count
