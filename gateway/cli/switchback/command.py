"""`switchback`: reports the total effect of hedging, by switching it on and off at random at running gateways.

Units: seconds in options, milliseconds in the report.
"""

import argparse
import asyncio
import contextlib
import json
import random
import secrets
import signal
from collections.abc import Sequence

import msgspec

from gateway.cli.parser import ExitCode
from gateway.cli.switchback.experiment import AdminGateway, BlockPlan, Experiment
from gateway.cli.terminal import fail
from gateway.proof.switchback import PAIRS_MIN, Contrast, TotalEffect, random_order, total_effect
from ttft_gateway.estimation.window import REACH_S

_WASHOUT_SHARE = 0.05  # of a block
# The pool's memory of TTFTs: in a shorter block its choices follow what the block before has shown, so that both states
# are alike. In simulation with queues, blocks of 7 s found a quarter of the effect.
LENGTH_S_MIN = REACH_S


def switchback(arguments: argparse.Namespace) -> ExitCode:
    """Run the experiment and print the report."""
    washout_s = _WASHOUT_SHARE * arguments.length if arguments.washout is None else arguments.washout
    if arguments.blocks % 2:
        fail(f"--blocks {arguments.blocks} is odd; write an even number, because blocks are balanced in pairs")
        return ExitCode.USAGE
    if arguments.length < LENGTH_S_MIN:
        fail(
            f"--length {arguments.length:g}s is shorter than the {LENGTH_S_MIN:g} s that the pool remembers of the"
            f" block before; write at least {LENGTH_S_MIN:g}s"
        )
        return ExitCode.USAGE
    if washout_s > arguments.length / 2:
        fail("--washout is longer than half of --length; write a shorter one")
        return ExitCode.USAGE
    seed = secrets.randbelow(2**32) if arguments.seed is None else arguments.seed
    chance = random.Random(seed)
    order = random_order(arguments.blocks // 2, chance.random)
    plan = BlockPlan(secrets.token_hex(4), order, arguments.length, washout_s, arguments.model)
    addresses = list(dict.fromkeys(arguments.admin or [arguments.admin_default]))
    experiment = Experiment(plan, [AdminGateway(address) for address in addresses])
    try:
        interrupted = _run(experiment)
    except KeyboardInterrupt:
        fail("ended at once; hedging may be off: check GET /admin/hedging, and set it with POST /admin/hedging")
        return ExitCode.SECOND_CTRL_C
    effects = [total_effect(model, pairs, chance.random) for model, pairs in sorted(experiment.pairs().items())]
    found = [effect for effect in effects if effect is not None and effect.pairs >= PAIRS_MIN]
    if arguments.json:
        print(json.dumps(_document(experiment, seed, found), indent=2))
    elif found:
        print("\n\n".join(as_text(effect, arguments.length) for effect in found))
    for left in experiment.unrestored:
        fail(f"a switch is not restored: {left}; set it with POST /admin/hedging")
    if experiment.fault is not None:
        fail(f"{experiment.done} of {len(order)} blocks were completed: {experiment.fault}")
    elif interrupted:
        restored = "" if experiment.unrestored else "; every switch is as before"
        fail(f"{experiment.done} of {len(order)} blocks were completed: the command was interrupted{restored}")
    elif not found:
        fail("no model has requests in three pairs of blocks; run longer blocks, or more of them")
    is_done = found and not interrupted and experiment.fault is None and not experiment.unrestored
    return ExitCode.OK if is_done else ExitCode.FAILED


def _run(experiment: Experiment) -> bool:
    """Run an experiment; return True if a signal ended it. A second Ctrl-C ends the command immediately."""

    async def run() -> bool:
        loop, task = asyncio.get_running_loop(), asyncio.current_task()
        assert task is not None
        with contextlib.suppress(NotImplementedError):  # systems without signals
            loop.add_signal_handler(signal.SIGTERM, task.cancel)
        try:
            await experiment.run()
        except asyncio.CancelledError:
            return True
        return False

    return asyncio.run(run())


def _document(experiment: Experiment, seed: int, effects: Sequence[TotalEffect]) -> dict[str, object]:
    plan = experiment.plan
    return {
        "seed": seed,
        "blocks": experiment.done,
        "length_s": plan.length_s,
        "washout_s": plan.washout_s,
        "order": ["on" if on else "off" for on in plan.order],
        "models": msgspec.to_builtins(effects),
    }


def as_text(effect: TotalEffect, length_s: float) -> str:
    """Format one report as a table."""
    requests = effect.requests_off + effect.requests_on
    rows = [
        (f"SLO misses (> {effect.slo_ms:g} ms), %", effect.misses, 100.0),
        ("p50, ms", effect.p50_ms, 1.0),
        ("p95, ms", effect.p95_ms, 1.0),
        ("p99, ms", effect.p99_ms, 1.0),
        (f"mean up to {effect.limit_ms / 1000:g} s, ms", effect.mean_ms, 1.0),
    ]
    money = "" if effect.cost is None else f", money {effect.cost:g}"
    share = f"{effect.hedges / max(1, effect.requests_on):.1%} of {effect.requests_on:,} requests while on"
    blocks = f"{effect.pairs} pairs of blocks of {length_s:g} s, {requests:,} requests"
    return "\n".join(
        (
            f"{effect.model}: total effect of hedging, {blocks}",
            f"{'':<28}{'off':>10}{'on':>10}  {'saved (95% interval)':<34}chance",
            *(_row(*row) for row in rows),
            f"hedges: {effect.hedges:,} ({share}); their cost: {effect.tokens:,} tokens{money}",
        )
    )


def _row(name: str, figure: Contrast, unit: float) -> str:
    if figure.off is None or figure.on is None or figure.saved is None or figure.chance is None:
        return f"{name:<28}{'-':>10}{'-':>10}  too few requests"
    saved = figure.saved
    interval = f"{unit * saved.value:,.4g} ({unit * saved.low:,.4g} to {unit * saved.high:,.4g})"
    return f"{name:<28}{unit * figure.off:>10,.4g}{unit * figure.on:>10,.4g}  {interval:<34}{figure.chance:.1%}"
