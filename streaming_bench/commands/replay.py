"""`replay`: the gateway's policy over a log of real requests: what a hedge budget, or tiers, would have saved.

Owns options and files; replay/ owns reading, runs and texts. Units: as in arguments.py.
"""

import argparse
import json
from pathlib import Path
from typing import Final

from gateway.config.tiers import PRICES
from streaming_bench import arguments, progress
from streaming_bench.errors import BenchError
from streaming_bench.replay.donors import columns_of
from streaming_bench.replay.frontier import BUDGETS, REQUESTS_MIN, ReplayFrontier, ReplayPlan, replay
from streaming_bench.replay.logged import Contents
from streaming_bench.replay.page import Replayed, data, page
from streaming_bench.replay.reader import GATEWAY, OTHERS, read_log
from streaming_bench.replay.stripped import strip
from streaming_bench.replay.tier_page import tier_data, tier_page
from streaming_bench.replay.tiers import TierPlan, replay_tiers
from streaming_bench.report.optional_plots import INSTALL, drawing_module

_REQUESTS: Final = 20_000
_REPLICAS_MAX: Final = 32
_TARGETS_S: Final = (3.0,)
_ANY_PRICES: Final = (1.0, 4.0)  # many models' answers cost four times as much as prompts


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
    add("--price", type=_prices, metavar="X[,Y]", help="price of a million prompt tokens, and of answer tokens")
    add("--tiers", type=_tiers, metavar="NAME[=X],...", help="tiers by replica, with prices: estimate the lowest bill")
    add("--ttft-target", type=_targets, metavar="TIME,...", help="targets to try with --tiers; default 3s")
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
    attempts = args.tiers is not None
    contents = read_log(
        args.file, args.requests, progress=lambda lines: bar(f"{lines:,} lines", 0.0), attempts=attempts
    )
    model = _model(contents, args.model)
    requests = contents.requests[model]
    log = columns_of(requests, args.replicas)
    if args.tiers is not None:
        _replay_tiers(args, Replayed(contents, model, requests, log, None), bar)
        return
    routes = contents.kind == GATEWAY
    budgets = args.budgets or BUDGETS
    plan = ReplayPlan(args.slo, budgets, args.delay_min, engines=args.engines, routes=routes, seed=args.seed)
    frontier = replay(log, plan, bar) if len(requests) >= REQUESTS_MIN else None
    found = Replayed(contents, model, requests, log, frontier, args.price[0] if args.price else None)
    print("\n".join(page(found)))
    if args.json is not None:
        _write(args.json, json.dumps(data(found), indent=1, allow_nan=False) + "\n")
    if args.plot is not None and frontier is not None:
        print("\n".join(("", *_draw(args.plot, frontier, f"{args.file.name}, {model}: {len(requests):,} requests"))))


def _replay_tiers(args: argparse.Namespace, found: Replayed, bar: progress.Progress) -> None:
    """Estimate the bill of a log with tiers."""
    prompt_price, answer_price = args.price or _ANY_PRICES
    if answer_price is None:
        raise BenchError("--price has no price of answers, which --tiers needs; write both, such as --price 2.50,10")
    plan = TierPlan(args.tiers, args.ttft_target or _TARGETS_S, prompt_price, answer_price, args.seed)
    result = replay_tiers(found.requests, plan, bar)
    print("\n".join(tier_page(found, result, plan)))
    if args.json is not None:
        _write(args.json, json.dumps(tier_data(found, result), indent=1, allow_nan=False) + "\n")


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


def _prices(value: str) -> tuple[float, float | None]:
    prompt, separator, answer = value.partition(",")
    return arguments.positive(prompt), arguments.positive(answer) if separator else None


def _tiers(value: str) -> dict[str, float]:
    found = {}
    for each in value.split(","):
        name, separator, price = each.strip().partition("=")
        factor = arguments.positive(price) if separator else PRICES.get(name)
        if not name or factor is None:
            raise argparse.ArgumentTypeError(f"the price of {each.strip()!r} is unknown; write {name or 'flex'}=0.5")
        found[name] = factor
    return found


def _targets(value: str) -> tuple[float, ...]:
    return tuple(sorted({arguments.duration(each) for each in value.split(",")}))


def _replicas(value: str) -> int:
    count = arguments.count(value)
    if not 2 <= count <= _REPLICAS_MAX:
        raise argparse.ArgumentTypeError(f"{value!r} is not valid; write a number from 2 to {_REPLICAS_MAX}")
    return count
