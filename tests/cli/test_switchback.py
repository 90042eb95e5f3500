"""`ttft-gateway switchback`: the experiment in virtual time over pretended gateways, and the errors of the command."""

import asyncio
import itertools
import random
from collections.abc import Callable, Coroutine, Mapping, Sequence

import pytest

from gateway.__main__ import main
from gateway.cli.parser import ExitCode
from gateway.cli.switchback.command import as_text
from gateway.cli.switchback.experiment import AdminGateway, BlockPlan, Experiment
from gateway.proof.blocks import BlockReport, ModelCounts
from gateway.proof.switchback import random_order, total_effect
from running import run_virtual

_OFF_BIN, _ON_BIN = 3000, 2700  # 0.18 s and 0.085 s
_ORDER = [True, False, False, True, True, False, True, False]
_PLAN = BlockPlan("x", _ORDER, 100.0, 8.0)


class PretendedGateway(AdminGateway):
    """A gateway with ten requests a second to each model; its TTFTs depend on the switch.

    Attributes:
        faults: number of calls that fail from now on.
        set_s: time and state of each switch of a model.
    """

    def __init__(self, *models: str, on: bool = True) -> None:
        super().__init__("http://a:1")
        self.states = dict.fromkeys(models or ("m",), on)
        self.faults = 0
        self.set_s: list[tuple[float, str, bool]] = []
        self._blocks: list[tuple[str, float]] = []

    async def switches(self) -> Mapping[str, bool]:
        await self._fail()
        return dict(self.states)

    async def switch(self, model: str, *, on: bool) -> None:
        await self._fail()
        self.states[model] = on
        self.set_s.append((asyncio.get_running_loop().time(), model, on))

    async def begin(self, block: str) -> Sequence[BlockReport]:
        await self._fail()
        now_s = asyncio.get_running_loop().time()
        if all(name != block for name, _ in self._blocks):
            self._blocks.append((block, now_s))
        ends = [*(start_s for _, start_s in self._blocks[1:]), now_s]
        return [
            BlockReport(name, {model: self._counts(model, start_s, end_s) for model in self.states})
            for (name, start_s), end_s in zip(self._blocks, ends, strict=True)
        ][-8:]

    def _counts(self, model: str, start_s: float, end_s: float) -> ModelCounts:
        on, count = self._state(model, end_s - 1e-6), round(10 * (end_s - start_s))
        slow = round(count * (0.05 if on else 0.2) * (1 + 0.1 * random.Random(start_s).random()))
        bins = {_ON_BIN: count - slow, _OFF_BIN: slow}
        return ModelCounts(0.1, 10.0, count, slow, 0.1 * count, 10 * on, 1000 * on, 0.5, bins)

    def _state(self, model: str, at_s: float) -> bool:
        states = [on for set_s, name, on in self.set_s if name == model and set_s <= at_s]
        return states[-1] if states else True

    async def _fail(self) -> None:
        await asyncio.sleep(0)
        if self.faults:
            self.faults -= 1
            raise OSError("refused")


def experiment(*gateways: PretendedGateway, plan: BlockPlan = _PLAN) -> Experiment:
    """An experiment on pretended gateways."""
    return Experiment(plan, gateways)


def test_every_block_has_its_state_and_the_switch_is_restored() -> None:
    """A switch is changed a quarter of the washout after the begin of its block, and set back at the end."""
    gateway = PretendedGateway()
    tried = experiment(gateway)
    run_virtual(tried.run())
    changes = [number for number, (before, on) in enumerate(itertools.pairwise([True, *_ORDER])) if before is not on]
    expected = [(100.0 * number + 2.0, "m", _ORDER[number]) for number in changes]
    assert gateway.set_s == [*expected, (pytest.approx(808.0), "m", True)]
    assert (tried.fault, tried.unrestored, tried.done) == (None, [], 8)
    (pairs,) = tried.pairs().values()
    assert [(pair.off.requests, pair.on.requests) for pair in pairs] == [(920, 920)] * 4  # without the washout
    assert all(pair.off.misses > pair.on.misses for pair in pairs)


def test_several_gateways_are_switched_together() -> None:
    """Their counts add up; every model is switched, and one that was off is off again."""
    gateways = [PretendedGateway("m", "n"), PretendedGateway("m")]
    gateways[0].states["n"] = False
    tried = experiment(*gateways)
    run_virtual(tried.run())
    assert (tried.fault, tried.unrestored) == (None, [])
    assert [gateway.states for gateway in gateways] == [{"m": True, "n": False}, {"m": True}]
    assert {model: pairs[0].on.requests for model, pairs in tried.pairs().items()} == {"m": 1840, "n": 920}


def test_one_model() -> None:
    """The switches of the others are not touched."""
    gateway = PretendedGateway("m", "n")
    run_virtual(experiment(gateway, plan=BlockPlan("x", _ORDER, 100.0, 8.0, "m")).run())
    assert {model for _, model, _ in gateway.set_s} == {"m"}


def after(
    at_s: float, act: Callable[[asyncio.Task[None]], object], tried: Experiment
) -> Coroutine[object, object, None]:
    """Do something to a running experiment."""

    async def run() -> None:
        async with asyncio.TaskGroup() as tasks:
            task = tasks.create_task(tried.run())
            asyncio.get_running_loop().call_later(at_s, act, task)

    return run()


def test_an_interruption_restores_the_switch_and_keeps_complete_pairs() -> None:
    """Ctrl-C in the sixth block: hedging is on again, and two pairs are complete."""
    gateway = PretendedGateway()
    tried = experiment(gateway)
    run_virtual(after(550.0, asyncio.Task.cancel, tried))
    assert (gateway.states, tried.unrestored) == ({"m": True}, [])
    assert [len(pairs) for pairs in tried.pairs().values()] == [2]


def test_the_switch_of_an_operator_is_left_alone() -> None:
    """Hedging is switched off in an incident, in a block that has it: the experiment ends, and does not undo that."""
    gateway, other = PretendedGateway(), PretendedGateway()
    tried = experiment(gateway, other)
    run_virtual(after(350.0, lambda _: gateway.states.update(m=False), tried))
    assert (gateway.states, other.states) == ({"m": False}, {"m": True})
    assert tried.fault is not None
    assert "the switch of m at http://a:1 is off, which this command did not set" in tried.fault
    assert tried.unrestored == ["m at http://a:1: changed by another operator"]


def test_a_gateway_that_is_away_for_a_moment_is_asked_again() -> None:
    """Two failed calls end nothing."""
    gateway = PretendedGateway()
    tried = experiment(gateway)
    run_virtual(after(150.0, lambda _: setattr(gateway, "faults", 2), tried))
    assert (tried.fault, tried.done) == (None, 8)


def test_a_gateway_that_stays_away_ends_the_experiment() -> None:
    """The error names the switch that could not be restored."""
    gateway = PretendedGateway()
    tried = experiment(gateway)
    run_virtual(after(250.0, lambda _: setattr(gateway, "faults", 99), tried))
    assert tried.fault == "http://a:1 does not answer (refused); check --admin and the gateway"
    assert tried.unrestored == [f"m at http://a:1: was on; {tried.fault}"]


def test_an_unknown_model_switches_nothing() -> None:
    """The error lists the models."""
    gateway = PretendedGateway("m", "n")
    tried = experiment(gateway, plan=BlockPlan("x", _ORDER, 100.0, 8.0, "gpt"))
    run_virtual(tried.run())
    assert (tried.fault, gateway.set_s) == ("model gpt is unknown at http://a:1; write one of m, n", [])


def test_report() -> None:
    """The table has each figure with its interval, and the hedges and their cost."""
    tried = experiment(PretendedGateway(), plan=BlockPlan("x", random_order(10, random.Random(1).random), 100.0, 8.0))
    run_virtual(tried.run())
    (pairs,) = tried.pairs().values()
    effect = total_effect("m", pairs, random.Random(1).random)
    assert effect is not None
    assert effect.misses.saved is not None
    assert effect.misses.saved.low < 0.15 * 1.05 < effect.misses.saved.high
    text = as_text(effect, 100.0)
    assert text.startswith("m: total effect of hedging, 10 pairs of blocks of 100 s, 18,400 requests\n")
    assert "hedges: 100 (1.1% of 9,200 requests while on); their cost: 10,000 tokens, money 5" in text


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--blocks", "7"], "--blocks 7 is odd; write an even number, because blocks are balanced in pairs"),
        (["--blocks", "4"], "4 is out of range; write a whole number from 6 to 1000"),
        (["--length", "10"], "10 is not a duration of at most 2h; write for example 90s or 10m"),
        (
            ["--length", "5s"],
            "--length 5s is shorter than the 60 s that the pool remembers of the block before; write at least 60s",
        ),
        (["--length", "3h"], "3h is not a duration of at most 2h"),
        (["--length", "1m", "--washout", "40s"], "--washout is longer than half of --length; write a shorter one"),
        (["--admin", "gateway:8081"], "it must begin with http:// or https://"),
        (["--admin", "http://127.0.0.1:1"], "http://127.0.0.1:1 does not answer"),
    ],
)
def test_errors(options: list[str], message: str, capsys: pytest.CaptureFixture[str]) -> None:
    """A wrong option or address has a sentence with an action, and switches nothing."""
    try:
        code: int | str | None = main(["switchback", *options])
    except SystemExit as ended:
        code = ended.code
    assert code in (ExitCode.USAGE, ExitCode.FAILED)
    assert message in capsys.readouterr().err
